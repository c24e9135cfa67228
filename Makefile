# Everything here sets itself up: a machine with python3 (3.11 or newer) and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RESULTS := bench-output/results

# Modules are compiled when they are first used: to compile all of them takes longer than to install them.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: help demo test test-slow extras bench bench-gpu lint clean
.DEFAULT_GOAL := help
.NOTPARALLEL:  # one measurement at a time
unexport PYTHONDONTWRITEBYTECODE  # the processes that tests start would compile the package again and again

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.made: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "auditkit needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	@touch $@

$(VENV)/.made-dev: $(VENV)/.made
	$(INSTALL) -e '.[dev]'
	@touch $@

demo: $(VENV)/.made  ## see which of two vendors' models cheats
	$(BIN)/auditkit demo -o demo-output

test: $(VENV)/.made-dev  ## run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/.made-dev  ## run the long tests: every damaged file, every kill
	$(BIN)/python -m pytest -n 2 --dist worksteal --slow -m slow

extras: $(VENV)/.made  ## install what some tests need and are skipped without: Ray, PyTorch and its explainers, Playwright
	$(INSTALL) -e '.[dev,peers,ray,browser]'
	@touch $(VENV)/.made-dev

bench: $(VENV)/.made  ## measure speed on this CPU, and the paper's linear theorem; a few minutes
	@mkdir -p $(RESULTS)
	$(BIN)/python -m benchmarks.opening models/honest.onnx models/shortcut.onnx > $(RESULTS)/opening.json
	$(BIN)/python -m benchmarks.evaluate models/honest.onnx --device cpu --batch 64 --images 64 --steps 64 > $(RESULTS)/evaluate-cpu.json
	$(BIN)/python -m benchmarks.linear --plot $(RESULTS)/linear.svg > $(RESULTS)/linear.json
	$(BIN)/python -m benchmarks.tables $(RESULTS) > bench-output/README.md
	@echo bench-output/README.md

# What was measured stays: the same command again goes on with what is missing.
ON_GPU := $(addprefix $(RESULTS)/,evaluate-gpu.json explain-gpu.json explain-gpu-compile.json kernels-gpu.json)
$(RESULTS)/evaluate-gpu.json: MEASURE = evaluate --device cuda --precision tf32 --precision float16 --images 320 --runs 400 --peers
$(RESULTS)/explain-gpu.json: MEASURE = explain --device cuda --precision tf32 --precision float16 --peer eager --repeats 3 --steps 15
$(RESULTS)/explain-gpu-compile.json: MEASURE = explain --device cuda --precision tf32 --masks 1 16 --peer eager --peer compile --repeats 3 --steps 15
$(RESULTS)/kernels-gpu.json: MEASURE = kernels --precision float16 --precision tf32

$(VENV)/.made-torch: $(VENV)/.made-dev
	$(INSTALL) -e '.[dev,peers]' torchvision
	@touch $@

$(ON_GPU): $(VENV)/.made-torch
	@mkdir -p $(RESULTS)
	$(BIN)/python -m benchmarks.$(MEASURE) > $@.part
	@mv $@.part $@

bench-gpu: $(ON_GPU)  ## the same on a GPU, against torch (installs it)
	$(BIN)/python -m benchmarks.tables $(RESULTS) > bench-output/README.md
	@echo bench-output/README.md

lint: $(VENV)/.made-dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove what the targets above made
	rm -rf $(VENV) demo-output bench-output
