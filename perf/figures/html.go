package figures

import "io"

// WriteHTML is written next.
func WriteHTML(w io.Writer, run *Run) error { return nil }
