package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/orbitte/orbitte"
)

const describeHelp = `usage: orbitte describe [flags] ENDPOINT

Shows what a peer publishes now: its epoch, the largest request it takes, its regions, and its files if
it is an orbitte serve. Any program that embeds the engine can be described.

  --json               print it as one line of JSON; a failure too, as {"error":{…}}
` + requesterHelp + engineHelp + `
exit status: 0 shown, 1 something failed, 2 wrong command line
`

// described is what describe prints.
type described struct {
	Endpoint         string       `json:"endpoint"`
	Epoch            string       `json:"epoch"`
	TransferBytesMax uint64       `json:"transfer_bytes_max"`
	DataPort         uint16       `json:"hptcp_port,omitempty"` // of HP-TCP, under the endpoint's host
	Regions          []regionView `json:"regions"`
	Files            []entry      `json:"files,omitempty"`
}

type regionView struct {
	ID         uint64 `json:"id"`
	Address    uint64 `json:"address"`
	Length     uint64 `json:"length"`
	Permission string `json:"permission"`
	Memory     string `json:"memory"` // "host", or "cuda:1" for the peer's GPU 1
	HPTCP      bool   `json:"hptcp"`  // registered for HP-TCP
}

func describe(ctx context.Context, c *console, args []string) (err error) {
	f := newFlags("describe")
	f.requester()
	operands, err := f.read(c, args)
	if err != nil {
		return err
	}
	if len(operands) != 1 {
		return usage("give one ENDPOINT, not %d operands", len(operands))
	}
	p, err := connect(ctx, c, f, operands[0])
	if err != nil {
		return err
	}
	defer p.close(&err)
	if err := p.refresh(ctx); err != nil && !errors.Is(err, errNoManifest) {
		var failed *orbitte.Error
		if errors.As(err, &failed) {
			return err
		}
		c.remark("its files cannot be shown: %v", err)
	}
	d := described{Endpoint: p.segment.Endpoint(), Epoch: p.segment.Epoch().String(), TransferBytesMax: p.segment.TransferBytesMax(), DataPort: p.segment.DataPort(), Regions: []regionView{}}
	for _, r := range p.segment.Regions() {
		d.Regions = append(d.Regions, regionView{r.ID, r.Address, r.Length, r.Permission.String(), memoryOf(&r), r.HPTCP})
	}
	if p.manifest != nil {
		d.Files = p.manifest.Files
	}
	if f.json {
		c.result = d
		return nil
	}
	_, err = io.WriteString(c.out, d.text())
	return err
}

// memoryOf says where a peer's bytes are.
func memoryOf(r *orbitte.Region) string {
	if r.GPU < 0 {
		return r.Type.String()
	}
	return fmt.Sprintf("%v:%d", r.Type, r.GPU)
}

func (d *described) text() string {
	var text strings.Builder
	fmt.Fprintf(&text, "endpoint         %s\nepoch            %s\nlargest request  %d bytes\n", d.Endpoint, d.Epoch, d.TransferBytesMax)
	data := "none"
	if d.DataPort != 0 {
		data = fmt.Sprintf("port %d", d.DataPort)
	}
	fmt.Fprintf(&text, "HP-TCP           %s\n\n", data)
	rows := [][]string{{"region", "address", "bytes", "permission", "memory", "HP-TCP"}}
	ids := map[uint64]uint64{}
	for _, r := range d.Regions {
		ids[r.Address] = r.ID
		rows = append(rows, []string{strconv.FormatUint(r.ID, 10), fmt.Sprintf("%#x", r.Address), strconv.FormatUint(r.Length, 10), r.Permission, r.Memory, yesNo(r.HPTCP)})
	}
	text.WriteString(table(rows))
	if d.Files == nil {
		return text.String() + "\nno files: not an orbitte serve\n"
	}
	return text.String() + "\n" + fileTable(d.Files, ids)
}
