//go:build !vm

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestNamesOfTestsAreSpelledOut(t *testing.T) {
	for name, want := range map[string]string{
		"TestARealWindowIsBoundAgain":           "A real window is bound again",
		"TestRealDevicesAndGIDsAreThoseOfSysfs": "Real devices and GIDs are those of sysfs",
		"TestSoftRoCECarriesMany":               "Carries many",
		"TestAHostWithoutRDMAHasNoDevices":      "A host without RDMA has no devices",
	} {
		if got := spelledOut(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestTableTellsEachTestOnceWithWhatItProved(t *testing.T) {
	seen := &table{}
	for _, e := range []event{
		{"run", "p", "TestA", ""}, {"run", "p", "TestA/one", ""},
		{"output", "p", "TestA/one", "    x_test.go:1: proved: 7 "}, {"output", "p", "TestA/one", "MiB\n"},
		{"pass", "p", "TestA/one", ""}, {"pass", "p", "TestA", ""},
		{"run", "p", "TestB", ""}, {"fail", "p", "TestB", ""},
		{"run", "p", "TestC", ""}, {"fail", "p", "", ""},
	} {
		seen.take(e)
	}
	var out strings.Builder
	seen.print(&out)
	want := "\nproved by p:\n  pass         A (1 cases)\n               - 7 MiB\n  fail         B\n  did not end  C\n"
	if out.String() != want || seen.status() != 1 {
		t.Errorf("status %d, table:\n%s\nwant:\n%s", seen.status(), out.String(), want)
	}
}

func TestFoldersOfKilledGatesAreRemoved(t *testing.T) {
	below := t.TempDir()
	alive := filepath.Join(below, "gate-"+strconv.Itoa(os.Getppid()))
	dead := filepath.Join(below, "gate-4194999") // above the largest process number
	for _, folder := range []string{alive, dead} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ours, err := workFolder(below)
	if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(below + "/*")
	want := []string{alive, ours}
	slices.Sort(want)
	if err != nil || !slices.Equal(left, want) {
		t.Errorf("left %v, %v; want %v", left, err, want)
	}
}
