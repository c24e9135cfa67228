# Everything here sets itself up: a machine with python3 (3.11 or newer) and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test test-peers test-browser bench bench-gpu lint clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.made: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "auditkit needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.made-dev: $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(VENV)/.made  ## see which of two vendors' models cheats
	$(BIN)/auditkit demo -o demo-output

test: $(VENV)/.made-dev  ## run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-peers: $(VENV)/.made-dev  ## run the tests against real Captum, SHAP and torchcam
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,peers]'
	$(BIN)/python -m pytest tests/peers

test-browser: $(VENV)/.made-dev  ## look at the reports in a headless Chromium
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,browser]'
	$(BIN)/python -m pytest tests/test_browser.py

bench: $(VENV)/.made  ## measure speed on this CPU, and the paper's linear theorem; a few minutes
	@mkdir -p bench-output/results
	$(BIN)/python benchmarks/opening.py models/honest.onnx models/shortcut.onnx > bench-output/results/opening.json
	$(BIN)/python -m benchmarks.evaluate models/honest.onnx --device cpu --batch 64 --images 64 --steps 64 > bench-output/results/evaluate-cpu.json
	$(BIN)/python -m benchmarks.linear --plot bench-output/results/linear.svg > bench-output/results/linear.json
	$(BIN)/python -m benchmarks.tables bench-output/results > bench-output/README.md
	@echo bench-output/README.md

bench-gpu: $(VENV)/.made-dev  ## the same on a GPU, against torch (installs it)
	@mkdir -p bench-output/results
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,peers]' torchvision
	$(BIN)/python -m benchmarks.evaluate --device cuda --precision tf32 --precision float16 --images 640 --runs 400 --peers > bench-output/results/evaluate-gpu.json
	$(BIN)/python -m benchmarks.explain --device cuda --precision tf32 --precision float16 --peer eager --peer compile > bench-output/results/explain-gpu.json
	$(BIN)/python -m benchmarks.kernels --precision float16 --precision tf32 > bench-output/results/kernels-gpu.json
	$(BIN)/python -m benchmarks.tables bench-output/results > bench-output/README.md
	@echo bench-output/README.md

lint: $(VENV)/.made-dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove what the targets above made
	rm -rf $(VENV) demo-output bench-output
