# Every target installs what it needs into .venv; only Python >= 3.11 must be there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --constraint constraints.txt

.PHONY: demo demo-images demo-objects demo-tracks app test test-release docs lint format types options
.DEFAULT_GOAL := demo

demo: $(VENV)/.ready-demo  ## train on the built-in data, translate, score, draw
	@test ! -d runs/demo || echo "runs/demo exists and is used: delete it to train again"
	$(BIN)/python scripts/demo.py

demo-images: $(VENV)/.ready-demo  ## train on the built-in digits, score unseen ones, draw attention
	$(BIN)/python scripts/demo_images.py

demo-objects: $(VENV)/.ready-demo  ## train a detector on generated scenes, score, draw
	$(BIN)/python scripts/demo_objects.py

demo-tracks: $(VENV)/.ready-demo  ## train on generated walkers, compare, draw their futures
	$(BIN)/python scripts/demo_tracks.py

app: $(VENV)/.ready-app  ## translate in a browser and see attention weights, by MODEL or the model in the package
	$(BIN)/hf-vanilla app $(if $(MODEL),--model "$(MODEL)")

# tensors are small: one thread each; the tests of a file share what they train; long files come first
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 \
	--dist loadfile --no-loadscope-reorder

test: lint types  ## all checks, and all tests but those of test-release
	$(PYTEST) -m "not release"

test-release: $(READY)  ## the tests that take long and rarely fail
	$(PYTEST) -m release

docs: build/the_paper_in_code.ipynb  ## the site, in build/site
	$(BIN)/mkdocs build --strict

build/the_paper_in_code.ipynb: docs/notebooks/the_paper_in_code.py $(wildcard hf_vanilla/*.py hf_vanilla/*/*.py) | $(READY)
	@mkdir -p $(@D)
	OMP_NUM_THREADS=1 $(BIN)/jupytext --to ipynb --set-kernel python3 --execute --output $@ $<

options: $(READY)  ## rewrite tests/options.txt, a line for each pair of command and option
	$(BIN)/python scripts/list_options.py
	wc -l tests/options.txt

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the libraries of one target only; EXTRAS: which extras of pyproject.toml they are
$(VENV)/.ready-demo: EXTRAS := demo
$(VENV)/.ready-app: EXTRAS := demo,app
$(READY): EXTRAS := dev
$(READY) $(VENV)/.ready-demo $(VENV)/.ready-app: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	# torch first and alone, so that an installed CPU build is kept
	$(PIP) torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(PIP) --editable ".[$(EXTRAS)]"
	@touch $@
