# make test is all there is to know; make help lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME ?= 1m
SIMULATE ?= 30m
LOCK_SOAK ?= 200
FAILOVER_SOAK ?= 10m

.PHONY: help
help: ## list what make can do
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

.PHONY: test
test: tools lint ## install what is missing, then check and test everything; takes minutes
	go test -race -count=1 -timeout=9m ./...

.PHONY: lint
lint: ## gofmt, go vet and staticcheck
	@unformatted=$$(gofmt -l .); if [[ -n $$unformatted ]]; then echo "gofmt -w these:" $$unformatted; exit 1; fi
	go vet ./...
	go tool staticcheck ./...

.PHONY: tools
tools: ## install what the tests need and the machine lacks
	@.ci/tools

.PHONY: build
build: ## build bin/seckill-proxy, a static binary
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/seckill-proxy .

.PHONY: run
run: ## run the sidecar with its embedded store
	go run .

.PHONY: fuzz
fuzz: ## run each fuzz test for FUZZTIME
	@for package in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' "$$package" | { grep '^Fuzz' || true; }); do \
	    echo "$$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) "$$package"; \
	  done; \
	done

.PHONY: simulate
simulate: ## random sales, crashes and pauses for SIMULATE; prints its seed, and what to do with one (simulator/)
	go test -count=1 -timeout=0 -v -run '^TestSimulation$$' ./simulator -duration $(SIMULATE)

.PHONY: soak
soak: ## LOCK_SOAK rounds of 500 waiters and 10,000 locks, through two sidecars; minutes
	LOCK_SOAK=$(LOCK_SOAK) go test -race -count=1 -timeout=30m -v -run '^TestSoak$$' ./commands/lock

.PHONY: failover-soak
failover-soak: ## kill masters of a cluster for FAILOVER_SOAK while a sale sells
	FAILOVER_SOAK=$(FAILOVER_SOAK) go test -race -count=1 -timeout=0 -v -run '^TestMastersThatAreKilled$$' ./commands/seckill

.PHONY: bench
bench: ## compare with Redis alone, twemproxy and HAProxy; BENCH=-update writes the results into bench/README.md
	@.ci/tools bench
	go run ./bench $(BENCH)

.PHONY: commands
commands: ## write COMMANDS.md anew from the command table
	go generate ./commands

.PHONY: image
image: ## build the container image seckill-proxy:VERSION
	docker build --build-arg VERSION='$(VERSION)' -t 'seckill-proxy:$(VERSION)' .
