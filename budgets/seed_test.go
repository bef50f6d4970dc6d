package budgets

import (
	"flag"
	"strconv"
	"testing"
	"time"
)

// seeded chooses a seed for rapid unless -rapid.seed gave one, and says how to replay.
func seeded(t *testing.T) {
	t.Helper()
	if flag.Lookup("rapid.seed").Value.String() == "0" {
		if err := flag.Set("rapid.seed", strconv.FormatInt(time.Now().UnixNano(), 10)); err != nil {
			t.Fatal(err)
		}
	}
	seed := flag.Lookup("rapid.seed").Value.String()
	t.Logf("SEED=%s replay: go test -run '^%s$' -rapid.seed=%s", seed, t.Name(), seed)
}
