package netproto

import "fmt"

// Operation is what a request asks for (W-4). The project numbers its own additions from 64 up.
type Operation uint8

// The operations of version 19.
const (
	OperationDescribe        Operation = 0  // the source's descriptor
	OperationTCPRead         Operation = 1  // payload source → requester on this stream
	OperationTCPWrite        Operation = 2  // payload requester → source on this stream
	OperationNotify          Operation = 3  // one notification
	OperationRDMARead        Operation = 4  // grant for one READ
	OperationRDMAWrite       Operation = 5  // grant for one WRITE
	OperationRDMAReadSliced  Operation = 6  // grants for the slices of one READ
	OperationRDMAWriteSliced Operation = 7  // grants for the slices of one WRITE
	OperationControlNotify   Operation = 22 // one notification by the control RPC (N-5)
	OperationRDMAConnect     Operation = 64 // the other end of an RDMA connection
	OperationRDMADone        Operation = 65 // the requester is done with all grants of one parent
	OperationRDMAAbandon     Operation = 66 // the requester gives up all grants of one parent
	OperationRDMADisconnect  Operation = 67 // the end of an RDMA connection
	OperationPin             Operation = 68 // slots of the source's staging memory for one device range (C-8)
	OperationDelegate        Operation = 69 // copies between slots and the device range
	OperationUnpin           Operation = 70 // the end of a pin, answered when its copies have ended
)

// Known reports whether version 19 defines the operation.
func (o Operation) Known() bool {
	return o <= OperationRDMAWriteSliced || o == OperationControlNotify || o.connects() || o.pins()
}

// Notifies reports whether the request carries a notification (W-13).
func (o Operation) Notifies() bool {
	return o == OperationNotify || o == OperationControlNotify
}

// RDMA reports whether the operation needs an RDMA source. A source without RDMA answers it with
// StatusBackendUnavailable.
func (o Operation) RDMA() bool { return o.Grants() || o.connects() }

// Grants reports whether the operation asks for grants; a GrantRequest stands directly behind it.
func (o Operation) Grants() bool {
	return o >= OperationRDMARead && o <= OperationRDMAWriteSliced
}

// Ends reports whether the operation only ends what an earlier one has begun at the source: a source that is closing
// serves it all the same, since it waits for that end.
func (o Operation) Ends() bool {
	return o == OperationRDMADone || o == OperationRDMAAbandon || o == OperationRDMADisconnect || o == OperationUnpin
}

// connects reports whether the operation is about connections or granted parents. Its request has the size
// of the body as its length, and the body stands directly behind it.
func (o Operation) connects() bool {
	return o >= OperationRDMAConnect && o <= OperationRDMADisconnect
}

// pins reports whether the operation is about remote staging; a body stands directly behind its request.
func (o Operation) pins() bool { return o >= OperationPin && o <= OperationUnpin }

// sliced reports whether the operation may ask for more than one grant.
func (o Operation) sliced() bool {
	return o == OperationRDMAReadSliced || o == OperationRDMAWriteSliced
}

// String names the operation as in W-4.
func (o Operation) String() string {
	switch o {
	case OperationDescribe:
		return "describe"
	case OperationTCPRead:
		return "TCP READ"
	case OperationTCPWrite:
		return "TCP WRITE"
	case OperationNotify:
		return "notify"
	case OperationRDMARead:
		return "RDMA READ"
	case OperationRDMAWrite:
		return "RDMA WRITE"
	case OperationRDMAReadSliced:
		return "sliced RDMA READ"
	case OperationRDMAWriteSliced:
		return "sliced RDMA WRITE"
	case OperationControlNotify:
		return "control-RPC notify"
	case OperationRDMAConnect:
		return "RDMA connect"
	case OperationRDMADone:
		return "RDMA done"
	case OperationRDMAAbandon:
		return "RDMA abandon"
	case OperationRDMADisconnect:
		return "RDMA disconnect"
	case OperationPin:
		return "pin"
	case OperationDelegate:
		return "delegate"
	case OperationUnpin:
		return "unpin"
	}
	return fmt.Sprintf("unknown operation %d", uint8(o))
}
