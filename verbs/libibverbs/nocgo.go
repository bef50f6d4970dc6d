//go:build !cgo || !linux

package libibverbs

import "github.com/orbitte/orbitte/verbs"

// Load fails with *NoCgo: this build has no C.
func Load() (verbs.Calls, error) { return nil, &NoCgo{} }

// LoadPath fails with *NoCgo: this build has no C.
func LoadPath(string) (verbs.Calls, error) { return nil, &NoCgo{} }
