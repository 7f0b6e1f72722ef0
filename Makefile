# Everything that a person or a build machine runs; 'make help' lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-for
PYTEST_ARGUMENTS ?=
GO := .cache/go
KIND_CONFIG ?= kind-configs/two-nodes.yaml
TESTS ?= tests/e2e
# tests of real processes mostly wait for them
WORKERS ?= $(shell processors=$$(nproc); echo $$((processors < 4 ? 2 * processors : 8)))
SIDE_BY_SIDE = --numprocesses=$(WORKERS) --dist=worksteal
export KIND_CONFIG CLUSTER_NAME ADDONS KEEP SEED MINUTES
export PATH := $(CURDIR)/$(GO)/go/bin:$(PATH)

.PHONY: help
help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: venv
venv: $(STAMP) ## Install Python packages by their hashes into .venv

$(STAMP): requirements/dev.txt pyproject.toml tools/venv.sh
	@tools/venv.sh $(VENV)
	@touch $@

.PHONY: packages
packages: venv ## Install what the tests drive: GROMACS, MPI, PostgreSQL, ... (root; only what is missing)
	@tools/packages.sh tests/packages.txt
	@$(BIN)/python tools/install_workloads.py

.PHONY: go
go: venv
	@tools/go.sh $(VENV) $(GO)

.PHONY: demo
demo: venv ## Two groups share this machine; a simulation is preempted and continues
	@$(BIN)/python -m demo

.PHONY: servers
servers: venv go
	@$(BIN)/python -m tests.cluster.binaries versitygw >/dev/null
	@$(BIN)/python -c 'from tests.servers import swift; swift.install()'

.PHONY: test
test: venv packages servers ## Run the tests, with real processes, snapshots and stores
	@$(BIN)/pytest -m 'not exhaustive' $(SIDE_BY_SIDE) $(PYTEST_ARGUMENTS)

.PHONY: coverage
coverage: venv ## Run the tests under tests/unit; list the lines that none reaches; fail below the floor
	@$(BIN)/pytest tests/unit $(SIDE_BY_SIDE) --cov $(PYTEST_ARGUMENTS)

.PHONY: cluster-packages
cluster-packages: venv go ## Install what the test cluster needs on this machine (root; only what is missing)
	@tools/packages.sh tests/packages.txt tests/cluster/packages.txt

.PHONY: cluster-up
cluster-up: cluster-packages ## Bring up a Kubernetes cluster after KIND_CONFIG, with ADDONS, called CLUSTER_NAME (root)
	@$(BIN)/python -m tests.cluster up

.PHONY: cluster-down
cluster-down: venv ## Take it down: processes, namespaces, mounts, control groups, files
	@$(BIN)/python -m tests.cluster down

.PHONY: cluster-logs
cluster-logs: venv ## Show the last lines of every component
	@$(BIN)/python -m tests.cluster logs

.PHONY: e2e-parts
e2e-parts: cluster-packages ## Build what the tests on clusters need: Kubernetes, schedulers, nodes, images
	@$(BIN)/python -m tests.cluster prepare

.PHONY: images
images: cluster-packages ## Build the product's images into build/images, each with its SBOM and provenance (root)
	@$(BIN)/python -m tests.cluster.images.release build/images

.PHONY: release
release: cluster-packages ## Release VERSION from main: wheel, chart, images and their digests in build/release, commit, tag (root)
	@$(BIN)/python tools/release.py "$(VERSION)"

.PHONY: e2e
e2e: e2e-parts ## Bring a cluster up after KIND_CONFIG, run TESTS (tests/e2e) on it, take it down; KEEP=1 leaves it
	@$(BIN)/pytest $(TESTS) -m 'not exhaustive' $(PYTEST_ARGUMENTS)

