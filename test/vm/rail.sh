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

# gid: ADDRESS as the 32 digits of a GID.
digits() {
	case $1 in
	*:*) echo "$1" | awk -F: '{ for (i = NF; i > 0 && $i != ""; i--) n++
		for (i = 1; i <= NF && $i != ""; i++) head = head sprintf("%4s", $i)
		tail = ""; for (j = i + 1; j <= NF; j++) tail = tail sprintf("%4s", $j)
		pad = ""; while (length(head pad tail) < 32) pad = pad "0000"
		line = head pad tail; gsub(/ /, "0", line); print line }' ;;
	*) echo "$1" | awk -F. '{ printf "00000000000000000000ffff%02x%02x%02x%02x\n", $1, $2, $3, $4 }' ;;
	esac
}

gid() {
	want=$(digits "$2")
	for file in /sys/class/infiniband/"$1"/ports/1/gids/*; do
		index=${file##*/}
		[ "$(tr -d : <"$file")" = "$want" ] || continue
		[ "$(cat "/sys/class/infiniband/$1/ports/1/gid_attrs/types/$index")" = "RoCE v2" ] || continue
		echo "$index"
		return
	done
	echo "rail: $1 has no RoCE v2 GID $2" >&2
	return 1
}

# Hooks before each packet leaves: the routing of soft-RoCE passes them as TCP's does.
count() {
	{
		echo "table inet rail {"
		for port in "$@"; do echo "counter tcp_$port {}"; done
		echo "counter tcp {}; counter roce {}"
		echo "chain output { type filter hook output priority 0;"
		echo "meta l4proto tcp counter name tcp; udp dport 4791 counter name roce;"
		for port in "$@"; do
			echo "tcp sport $port counter name tcp_$port; tcp dport $port counter name tcp_$port;"
		done
		echo "} }"
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
