# make setup   prepare this machine (Debian packages, .venv); idempotent
# make demo    the main job on this machine: lab, placement, network, training, report, restore
# make test    everything, as a new user's machine would see it (root; about 15 minutes)
# make check   format, lint, types, import rules and the fast tests, in about a minute
# make bench-engine   the engine's figures: docs/benchmarks/engine.md is written anew (over an hour)
# make bench-job      the placed job's figures: docs/benchmarks/job.md (root: it makes labs)
.PHONY: setup demo test check bench bench-engine bench-job lock
BIN := .venv/bin

setup:
	deploy/setup.sh

demo: setup
	$(BIN)/controller demo

test: setup static
	$(BIN)/python tests/run_side_by_side.py

check: setup static
	$(BIN)/pytest -q -m "not network and not slow"

.PHONY: static
static:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: bench-engine bench-job

bench-engine: setup
	$(BIN)/python -m benchmarks.engine --report docs/benchmarks

bench-job: setup
	$(BIN)/python -m benchmarks.job --report docs/benchmarks

lock:
	deploy/lock.sh
