# captionlab's few commands. Each sets up what it needs, once, in .venv; `make` alone lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock

.DEFAULT_GOAL := help
.PHONY: help demo test test-all soak export check lab docs run bench gpu hooks clean

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /  make \1 \t/p' Makefile | expand -t 17

$(VENV)/.core: pyproject.toml requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here; install Python 3.11 or later, or say make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than 3.11; say make PYTHON=python3.12, for instance"; exit 1; }
	@test -x $(BIN)/python || { echo "make: creating $(VENV)"; $(PYTHON) -m venv $(VENV); } || { echo "make: could not create $(VENV); on Debian and Ubuntu: apt install python3-venv"; rm -rf $(VENV); exit 1; }
	@echo "make: installing captionlab and torch into $(VENV) (once; a minute or two, about 5 GB)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "make: installing the tools for tests and the site (once)"
	@$(PIP) --editable '.[dev,docs]'
	@test ! -d .git || $(MAKE) --no-print-directory hooks
	@touch $@

$(VENV)/.lab: $(VENV)/.dev
	@echo "make: installing JupyterLab (once)"
	@$(PIP) --editable '.[dev,docs,lab]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@echo "make: installing what the benchmarks need (once)"
	@$(PIP) --editable '.[dev,docs,bench]'
	@touch $@

demo: $(VENV)/.core  ## caption photos, train a small captioner on generated scenes, draw what both say (minutes, no data)
	@$(PIP) --editable '.[demo]'
	@$(BIN)/captionlab demo

test: $(VENV)/.dev  ## everything CI checks: notebooks, pytest, the site; prints its time budget
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tests/check.py

test-all: $(VENV)/.dev  ## every notebook with data, the trainings of lessons 50 to 53 short (an hour)
	@OMP_NUM_THREADS=1 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tests/run_all.py --data

check: $(VENV)/.dev  ## before a commit: ruff, pyright and the quick tests, in under a minute
	@$(BIN)/ruff check captionlab
	@$(BIN)/pyright
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m quick

soak: $(VENV)/.dev  ## kill trainings and extractions at random moments, read damaged files, run damaged commands (minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py --kills 100
	@OMP_NUM_THREADS=1 $(BIN)/python tests/mutations.py --count 1000
	@OMP_NUM_THREADS=1 $(BIN)/python tests/command_mutations.py --count 300

lab: $(VENV)/.lab  ## open the course in JupyterLab
	@$(BIN)/jupyter lab nbs/00_start_here.ipynb

docs: $(VENV)/.dev  ## build the site into docs/_build/html
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "docs: open docs/_build/html/index.html"

export: $(VENV)/.dev  ## write captionlab/ from the notebooks
	@$(BIN)/python tests/export.py

run: $(VENV)/.dev  ## NB=nbs/01_attention.ipynb: export, execute in place, clean
	@test -n "$(NB)" || { echo "make run: which notebook? make run NB=nbs/01_attention.ipynb"; exit 1; }
	@test -f "$(NB)" || { echo "make run: no notebook $(NB)"; exit 1; }
	@$(BIN)/python tests/export.py
	@PATH="$(abspath $(BIN)):$$PATH" TQDM_DISABLE=1 $(BIN)/jupyter execute --inplace "$(NB)"
	@$(BIN)/nbdev_clean --fname "$(NB)"

bench: $(VENV)/.bench  ## measure against peers; rewrites results/bench.json
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m benchmarks

gpu:  ## what only a GPU can show, with the Python that is there (PYTHON=python3); writes results/gpu.json
	@PYTHONPATH=. $(PYTHON) -m benchmarks.gpu $(GPU)

hooks:  # nbdev's git hooks, found from any shell
	@$(BIN)/nbdev_install_hooks > /dev/null
	@sed -i.old 's#^nbdev_trust#"$(abspath $(BIN))/nbdev_trust"#' .git/hooks/post-merge && rm .git/hooks/post-merge.old
	@git config merge.nbdev-merge.driver '"$(abspath $(BIN))/nbdev_merge" %O %A %B %P'

clean:  ## remove what make built, the environment and its git hooks included
	-@git config --local --remove-section merge.nbdev-merge 2>/dev/null; git config --local --unset include.path; rm -f .git/hooks/post-merge
	rm -rf $(VENV) docs/_build docs/course docs/api build *.egg-info
