package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Plant is one mistake: what it is, who must see it, and how it changes the code.
type Plant struct {
	Name    string
	Title   string
	Oracles []string // at least one of them must be among those that see it
	Edits   []Edit
}

// Edit replaces whole lines of one file. Old stands there exactly once.
type Edit struct {
	File     string // relative to the repository root, with forward slashes
	Old, New string
}

// Parse reads a plant's text: "title:" and "oracle:" lines, then for each edit a line "@@ FILE" and lines as in a
// diff, which begin with a space (context), "-" (only before) or "+" (only after). "#" begins a comment above the first edit.
func Parse(name, text string) (*Plant, error) {
	p := &Plant{Name: name}
	var body []string
	flush := func() error {
		if len(p.Edits) == 0 {
			return nil
		}
		err := p.Edits[len(p.Edits)-1].fill(body)
		body = nil
		return err
	}
	for i, line := range strings.Split(text, "\n") {
		file, begins := strings.CutPrefix(line, "@@ ")
		switch {
		case begins:
			if err := flush(); err != nil {
				return nil, fmt.Errorf("plant %s: %w", name, err)
			}
			p.Edits = append(p.Edits, Edit{File: file})
		case len(p.Edits) > 0:
			body = append(body, line)
		default:
			if err := p.head(line); err != nil {
				return nil, fmt.Errorf("plant %s, line %d: %w", name, i+1, err)
			}
		}
	}
	if err := flush(); err != nil {
		return nil, fmt.Errorf("plant %s: %w", name, err)
	}
	if p.Title == "" || len(p.Oracles) == 0 || len(p.Edits) == 0 {
		return nil, fmt.Errorf("plant %s needs a title, an oracle and an edit", name)
	}
	return p, nil
}

// head reads a line above the first edit.
func (p *Plant) head(line string) error {
	key, value, _ := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	switch {
	case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
	case key == "title":
		p.Title = strings.TrimSpace(p.Title + " " + value)
	case key == "oracle":
		p.Oracles = append(p.Oracles, strings.Fields(value)...)
	default:
		return fmt.Errorf("%q is none of title:, oracle:, # and @@", line)
	}
	return nil
}

// fill sorts the lines of an edit into old and new. Empty lines at the end belong to the text, not to the edit.
func (e *Edit) fill(lines []string) error {
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	var before, after strings.Builder
	for _, line := range lines {
		switch {
		case line == "":
			before.WriteString("\n")
			after.WriteString("\n")
		case line[0] == ' ':
			before.WriteString(line[1:] + "\n")
			after.WriteString(line[1:] + "\n")
		case line[0] == '-':
			before.WriteString(line[1:] + "\n")
		case line[0] == '+':
			after.WriteString(line[1:] + "\n")
		default:
			return fmt.Errorf("%s: the line %q begins with none of space, - and +", e.File, line)
		}
	}
	if e.Old, e.New = before.String(), after.String(); e.Old == "" || e.Old == e.New {
		return fmt.Errorf("%s: the edit replaces nothing", e.File)
	}
	return nil
}

// Apply returns the changed text of each file that the plant edits; read gives a file as it is. The error says that
// the plant must be renewed.
func (p *Plant) Apply(read func(file string) (string, error)) (map[string]string, error) {
	changed := map[string]string{}
	for _, e := range p.Edits {
		text, again := changed[e.File]
		if !again {
			var err error
			if text, err = read(e.File); err != nil {
				return nil, fmt.Errorf("plant %s must be renewed: %w", p.Name, err)
			}
		}
		places := placesOf("\n"+text, "\n"+e.Old)
		if len(places) != 1 {
			return nil, fmt.Errorf("plant %s must be renewed: its old text stands %d times in %s, not once:\n%s", p.Name, len(places), e.File, e.Old)
		}
		changed[e.File] = text[:places[0]] + e.New + text[places[0]+len(e.Old):]
	}
	return changed, nil
}

// placesOf lists where whole lines begin: text and lines both begin with a line break more.
func placesOf(text, lines string) (places []int) {
	for from := 0; ; {
		i := strings.Index(text[from:], lines)
		if i < 0 {
			return places
		}
		places = append(places, from+i)
		from += i + 1
	}
}

// Load reads every plant of a folder, in the order of their names.
func Load(folder string) ([]*Plant, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.bug"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var plants []*Plant
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		p, err := Parse(strings.TrimSuffix(filepath.Base(path), ".bug"), string(text))
		if err != nil {
			return nil, err
		}
		plants = append(plants, p)
	}
	return plants, nil
}
