#!/bin/sh
# Two hosts on one machine: two network namespaces joined by a veth pair. The cases are Go tests behind the build tag
# netns in test/field; this script makes the namespaces, runs the tests in one of them, and takes everything down again.
#
# field case F-40
# proves T-8, T-12
set -u
cd "$(dirname "$0")/../.." || exit 1

skip() {
	echo "$1"
	exit 77
}
[ "$(id -u)" = 0 ] || skip "no-root: network namespaces need root"
PATH=$PATH:/usr/sbin:/sbin
command -v ip >/dev/null || skip "no-ip: install iproute2"
command -v iptables >/dev/null || skip "no-iptables: install iptables"

here=orbitte-a-$$
there=orbitte-b-$$
work=$(mktemp -d) || exit 1
cleanup() {
	ip netns del "$here" 2>/dev/null
	ip netns del "$there" 2>/dev/null
	rm -rf "/etc/netns/$here" "/etc/netns/$there" "$work"
	rmdir /etc/netns 2>/dev/null
}
trap cleanup EXIT
trap 'exit 130' INT TERM

ip netns add "$here" 2>"$work/error" || skip "no-netns: $(cat "$work/error")"
ip netns add "$there" || exit 1
ip link add orb-a netns "$here" type veth peer name orb-b netns "$there" 2>"$work/error" || skip "no-veth: $(cat "$work/error")"
ip netns exec "$there" iptables -L -n >/dev/null 2>"$work/error" || skip "no-iptables: $(head -n 1 "$work/error")"
for side in "$here:orb-a:1" "$there:orb-b:2"; do
	space=${side%%:*}
	rest=${side#*:}
	link=${rest%%:*}
	ip -n "$space" addr add "10.40.0.${rest#*:}/24" dev "$link" &&
		ip -n "$space" addr add "fd40::${rest#*:}/64" dev "$link" nodad &&
		ip -n "$space" link set lo up &&
		ip -n "$space" link set "$link" up || exit 1
done
# ip netns exec puts this file in the place of /etc/hosts.
mkdir -p "/etc/netns/$here" || exit 1
printf '127.0.0.1 localhost\n10.40.0.2 far-host\nfd40::2 far-host-six\n' >"/etc/netns/$here/hosts"

go vet -tags netns ./test/field || exit 1
go test -tags netns -c -o "$work/field.test" ./test/field || exit 1
ORBITTE_FIELD_FAR=$there ip netns exec "$here" "$work/field.test" -test.run '^TestTwoHosts' -test.count=1 -test.v >"$work/said" 2>&1
status=$?
grep -v '^=== ' "$work/said"
# A test with subtests counts as its subtests.
counts=$(sed -n 's/^ *--- \(PASS\|FAIL\): \([^ ]*\) .*/\1 \2/p' "$work/said" | awk '
	{ result[$2] = $1; name = $2; while (sub("/[^/]*$", "", name)) parent[name] = 1 }
	END { for (name in result) if (!(name in parent)) n[result[name]]++; print n["PASS"] + 0, n["FAIL"] + 0 }')
passed=${counts% *}
failed=${counts#* }
[ "$status" = 0 ] || [ "$failed" -gt 0 ] || failed=1
[ "$status" != 0 ] || [ "$passed" -gt 0 ] || failed=1
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
