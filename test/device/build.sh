#!/bin/sh
# Builds the GPU gate into bin/gpu: x86-64 programs that need NVIDIA's driver and glibc 2.31 or newer, and nothing else.
# Exit status 77, and a typed reason on the last line, where they cannot be built.
set -eu
cd "$(dirname "$0")/../.."
go=${GO:-go}
out=$PWD/bin/gpu
here=$PWD/test/device

[ "$(uname -sm)" = "Linux x86_64" ] || { echo "wrong-arch: the GPU gate is built on Linux on x86-64"; exit 77; }
command -v "${CC:-gcc}" >/dev/null 2>&1 || { echo "no-c-compiler: install gcc and libc6-dev"; exit 77; }

mkdir -p "$out"
rm -f "$out"/*.test "$out"/device "$out"/cuda_copy "$out"/run
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${CC:-gcc}" -c "$here/start.S" -o "$work/start.o"

# Name look-ups are Go's own, without libresolv. glibc.h asks for the functions' old versions, start.S replaces this machine's crt1.o, and the two libraries are where
# those functions were before glibc 2.34.
export CGO_ENABLED=1 GOOS=linux GOARCH=amd64 GOAMD64=v1
export CGO_CFLAGS="-O2 -include $here/glibc.h"
export CGO_LDFLAGS="-O2 -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed"
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
flags="-linkmode=external -extldflags '-nostartfiles $work/start.o' -X main.commit=$commit"

"$go" test -c -tags netgo,osusergo -trimpath -ldflags "$flags" -o "$out/libcuda.test" ./cuda/libcuda
"$go" build -tags netgo,osusergo -trimpath -ldflags "$flags" -o "$out/device" ./test/device
"$go" build -tags netgo,osusergo -trimpath -ldflags "$flags" -o "$out/cuda_copy" ./examples/cuda_copy
cp "$here/gpu.sh" "$out/run"
chmod 755 "$out/run"

# What they need of the other machine.
if command -v objdump >/dev/null 2>&1; then
    for program in "$out"/*; do
        needs=$(objdump -T "$program" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1) || true
        [ -n "$needs" ] || continue
        libraries=$(objdump -p "$program" | awk '$1 == "NEEDED" { printf " %s", $2 }')
        echo "${program##*/}: $needs,$libraries"
        newest=$(printf '%s\nGLIBC_2.31\n' "$needs" | sort -V | tail -n 1)
        [ "$newest" = GLIBC_2.31 ] || { echo "${program##*/} needs $needs, newer than GLIBC_2.31: see test/device/glibc.h"; exit 1; }
    done
else
    echo "no objdump: which glibc the programs need was not looked at (install binutils)"
fi
