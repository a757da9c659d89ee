PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# In the order of the directories, so that the long tests of cluster and fleet start early.
# Three at a time, because tests with real agents wait half of their time.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: demo test quick long spread lock systemd check golden sim upgrades coverage exhaustive matrix lost random-ops torture full-disk mutants bench large bench-stall bench-ssh

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo:
	@$(PYTHON) .ci/preflight.py
	@$(MAKE) --no-print-directory $(VENV)/.installed
	@$(BIN)/iotctl demo

test:
	@PYTHON=$(PYTHON) .ci/system-deps
	@$(MAKE) --no-print-directory $(VENV)/.installed
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

# The tests that `make test` omits to end within 15 minutes.
long:
	@PYTHON=$(PYTHON) .ci/system-deps
	@$(MAKE) --no-print-directory $(VENV)/.installed
	$(BIN)/python -m pytest $(PARALLEL) -m long $(ARGS)

spread: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist load -m spread $(ARGS) tests/sim

systemd: $(VENV)/.installed
	$(BIN)/python -m pytest -m systemd $(ARGS) tests/fleet/test_systemd.py

# 90 seconds: tests that start no processes, to run while you work.
quick: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not real and not spark and not long and not spread" $(ARGS) \
		tests/partition tests/table tests/wire tests/plan tests/raft tests/data tests/meta tests/scaling tests/host

# Run this after a change of dependencies in pyproject.toml and of the versions in requirements.lock.
lock:
	uv pip compile --no-deps --no-header --no-annotate --generate-hashes --universal --python-version 3.11 \
		requirements.lock -o requirements.lock

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

sim: $(VENV)/.installed
	$(BIN)/python -m nodeagent.testing $(or $(ARGS),1 200)

# Clusters of several releases: make upgrades ARGS="1 200".
upgrades: $(VENV)/.installed
	$(BIN)/python -m nodeagent.testing.upgrade $(or $(ARGS),1 24)

coverage: $(VENV)/.installed
	$(BIN)/python -m nodeagent.testing.coverage $(ARGS)

# Write the reference data of a release for tests of later ones; run once, when it is tagged.
golden: $(VENV)/.installed
	$(BIN)/python -m tests.compat.golden $(VERSION)

exhaustive: $(VENV)/.installed
	$(BIN)/python -m nodeagent.testing.exhaustive $(ARGS)

matrix: $(VENV)/.installed
	$(BIN)/python -m nodeagent.testing.matrix 2
	$(BIN)/python -m nodeagent.testing.cancels 2
	$(BIN)/python -m tests.cluster.matrix

lost: $(VENV)/.installed
	$(BIN)/python -m tests.cluster.lost_directories $(ARGS)

random-ops: $(VENV)/.installed
	$(BIN)/python -m nodeagent.testing.random_ops 1 100
	$(BIN)/python -m tests.cluster.random_ops $(ARGS)

torture: $(VENV)/.installed
	$(BIN)/python -m tests.torture.torture $(or $(MINUTES),60) $(ARGS)

full-disk: $(VENV)/.installed
	$(BIN)/python -m tests.cluster.full_disk $(ARGS)

mutants: $(VENV)/.installed
	$(BIN)/python -m nodeagent.testing.mutants $(ARGS)

bench: $(VENV)/.installed
	$(BIN)/python -m tests.bench $(ARGS)

large: $(VENV)/.installed
	$(BIN)/python -m tests.bench large $(ARGS)

bench-stall: $(VENV)/.installed
	$(BIN)/python -m tests.bench stall $(ARGS)

bench-ssh: $(VENV)/.installed
	$(BIN)/python -m tests.bench ssh
