//go:build !cgo || !linux

package libcuda

import "github.com/orbitte/orbitte/cuda"

// Load fails with *NoCgo: this build has no C.
func Load() (cuda.Calls, error) { return nil, &NoCgo{} }

// LoadPath fails with *NoCgo: this build has no C.
func LoadPath(string) (cuda.Calls, error) { return nil, &NoCgo{} }
