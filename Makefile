# Everything starts here: `make demo` on a fresh clone needs Python 3.11 or later and make.
# The environment in .venv is made by itself and remade when a lock or pyproject.toml changes.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
# What the environment holds: the product with the demo, or that and the development tools.
DEMO_STAMP := $(VENV)/.ackgate-demo
DEV_STAMP := $(VENV)/.ackgate-dev
AMQP10_STAMP := $(VENV)/.ackgate-amqp10

# `make test T=tests/core` runs one ring, `make test ARGS="-k weak"` passes options to pytest,
# JOBS=0 runs all in one process. Files stay together: those that share a gateway or Spark share it.
T ?= tests
ARGS ?=
JOBS ?= 3

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)$$/  make \1\t\2/' \
	  | expand -t 18

.PHONY: demo
demo: $(DEMO_STAMP) ## Show the whole product at work, with two gateways and Spark, in a minute
	@$(BIN)/ackgate demo

.PHONY: serve
serve: $(DEMO_STAMP) ## Run the gateway on 127.0.0.1:8080 with development users
	@$(BIN)/ackgate serve --dev

.PHONY: setup
setup: $(DEV_STAMP) ## Make .venv with all development tools

.PHONY: amqp10
amqp10: $(AMQP10_STAMP) ## Add the library of AMQP 1.0 to .venv; needs a C compiler

.PHONY: test
test: $(DEV_STAMP) ## Run the tests (T=tests/core for one ring, ARGS="-k name" for pytest)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(T) $(ARGS)

.PHONY: soak
soak: $(DEV_STAMP) ## Kill gateway and store 200 times under load, in five minutes (KILLS=n)
	KILLS=$${KILLS:-200} $(BIN)/python -m pytest tests/cluster/test_kill9.py $(ARGS)

.PHONY: lint
lint: $(DEV_STAMP) ## Check format, lint, types and layering
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: generated
generated: $(DEV_STAMP) ## Check that generated files are up to date
	$(BIN)/ackgate openapi --check
	$(BIN)/ackgate config page --check

.PHONY: check
check: lint generated ## All of lint and generated, then the tests
	@$(MAKE) test

.PHONY: format
format: $(DEV_STAMP) ## Format and fix what can be fixed by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(DEV_STAMP) ## Run the benchmarks beside their baselines
	$(BIN)/python -m benchmarks

# No registry and no option of this machine goes into a lock: versions and hashes alone. demo.lock
# and gateway.lock are parts of dev.lock, amqp10.lock is but for one package. UPGRADE=1 takes newer
# versions.
LOCK := $(BIN)/pip-compile --quiet --generate-hashes --strip-extras --resolver=backtracking \
	--build-deps-for editable --unsafe-package ackgate --unsafe-package pip \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
	$(if $(UPGRADE),--upgrade)
# The package itself and the tools' advice about it are no business of the lock.
TIDY := sed -i -e '/^\# WARNING: The following packages/,$$d' -e '/^\# The following packages/,$$d' \
	-e '/^    \#   ackgate$$/d' -e '/^$$/d'

.PHONY: lock
lock: $(DEV_STAMP) ## Write requirements/*.lock anew from pyproject.toml
	@for lock in dev:--extra=dev demo:--extra=demo gateway:--extra=connections,postgres \
	  amqp10:--extra=amqp10; do \
	  name=$${lock%%:*} options=$${lock#*:}; \
	  echo "requirements/$$name.lock ..."; \
	  [ $$name = dev ] || options="$$options -c requirements/dev.lock"; \
	  env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL PIP_CONFIG_FILE=/dev/null \
	    CUSTOM_COMPILE_COMMAND="make lock" \
	    $(LOCK) $$options -o requirements/$$name.lock pyproject.toml; \
	  $(TIDY) requirements/$$name.lock; \
	done

.PHONY: clean
clean: ## Remove .venv, caches and build output (data directories stay)
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------- environment

# The first Python that is new enough.
define FIND_PYTHON
for python in "$${PYTHON:-}" python3.11 python3.12 python3.13 python3; do \
  if [ -n "$$python" ] && "$$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' \
    2>/dev/null; then break; fi; \
  python=; \
done; \
if [ -z "$$python" ]; then echo "ackgate needs Python 3.11 or later with venv; set PYTHON=..." >&2; \
  exit 1; fi
endef

# Everything is pinned in the lock, so pip resolves nothing. The cached wheel of pyspark (an sdist
# of hundreds of MB) is used with hashes too.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input --no-deps

define INSTALL
@$(FIND_PYTHON); \
if ! [ -x $(BIN)/python ]; then echo "[1/3] making $(VENV) with $$($$python --version)"; \
  $$python -m venv $(VENV); fi
@echo "[2/3] installing $$(grep -c '^[a-z].*==' requirements/$(1).lock) packages from requirements/$(1).lock"
@$(PIP_INSTALL) --require-hashes -r requirements/$(1).lock 2>&1 | tee $(VENV)/install.log \
  | { grep --line-buffered -oE '^(Collecting [^ ]+|Installing collected|Building wheels.*)' || true; } \
  || { echo "pip failed; the end of $(VENV)/install.log:" >&2; tail -20 $(VENV)/install.log >&2; exit 1; }
@echo "[3/3] installing ackgate"
@$(PIP_INSTALL) --quiet --no-build-isolation --editable .
@touch $@
endef

$(DEMO_STAMP): requirements/demo.lock pyproject.toml
	$(call INSTALL,demo)

$(DEV_STAMP): requirements/dev.lock pyproject.toml
	$(call INSTALL,dev)
	@touch $(DEMO_STAMP)

# There is no wheel of it. What it takes to build it is pinned in the environment.
$(AMQP10_STAMP): requirements/amqp10.lock $(DEV_STAMP)
	@$(PIP_INSTALL) --quiet --no-build-isolation --require-hashes -r requirements/amqp10.lock
	@touch $@
