#!/bin/sh
# The GPU gate on the machine that has the GPU: run this from anywhere; its folder is all that it needs. Arguments are
# device's: names of parts, -out FOLDER, -limit 7m. The exit status is 1 when a part failed.
cd "$(dirname "$0")" || exit 2
# Where a container's toolkit puts the driver, if the loader does not look there.
for folder in /usr/local/nvidia/lib64 /usr/lib64-nvidia /usr/lib/wsl/lib; do
    [ -e "$folder/libcuda.so.1" ] && LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
done
[ -z "${LD_LIBRARY_PATH:-}" ] || export LD_LIBRARY_PATH
command -v nvidia-smi >/dev/null 2>&1 && timeout 20 nvidia-smi
exec ./device "$@"
