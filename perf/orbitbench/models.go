package main

import (
	"fmt"

	"github.com/orbitte/orbitte/perf/figures"
)

// model is a model's KV cache, as its published configuration gives it.
type model struct {
	name    string
	layers  int
	heads   int // KV heads; 0: latent attention, whose one vector serves all heads
	dim     int // of a head, or of the latent vector and its rotary part
	element int // bytes of one number
}

// tokensPerBlock is the usual page of a paged cache.
const tokensPerBlock = 16

// models are those whose shape many caches have. Heads and dimensions: config.json of each (num_hidden_layers,
// num_key_value_heads, head_dim; for DeepSeek kv_lora_rank + qk_rope_head_dim = 512 + 64). Every second layer of gpt-oss
// looks back 128 tokens only; its cache is counted whole, as engines with one kind of block keep it.
var models = []model{
	{"Llama 3.1 8B", 32, 8, 128, 2},
	{"Llama 3.1 70B", 80, 8, 128, 2},
	{"Qwen2.5 7B", 28, 4, 128, 2},
	{"gpt-oss 120B", 36, 8, 64, 2},
	{"DeepSeek V3", 61, 0, 576, 2},
}

// pieces is how many separate ranges a block has in each layer: keys and values, or the one latent vector.
func (m model) pieces() int {
	if m.heads == 0 {
		return 1
	}
	return 2
}

// pieceBytes is one range: a block's keys (or values) in one layer.
func (m model) pieceBytes() uint64 {
	return uint64(tokensPerBlock * max(m.heads, 1) * m.dim * m.element)
}

// tokenBytes is what one token takes in all layers.
func (m model) tokenBytes() uint64 {
	return m.pieceBytes() / tokensPerBlock * uint64(m.pieces()*m.layers)
}

// ranges is how many ranges a prompt has.
func (m model) ranges(tokens int) int {
	return m.layers * m.pieces() * ((tokens + tokensPerBlock - 1) / tokensPerBlock)
}

// arithmetic shows how the figures come about.
func (m model) arithmetic(tokens int) string {
	shape := fmt.Sprintf("%d KV heads × %d × %d B", m.heads, m.dim, m.element)
	if m.heads == 0 {
		shape = fmt.Sprintf("latent %d × %d B", m.dim, m.element)
	}
	n, blocks := m.ranges(tokens), (tokens+tokensPerBlock-1)/tokensPerBlock
	return fmt.Sprintf("%d layers × %d × %s = %s a token; %d tokens = %d layers × %d × %d blocks = %d ranges of %d tokens × %s = %s each, %s in all",
		m.layers, m.pieces(), shape, figures.Bytes(m.tokenBytes()), tokens, m.layers, m.pieces(), blocks, n, tokensPerBlock, shape,
		figures.Bytes(m.pieceBytes()), figures.Bytes(uint64(n)*m.pieceBytes()))
}
