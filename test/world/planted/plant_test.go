package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"strings"
	"testing"
)

func loaded(t *testing.T) (root string, plants []*Plant) {
	t.Helper()
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	if plants, err = Load("testdata"); err != nil {
		t.Fatal(err)
	}
	return root, plants
}

func TestEveryPlantAppliesToTheCodeOfToday(t *testing.T) {
	root, plants := loaded(t)
	if len(plants) < 20 {
		t.Errorf("%d plants; at least 20 belong here", len(plants))
	}
	for _, p := range plants {
		changed, err := p.Apply(reader(root))
		if err != nil {
			t.Error(err)
			continue
		}
		for file, text := range changed {
			if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "test/") || strings.HasPrefix(file, "reactor/simkernel/") {
				t.Errorf("plant %s changes %s, which no real program runs", p.Name, file)
			}
			if _, err := parser.ParseFile(token.NewFileSet(), file, text, 0); err != nil {
				t.Errorf("plant %s: %v", p.Name, err)
			}
		}
	}
}

// TestNoShippedFileKnowsOfPlants holds the promise that what a real program runs is what is simulated.
func TestNoShippedFileKnowsOfPlants(t *testing.T) {
	root, plants := loaded(t)
	files := map[string]bool{}
	for _, p := range plants {
		for _, e := range p.Edits {
			files[e.File] = true
		}
	}
	for file := range files {
		text, err := reader(root)(file)
		if err != nil {
			t.Error(err)
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, group := range tree.Comments {
			if strings.Contains(group.Text(), "//go:build planted") || ast.IsGenerated(tree) {
				t.Errorf("%s has something to do with plants", file)
			}
		}
	}
}

const sample = `# a comment
title: forgets
title: the second
oracle: bytes panic

@@ a.go
 one
-two
+zwei

 four
@@ a.go
-five
`

func TestAPlantIsParsedAndApplied(t *testing.T) {
	p, err := Parse("x", sample)
	if err != nil {
		t.Fatal(err)
	}
	if p.Title != "forgets the second" || strings.Join(p.Oracles, ",") != "bytes,panic" || len(p.Edits) != 2 {
		t.Errorf("parsed %+v", p)
	}
	read := func(file string) (string, error) {
		if file != "a.go" {
			return "", fs.ErrNotExist
		}
		return "zero\none\ntwo\n\nfour\nfive\nsix\n", nil
	}
	changed, err := p.Apply(read)
	if err != nil {
		t.Fatal(err)
	}
	if want := "zero\none\nzwei\n\nfour\nsix\n"; changed["a.go"] != want {
		t.Errorf("got %q, want %q", changed["a.go"], want)
	}
}

// TestAPlantThatDoesNotFitIsRefused covers old text that is gone, that stands twice, and that stands only inside a line.
func TestAPlantThatDoesNotFitIsRefused(t *testing.T) {
	p, err := Parse("x", sample)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "one\ntwo\n\nfour\none\ntwo\n\nfour\nfive\n", "not one\ntwo\n\nfour\nfive\n", "one\ntwo\n\nfour\nfive or six\n"} {
		_, err := p.Apply(func(string) (string, error) { return text, nil })
		if err == nil || !strings.Contains(err.Error(), "must be renewed") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := p.Apply(func(string) (string, error) { return "", fs.ErrNotExist }); err == nil {
		t.Error("a missing file passes")
	}
}

func TestAPlantThatSaysNothingIsRefused(t *testing.T) {
	for _, text := range []string{
		"", "title: t\noracle: o\n", "oracle: o\n@@ a\n-x\n", "title: t\n@@ a\n-x\n", "title: t\noracle: o\nwhat\n@@ a\n-x\n",
		"title: t\noracle: o\n@@ a\n x\n", "title: t\noracle: o\n@@ a\n+x\n", "title: t\noracle: o\n@@ a\nx\n", "title: t\noracle: o\n@@ a\n@@ b\n-x\n",
	} {
		if p, err := Parse("x", text); err == nil {
			t.Errorf("%q parses as %+v", text, p)
		}
	}
}
