# Millstream: `make demo` and `make test` do all the set-up they need; everything else a user types is `millstream …`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
PYTEST := $(BIN)/python -m pytest -n 3
PART ?= 1/1
SIZE ?= quick
unexport PYTHONDONTWRITEBYTECODE # or each of the processes that tests start compiles the code anew

.PHONY: help demo test test-all test-clients test-reference test-transparency test-object-storage test-heavy test-failed test-long test-long-status screenshots check bench docs proto openapi requirements clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS=$$'\t' read -r name text; do printf '  make %-19s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.demo ## Run all steps on real data: log, batches, anchors, copies, checks, repair, proof
	$(BIN)/millstream demo $(ARGS)

# pytest rewrites each test file at its first import, which takes seconds: two processes do it for those that run tests,
# once for all targets and as long as no test changes.
$(VENV)/.tests: $(VENV)/.dev $(wildcard tests/*.py tests/*/*.py tests/*/*/*.py tests/*/*/*/*.py)
	@for half in '[a-l]' '[m-z]'; do $(PYTEST) -n 0 --collect-only -qq tests/$$half*/ >/dev/null & done; wait
	@touch $@

test: $(VENV)/.tests ## Run the default tier, and the smoke tests of the other tiers (10 minutes)
	@scripts/system-packages
	MILLSTREAM_TEST_SIZE=quick $(PYTEST) -m "default or smoke" $(ARGS)

test-all: $(VENV)/.tests ## Run all tiers at the size ci (35 minutes)
	@scripts/system-packages
	MILLSTREAM_TEST_SIZE=ci $(PYTEST) $(ARGS)

test-heavy: $(VENV)/.tests ## Run all tiers except the default one, at the size ci (25 minutes)
	@scripts/system-packages
	MILLSTREAM_TEST_SIZE=ci $(PYTEST) -n 4 -m "not default" $(ARGS)

test-failed: $(VENV)/.dev ## Run the tests that failed in the last run again, one at a time (at most 4; SIZE=ci after test-heavy)
	PYTHONPATH=tests MILLSTREAM_TEST_SIZE=$(SIZE) $(BIN)/python -m suite.again $(ARGS)

test-clients: $(VENV)/.dev ## Run the official RocketMQ clients of five languages; needs Maven, Go, npm and cargo (30 minutes)
	@rm -f build/clients/cells.jsonl; mkdir -p build/clients
	MILLSTREAM_TEST_CLIENTS=build/clients MILLSTREAM_TEST_SIZE=ci $(PYTEST) tests/messaging/official $(ARGS); status=$$?; \
	PYTHONPATH=tests:tests/messaging:tests/cli $(BIN)/python -m official.table build/clients && exit $$status

test-reference: $(VENV)/.dev ## Compare with Sidetree's reference implementation; needs npm (MILLSTREAM_TEST_SIZE=long: 5 minutes)
	MILLSTREAM_TEST_REFERENCE=build/reference $(BIN)/python -m pytest tests/anchoring/reference $(ARGS)

test-transparency: $(VENV)/.dev ## Compare signed ledgers with verifiers of transparency logs; needs Go (1 minute)
	MILLSTREAM_TEST_TRANSPARENCY=build/transparency $(BIN)/python -m pytest tests/anchoring/transparency/interop $(ARGS)

test-object-storage: $(VENV)/.dev ## Run the tests of logs in buckets, also on the Versity gateway; needs Go (5 minutes)
	cd tests/log/objects/versitygw && GOFLAGS= go build -mod=readonly -buildvcs=false -o $(CURDIR)/build/object-storage/versitygw github.com/versity/versitygw/cmd/versitygw
	PATH="$(CURDIR)/build/object-storage:$$PATH" MILLSTREAM_TEST_SIZE=$(or $(MILLSTREAM_TEST_SIZE),ci) $(PYTEST) tests/log/objects $(ARGS)

test-long: $(VENV)/.tests ## Run all tiers at the size long; PART=2/6 runs the second of six parts (at most 60 minutes per part)
	@scripts/system-packages
	MILLSTREAM_TEST_SIZE=long $(PYTEST) --part $(PART) --record-run --timeout 3600 -o faulthandler_timeout=0 $(ARGS)

test-long-status: $(VENV)/.dev ## Show the last run, commit and result of each part of test-long
	@PYTHONPATH=tests $(BIN)/python -m suite.runs

screenshots: $(VENV)/.dev ## Write screenshots of all console pages to build/screenshots (1440 and 390 pixels wide, light and dark)
	@mkdir -p build/screenshots
	MILLSTREAM_SCREENSHOTS=build/screenshots $(BIN)/python -m pytest tests/console/test_every_page.py -k "every_page or whole_page"

check: $(VENV)/.dev ## Run the linters, the type checker and the import contracts
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev ## Run the benchmarks, compare with other systems, and update docs/benchmarks.md
	$(BIN)/millstream bench log --runs 1 --markdown docs/benchmarks.md $(ARGS)
	$(BIN)/millstream bench log-buckets --runs 1 --markdown docs/benchmarks.md $(ARGS)
	$(BIN)/millstream bench batching --markdown docs/benchmarks.md $(ARGS)
	$(BIN)/millstream bench messaging --runs 3 --markdown docs/benchmarks.md $(ARGS)
	$(BIN)/millstream bench anchoring --size full --runs 3 --markdown docs/benchmarks.md $(ARGS)
	$(BIN)/millstream bench mill --size full --runs 3 --markdown docs/benchmarks.md $(ARGS)
	$(BIN)/millstream bench demo --runs 3 --markdown docs/benchmarks.md $(ARGS)
	$(BIN)/millstream bench batching-spark --markdown docs/benchmarks.md $(ARGS)
	$(BIN)/millstream bench pipeline --runs 1 --markdown docs/benchmarks.md $(ARGS)

bench-long: $(VENV)/.dev ## Measure the cost per message while a log grows to 1,000,000,000 messages (ARGS="--up-to 1e8" for fewer)
	$(BIN)/millstream bench log-flat --size full --markdown docs/benchmarks.md $(ARGS)

docs: $(VENV)/.dev ## Build the documentation in build/docs, and test its links, commands and tutorials
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	$(BIN)/python -m pytest -q tests/docs

proto: $(VENV)/.dev ## Compile the messaging protocol, and generate the blocking client
	$(BIN)/python -m millstream.messaging.protocol.compile
	$(BIN)/python -m millstream.messaging.client.generate

openapi: $(VENV)/.dev ## Generate the OpenAPI descriptions in docs/reference
	$(BIN)/python -m millstream.rest.description docs/reference/openapi.json
	$(BIN)/python -m millstream.rest.registry_app docs/reference/registry-openapi.json

requirements: $(VENV)/.dev ## Update the pinned requirements
	$(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links --no-header --no-annotate --extra demo --extra dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links --no-header --no-annotate --extra demo --extra build -c requirements/dev.txt pyproject.toml -o requirements/demo.txt

clean: ## Remove the environment, build output and caches (not the data of the demo)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Millstream needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 lacks venv: apt-get install python3-venv"; exit 1; }

$(VENV)/.demo: $(VENV)/bin/python requirements/demo.txt pyproject.toml
	@echo "installing into $(VENV) (a few minutes the first time) …"
	@$(PIP) -r requirements/demo.txt
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.demo requirements/dev.txt
	@$(PIP) -r requirements/dev.txt
	@touch $@
