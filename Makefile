# One verb per target; CI calls the same ones. `make demo` and `make test` are all a new machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest -q  # CI's own repeats what failed
export PYTHONDONTWRITEBYTECODE :=  # every process of ours would compile all it imports

.PHONY: help setup demo test check sim bench chaos clean

help:
	@echo "make demo    see it run: packets per source, live (set-up included)"
	@echo "make test    every test, as CI runs them"
	@echo "make check   lint, types, unit tests and laws: the quick ones"
	@echo "make sim     clusters in simulated time: 500 seeds of failures"
	@echo "make bench   measure against plain Structured Streaming"
	@echo "make chaos   kill -9 at many random moments (long)"
	@echo "make setup   only the virtual environment; make clean removes it"

setup: $(READY)

LONG := $(patsubst %,tests/laws/test_%.py,functions diagrams end_to_end retention revisions) \
        $(patsubst %,tests/unit/cli/test_%.py,send_and_tail send_watch tail_to)
SOME := -m 'not long'  # of the quick tests
# of a law: a profile of Hypothesis
EXAMPLES := glance
# several nodes keep two cores busy: one test at a time
CLUSTERS := tests/cluster tests/chaos/test_failures.py

$(READY): pyproject.toml src/borealis/kernels/loops.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Borealis needs Python 3.11 or newer; '$(PYTHON)' is not. Try: make PYTHON=python3.12 setup"; exit 2; }
	@{ test -n "$$JAVA_HOME" && test -x "$$JAVA_HOME/bin/java"; } || command -v java >/dev/null || { \
	  echo "Borealis needs Java 17 or newer. Debian, Ubuntu: apt-get install openjdk-17-jre-headless;" \
	       "Fedora: dnf install java-17-openjdk-headless; macOS: brew install openjdk@17"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m borealis.spark.archive
	@touch $(READY)

demo: setup
	$(BIN)/borealis demo

check: setup
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy & types=$$!; \
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-$(EXAMPLES)} $(PYTEST) tests/laws tests/unit $(LONG:%=--ignore=%) $(SOME) \
	  -n 3 --dist worksteal --spark-first --durations=15; tests=$$?; \
	wait $$types && exit $$tests  # tests wait, too: a third lane, and types meanwhile, fill two cores

sim: setup
	$(BIN)/borealis sim --seeds 500

test: SOME :=
test: EXAMPLES := quick
test: check
	nice $(BIN)/borealis sim --seeds 500 & seeds=$$!; \
	$(PYTEST) $(CLUSTERS) --durations=10; tests=$$?; \
	wait $$seeds && exit $$tests  # a cluster waits for much: seeds have what it leaves
	$(PYTEST) $(LONG) tests/sim tests/chaos tests/steps $(CLUSTERS:%=--ignore=%) -n 3 --dist loadfile \
	  --no-loadscope-reorder --durations=30  # the longest files first: a lane that begins one late ends alone

bench: setup
	$(BIN)/borealis bench engine

chaos: setup
	BOREALIS_CHAOS=full $(PYTEST) tests/chaos tests/cluster/test_chains.py tests/steps/test_spark_cluster.py tests/steps/test_pyspark_both_sides.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
