# make setup   prepare this machine (Debian packages, .venv); idempotent
# make demo    the main job on this machine: lab, placement, network, training, report, restore
# make test    the tests, as a new user's machine would see them (root; about 40 minutes on two cores)
# make test-kernel    the agent on a stock Debian kernel and Open vSwitch's kernel datapath, in an
#              emulated machine (`make setup-kernel` builds it once: root, a few minutes, 1 GB);
#              DEBIAN=13 for this and the next two: that machine is Debian 13, else Debian 12
# make test-provision   `controller provision` on a bare Debian in such a machine: check, install, again,
#              enrol, serve, remove (`make setup-provision` builds it once; root, apt and pip)
# make test-kernel-short   of these what the kernel does with a packet, in a minute; builds nothing
# make test-thorough   all of what make test runs a sample of: every engine on larger published graphs,
#              every example model, a hundred places to die at, a hundred placements of steps in parts, the
#              tutorial's story in a lab (more than an hour), and all examples for tests of properties
# make test-models   about fifty models of transformers and torch.nn, each on one, two and three ranks against
#              plain PyTorch, and scripts of Trainer and Accelerate with their collectives cut (it installs
#              transformers and accelerate; a quarter of an hour)
# make test-monitoring   a real Prometheus loads the alerts of deploy/, scrapes a lab's agents and a run, and
#              answers the dashboard's questions (root; it fetches Debian's package, 19 MB, and installs nothing)
# make test-page     the page of a run in headless Chromium, on screen and printed; make test does the same
#              where chromium is installed, and else says that it was left out (root installs it: 300 MB)
# make check   format, lint, types, import rules and the fast tests, in about a minute
# make bench-engine   the engine's figures: docs/benchmarks/engine.md is written anew (about five
#              hours; a run that was cut off goes on where it ended)
# make bench-methods  every method on the same graphs: docs/benchmarks/methods.md (three hours; a run that
#              was cut off goes on where it ended; PLACEWIRE_BENCH_PROGRAM_SECONDS=600 gives each of the
#              papers' programs of item 4 ten minutes)
# make reproduce     what the five papers claim, beside what we find: docs/reproduction.md (a day; a run that
#              was cut off goes on; LIMIT=10 gives each solve at most ten seconds, and the page says so)
# make bench-agent    the agent's figures: docs/benchmarks/agent.md (root: it makes labs; two hours)
# make bench-job      the placed job's figures: docs/benchmarks/job.md (root: it makes labs)
# make soak        a lab of four servers under random operations and faults for three hours (root)
# make reference      docs/reference is written anew, from the code, and docs/models.md, from the tests
.PHONY: setup setup-kernel setup-provision demo test test-models test-monitoring test-page test-thorough test-kernel test-kernel-short test-provision check bench bench-agent bench-engine bench-job bench-methods reproduce soak lock reference
BIN := .venv/bin
# Where the environment forbids it, each process would compile our modules anew, tests too.
unexport PYTHONDONTWRITEBYTECODE
DEBIAN ?= 12
export DEBIAN

setup:
	deploy/setup.sh

demo: setup
	$(BIN)/controller demo --keep-files placewire-demo

test: setup
	$(BIN)/python -m tests.run_side_by_side

test-thorough: setup
	# Where CI is set, Hypothesis would take the profile of `make test`.
	$(BIN)/pytest -q --hypothesis-profile=default -m "thorough or (hypothesis and not network)"

test-models: setup
	$(BIN)/python -m pip install --quiet --requirement tests/held_out/requirements.lock
	$(BIN)/pytest -q tests/held_out/models_of_others.py tests/held_out/example_of_a_user.py tests/held_out/scripts_of_others.py

test-monitoring: setup
	deploy/prometheus/unpack.sh
	$(BIN)/pytest -q tests/monitoring/with_prometheus.py

test-page: setup
	deploy/chromium.sh
	$(BIN)/pytest -q tests/controller/page

setup-kernel: setup
	deploy/kernel-machine/setup.sh

test-kernel: setup-kernel
	deploy/kernel-machine/test.sh
	$(BIN)/python deploy/kernel-machine/power_loss.py

test-kernel-short: setup
	deploy/kernel-machine/test.sh --short

setup-provision: setup
	deploy/kernel-machine/setup.sh bare

test-provision: setup-provision
	PLACEWIRE_TEST_PROVISION=1 $(BIN)/pytest -s tests/provision

check: setup static
	$(BIN)/pytest -q -m "not (network or slow or thorough)"

.PHONY: static
static:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: bench-engine bench-methods bench-job bench-agent

bench-engine: setup
	$(BIN)/python -m benchmarks.engine --report docs/benchmarks

bench-methods: setup
	$(BIN)/python -m benchmarks.methods --report docs/benchmarks

reproduce: setup
	$(BIN)/python -m benchmarks.reproduction $(if $(LIMIT),--time-limit $(LIMIT))

bench-agent: setup
	$(BIN)/python -m benchmarks.agent --report docs/benchmarks

soak: setup
	$(BIN)/python -m benchmarks.soak --report docs/benchmarks

bench-job: setup
	$(BIN)/python -m benchmarks.job --report docs/benchmarks

lock:
	deploy/lock.sh

reference: setup
	$(BIN)/python -m reference
	$(BIN)/python -m tests.held_out.page
