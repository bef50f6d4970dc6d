#!/bin/sh
# Trouble on the guest's rails, and how many bytes went over them.
#
#   rail down|up DEVICE         the link, such as: rail down rxe0
#   rail netem DEVICE ARGS      as tc netem: rail netem rxe0 loss 1%, rail netem rxe0 delay 5ms
#   rail clear DEVICE           ends netem
#   rail netdev DEVICE          the network device below
#   rail gid DEVICE ADDRESS     the index of the RoCE v2 GID of an address, such as 10.90.0.1
#   rail count [TCP-PORT ...]   begins to count what this machine sends: all TCP, RoCE (UDP 4791), and each port
#   rail counts                 one line of JSON: packets and bytes since then, IP headers included
set -eu

netdev() { cat "/sys/class/infiniband/$1/ports/1/gid_attrs/ndevs/0"; }

# spelled writes an address as sysfs writes a GID: eight groups of four digits.
spelled() {
	echo "$1" | awk -F: '
		/\./ { split($0, n, "."); printf "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x\n", n[1], n[2], n[3], n[4]; next }
		{
			for (i = 1; i <= NF; i++) {
				if ($i != "") { line = line ":" sprintf("%4s", $i); continue }
				if (!wide++) for (j = NF; j <= 8; j++) line = line ":0000"
			}
			gsub(/ /, "0", line)
			print substr(line, 2)
		}'
}

# gid reads the table in one go: it has 1024 places.
gid() {
	for file in $(grep -lsx "$(spelled "$2")" /sys/class/infiniband/"$1"/ports/1/gids/*); do
		index=${file##*/}
		if [ "$(cat "/sys/class/infiniband/$1/ports/1/gid_attrs/types/$index")" = "RoCE v2" ]; then
			echo "$index"
			return
		fi
	done
	echo "rail: $1 has no RoCE v2 GID $2" >&2
	return 1
}

# Hooks before each packet leaves: the routing of soft-RoCE passes them as TCP's does.
count() {
	{
		echo "table inet rail {"
		for name in all_tcp roce $(printf 'tcp_%s ' "$@"); do
			[ "$name" = tcp_ ] || printf 'counter %s {\n}\n' "$name"
		done
		printf 'chain output {\ntype filter hook output priority 0\n'
		printf 'meta l4proto tcp counter name all_tcp\nudp dport 4791 counter name roce\n'
		for port in "$@"; do
			printf 'tcp sport %s counter name tcp_%s\ntcp dport %s counter name tcp_%s\n' "$port" "$port" "$port" "$port"
		done
		printf '}\n}\n'
	} | nft -f -
}

counts() {
	nft list counters table inet rail | awk '
		$1 == "counter" { name = $2 }
		$1 == "packets" { printf "%s\"%s\":{\"packets\":%s,\"bytes\":%s}", line++ ? "," : "{", name, $2, $4 }
		END { print "}" }'
}

case ${1:-} in
down | up) ip link set "$(netdev "$2")" "$1" ;;
netem)
	device=$(netdev "$2")
	shift 2
	tc qdisc replace dev "$device" root netem "$@"
	;;
clear) tc qdisc del dev "$(netdev "$2")" root ;;
netdev) netdev "$2" ;;
gid) gid "$2" "$3" ;;
count)
	shift
	nft delete table inet rail 2>/dev/null || true
	count "$@"
	;;
counts) counts ;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
	exit 2
	;;
esac
