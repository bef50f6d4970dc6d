#!/usr/bin/env bash
# The main job on real input: serves a file of at least 256 MiB in one process, gets it in a second one, and
# verifies it with a third program. Needs Go, and what every Debian has. Cleans up after itself.
#
#   MIB=1024 ./test/demo/run.sh     another size
#   FILE=/path ./test/demo/run.sh   a file of your own
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH="$PATH:/usr/local/go/bin"
export GOFLAGS="${GOFLAGS:--buildvcs=false}"

mib=${MIB:-256}
case $mib in
'' | *[!0-9]* | 0* | ?????????*)
    echo "usage: MIB=N make demo: N is a whole number of MiB from 1 up, such as 1024, not \"$mib\"" >&2
    exit 2
    ;;
esac
if [ -n "${FILE:-}" ] && { [ ! -f "$FILE" ] || [ ! -r "$FILE" ]; }; then
    echo "usage: FILE=PATH make demo: PATH is a readable regular file, not \"$FILE\"" >&2
    exit 2
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/orbitte-demo.XXXXXX")
source_pid=
cleanup() {
    if [ -n "$source_pid" ]; then
        kill "$source_pid" 2>/dev/null || true
        wait "$source_pid" 2>/dev/null || true
    fi
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

tool=$folder/orbitte
echo "building cmd/orbitte without C"
CGO_ENABLED=0 go build -o "$tool" ./cmd/orbitte

file=${FILE:-$folder/data.bin}
if [ -z "${FILE:-}" ]; then
    echo "making $mib MiB of random bytes"
    head -c "$((mib * 1048576))" /dev/urandom >"$file"
fi

"$tool" serve "$file" >"$folder/served" 2>"$folder/served.err" &
source_pid=$!
until grep -q '^serving' "$folder/served"; do
    if ! kill -0 "$source_pid" 2>/dev/null; then
        cat "$folder/served.err" >&2
        exit 1
    fi
    sleep 0.05
done
endpoint=$(sed -n 's/^endpoint *//p' "$folder/served")
epoch=$(sed -n 's/^epoch *//p' "$folder/served")
echo "process $source_pid serves it:"
echo "  orbitte serve $(basename "$file")"
sed -n '/^endpoint/p; /^epoch/p; /^kernel/p' "$folder/served" | sed 's/^/    /'

echo "a second process gets it:"
echo "  orbitte get --from $endpoint --epoch $epoch --all -o received"
"$tool" get --from "$endpoint" --epoch "$epoch" --all -o "$folder/received" | sed 's/^/    /'

echo "sha256sum, which knows nothing of either, compares the files:"
want=$(sha256sum <"$file")
got=$(sha256sum <"$folder/received/$(basename "$file")")
if [ "$want" != "$got" ]; then
    echo "    source   $want"
    echo "    received $got"
    echo "they DIFFER" >&2
    exit 1
fi
echo "    ${want%% *}  both"

kill "$source_pid"
if ! wait "$source_pid"; then
    cat "$folder/served.err" >&2
    exit 1
fi
source_pid=
tail -n 1 "$folder/served.err"
