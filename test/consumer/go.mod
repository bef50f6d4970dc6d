// A module outside the project, as its users have it: only the public package is named.
module example.org/consumer

go 1.26.0

require github.com/orbitte/orbitte v0.0.0

require (
	github.com/mattn/go-colorable v0.1.14 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	github.com/rs/zerolog v1.35.1 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/orbitte/orbitte => ../..
