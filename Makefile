# OrbitTE. Needs Go and git; the race detector also needs a C compiler. Plain `make` lists the targets.

GO       ?= go
FUZZTIME ?= 10m
# Phases of make test to run, such as PHASES="format vet"; empty: all.
PHASES   ?=
# Stop make test after this time and count what is unfinished as failed; 0: no limit.
LIMIT    ?= 0
# Packages of make fuzz, such as FUZZ=./netproto.
FUZZ     ?= ./...
PERFARGS ?=
# One plant of make planted (empty: all), and how many are built and run at a time.
PLANT    ?=
PLANTJOBS ?= 2
FLEETARGS ?=
GPUARGS  ?=
# How long make soak runs, and its other flags.
MINUTES  ?= 10
SOAKARGS ?=
# Of make soak: the seed of its plan (empty: a new one). Of make sim: the one seed to show (empty: many).
SEED     ?=
BIN      := bin

# Version stamping fails in a checkout that belongs to another user; nothing here needs it.
export GOFLAGS ?= -buildvcs=false

.DEFAULT_GOAL := help
.PHONY: help build test vm gpu demo fuzz sim soak planted perf fleet cover clean

help: ## list the targets
	@echo "targets:"
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' Makefile | expand -t 12

# The tool says its commit where git tells it (a checkout of another user may not).
STAMP := $(shell git status --porcelain >/dev/null 2>&1 && echo true || echo false)

build: ## build bin/orbitte, without C: TCP and HP-TCP; CGO_ENABLED=1 (needs gcc) adds RDMA and the view of devices and GPUs
	CGO_ENABLED=$(or $(CGO_ENABLED),0) $(GO) build -buildvcs=$(STAMP) -trimpath -o $(BIN)/orbitte ./cmd/orbitte

test: ## everything that must pass (about a quarter of an hour on two quiet cores; fetches staticcheck; -race needs gcc); PHASES="vet test" runs some, LIMIT=27m bounds the time
	@$(GO) build -o $(BIN)/summary ./test/summary
	@$(BIN)/summary -limit $(LIMIT) test $(PHASES)

vm: ## the whole soft-RoCE gate in emulated machines, engine and figures included, and the table of what it proved; as root on Debian it installs what it needs
	@$(GO) build -o $(BIN)/summary ./test/summary
	@$(BIN)/summary -limit $(LIMIT) test vm

gpu: ## build the GPU gate into bin/gpu, which runs on any x86-64 Linux with NVIDIA's driver (bin/gpu/run), and run it here; GPUARGS are passed on
	@GO="$(GO)" ./test/device/build.sh; status=$$?; [ $$status = 77 ] && exit 0; [ $$status = 0 ] && ./$(BIN)/gpu/run $(GPUARGS)

demo: ## serve a real file, get it in a second process, verify, print the table; MIB=1024 or FILE=/path
	@./test/demo/run.sh

fuzz: ## each fuzz target for FUZZTIME (10m); FUZZ=./netproto picks packages
	@$(GO) build -o $(BIN)/summary ./test/summary
	@$(BIN)/summary -time $(FUZZTIME) fuzz $(FUZZ)

soak: ## real processes, random faults, race detector (needs gcc): MINUTES=10 SEED=1; SOAKARGS are passed on
	CGO_ENABLED=1 $(GO) build -race -o $(BIN)/soak ./test/soak
	@$(BIN)/soak -minutes $(MINUTES) -seed "$(SEED)" $(SOAKARGS)

sim: ## 10,000 seeds of the simulated world (SEEDS=n); SEED=n shows one (TURNS=k long, not 400), SCRIPT=file a script; SHRINK=1 makes a failing one short: bin/SEED-n.script or bin/short.script; BUG=name plants a mistake
	@$(if $(BUG),$(GO) run ./test/world/planted build $(BUG) $(BIN)/sim-$(BUG),$(GO) build -o $(BIN)/sim ./test/world/sim)
	@$(BIN)/sim$(if $(BUG),-$(BUG) -bug $(BUG)) $(if $(SHRINK),-shrink $(BIN)/$(if $(SCRIPT),short,SEED-$(SEED)).script) $(if $(SCRIPT),-script $(SCRIPT)) $(if $(SEED),-seed $(SEED)) $(if $(TURNS),-turns $(TURNS)) $(if $(SEEDS),-seeds $(SEEDS))

planted: ## plant each known mistake into a copy of the engine; the simulated world must find it; PLANT=name tries one, go run ./test/world/planted list shows them
	PLANT=$(PLANT) $(GO) test -tags planted -count=1 -v -timeout 20m -parallel $(PLANTJOBS) ./test/world/planted

perf: ## measure beside raw loops, gnet, grpc-go, iperf3, UCX, libfabric in one run; PERFARGS=check judges the targets in a minute, PERFARGS="-out F" writes F.jsonl and F.html
	$(GO) run ./perf/orbitbench $(PERFARGS)

fleet: ## what a request costs against peers, regions, batch size and engines, and 1,000 engines with every byte checked; FLEETARGS are passed on
	$(GO) run ./test/world/fleet $(FLEETARGS)

cover: ## statement coverage of all packages by all tests: bin/cover.html
	@mkdir -p $(BIN)
	$(GO) test -coverpkg=./... -coverprofile=$(BIN)/cover.out ./...
	@$(GO) tool cover -html=$(BIN)/cover.out -o $(BIN)/cover.html
	@$(GO) tool cover -func=$(BIN)/cover.out | tail -n 1

clean: ## remove what the targets built
	rm -rf $(BIN) dist
