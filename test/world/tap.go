package world

import "github.com/orbitte/orbitte/reactor"

// tap listens at one lane's kernel.
type tap struct{ life *life }

func (t *tap) submitted(*reactor.Operation) {}

func (t *tap) completed([]reactor.Completion) {}
