// Package delegate lets a requester direct the staging of a source's device memory (SPEC C-8): the source pins chunks of
// its staging memory, called slots, for the requester and one device range (Pin), copies between slot and range when it is
// told to (Delegate), and takes the slots back (Unpin). The payload goes between requester and slot by operations 1 and 2.
//
// A source's Service owns its pins. A pin owns its slots, each with its charge, and is bound to the stream that it came by:
// it ends with Unpin, with that stream, at the source's deadline, or with CloseSource, and has ended when no frame and no
// copy touches a slot any more. A copy owns a loan and a lease of its part of the device range. What is not proven to have
// ended stays: slot, charge, loan and lease. A Transfer is one READ or WRITE at the requester; its registration is its
// owner's.
//
// It imports budgets, lanes, lanes/control, lanes/staging, lanes/tcp, netproto, reactor and segments. The machines decide
// and do nothing else; the drives act.
//
//	pin:   pinned ──Unpin──▶ draining ──copies ended──▶ gone;  pinned, draining ──stream, deadline, close──▶ ending ──▶ gone
//	slot, READ:  empty ──Delegate──▶ leasing ──▶ copying ──event──▶ full ──READ (waits for full)──▶ full ──Delegate──▶ …
//	slot, WRITE: empty ──WRITE──▶ full ──Delegate──▶ leasing ──▶ copying ──event──▶ empty
//	             leasing, copying ──failure──▶ failed;  copying ──no proof──▶ lost: retained
//	READ:  pin ▶ delegate all slots ▶ (payload ▶ delegate the slot again)… ▶ unpin       pin ──no slot──▶ pause ──▶ pin
//	WRITE: pin ▶ (payload ▶ delegate)… ▶ unpin, whose answer is the receipt of all copies
//	       stream retired by a neighbour's end, no exchange of ours on it: READ, WRITE before its first delegate ▶ pin
//
// It relies on SPEC C-3, C-8, T-1, T-5, T-9 to T-11, U-1, G-6, G-9, M-9. No frame waits at the source for a slot to become
// free, since it would keep the frames back that free it: a pin finds a slot or is refused, and asks again; whoever asks
// again in time keeps its place in the line. A delegate is answered when its copies have begun, so that the stream is
// free for the payload of other slots meanwhile; a frame for a slot with a copy under way waits for that copy only.
package delegate
