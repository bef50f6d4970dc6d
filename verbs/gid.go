package verbs

import (
	"net/netip"
	"slices"
	"strings"
)

// Zero is true exactly when the table's entry is empty.
func (g GID) Zero() bool { return g == GID{} }

// Address is the IP address that the GID stands for; an IPv4-mapped one comes as IPv4.
func (g GID) Address() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IPv4 is true exactly when the GID is an IPv4-mapped address.
func (g GID) IPv4() bool { return netip.AddrFrom16(g).Is4In6() }

func (g GID) String() string {
	if g.IPv4() {
		return g.Address().String()
	}
	return netip.AddrFrom16(g).String()
}

func (t GIDType) String() string {
	switch t {
	case GIDInfiniBand:
		return "InfiniBand"
	case GIDRoCEv1:
		return "RoCE v1"
	case GIDRoCEv2:
		return "RoCE v2"
	}
	return "unknown GID type"
}

// GIDClass orders the addresses of a port for the automatic choice; the lowest class wins, then the lowest index
// (SPEC ). Both ends should come to the same family, so IPv4 goes before IPv6: mixed families never connect.
type GIDClass uint8

const (
	GIDNative       GIDClass = iota // InfiniBand, or RoCE v2 over a public IPv4 address of an interface
	GIDPrivateIPv4                  // RoCE v2 over a private IPv4 address of an interface
	GIDOverlayIPv4                  // RoCE v2 over IPv4 of a container network's interface
	GIDDetachedIPv4                 // RoCE v2 over IPv4 without a network interface
	GIDGlobalIPv6                   // RoCE v2 over a global IPv6 address of an interface
	GIDLocalIPv6                    // RoCE v2 over a unique-local IPv6 address of an interface
	GIDDegradedIPv6                 // RoCE v2 over routable IPv6 of a container network, or without an interface
	GIDLinkLocal                    // RoCE v2 over a link-local address
	GIDOther                        // RoCE v1, and whatever else is not empty
	gidClasses      = int(GIDOther) + 1
)

var gidReasons = [gidClasses]string{
	"routable address of a network interface", "private IPv4 address of a network interface",
	"IPv4 address of a container network", "IPv4 address without a network interface", "global IPv6 address of a network interface",
	"unique-local IPv6 address of a network interface", "IPv6 address of a container network or without an interface",
	"link-local address: reaches one link only", "not routable: RoCE v1 or unknown type",
}

func (c GIDClass) String() string { return gidReasons[c] }

// RankedGID is an entry with its class; the class's text is the reason for its place.
type RankedGID struct {
	GIDEntry
	Class GIDClass
}

// RankGIDs orders a port's entries for the automatic choice, the best first. Empty entries are left out.
func RankGIDs(entries []GIDEntry) []RankedGID {
	var ranked []RankedGID
	for _, e := range entries {
		if !e.GID.Zero() {
			ranked = append(ranked, RankedGID{e, classify(e)})
		}
	}
	slices.SortStableFunc(ranked, func(a, b RankedGID) int {
		if a.Class != b.Class {
			return int(a.Class) - int(b.Class)
		}
		return a.Index - b.Index
	})
	return ranked
}

func classify(e GIDEntry) GIDClass {
	if e.Type == GIDInfiniBand {
		return GIDNative
	}
	if e.Type != GIDRoCEv2 {
		return GIDOther
	}
	address := e.GID.Address()
	switch {
	case address.IsLinkLocalUnicast():
		return GIDLinkLocal
	case address.IsMulticast(), address.IsLoopback(), address.IsUnspecified():
		return GIDOther
	case address.Is4():
		return classifyIPv4(e.Interface, address)
	case e.Interface == "" || overlay(e.Interface):
		return GIDDegradedIPv6
	case address.IsPrivate(): // fc00::/7
		return GIDLocalIPv6
	}
	return GIDGlobalIPv6
}

// carrier is the shared address space of carriers, which container networks use as well (RFC 6598).
var carrier = netip.MustParsePrefix("100.64.0.0/10")

func classifyIPv4(network string, address netip.Addr) GIDClass {
	switch {
	case network == "":
		return GIDDetachedIPv4
	case overlay(network):
		return GIDOverlayIPv4
	case address.IsPrivate() || carrier.Contains(address):
		return GIDPrivateIPv4
	}
	return GIDNative
}

// overlayNames begin the names of interfaces that container networks make.
var overlayNames = []string{"flannel", "cni", "cali", "vxlan", "docker", "tunl0"}

func overlay(network string) bool {
	return slices.ContainsFunc(overlayNames, func(prefix string) bool { return strings.HasPrefix(network, prefix) })
}
