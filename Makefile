# Everything a new machine needs is made here: each target brings its own virtual environment, and says how long it took.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := .venvs/docs
CHECKED := src tests bench release docs examples
FUZZ_SECONDS ?= 60
CRASH_ROUNDS ?= 20
# Slow tests: kills, faults, hostile input, scripts as processes, and work that several processes share.
FORKING := tests/crash tests/formats/test_overwrite_kills.py tests/formats/tokens/test_planes.py \
	$(patsubst %,tests/store/test_%.py,fork folders local outputs_keep rivals trust)
SLOW := $(patsubst %,tests/%,acceptance attacks convert executors fuzz plugin reshape strangers engine) \
	$(sort $(shell find tests/formats -name 'test_*suite*.py')) tests/formats/shards/test_upload.py \
	$(patsubst %,tests/prepare/%.py,energon/test_shared media/test_run test_raw_many) \
	$(patsubst %,tests/prepare/tokens/test_%.py,resume shared shuffled) \
	tests/cli/test_small_files.py tests/load/test_requests.py tests/load/test_worker_faults.py tests/store/test_object_folder.py

# Compiling all of a package takes pip longer than everything else: what is imported is compiled then, once.
export PIP_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE

include tests/telemetry_off.env
export $(shell sed -n 's/=.*//p' tests/telemetry_off.env)

# Runs commands, and prints the target's time whether they pass or not.
timed = @start=$$(date +%s); (set -ex; $(1)); status=$$?; echo "make $@: $$(($$(date +%s) - start)) s"; exit $$status
pytest = $(BIN)/python -m pytest --durations=5

.PHONY: demo smoke test tests slow blackbox lint docs browser interop upstream cluster all-cells corpus crash fuzz bench release clean

demo: $(VENV)/.ready
	$(call timed, $(BIN)/penstock demo demo --overwrite)

smoke: $(VENV)/.ready-test
	$(call timed, $(pytest) -rs tests/smoke)

# Types are checked on one core while the tests begin.
test: $(VENV)/.ready-test
	$(call timed, $(MAKE) --no-print-directory --jobs=2 lint tests)

# All tests but those of `make slow`.
tests: $(VENV)/.ready-test
	$(call timed, $(pytest) -p tests.progress -n 2 --dist loadgroup $(addprefix --ignore=,$(FORKING) $(SLOW)))

# Tests that fork a lot run in small processes of their own: forking a process that holds many tests costs several times as much.
slow: $(VENV)/.ready-test
	$(call timed, $(pytest) -p tests.progress -n 2 --dist loadgroup $(FORKING); \
		$(pytest) -p tests.progress -n 2 --dist loadgroup $(SLOW))

# The black-box tests of an earlier commit against the present source; TESTS selects files.
blackbox: $(VENV)/.ready-test
	$(call timed, $(BIN)/python tests/run_blackbox.py $(or $(REV),$(error REV=commit is needed)) $(TESTS))

lint: $(VENV)/.ready-test
	$(call timed, $(BIN)/ruff check $(CHECKED); $(BIN)/ruff format --check $(CHECKED); $(BIN)/pyright)

# The site, in build/docs/site: a broken link or a public name without a docstring is an error.
docs: $(DOCS)/.ready
	$(call timed, $(DOCS)/bin/python docs/site/pages.py build/docs; \
		NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict --config-file build/docs/mkdocs.yml; \
		$(DOCS)/bin/python -m pytest --durations=5 tests/docs/built_site.py)

# The viewer in Debian's chromium, which is installed where it is missing; pictures in build/browser.
browser: $(VENV)/.ready-test
	$(call timed, $(BIN)/python tests/browser/run.py)

interop: $(VENV)/.ready-test
	$(call timed, $(BIN)/python tests/interop/run.py)

# The peers' own tests, out of their source distributions, on our names.
upstream: $(VENV)/.ready-test
	$(call timed, $(BIN)/python tests/upstream/run.py)

cluster: $(VENV)/.made
	$(call timed, $(BIN)/python tests/cluster/run.py)

# Every verb over every store; with SEED=… a tenth of the cells.
all-cells: $(VENV)/.ready-test
	$(call timed, $(BIN)/python tests/urls/all_cells.py $(if $(SEED),--seed $(SEED)))

# What every verb writes, held against golden files; with SEED=… a tenth of the cases.
corpus: $(VENV)/.ready-test
	$(call timed, $(BIN)/python tests/corpus/run.py $(if $(SEED),--seed $(SEED) --share 10))

crash: $(VENV)/.ready-test
	$(call timed, export CRASH_ROUNDS=$(CRASH_ROUNDS); $(pytest) -n 2 tests/crash/test_transaction.py tests/crash/test_commits.py; \
		$(BIN)/python tests/crash/run.py)

fuzz: $(VENV)/.ready-test
	$(call timed, FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python tests/fuzz/run.py; \
		FUZZ_EXAMPLES=600 $(pytest) -n 2 tests/store/test_outputs_keep.py)

bench: $(VENV)/.ready-test
	$(call timed, $(BIN)/python bench/run.py)

# A trial that leaves the tree as it is; with WRITE=1 the version and CHANGELOG.md are written too.
release:
	$(call timed, $(PYTHON) release/make.py $(if $(VERSION),--version $(VERSION)) $(if $(EXTRA),--extra $(EXTRA)) \
		$(if $(WRITE),--write))

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	touch $@

$(VENV)/.ready: pyproject.toml | $(VENV)/.made
	$(call timed, $(BIN)/pip install --quiet -e '.[all]')
	touch $@

$(VENV)/.ready-test: pyproject.toml | $(VENV)/.made
	$(call timed, $(BIN)/pip install --quiet -e '.[test]')
	touch $@ $(VENV)/.ready

$(DOCS)/.ready: docs/site/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(call timed, $(DOCS)/bin/pip install --quiet -r docs/site/requirements.txt -e .)
	touch $@

clean:
	rm -rf $(VENV) .venvs demo dist build
