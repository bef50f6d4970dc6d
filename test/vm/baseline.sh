#!/bin/sh
# What perftest reaches between two rails of this guest, one line of JSON for each figure:
#
#   baseline [ROUNDS [SERVER-DEVICE ADDRESS CLIENT-DEVICE ADDRESS]]
#
# Default: one round, rxe0 at 10.90.0.1 serves rxe1 at 10.90.0.2. Figures are 2^20 bytes per second. Each tool moves
# about 64 MiB; the first round also warms the translated code, so ratios should come from the best of several.
set -u
rounds=${1:-1} server=${2:-rxe0} there=${3:-10.90.0.1} client=${4:-rxe1} here=${5:-10.90.0.2}
said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
at_server=$(rail gid "$server" "$there") && at_client=$(rail gid "$client" "$here") || exit 1
port=18515

# measure TOOL BYTES ITERATIONS ROUND
measure() {
	port=$((port + 1))
	"$1" -F -d "$server" -x "$at_server" -s "$2" -n "$3" -p "$port" >"$said" 2>&1 &
	waited=0
	until ss -Htln "sport = :$port" | grep -q .; do
		waited=$((waited + 1))
		[ "$waited" -lt 200 ] || break
		sleep 0.05
	done
	"$1" -F -d "$client" -x "$at_client" -s "$2" -n "$3" -p "$port" "$there" >"$said.client" 2>&1
	status=$?
	wait $! || status=1
	if [ "$status" != 0 ]; then
		cat "$said" "$said.client" >&2
		rm -f "$said.client"
		return 1
	fi
	awk -v tool="$1" -v round="$4" -v kernel="$(uname -r)" '
		$1 ~ /^[0-9]+$/ && NF >= 5 {
			printf "{\"tool\":\"%s\",\"bytes\":%d,\"iterations\":%d,\"round\":%d,\"peak_mib_s\":%.2f,\"mib_s\":%.2f,\"kernel\":\"%s\"}\n",
				tool, $1, $2, round, $3, $4, kernel
			found = 1
		}
		END { exit !found }' "$said.client"
	status=$?
	rm -f "$said.client"
	return "$status"
}

round=1
while [ "$round" -le "$rounds" ]; do
	for tool in ib_write_bw ib_read_bw; do
		measure $tool 65536 1000 "$round" && measure $tool 1048576 64 "$round" || exit 1
	done
	round=$((round + 1))
done
