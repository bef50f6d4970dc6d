package abi

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/orbitte/orbitte/verbs"
)

// constants are the Go constants that say that they are the library's numbers.
var constants = map[string]struct {
	theirs string
	value  uint64
}{
	"PortNop": {"IBV_PORT_NOP", uint64(verbs.PortNop)}, "PortDown": {"IBV_PORT_DOWN", uint64(verbs.PortDown)},
	"PortInit": {"IBV_PORT_INIT", uint64(verbs.PortInit)}, "PortArmed": {"IBV_PORT_ARMED", uint64(verbs.PortArmed)},
	"PortActive": {"IBV_PORT_ACTIVE", uint64(verbs.PortActive)}, "PortActiveDefer": {"IBV_PORT_ACTIVE_DEFER", uint64(verbs.PortActiveDefer)},

	"GIDInfiniBand": {"IBV_GID_TYPE_IB", uint64(verbs.GIDInfiniBand)},
	"GIDRoCEv1":     {"IBV_GID_TYPE_ROCE_V1", uint64(verbs.GIDRoCEv1)}, "GIDRoCEv2": {"IBV_GID_TYPE_ROCE_V2", uint64(verbs.GIDRoCEv2)},

	"AsyncQueueError": {"IBV_EVENT_CQ_ERR", uint64(verbs.AsyncQueueError)}, "AsyncPairFatal": {"IBV_EVENT_QP_FATAL", uint64(verbs.AsyncPairFatal)},
	"AsyncPairRequestError":         {"IBV_EVENT_QP_REQ_ERR", uint64(verbs.AsyncPairRequestError)},
	"AsyncPairAccessError":          {"IBV_EVENT_QP_ACCESS_ERR", uint64(verbs.AsyncPairAccessError)},
	"AsyncCommunicationEstablished": {"IBV_EVENT_COMM_EST", uint64(verbs.AsyncCommunicationEstablished)},
	"AsyncSendQueueDrained":         {"IBV_EVENT_SQ_DRAINED", uint64(verbs.AsyncSendQueueDrained)},
	"AsyncPathMigrated":             {"IBV_EVENT_PATH_MIG", uint64(verbs.AsyncPathMigrated)},
	"AsyncPathMigrationError":       {"IBV_EVENT_PATH_MIG_ERR", uint64(verbs.AsyncPathMigrationError)},
	"AsyncDeviceFatal":              {"IBV_EVENT_DEVICE_FATAL", uint64(verbs.AsyncDeviceFatal)},
	"AsyncPortActive":               {"IBV_EVENT_PORT_ACTIVE", uint64(verbs.AsyncPortActive)}, "AsyncPortError": {"IBV_EVENT_PORT_ERR", uint64(verbs.AsyncPortError)},
	"AsyncLIDChange": {"IBV_EVENT_LID_CHANGE", uint64(verbs.AsyncLIDChange)}, "AsyncPKeyChange": {"IBV_EVENT_PKEY_CHANGE", uint64(verbs.AsyncPKeyChange)},
	"AsyncManagerChange":      {"IBV_EVENT_SM_CHANGE", uint64(verbs.AsyncManagerChange)},
	"AsyncSharedReceiveError": {"IBV_EVENT_SRQ_ERR", uint64(verbs.AsyncSharedReceiveError)},
	"AsyncSharedReceiveLimit": {"IBV_EVENT_SRQ_LIMIT_REACHED", uint64(verbs.AsyncSharedReceiveLimit)},
	"AsyncPairLastWork":       {"IBV_EVENT_QP_LAST_WQE_REACHED", uint64(verbs.AsyncPairLastWork)},
	"AsyncClientReregister":   {"IBV_EVENT_CLIENT_REREGISTER", uint64(verbs.AsyncClientReregister)},
	"AsyncGIDChange":          {"IBV_EVENT_GID_CHANGE", uint64(verbs.AsyncGIDChange)},

	"AccessLocalWrite":  {"IBV_ACCESS_LOCAL_WRITE", uint64(verbs.AccessLocalWrite)},
	"AccessRemoteWrite": {"IBV_ACCESS_REMOTE_WRITE", uint64(verbs.AccessRemoteWrite)},
	"AccessRemoteRead":  {"IBV_ACCESS_REMOTE_READ", uint64(verbs.AccessRemoteRead)},
	"AccessWindowBind":  {"IBV_ACCESS_MW_BIND", uint64(verbs.AccessWindowBind)},
	"AccessRelaxed":     {"IBV_ACCESS_RELAXED_ORDERING", uint64(verbs.AccessRelaxed)},

	"PairReset": {"IBV_QPS_RESET", uint64(verbs.PairReset)}, "PairInit": {"IBV_QPS_INIT", uint64(verbs.PairInit)},
	"PairReadyToReceive": {"IBV_QPS_RTR", uint64(verbs.PairReadyToReceive)}, "PairReadyToSend": {"IBV_QPS_RTS", uint64(verbs.PairReadyToSend)},
	"PairDraining": {"IBV_QPS_SQD", uint64(verbs.PairDraining)}, "PairSendError": {"IBV_QPS_SQE", uint64(verbs.PairSendError)},
	"PairError": {"IBV_QPS_ERR", uint64(verbs.PairError)},

	"Fence": {"IBV_SEND_FENCE", uint64(verbs.Fence)}, "Signaled": {"IBV_SEND_SIGNALED", uint64(verbs.Signaled)},
	"Solicited": {"IBV_SEND_SOLICITED", uint64(verbs.Solicited)}, "Inline": {"IBV_SEND_INLINE", uint64(verbs.Inline)},
	"WithImmediate": {"IBV_WC_WITH_IMM", uint64(verbs.WithImmediate)},

	"WorkSuccess": {"IBV_WC_SUCCESS", uint64(verbs.WorkSuccess)}, "WorkLocalLength": {"IBV_WC_LOC_LEN_ERR", uint64(verbs.WorkLocalLength)},
	"WorkLocalPair": {"IBV_WC_LOC_QP_OP_ERR", uint64(verbs.WorkLocalPair)}, "WorkLocalContext": {"IBV_WC_LOC_EEC_OP_ERR", uint64(verbs.WorkLocalContext)},
	"WorkLocalProtection": {"IBV_WC_LOC_PROT_ERR", uint64(verbs.WorkLocalProtection)}, "WorkFlushed": {"IBV_WC_WR_FLUSH_ERR", uint64(verbs.WorkFlushed)},
	"WorkBind": {"IBV_WC_MW_BIND_ERR", uint64(verbs.WorkBind)}, "WorkBadResponse": {"IBV_WC_BAD_RESP_ERR", uint64(verbs.WorkBadResponse)},
	"WorkLocalAccess": {"IBV_WC_LOC_ACCESS_ERR", uint64(verbs.WorkLocalAccess)}, "WorkRemoteRequest": {"IBV_WC_REM_INV_REQ_ERR", uint64(verbs.WorkRemoteRequest)},
	"WorkRemoteAccess": {"IBV_WC_REM_ACCESS_ERR", uint64(verbs.WorkRemoteAccess)}, "WorkRemoteOperation": {"IBV_WC_REM_OP_ERR", uint64(verbs.WorkRemoteOperation)},
	"WorkRetryExceeded": {"IBV_WC_RETRY_EXC_ERR", uint64(verbs.WorkRetryExceeded)}, "WorkNotReadyExceeded": {"IBV_WC_RNR_RETRY_EXC_ERR", uint64(verbs.WorkNotReadyExceeded)},
	"WorkLocalDomain": {"IBV_WC_LOC_RDD_VIOL_ERR", uint64(verbs.WorkLocalDomain)}, "WorkRemoteDomain": {"IBV_WC_REM_INV_RD_REQ_ERR", uint64(verbs.WorkRemoteDomain)},
	"WorkRemoteAborted": {"IBV_WC_REM_ABORT_ERR", uint64(verbs.WorkRemoteAborted)}, "WorkInvalidContextNumber": {"IBV_WC_INV_EECN_ERR", uint64(verbs.WorkInvalidContextNumber)},
	"WorkInvalidContextState": {"IBV_WC_INV_EEC_STATE_ERR", uint64(verbs.WorkInvalidContextState)}, "WorkFatal": {"IBV_WC_FATAL_ERR", uint64(verbs.WorkFatal)},
	"WorkResponseTimeout": {"IBV_WC_RESP_TIMEOUT_ERR", uint64(verbs.WorkResponseTimeout)}, "WorkGeneral": {"IBV_WC_GENERAL_ERR", uint64(verbs.WorkGeneral)},

	"CompletedSend": {"IBV_WC_SEND", uint64(verbs.CompletedSend)}, "CompletedWrite": {"IBV_WC_RDMA_WRITE", uint64(verbs.CompletedWrite)},
	"CompletedRead": {"IBV_WC_RDMA_READ", uint64(verbs.CompletedRead)}, "CompletedBind": {"IBV_WC_BIND_MW", uint64(verbs.CompletedBind)},
	"CompletedLocalInvalidate": {"IBV_WC_LOCAL_INV", uint64(verbs.CompletedLocalInvalidate)}, "CompletedReceive": {"IBV_WC_RECV", uint64(verbs.CompletedReceive)},
}

