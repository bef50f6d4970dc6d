// Command device is the gate on a machine with GPUs. It runs each part of the gate as a process of its own, beside which
// it stands in one folder (bin/gpu, built by make gpu), and writes gpu.json and gpu.txt.
//
//	device [-out folder] [-limit 7m] [-driver libcuda.so.1] [part ...]   the gate, or some of its parts
//	device probe|pair|bandwidth [flags]                                  a part that is in this program
//
// It owns the parts' processes: each has its time, after which it is told to show its stacks and then ended with
// everything that it started. What a part measures and prints it hands to the gate, which owns both result files.
//
// It may import anything of the house; nothing imports it.
//
//	part: running ─▶ passed | failed | absent (exit status 77, or a typed skip);   running ─limit─▶ failed
//
// A part that fails holds no other up. Without a driver or a GPU every part is absent, with the reason, and the exit
// status is 0; it is 1 when any part failed. It relies on NVIDIA's driver, on glibc 2.31 or newer (build.sh) and on /proc.
package main
