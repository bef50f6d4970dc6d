# The guest's network and its soft-RoCE devices: sh -s NET WIRES NODE MTU
#
# two   wire I is a veth pair with rxe(2I) and rxe(2I+1), 10.90.I.1 and .2, fd90:I::1 and ::2, in one name space:
#       soft-RoCE loses the packets of any other.
# pair  wire I is a network card with rxeI, 10.90.I.NODE, fd90:I::NODE.
set -e
net=$1 wires=$2 node=$3 mtu=$4
ip link set lo up
[ "$net" != none ] || exit 0

# rail DEVICE WIRE SIDE: addresses. Packets that come from an address of our own are not spoofed here.
rail() {
	for key in rp_filter=0 accept_local=1; do
		echo "${key#*=}" >"/proc/sys/net/ipv4/conf/$1/${key%=*}"
	done
	ip link set "$1" mtu "$mtu" up
	ip addr add "10.90.$2.$3/24" dev "$1"
	ip addr add "fd90:$2::$3/64" dev "$1" nodad
}

# toward DEVICE WIRE SIDE OTHER-SIDE MAC: what leaves by this device for the other end goes out on the wire. Without a
# rule by device, an address of our own is reached through lo, and soft-RoCE never sees the packet.
toward() {
	table=$((100 + 2 * $2 + $3))
	ip rule add pref 10 oif "$1" lookup "$table"
	ip -6 rule add pref 10 oif "$1" lookup "$table"
	ip route add "10.90.$2.$4" dev "$1" src "10.90.$2.$3" table "$table"
	ip -6 route add "fd90:$2::$4" dev "$1" src "fd90:$2::$3" table "$table"
	ip neigh replace "10.90.$2.$4" lladdr "$5" dev "$1" nud permanent
	ip neigh replace "fd90:$2::$4" lladdr "$5" dev "$1" nud permanent
}

echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
wire=0
case $net in
two)
	# The rules by device come before the table of local addresses.
	for family in -4 -6; do
		ip $family rule add pref 20 lookup local
		ip $family rule del pref 0
	done
	while [ "$wire" -lt "$wires" ]; do
		a=ve$((2 * wire)) b=ve$((2 * wire + 1)) mac=02:90:00:00:0$wire
		ip link add "$a" address "$mac:01" type veth peer name "$b" address "$mac:02"
		rail "$a" "$wire" 1
		rail "$b" "$wire" 2
		toward "$a" "$wire" 1 2 "$mac:02"
		toward "$b" "$wire" 2 1 "$mac:01"
		rdma link add "rxe$((2 * wire))" type rxe netdev "$a"
		rdma link add "rxe$((2 * wire + 1))" type rxe netdev "$b"
		wire=$((wire + 1))
	done
	;;
pair)
	while [ "$wire" -lt "$wires" ]; do
		rail "eth$wire" "$wire" "$node"
		rdma link add "rxe$wire" type rxe netdev "eth$wire"
		wire=$((wire + 1))
	done
	;;
*)
	echo "no net $net" >&2
	exit 1
	;;
esac
