# Everything a new machine needs is made here: each target brings its own virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FUZZ_SECONDS ?= 60
CRASH_ROUNDS ?= 20

.PHONY: demo test lint interop crash fuzz bench clean

demo: $(VENV)/.ready
	$(BIN)/penstock demo demo --overwrite

test: $(VENV)/.ready-test lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(VENV)/.ready-test
	$(BIN)/ruff check src tests bench docs/generate.py
	$(BIN)/ruff format --check src tests bench docs/generate.py
	$(BIN)/pyright

interop: $(VENV)/.ready-test
	$(BIN)/python tests/interop/run.py

crash: $(VENV)/.ready-test
	CRASH_ROUNDS=$(CRASH_ROUNDS) $(BIN)/python tests/crash/run.py

fuzz: $(VENV)/.ready-test
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python tests/fuzz/run.py
	FUZZ_EXAMPLES=600 $(BIN)/python -m pytest -n 2 tests/store/test_outputs_keep.py

bench: $(VENV)/.ready-test
	$(BIN)/python bench/run.py

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	touch $@

$(VENV)/.ready: pyproject.toml | $(VENV)/.made
	$(BIN)/pip install --quiet -e '.[all]'
	touch $@

$(VENV)/.ready-test: pyproject.toml | $(VENV)/.made
	$(BIN)/pip install --quiet -e '.[test]'
	touch $@ $(VENV)/.ready

clean:
	rm -rf $(VENV) .venvs demo
