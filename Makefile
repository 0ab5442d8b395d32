# make demo | test | check | bench | soak | native. Each sets up what it needs in .venv, once, and works offline afterwards.
PYTHON ?= python3
SOAK ?= 500
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(wildcard resilin/_base/native/*.hpp resilin/core/kernels/cpu/*.cpp resilin/core/kernels/cpu/*.hpp resilin/dist/native/*.cpp resilin/dist/native/*.hpp)

.PHONY: demo test check bench soak native clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   train on real data, kill a worker, compare the weights with an undisturbed run"
	@echo "make test   run the tests"
	@echo "make check  lint, types, floors, CUDA kernels compile"
	@echo "make soak   disturb 500 jobs at random and write benchmarks/results/soak.md (SOAK=N: so many; goes on where it stopped)"
	@echo "make bench  run the benchmarks (PEER_PYTHON=/path/to/python with torch compares in the same run)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "resilin needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "installing resilin and what it needs into $(VENV) (about a minute, once)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(NATIVE) | $(BIN)/python  # not after `installed`: that would build the C++ twice
	@echo "installing resilin, what it needs and the tools of its tests into $(VENV) (about two minutes, once)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,dev]'
	@touch $(VENV)/installed $@

demo: $(VENV)/installed
	$(BIN)/python -m examples.demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal tests

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_floors.py
	$(BIN)/python -m resilin.core.kernels.check

native: $(BIN)/python  # rebuild the C++ extensions in place, incrementally
	@echo "compiling the C++ extensions (seconds when little has changed)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	$(BIN)/python -c 'import resilin.core._native, resilin.dist._native'  # a failed build falls back silently

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks $(if $(PEER_PYTHON),--peer-python $(PEER_PYTHON))

soak: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.soak --count $(SOAK)

clean:
	rm -rf build $(VENV)
