package rdma

import (
	"errors"
	"fmt"

	"github.com/orbitte/orbitte/budgets"
	flows "github.com/orbitte/orbitte/lanes/staging"
	"github.com/orbitte/orbitte/verbs"
)

// chunkBook is the registrations of a lane's pinned chunks with each device, for staged memory on GPUs (SPEC C-4). All
// chunks of a role are registered together, when the first transfer of that role stages, and stay so until the lane ends:
// their number is bounded by the pool, and charged to a budget of its own (SPEC R-7).
//
//	none ──provision (cold loop)──▶ registered ──end of the lane (cold loop)──▶ gone, or the chunk stays
type chunkBook struct {
	stage  *flows.Stage // nil: the lane stages nothing
	budget *budgets.Budget
	roles  [2]chunkRole // of flows.Requester and flows.Source
}

// chunkRole is the regions of one role, by position of the rail and number of the chunk. A rail that cannot serve has none of
// the source's.
type chunkRole struct {
	made    bool  // the cold loop's
	stuck   error // the cold loop's: why what was made in part could not be taken back; nil: it was
	ready   bool  // the lane's: true exactly when transfers may use them
	why     error // why some stay after the end
	regions [][]*verbs.MemoryRegion
	charges []budgets.Charge
}

// openChunks makes the book of a lane that stages.
func (r *Rails) openChunks() {
	b := &r.upper.chunks
	if b.stage = flows.Of(r.lane); b.stage == nil || r.transport.config.Device != DeviceStaged {
		b.stage = nil
		return
	}
	most := len(r.rails) * (b.stage.Chunks(flows.Requester) + b.stage.Chunks(flows.Source))
	b.budget = budgets.New(fmt.Sprintf("RDMA regions of pinned chunks, lane %d", r.lane.Index), "regions", int64(most))
	if gauge := r.transport.config.Gauge; gauge != nil {
		gauge(b.budget)
	}
}

// missing is true exactly when a role is to be registered.
func (b *chunkBook) missing(role flows.Role) bool { return !b.roles[role].ready }

// register makes the regions of a role, all or nothing as far as the devices let it be taken back. On the cold loop.
func (b *chunkBook) register(r *Rails, role flows.Role) error {
	x := &b.roles[role]
	if x.made || x.stuck != nil { // another transfer asked before
		return x.stuck
	}
	access := verbs.AccessLocalWrite
	if role == flows.Source {
		access |= verbs.AccessWindowBind
	}
	x.regions = make([][]*verbs.MemoryRegion, len(r.rails))
	for i, rail := range r.rails {
		if role == flows.Source && rail.Device.NoSource != nil {
			continue
		}
		for chunk := range b.stage.Chunks(role) {
			if err := b.one(x, i, rail.Device, role, chunk, access); err != nil {
				if stay := b.unregister(role); stay != nil {
					x.stuck = errors.Join(err, stay)
				}
				return err
			}
		}
	}
	x.made = true
	return nil
}

func (b *chunkBook) one(x *chunkRole, rail int, d *Device, role flows.Role, chunk int, access verbs.Access) error {
	charge, err := b.budget.Take(1)
	if err != nil {
		return err
	}
	address, length, ok := b.stage.Pinned(role, chunk)
	if !ok {
		charge.Repay()
		return flows.ErrUnprepared
	}
	region, err := d.Domain.Register(address, length, access)
	if err != nil {
		charge.Repay() // the device did not take it
		return err
	}
	x.regions[rail] = append(x.regions[rail], region)
	x.charges = append(x.charges, charge.Move())
	return nil
}

// unregister takes the regions of a role back, and leaves those that a device refused. On the cold loop.
func (b *chunkBook) unregister(role flows.Role) (first error) {
	x := &b.roles[role]
	for _, list := range x.regions {
		for i, m := range list {
			if m == nil {
				continue
			}
			if err := m.Destroy(); err != nil {
				first = errors.Join(first, err)
				continue
			}
			list[i] = nil
			last := len(x.charges) - 1
			x.charges[last].Repay() // proof: deregistered
			x.charges = x.charges[:last]
		}
	}
	return first
}

// end takes back all regions. On the cold loop.
func (b *chunkBook) end() {
	for role := range b.roles {
		b.roles[role].why = b.unregister(flows.Role(role))
	}
}

// strand keeps the chunks whose regions stay, after the end; on the lane.
func (b *chunkBook) strand() {
	for role := range b.roles {
		for _, list := range b.roles[role].regions {
			for i, m := range list {
				if m != nil {
					b.stage.Strand(flows.Role(role), i, b.roles[role].why)
				}
			}
		}
	}
}

// keep makes sure that no device is ever asked to take back the region of a chunk that it may still use.
func (b *chunkBook) keep(role flows.Role, chunks []int) {
	for _, list := range b.roles[role].regions {
		for _, i := range chunks {
			if i < len(list) && list[i] != nil && list[i].Lend() {
				list[i].RetainUse()
			}
		}
	}
}

// region is that of a chunk on a rail.
func (r *Rails) chunkRegion(rail *Rail, role flows.Role, chunk int) *verbs.MemoryRegion {
	return r.upper.chunks.roles[role].regions[rail.position][chunk]
}
