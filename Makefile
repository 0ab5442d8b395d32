# make demo | test | test-deep | check | bench | soak | native | wheel. Each sets up what it needs in .venv, once, and works offline afterwards.
PYTHON ?= python3
SOAK ?= 500
DEEP ?= all
JOBS ?= 5
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(wildcard resilin/_base/native/*.hpp resilin/core/native/*/*.cpp resilin/core/native/*/*.hpp resilin/distributed/native/*.cpp resilin/distributed/native/*.hpp resilin/rpc/native/*.cpp resilin/rpc/native/*.hpp)
# What builds the C++ stays in the environment, so that `native` and `wheel` compile only what has changed since.
BUILD_TOOLS = scikit-build-core nanobind numpy $(foreach tool,cmake ninja,$(if $(shell command -v $(tool) 2>/dev/null),,$(tool)))

# Tests start hundreds of processes, which are not to compile the package anew each.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-deep check types kernels bench soak native wheel clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   train on real data, kill a worker, compare the weights with an undisturbed run"
	@echo "make test   run the tests (ten to fifteen minutes on two cores)"
	@echo "make test-deep  run what is long by nature at full size (DEEP=3/32: one part; DEEP=commit: whose turn it is)"
	@echo "make check  lint, types, floors, CUDA kernels compile (a minute or two on two cores)"
	@echo "make wheel  build a wheel for other machines in build/wheels, and try it where there is no compiler"
	@echo "make soak   disturb 500 jobs at random and write benchmarks/results/soak.md (SOAK=N: so many; goes on where it stopped)"
	@echo "make bench  run the benchmarks (PEER_PYTHON=/path/to/python with torch compares in the same run)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "resilin needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "installing resilin and what it needs into $(VENV) (about five minutes on two cores, once)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(NATIVE) | $(BIN)/python  # not after `installed`: that would build the C++ twice
	@echo "installing resilin, what it needs and the tools of its tests into $(VENV) (about six minutes on two cores, once)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(BUILD_TOOLS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[test,dev]'
	@touch $(VENV)/installed $@

demo: $(VENV)/installed
	$(BIN)/python -m examples.demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=30 --slow=commit tests

test-deep: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=30 --deep=$(DEEP) tests

check: $(VENV)/installed-dev  # types take one core for as long as the kernels take the other
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/check_floors.py
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target types kernels

types: $(VENV)/installed-dev
	$(BIN)/mypy

kernels: $(VENV)/installed-dev
	$(BIN)/python -m resilin.core.kernels.check

native: $(BIN)/python  # rebuild the C++ extensions in place, incrementally
	@echo "compiling the C++ extensions (seconds when little has changed)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	$(BIN)/python -c 'import resilin.core._native, resilin.distributed._native, resilin.rpc._native'  # a failed build falls back silently

wheel: $(VENV)/installed-dev  # auditwheel refuses what lacks native code, and finds patchelf on the path
	rm -rf build/wheels
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir build/wheels/as-built .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir build/wheels build/wheels/as-built/*.whl
	$(BIN)/python scripts/smoke_wheel.py build/wheels/*.whl

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks $(if $(PEER_PYTHON),--peer-python $(PEER_PYTHON))

soak: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.soak --count $(SOAK)

clean:
	rm -rf build $(VENV)
