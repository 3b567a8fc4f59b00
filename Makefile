# `make help` lists the targets from the comments behind them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# The system's Python: the project's own environment cannot make itself anew.
PYTHON := $(shell command -v python3)
BENCH := $(PYTHON) molecule/bench/bench.py
BIN := .venv/bin
SCENARIOS := $(patsubst molecule/%/molecule.yml,%,$(sort $(wildcard molecule/*/*/molecule.yml)))
SCENARIO ?= default
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup demo demo-down test lint unit unit-all docs check molecule nightly knee-quality knee-cost

help: ## Show this list
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## Make the virtual environment (and install what this machine lacks, as root)
	@$(BENCH) setup

demo: setup ## Deploy a real vLLM on a simulated 8x MI300X node, with the project's own playbook
	@$(BENCH) demo

demo-down: ## Remove every node, image and process of ours
	@$(BENCH) down

test: setup lint unit ## Run everything: lint, unit tests, and every scenario on simulated nodes
	@$(BENCH) models
	@set -e; for scenario in $(SCENARIOS); do $(MAKE) --no-print-directory molecule ROLE=$${scenario%/*} SCENARIO=$${scenario#*/}; done

lint: setup ## Check style, types and playbooks
	@ruff check . && ruff format --check . && mypy && yamllint --strict . && ansible-lint --offline --profile production -q
	@ansible-playbook site.yml -i inventories/prod --syntax-check

unit: setup ## Run the unit tests
	@$(BENCH) browser
	@python -m pytest -n 2

unit-all: ## Run the unit tests on Python 3.12 and 3.13 too, where these are installed
	@$(BENCH) unit-all

nightly: setup ## Run the long tests: tens of thousands of damaged tool outputs
	@python -m pytest -n 2 -m nightly

knee-quality: setup ## Measure how good the knee is, on simulated servers whose truth is known (about ten minutes)
	@python benchmarks/knee_quality.py --live 2
	@python benchmarks/client_ceiling.py

knee-cost: setup ## Measure what a knee costs, against a ladder of `vllm bench serve` and guidellm (about eight minutes)
	@$(BENCH) models
	@python benchmarks/knee_cost.py

docs: setup ## Write the generated documents again
	@python -m instinct_fleet.docs

molecule: setup ## Run one scenario: make molecule ROLE=vllm_serve SCENARIO=default (or: make molecule vllm_serve/default)
	@test -f molecule/$(ROLE)/$(SCENARIO)/molecule.yml || { echo "no scenario $(ROLE)/$(SCENARIO); there are: $(SCENARIOS)" >&2; exit 2; }
	@$(BENCH) models
	@echo "== scenario $(ROLE)/$(SCENARIO)"
	@MOLECULE_EPHEMERAL_DIRECTORY='$(CURDIR)/.cache/molecule/$(ROLE)-$(SCENARIO)' \
	  MOLECULE_GLOB='molecule/$(ROLE)/*/molecule.yml' molecule --base-config molecule/config.yml test -s $(SCENARIO)

# `make molecule vllm_serve/default`: the second word is not a target of its own.
ifeq (molecule,$(firstword $(MAKECMDGOALS)))
WORD := $(word 2,$(MAKECMDGOALS))
ifneq (,$(WORD))
ROLE := $(patsubst %/,%,$(dir $(WORD)))
SCENARIO := $(notdir $(WORD))
.PHONY: $(WORD)
$(WORD): ; @:
endif
endif
