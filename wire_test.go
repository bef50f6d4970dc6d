package orbitte

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/orbitte/orbitte/netproto"
)

// nonsense connects, breaks the protocol and waits until the source has closed the connection.
func nonsense(t *testing.T, endpoint string) {
	t.Helper()
	c, err := net.Dial("tcp", endpoint)
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(5*time.Second)))
	_, err = c.Write(bytes.Repeat([]byte{0x5a}, netproto.RequestSize))
	must(t, err)
	answer, err := io.ReadAll(c)
	must(t, err)
	if reply, err := netproto.DecodeReply(answer); err != nil || reply.Status != netproto.StatusProtocolError {
		t.Fatalf("answer %x: %+v, %v", answer, reply, err)
	}
}
