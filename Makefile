# Each target does its own set-up: a fresh clone needs Python 3.11 or newer and git, nothing else.
#
#   make demo    train a small CNN under the simulated sensor board, print the table, draw the picture, write the report
#   make test    the quick tier of the tests: at most 90 s on two cores
#   make test-all  all tests: some ten minutes on two cores (make test-rest: those that are not in the quick tier)
#   make check   lint, types and import rules
#   make bench   every figure that the README quotes
#   make soak    the whole fault matrix under load, MINUTES=10
#   make fuzz    every place where bytes come in, under atheris, MINUTES=10
#   make board-vm  the board's side on a Debian that boots under QEMU (as root; needs mmdebstrap and qemu-system); ARCH=arm64
#   make cluster  twelve jobs on a real Slurm, and a real Prometheus (as root; needs slurm-wlm, munge, prometheus)
#   make deb     the board's part as a Debian package in dist (needs dpkg-deb)
#   make docs    the documentation as a site in build/site; ends with an error where a link leads nowhere
#   make docs-renew  run what the pages show, and write what is printed into them
#
# PYTHON chooses the interpreter, VENV where the environment is made, CONSTRAINTS the versions
# (constraints-oldest.txt: the oldest that pyproject.toml allows), WORKERS the processes that run tests.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
MINUTES ?= 10
# One for each core; the rest of the tests waits at times, so one more runs beside them.
CORES := $(shell nproc 2>/dev/null || echo 2)
WORKERS ?= $(shell test $(CORES) -gt 8 && echo 8 || echo $(CORES))
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BOARD := build/board-vm-$(or $(ARCH),amd64)
# MicroPython as a WebAssembly build, for the firmware's tests: pinned, and only where there is Node.
MICROPYTHON := @micropython/micropython-webassembly-pyscript
MICROPYTHON_VERSION := 1.27.0
MICROPYTHON_DIR := $(VENV)/micropython
MICROPYTHON_READY := $(MICROPYTHON_DIR)/.ready-$(MICROPYTHON_VERSION)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-rest check bench soak fuzz board-vm cluster deb docs docs-renew format clean

help:
	@sed -n 's/^#   //p' Makefile

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "powerd needs Python 3.11 or newer; say which one: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Making the environment in $(VENV) (once; torch is large) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	@$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py

# Never keeps the rest of the tests from running; under CI they fail where it is missing.
$(MICROPYTHON_READY): | $(READY)
	@if command -v node >/dev/null && command -v npm >/dev/null; then \
		mkdir -p $(MICROPYTHON_DIR) && echo '{"private": true}' >$(MICROPYTHON_DIR)/package.json && \
		npm install --silent --no-audit --no-fund --prefix $(MICROPYTHON_DIR) $(MICROPYTHON)@$(MICROPYTHON_VERSION) && \
		touch $@ || echo "Skipped: the firmware's tests under MicroPython (npm could not get $(MICROPYTHON))"; \
	else \
		echo "Skipped: the firmware's tests under MicroPython (there is no Node.js with npm)"; \
	fi

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow and not soak'

test-rest: $(READY) $(MICROPYTHON_READY)
	$(BIN)/python -m pytest -n $$((1 + $(WORKERS))) --dist loadfile --no-loadscope-reorder -m 'slow and not soak'

test-all: test test-rest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@echo "Functions with more than ten ways through (at most fifteen are allowed):"
	@$(BIN)/ruff check --select C901 --config lint.mccabe.max-complexity=10 --exit-zero --output-format concise powerd client analytics

bench: $(READY)
	@missed=0; for script in benchmarks/bench_*.py; do \
		echo "== $$script"; $(BIN)/python $$script || missed=1; done; exit $$missed

soak: $(READY)
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

# An environment of its own: atheris has wheels for few versions of Python, and nothing else needs it.
fuzz:
	@test -x build/fuzz-venv/bin/python || $(PYTHON) -m venv build/fuzz-venv
	@build/fuzz-venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[board,client,analytics,fuzz]'
	build/fuzz-venv/bin/python benchmarks/fuzz/run.py --minutes $(MINUTES)

board-vm: $(READY)
	@if ! test -f $(BOARD)/disk.img; then export BEGUN_S=$$(date +%s); sh tests/board_vm/build.sh $(BOARD); fi && \
		$(BIN)/python tests/board_vm/run.py $(BOARD)

cluster: $(READY)
	@$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[slurm,accounting,export]'
	$(BIN)/python tests/cluster/run.py build/cluster

deb:
	$(PYTHON) powerd/deploy/debian/build_deb.py dist

# An environment of its own too: the site needs neither torch nor what the tests need.
docs:
	@test -x build/docs-venv/bin/python || $(PYTHON) -m venv build/docs-venv
	@build/docs-venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	build/docs-venv/bin/zensical build --clean --strict
	build/docs-venv/bin/python docs/site.py build/site

docs-renew: $(READY)
	$(BIN)/python docs/tutorial/renew.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
