# Every target sets up what it needs in .venv; nothing else has to be installed but Python >= 3.11.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo app test docs lint format types
.DEFAULT_GOAL := demo

demo: $(READY)  ## train on the built-in data, translate, score, draw
	@test ! -d runs/demo || echo "keeping runs/demo: delete it to train anew"
	$(BIN)/python scripts/demo.py

app: $(READY)  ## translate in a browser and see where the model looks; trains the demo's model first
	$(BIN)/python scripts/app.py

test: lint types  ## everything that must be green
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest  # small tensors: more threads only wait for each other

docs: build/the_paper_in_code.ipynb  ## the site, in build/site
	$(BIN)/mkdocs build --strict

build/the_paper_in_code.ipynb: docs/notebooks/the_paper_in_code.py $(wildcard hf_vanilla/*.py) | $(READY)
	@mkdir -p $(@D)
	OMP_NUM_THREADS=1 $(BIN)/jupytext --to ipynb --set-kernel python3 --execute --output $@ $<

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	# torch first and alone, so that a CPU build that is already there is the one taken
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)
