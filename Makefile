# What a person or a machine does with this repository. Everything installs what it needs by itself.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

CARGO ?= cargo
IMAGE ?= runtimehealth.io/nrh:dev
# KEEP=1 leaves the demo's cluster running.
KEEP ?=
# FAKE=1 lets stand-ins play containerd and the kubelet in the demo, as it does by itself without root.
FAKE ?=
CARGO_DENY_VERSION ?= 0.20.2
CARGO_FUZZ_VERSION ?= 0.13.2
CARGO_AUDITABLE_VERSION ?= 0.7.7
CARGO_CYCLONEDX_VERSION ?= 0.5.9
# The image that compiles, as NAME@sha256:DIGEST: see docs/how-to/install.md.
RUST_IMAGE ?=
# Seconds for each target of `make fuzz`, and which of them (all folders of fuzz/corpus).
TIME ?= 60
TARGETS ?= $(sort $(notdir $(wildcard fuzz/corpus/*)))

.PHONY: help
help: ## This text
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-16s %s\n", $$1, $$2}'

.PHONY: protoc
protoc:
	@command -v protoc >/dev/null && exit 0
	if ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ]; then
	  echo "protoc is missing: install the protobuf compiler (Debian: protobuf-compiler)" >&2; exit 1
	fi
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends protobuf-compiler >/dev/null

# The programs of the test bed and the operator, compiled as all tests are: another build would compile everything once more.
TESTBED = "$$(realpath "$${CARGO_TARGET_DIR:-target}")/debug/testbed"

.PHONY: testbed
testbed: protoc
	@$(CARGO) test --quiet --workspace --no-run --test supervise --test repository

.PHONY: setup
setup: testbed ## Debian packages and Kubernetes programs of the test bed (once, kept between runs)
	@if [ "$$(uname -s)" != Linux ] || [ "$$(id -u)" != 0 ]; then
	  echo "SKIPPED: the test bed needs root on Linux; tests on real nodes will say so too"; exit 0
	fi
	$(TESTBED) assets

.PHONY: check-core
check-core: ## Tests of the core and the simulated cluster alone (a minute)
	@.ci/stages check-core

.PHONY: check
check: protoc ## What needs no test bed: format, clippy, tests, examples, generated files, manifests (three minutes)
	@.ci/stages check

.PHONY: test
test: protoc ## All of check in full depth, a real control plane, real nodes (half an hour)
	@.ci/stages test

.PHONY: test-slow
test-slow: protoc ## What takes longest: a soak, mutants of the operator, a leader killed at each kind of write, a machine that reboots (half an hour)
	@.ci/stages test-slow

.PHONY: demo
demo: ## One hung container on a real node: left alone under the dry run, then healed (5 minutes); with FAKE=1 or no root on stand-ins

.PHONY: demo-all
demo-all: ## All incidents, each first left alone under the dry run (half an hour)

demo demo-all:
	@if [ "$$(uname -s)" != Linux ]; then
	  echo "the demo needs Linux: the operator reads /proc and holds processes by pidfd" >&2; exit 1
	fi
	if [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory setup; else $(MAKE) --no-print-directory testbed; fi
	$(TESTBED) demo $(if $(filter demo,$@),--only hung-container) $(if $(KEEP),--keep) $(if $(FAKE),--fake)

.PHONY: demo-down
demo-down: testbed ## Ends a cluster that was kept
	@$(TESTBED) --name demo down

.PHONY: matrix
matrix: testbed ## Writes what the last tests have seen of each fault into docs/reference/faults.md
	@$(TESTBED) matrix docs/reference/faults.md

# What the machines of `make platform` run; an unknown name is answered with all. `docker` and `cri-o` need CRI_DOCKERD and CRIO, which name
# the programs `cri-dockerd` and `crio` (with `pinns` beside it): no package registry has them.
PLATFORM ?= containerd-2.4
# For how many minutes pods come and go there.
CHURN ?= 60

.PHONY: platform
platform: setup ## All that is promised, on two machines with PLATFORM=containerd-2.4, an hour (CHURN=60 minutes) of pods that come and go
	@NRH_PLATFORM=$(PLATFORM) NRH_CHURN_MINUTES=$(CHURN) $(CARGO) test --workspace --test platform -- --ignored --nocapture promised

.PHONY: oldest
oldest: setup ## Rights, schemas and admission on the oldest Kubernetes that is supported (20 minutes, the first time ten more)
	@KUBEBUILDER_ASSETS="$$($(TESTBED) assets --platform kubernetes-1.30 | head -n 1)" $(CARGO) test --workspace --test cluster -- --test-threads=4

.PHONY: support
support: testbed ## Writes what was seen to hold on each platform into docs/reference/support.md
	@$(TESTBED) support docs/reference/support.md

.PHONY: access
access: testbed ## Writes who may do what, as the tests hold the API server to it, into docs/reference/permissions.md
	@$(TESTBED) access docs/reference/permissions.md

.PHONY: bench
bench: setup ## Benchmarks of one decision and of the probe; writes target/bench/*.json
	@$(CARGO) bench --package nrh --bench plan --bench probe

.PHONY: bench-probe
bench-probe: setup ## What a probe costs on a node with 10, 100 and 250 pods (40 minutes); target/bench/probe.json
	@$(CARGO) bench --package nrh --bench probe

# Numbers of simulated nodes of `make bench-controller`, one after another; 50 shows in minutes whether everything works.
NODES ?= 1000,5000

# Numbers of pods of `make bench-detect`, one after another.
PODS ?= 100,250
# Runtimes of `make bench-detect`.
RUNTIMES ?= containerd,docker

.PHONY: bench-detect
bench-detect: setup ## How soon a hung shim is named with PODS=100,250 pods, by RUNTIMES=containerd,docker and kind of hang (80 minutes); target/bench/detect.json
	@NRH_BENCH_PODS=$(PODS) NRH_BENCH_RUNTIMES=$(RUNTIMES) $(CARGO) bench --package nrh --bench detect

.PHONY: bench-controller
bench-controller: setup ## What the controller costs and how fast it is with NODES=1000,5000 simulated nodes; target/bench/controller.json
	@NRH_BENCH_NODES=$(NODES) $(CARGO) bench --package nrh --bench plan --bench controller

# Minutes of `make soak`.
SOAK ?= 60

.PHONY: soak
soak: setup ## An hour (SOAK=60 minutes) of pods and faults that come and go; writes target/bench/soak.json
	@NRH_SOAK_MINUTES=$(SOAK) $(CARGO) test --workspace --test soak -- --nocapture

# Minutes of `make noise`, and what the node is short of then: cpu, memory or disk.
NOISE ?= 30
PRESSURE ?= cpu

.PHONY: noise
noise: setup ## Half an hour (NOISE=30 minutes) of roll-outs on a node that is short of PRESSURE=cpu|memory|disk
	@NRH_NOISE_MINUTES=$(NOISE) NRH_NOISE_PRESSURE=$(PRESSURE) $(CARGO) test --workspace --test noise -- --nocapture

# Where `nrh` for people runs beside Linux.
OTHERS ?= x86_64-apple-darwin x86_64-pc-windows-gnu

.PHONY: check-portable
check-portable: protoc ## Compiles the verbs that need only the API for macOS and Windows, up to the linker
	@for target in $(OTHERS); do
	  if ! timeout 120 rustup target add "$$target" >/dev/null 2>&1; then
	    echo "SKIPPED: the standard library for $$target cannot be installed here"; continue
	  fi
	  # No C of the dependencies is linked, so no compiler for it is needed.
	  name="$${target//-/_}"
	  env "CC_$$name=true" "AR_$$name=true" $(CARGO) check --quiet --locked --package nrh --bin nrh --target "$$target"
	done

.PHONY: lint
lint: protoc ## Dependencies, and the command line tool for other systems
	@if ! $(CARGO) deny --version >/dev/null 2>&1; then
	  $(CARGO) install --quiet --locked --debug cargo-deny --version $(CARGO_DENY_VERSION) || true
	fi
	if $(CARGO) deny --version >/dev/null 2>&1; then
	  $(CARGO) deny --all-features check --hide-inclusion-graph bans licenses sources
	  # Fetched, or of an earlier fetch: without a network there may be none.
	  timeout 120 $(CARGO) deny fetch db >/dev/null 2>&1 || true
	  if [ -n "$$(find "$${CARGO_HOME:-$$HOME/.cargo}/advisory-dbs" -name 'RUSTSEC-*.md' -print -quit 2>/dev/null)" ]; then
	    $(CARGO) deny --offline --all-features check --hide-inclusion-graph advisories
	  else
	    echo "advisories: not checked (no database)"
	  fi
	else
	  echo "SKIPPED: cargo-deny $(CARGO_DENY_VERSION) cannot be installed here: bans, licences, sources and advisories were not checked"
	fi
	$(MAKE) --no-print-directory check-portable OTHERS=x86_64-pc-windows-gnu

.PHONY: fuzz
fuzz: protoc ## Feeds each parser of what others write with odd bytes: TIME=60 seconds each, TARGETS="order proc_stat"
	@command -v c++ >/dev/null || { echo "a C++ compiler is missing: install one (Debian: g++); libFuzzer is built with it" >&2; exit 1; }
	if ! $(CARGO) +nightly --version >/dev/null 2>&1; then
	  rustup toolchain install nightly --profile minimal >/dev/null 2>&1 || {
	    echo "a nightly Rust is missing and cannot be installed here: the compiler's part of fuzzing is in no other" >&2; exit 1
	  }
	fi
	if ! $(CARGO) fuzz --version >/dev/null 2>&1; then
	  $(CARGO) install --quiet --locked cargo-fuzz --version $(CARGO_FUZZ_VERSION) || {
	    echo "cargo-fuzz $(CARGO_FUZZ_VERSION) is missing and cannot be installed here" >&2; exit 1
	  }
	fi
	$(CARGO) +nightly fuzz build any
	failed=()
	for target in $(TARGETS); do
	  # What it finds on its way stays out of the repository: seeds are small and have names.
	  found="fuzz/target/found/$$target"; broken="fuzz/target/broken/$$target"
	  mkdir -p "$$found" "$$broken"
	  printf '%-20s ' "$$target"
	  if NRH_FUZZ_TARGET="$$target" $(CARGO) +nightly fuzz run any "$$found" "fuzz/corpus/$$target" -- \
	    -max_total_time=$(TIME) -timeout=10 -rss_limit_mb=1024 -max_len=65536 -artifact_prefix="$$broken/" >"$$broken/log" 2>&1; then
	    grep -oE '^Done [0-9]+ runs in [0-9]+ second' "$$broken/log" | sed 's/$$/s/'
	  else
	    echo "FAILED: see $$broken"; grep -hE 'panicked at|ERROR:|Test unit written' -A1 "$$broken/log" >&2 || true; failed+=("$$target")
	  fi
	done
	if [ "$${#failed[@]}" != 0 ]; then echo "failed: $${failed[*]}" >&2; exit 1; fi

.PHONY: fmt
fmt: ## Formats the code
	@$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml

# Any test of the root package brings its programs.
NRH = "$$(realpath "$${CARGO_TARGET_DIR:-target}")/debug/nrh"

.PHONY: crds
crds: protoc ## Writes crds/ from the types
	@$(CARGO) test --quiet --workspace --no-run --test repository
	$(NRH) generate crds --out crds

# Files for whoever wants to know what is in the image.
BILL = target/image

.PHONY: sbom
sbom: ## Writes what the two programs are made of as CycloneDX: target/image/nrh.cdx.json
	@if ! $(CARGO) cyclonedx --version >/dev/null 2>&1; then
	  $(CARGO) install --quiet --locked cargo-cyclonedx --version $(CARGO_CYCLONEDX_VERSION)
	fi
	triple="$$(rustc -vV | sed -n 's/^host: //p')"
	# It writes a file beside each Cargo.toml of the workspace.
	trap 'find . -name "nrh-bill.json" -not -path "./target/*" -delete' EXIT
	SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct 2>/dev/null || echo 0)" $(CARGO) cyclonedx --quiet --format json \
	  --spec-version 1.5 --target "$$triple" --no-build-deps --override-filename nrh-bill
	mkdir -p $(BILL)
	# Crates of the workspace are named by their path, which is a place on this machine.
	sed "s|path+file://$$PWD/*|path+file:///|g" nrh-bill.json >$(BILL)/nrh.cdx.json
	echo "$(BILL)/nrh.cdx.json"

.PHONY: image
image: ## Builds the image from the Dockerfile (buildah, podman or docker) and its bill of materials; RUST_IMAGE=NAME@sha256:DIGEST
	@if ! [[ "$(RUST_IMAGE)" =~ ^[^[:space:]]+@sha256:[0-9a-f]{64}$$ ]]; then
	  echo "RUST_IMAGE: expected rust:1.95-bookworm by digest, found '$(RUST_IMAGE)'; to learn it:" >&2
	  echo "  skopeo inspect --format '{{.Name}}@{{.Digest}}' docker://rust:1.95-bookworm" >&2
	  exit 1
	fi
	$(MAKE) --no-print-directory sbom
	for tool in buildah podman docker; do
	  command -v "$$tool" >/dev/null && exec "$$tool" build --tag $(IMAGE) --build-arg RUST_IMAGE=$(RUST_IMAGE) \
	    --build-arg CARGO_AUDITABLE_VERSION=$(CARGO_AUDITABLE_VERSION) .
	done
	echo "none of buildah, podman and docker is installed" >&2; exit 1
