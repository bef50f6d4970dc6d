package libcuda

import (
	"os"
	"path/filepath"
	"testing"
)

func TestBusNamesAreTheKernels(t *testing.T) {
	for from, to := range map[string]string{
		"0000:18:00.0": "0000:18:00.0", "0000:1B:00.0": "0000:1b:00.0", "00000000:C1:00.0": "0000:c1:00.0",
		"00010000:C1:00.0": "00010000:c1:00.0", "": "", "nonsense": "nonsense",
	} {
		if got := busName(from); got != to {
			t.Errorf("%q became %q, want %q", from, got, to)
		}
	}
}

func TestANUMANodeThatTheKernelDoesNotSayIsUnknown(t *testing.T) {
	bus := t.TempDir()
	for name, text := range map[string]string{"0000:01:00.0": "1\n", "0000:02:00.0": "-1\n", "0000:03:00.0": "what"} {
		if err := os.MkdirAll(filepath.Join(bus, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bus, name, "numa_node"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bus, "numa_node"), []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"0000:01:00.0": 1, "0000:02:00.0": -1, "0000:03:00.0": -1, "0000:04:00.0": -1, "": -1} {
		if got := numaNode(bus, name); got != want {
			t.Errorf("%q: %d, want %d", name, got, want)
		}
	}
}
