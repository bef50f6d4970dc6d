package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// program is what is built with a mistake in it.
const program = "./test/world/sim"

// repository finds the folder of go.mod, from the working folder upwards.
func repository() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder, nil
		}
		if folder == filepath.Dir(folder) {
			return "", errors.New("no go.mod above the working folder: run it inside the repository")
		}
		folder = filepath.Dir(folder)
	}
}

// Build builds the world's program with the plant in it, or without one when it is nil. Scratch is a folder for the changed
// copies; it may be removed afterwards.
func (p *Plant) Build(root, scratch, out string) error {
	args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", out} // no debugger will look at it
	if p != nil {
		overlay, err := p.overlay(root, scratch)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.Command("go", append(args, program)...)
	cmd.Dir = root
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, said)
	}
	return nil
}

// overlay writes the changed copies and the list that tells the go command of them (go help build).
func (p *Plant) overlay(root, scratch string) (string, error) {
	changed, err := p.Apply(reader(root))
	if err != nil {
		return "", err
	}
	list := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range changed {
		at := filepath.Join(scratch, p.Name, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			return "", err
		}
		list.Replace[filepath.Join(root, filepath.FromSlash(file))] = at
	}
	text, err := json.MarshalIndent(list, "", "\t")
	if err != nil {
		return "", err
	}
	at := filepath.Join(scratch, p.Name, "overlay.json")
	return at, os.WriteFile(at, text, 0o644)
}

// reader reads files of the repository.
func reader(root string) func(string) (string, error) {
	return func(file string) (string, error) {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		return string(text), err
	}
}
