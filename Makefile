# Two commands do everything, set-up included: `make demo` and `make test`.
# On a machine with several Pythons: `make PYTHON=python3.12 setup`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check e2e e2e-short crash sim bench

help:  ## show the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)$$/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(BIN)/rhinoctl  ## make .venv with rhinoctl in it (nothing to do when it is up to date)

demo: setup  ## run the main job on an embedded cluster and compare its result with Spark's
	$(BIN)/rhinoctl demo

test: setup  ## run the tests, without the slow and the end-to-end ones
	$(PYTEST) -m "not slow and not e2e" --ignore tests/integration -n 2
	$(PYTEST) -m "not slow and not e2e" tests/integration

check: setup  ## formatting, lint, types and the house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -q tests/unit/test_house.py

e2e: setup  ## run the slow and the end-to-end tests at full length
	$(PYTEST) -m "slow or e2e" --timeout 3600

e2e-short: setup  ## the part of the end-to-end tests that CI runs: real processes, really killed
	$(PYTEST) -m "slow and not e2e" --durations 0 --durations-min 5 \
	    -k "not driver_killed and not controller_killed and not windows_move and not t3_a_worker \
	    and not a_host_that and not without_root_and" \
	    $(addprefix tests/integration/test_,$(addsuffix .py,main_job bench black_hole local_cluster \
	    remote environment services deploy upgrade))

crash: setup  ## the crash matrix: each participant killed and stopped at each step (CELLS=10 SEED=7: some)
	CELLS=$(CELLS) SEED=$(SEED) $(PYTEST) -m e2e tests/crash

sim: setup  ## break a simulated cluster: SEEDS=200, SEEDS=0:200, SECONDS=180 [FIRST=7], SEED=17 [SHRINK=1]; JOBS=2
	$(BIN)/python -m tests.sim $(if $(SEEDS),--seeds $(SEEDS)) \
	    $(if $(SECONDS),--seconds $(SECONDS)) $(if $(FIRST),--first $(FIRST)) \
	    $(if $(SEED),--seed $(SEED)) \
	    $(if $(WITHOUT),--without $(WITHOUT)) $(if $(SHRINK),--shrink) $(if $(BUG),--bug $(BUG)) \
	    $(if $(JOBS),--jobs $(JOBS))

bench: setup  ## measure what handovers, losses and copies cost, and the throughput beside Spark's own
	$(BIN)/python -m tests.bench.handover_pause
	$(BIN)/python -m tests.bench.failover
	$(BIN)/python -m tests.bench.replication_cost
	$(BIN)/rhinoctl bench steady

# The console script is the last thing that pip writes, so its time stamp says how far set-up came.
# An editable install knows the top-level packages that were there: a new one asks for another.
$(BIN)/rhinoctl: pyproject.toml setup.py constraints.txt $(wildcard agents/*/__init__.py) | $(BIN)/pip
	@echo "Installing rhinoctl and what it needs into $(VENV): minutes at first, PySpark is large."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    -c constraints.txt -e '.[spark,dev]'
	@touch $@

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "There is no $(PYTHON). Install Python 3.11 or later, or name one: make PYTHON=python3.12 setup" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "$$($(PYTHON) --version) is too old: rhinoctl needs Python 3.11 or later." \
	         "Install one and name it: make PYTHON=python3.12 setup" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make a virtual environment." \
	         "On Debian and Ubuntu: apt-get install python3-venv" >&2; \
	    exit 1; }
	@$(PYTHON) -m venv $(VENV)
