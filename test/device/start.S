// The first instructions of the GPU gate's programs, in place of crt1.o of this machine, which would ask for a glibc as
// new as this machine's. They hand main and the stack to the C library as the x86-64 ABI lays them out (System V ABI,
// AMD64 supplement, 3.4.1). There are no constructors to run: Go's runtime needs none.
	.symver __libc_start_main,__libc_start_main@GLIBC_2.2.5
	.globl _start
	.type _start, @function
_start:
	xorl %ebp, %ebp
	movq %rdx, %r9               // what the loader wants called at exit
	popq %rsi                    // argc
	movq %rsp, %rdx              // argv
	andq $-16, %rsp
	pushq %rax
	pushq %rsp                   // the end of the stack
	xorl %r8d, %r8d              // fini
	xorl %ecx, %ecx              // init
	movq main@GOTPCREL(%rip), %rdi
	call *__libc_start_main@GOTPCREL(%rip)
	hlt
	.section .note.GNU-stack,"",@progbits
