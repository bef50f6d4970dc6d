// Package delegate lets a requester direct the staging of a source's device memory (SPEC C-8): the source pins chunks of
// its staging memory, called slots, for the requester and one device range (Pin), copies between slot and range when it is
// told to (Delegate), and takes the slots back (Unpin). The payload goes between requester and slot by operations 1 and 2, or
// over RDMA: the source grants the slot by windows, like any host memory, and the requester reads or writes it itself.
//
// A source's Service owns its pins. A pin owns its slots, each with its charge, and is bound to the stream that it came by:
// it ends with Unpin, with that stream, at the source's deadline, or with CloseSource, and has ended when no frame and no
// copy touches a slot any more, and no device can. A copy owns a loan and a lease of its part of the device range. What is not proven to have
// ended stays: slot, charge, loan and lease. A Transfer is one READ or WRITE at the requester; its registration is its
// owner's. Over RDMA it owns a transfer of package rdma for each part under way, up to four.
//
// It imports budgets, lanes, lanes/control, lanes/rdma, lanes/staging, lanes/tcp, netproto, reactor and segments. The machines decide
// and do nothing else; the drives act.
//
//	pin:   pinned ──Unpin──▶ draining ──copies ended──▶ gone;  pinned, draining ──stream, deadline, close──▶ ending ──▶ gone
//	slot, READ:  empty ──Delegate──▶ leasing ──▶ copying ──event──▶ full ──READ (waits for full)──▶ full ──Delegate──▶ …
//	slot, WRITE: empty ──WRITE──▶ full ──Delegate──▶ leasing ──▶ copying ──event──▶ empty
//	             leasing, copying ──failure──▶ failed;  copying, or granted ──no proof──▶ lost: retained
//	grants of a slot: ask (wait for the copy) ▶ granted ──receipts and DONE──▶ ended;  ──stream lost──▶ grace ▶ revoked
//	READ:  pin ▶ delegate all slots ▶ (payload ▶ delegate the slot again)… ▶ unpin       pin ──no slot──▶ pause ──▶ pin
//	WRITE: pin ▶ (payload ▶ delegate)… ▶ unpin, whose answer is the receipt of all copies
//	       stream retired by a neighbour's end, no exchange of ours on it: READ, WRITE before its first delegate ▶ pin
//
// It relies on SPEC C-3, C-8, R-9 to R-18, T-1, T-5, T-9 to T-11, U-1, G-6, G-9, M-9. Slots are registered with the devices
// once, when they are made, and granted as such whatever the policy for applications' memory: R-16 makes connections private
// because staging is made for one transfer, and a slot is not, so that grants of slots share queue pairs. No frame waits at the source for a slot to become
// free, since it would keep the frames back that free it: a pin finds a slot or is refused, and asks again; whoever asks
// again in time keeps its place in the line. A delegate is answered when its copies have begun, so that the stream is
// free for the payload of other slots meanwhile; a frame for a slot with a copy under way waits for that copy only.
package delegate
