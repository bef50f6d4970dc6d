package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	root, err := repository()
	if err != nil {
		return err
	}
	plants, err := Load(filepath.Join(root, "test/world/planted/testdata"))
	if err != nil {
		return err
	}
	switch {
	case len(args) == 1 && args[0] == "list":
		for _, p := range plants {
			fmt.Printf("%-28s %-24s %s\n", p.Name, strings.Join(p.Oracles, " "), p.Title)
		}
		return nil
	case len(args) == 3 && args[0] == "build":
		return build(root, plants, args[1], args[2])
	case len(args) == 3 && args[0] == "overlay":
		p, err := named(plants, args[1])
		if err != nil {
			return err
		}
		at, err := p.overlay(root, args[2])
		fmt.Println(at)
		return err
	}
	return fmt.Errorf("usage: planted list | planted build NAME OUT | planted overlay NAME FOLDER")
}

func named(plants []*Plant, name string) (*Plant, error) {
	for _, p := range plants {
		if p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no plant is called %q; go run ./test/world/planted list shows their names", name)
}

// build builds one by its name.
func build(root string, plants []*Plant, name, out string) error {
	p, err := named(plants, name)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "planted-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	return p.Build(root, scratch, out)
}
