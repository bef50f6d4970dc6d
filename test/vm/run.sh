#!/bin/sh
# Runs a command in a guest: test/vm/run.sh [options] -- COMMAND [ARG ...]. Options: test/vm/run.sh -h
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$root/bin"
# A guest that boots now reads the old file to its end.
(cd "$root" && CGO_ENABLED=0 go build -buildvcs=false -trimpath -o "bin/vm.$$" ./test/vm)
mv "$root/bin/vm.$$" "$root/bin/vm"
exec "$root/bin/vm" run "$@"