.PHONY: e2e-faults
e2e-faults: servers e2e-parts ## What test and e2e leave out: every death at every phase, all of each conformance, all shapes
	@$(BIN)/python -m tests.cluster.binaries seaweedfs >/dev/null
	@$(BIN)/pytest -m exhaustive $(SIDE_BY_SIDE) $(PYTEST_ARGUMENTS)
	@$(BIN)/pytest tests/e2e -m 'exhaustive or matrix' $(PYTEST_ARGUMENTS)
	@KIND_CONFIG=kind-configs/volcano.yaml $(BIN)/pytest tests/e2e -m 'exhaustive and shape' $(PYTEST_ARGUMENTS)
	@for shape in $(filter-out %/two-nodes.yaml,$(wildcard kind-configs/*.yaml)); do \
	    KIND_CONFIG=$$shape $(BIN)/pytest tests/e2e -m 'not any_shape and not shape and not exhaustive' $(PYTEST_ARGUMENTS); \
	done

.PHONY: chaos
chaos: export KIND_CONFIG = kind-configs/volcano.yaml
chaos: e2e-parts ## Befall a mixed load on a cluster with random faults from SEED for MINUTES; judge what the programs said
	@$(BIN)/pytest tests/e2e/product/chaos $(PYTEST_ARGUMENTS)

.PHONY: lint
lint: venv ## Check format, style, types, import rules, spelling, generated pages and the house's own rules
	@$(BIN)/ruff format --check --quiet . || { echo "lint: run 'make format'" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache >$(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log >&2; exit 1; }
	@$(BIN)/codespell
	@$(BIN)/python tools/check_house.py
	@$(BIN)/python tools/check_code.py
	@$(BIN)/python tools/check_prose.py
	@$(BIN)/python tools/check_unused.py
	@$(BIN)/python tools/write_docs.py --check
	@$(BIN)/python tools/write_crds.py --check
	@$(BIN)/python tools/write_api_docs.py --check
	@echo "lint: format, style, types, import rules, spelling and house rules hold"

.PHONY: format
format: venv ## Write the format that lint expects
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

.PHONY: hooks
hooks: venv ## Run lint's checks before each commit of this clone
	@$(BIN)/pre-commit install

.PHONY: wheel
wheel: venv ## Build a wheel, install it elsewhere and start it
	@tools/check_wheel.sh $(VENV)

$(BIN)/uv:
	@$(MAKE) --no-print-directory venv

.PHONY: lock
lock: $(BIN)/uv ## Write requirements/ anew from pyproject.toml
	@for kind in runtime cluster control dev; do \
	    case $$kind in \
	        runtime) extras= ;; \
	        cluster) extras="--extra cluster" ;; \
	        control) extras="--extra armada --extra kubernetes --extra kueue --extra volcano" ;; \
	        dev) extras=--all-extras ;; \
	    esac; \
	    $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	        --no-header --no-annotate $$extras -o requirements/$$kind.txt; \
	done
	@for kind in go build; do \
	    $(BIN)/uv pip compile requirements/$$kind.in --quiet --universal --generate-hashes --no-header --no-annotate \
	        -o requirements/$$kind.txt; \
	done

.PHONY: pin
pin: venv ## Pin the packages that CRIU is made from as Debian testing has them now
	@$(BIN)/python tools/pin_toolchain.py

.PHONY: docs
docs: venv ## Write what is made from the code: parts of docs/, the kinds' definitions
	@$(BIN)/python tools/write_docs.py
	@$(BIN)/python tools/write_crds.py

.PHONY: api-docs
api-docs: venv ## Write the API documentation of the adapter contract into build/api
	@$(BIN)/python tools/write_api_docs.py

.PHONY: bench
bench: venv packages go ## Measure against plain CRIU, tar and zstd, side by side
	@$(BIN)/python -m tests.bench --write docs/bench.md

.PHONY: bench-cluster
bench-cluster: export KIND_CONFIG = kind-configs/volcano.yaml
bench-cluster: cluster-packages ## Measure what a preemption costs the preemptor, with us and without us, on a cluster
	@$(BIN)/python -m tests.bench.cluster --write docs/bench-cluster.md

.PHONY: bench-drain
bench-drain: cluster-packages ## Measure a drain of a node with six pods, with us and without us, on a cluster
	@$(BIN)/python -m tests.bench.drain --write docs/bench-drain.md

.PHONY: bench-scale
bench-scale: export KIND_CONFIG = kind-configs/one-node.yaml
bench-scale: cluster-packages ## Measure thousands of pods and a thousand victims in one moment, on fake nodes; writes docs/scale.md
	@$(BIN)/python -m tests.bench.scale --write docs/scale.md

.PHONY: clean
clean: ## Remove everything that was made here
	@rm -rf $(VENV) .cache build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