// ours are types whose numbers are the package's own.
var ours = map[string]bool{"SendOperation": true}

// exported reads the names of the constants in verbs/calls.go whose type is one with the library's numbers.
func exported(t *testing.T) (names []string) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), "../../verbs/calls.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range tree.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		kind := ""
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if id, ok := v.Type.(*ast.Ident); ok {
				kind = id.Name
			}
			if !ours[kind] {
				names = append(names, v.Names[0].Name)
			}
		}
	}
	return names
}

func TestGoConstantsAreTheLibrarysNumbers(t *testing.T) {
	var c strings.Builder
	c.WriteString("#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n")
	names := exported(t)
	for _, name := range names {
		k, ok := constants[name]
		if !ok {
			t.Errorf("verbs.%s is not compared: add it to the table, or its type to those of our own", name)
			continue
		}
		fmt.Fprintf(&c, "\tprintf(\"verbs.%s=%s %%lld %%lld\\n\", %dLL, (long long)%s);\n", name, k.theirs, k.value, k.theirs)
	}
	c.WriteString("\treturn 0;\n}\n")
	if len(names) < len(constants) {
		t.Errorf("verbs/calls.go has %d constants of the library's, the table %d", len(names), len(constants))
	}
	pairs(t, compile(t, c.String()), len(constants))
}
