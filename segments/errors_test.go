package segments

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orbitte/orbitte/netproto"
)

func TestEveryErrorSaysWhatIsKnownAndWhatToDo(t *testing.T) {
	for _, c := range []struct {
		err   error
		class error
		words []string
	}{
		{&MemoryError{Call: "mmap", Length: 5, Err: unix.ENOMEM}, ErrMemory, []string{"mmap of 5 bytes", "cannot allocate", "nothing changed", "RLIMIT_AS"}},
		{&RangeError{Object: "region", ID: 7, Offset: 1, Length: 10, Limit: 8}, ErrRange, []string{"[1, +10)", "8 bytes of region 0x7", "nothing was touched", "inside"}},
		{overflow(Range{9, ^uint64(0)}), ErrRange, []string{"18446744073709551615 bytes from address 0x9", "beyond the end of the address space", "nothing was touched"}},
		{&Conflict{Address: 16, Asked: Range{1, 2}, Access: Exclusive, Held: Range{0, 2}}, ErrConflict, []string{"exclusive access to [0x1, +2)", "shared access to [0x0, +2)", "0x10", "nothing was touched", "try again"}},
		{&Conflict{Simultaneous: true}, ErrConflict, []string{"the same moment", "try again"}},
		{&LeaseLimit{Address: 16, Limit: 4}, ErrLeaseLimit, []string{"0x10", "4 leases", "nothing was touched", "try again"}},
		{&Uncovered{Owner: "peer:1", Asked: Range{1, 2}}, ErrUncovered, []string{"peer:1", "[0x1, +2)", "nothing was touched", "register"}},
		{&UnknownRegion{ID: 4}, ErrUnknownRegion, []string{"region 4", "nothing was touched", "describe"}},
		{&PermissionError{ID: 4, Has: netproto.RemoteRead, Want: netproto.RemoteWrite}, ErrPermission, []string{"region 4 permits remote-read", "remote-write", "nothing was touched"}},
		{&PermissionError{Want: 9}, ErrPermission, []string{"9", "nothing was registered", "read-write"}},
		{&ForeignAlias{Asked: Range{1, 2}, Other: Range{2, 2}, OtherID: 5}, ErrForeignAlias, []string{"[0x1, +2)", "[0x2, +2) of registration 5", "nothing was registered", "subrange"}},
		{&ForeignAlias{OtherID: 5, Retired: true}, ErrForeignAlias, []string{"unregistered", "try again"}},
		{&ForeignAlias{}, ErrForeignAlias, []string{"earlier element"}},
		{&RegionLimit{Visible: 4096, Limit: 4096}, ErrRegionLimit, []string{"4096 regions", "nothing was registered", "unregister"}},
		{&ElementError{Element: 3, Err: &UnknownRegion{ID: 4}}, ErrUnknownRegion, []string{"element 3", "region 4"}},
	} {
		if !errors.Is(c.err, c.class) || errors.Is(c.err, errors.ErrUnsupported) {
			t.Errorf("%v is not %v", c.err, c.class)
		}
		for _, w := range c.words {
			if !strings.Contains(c.err.Error(), w) {
				t.Errorf("%q does not say %q", c.err, w)
			}
		}
	}
}

func TestStringsNameWhatIsThere(t *testing.T) {
	leavesNothing(t)
	b := adopted(t, 20)
	lease := lent(t, b, 3, 4, Shared)
	for text, words := range map[string][]string{
		b.String():           {"pinned slice of 20 bytes at 0x"},
		lease.String():       {"lease of [0x3, +4) in pinned slice"},
		new(Lease).String():  {"no lease"},
		Mapping.String():     {"mapping"},
		Foreign.String():     {"foreign memory"},
		Kind(9).String():     {"Kind(9)"},
		b.Range().String():   {"+20)"},
		(Exclusive).String(): {"exclusive"},
		Resident{Kind: Mapping, Length: 4, Lost: true, Err: unix.EINVAL}.String(): {"mapping of 4 bytes", "lost", "not released: invalid"},
	} {
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%q does not say %q", text, w)
			}
		}
	}
	lease.Return()
	b.Drop()
}
