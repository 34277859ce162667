# make demo    train on two nodes of this machine: no Docker, no SSH, no root; sets itself up
# make test    all tests, including those on the simulated cluster; prints what it would install as root, and installs it
#              only in CI or with DDPCTL_SETUP=yes
# make unit    the launcher's tests without torch, sshd or an engine: seconds
# make fast    the tests of unit, the launcher's slower tests, and those that need torch or a local sshd
# make box     three simulated hosts in containers with all capabilities except SYS_RESOURCE: train across them, exit with
#              the verdict; needs a Docker Engine (DDPCTL_SETUP=yes installs Debian's as root) and puts the compose plugin
#              into ~/.docker
# make gpu     the tests that need a GPU, and the benchmark rows; under ten minutes on one GPU
# make bench   every benchmark, one after the other: hours; `make bench-launch` is one of them
# make check   lint, format, types, layers, shell scripts
# make wheels  build the wheel and the sdist, install them in clean environments with every Python here, and try them
# make image   build the trainer's image, ddpctl-trainer:latest, the default of `job.image`
# make docs    build the docs site into site/; a broken link is an error

VENV ?= .venv
BIN = $(VENV)/bin
PYTEST = $(BIN)/python -m pytest --timeout 300 --durations 15 --durations-min 10
# each process starts with adjacent tests, which share fixtures, and takes over tests from the others at the end
FAST = $(PYTEST) -n 3 --dist worksteal -m "not cluster"
CLUSTER = $(PYTEST) -n 3 --dist loadgroup --no-loadscope-reorder -m cluster
# tests with real time limits may fail on a busy machine: what failed runs once more, alone, and then it counts
ONCE_MORE = echo "make test: what failed runs once more, alone"; $(PYTEST) --last-failed --maxfail 3
BENCHES = bench-blows bench-check bench-faults bench-launch bench-logs bench-push bench-rounds bench-scale \
  bench-slow bench-trainer
export VENV
# if it were set, as in many images, every process that a test starts would compile the launcher again
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test unit fast gpu box check wheels docs bench $(BENCHES) image clean

demo:
	@scripts/venv demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/demo.py

test:
	@scripts/venv test
	@scripts/test-setup programs
	@# the images are built during the first half; the second half runs even if the first fails;
	@# each process of the second half has a cluster; test-setup reports if it is skipped for want of an engine
	@scripts/test-setup images & images=$$!; \
	$(FAST) --cache-clear $(ARGS); fast=$$?; wait $$images || exit; cluster=0; \
	if docker info >/dev/null 2>&1; then $(CLUSTER) $(ARGS); cluster=$$?; fi; \
	case $$fast$$cluster in 00) ;; [01][01]) $(ONCE_MORE) ;; *) exit 2 ;; esac

unit:
	@scripts/venv test
	$(PYTEST) -n 3 --dist worksteal -m "not cluster and not real and not slow" tests/launcher tests/test_*.py $(ARGS)

fast:
	@scripts/venv test
	$(FAST) $(ARGS)

gpu:
	@scripts/venv test
	$(PYTEST) -m gpu tests/trainer $(ARGS)
	$(BIN)/python -m benchmarks.trainer --gpu

check:
	@scripts/venv test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy launcher trainer
	$(BIN)/lint-imports
	$(BIN)/shellcheck $$(find launcher -name '*.sh')

box:
	@scripts/engine
	@scripts/compose-plugin
	@scripts/venv test
	@PYTHON=$(BIN)/python scripts/test-images
	docker compose up --exit-code-from head

bench:
	@for each in $(BENCHES); do $(MAKE) --no-print-directory "$$each" || exit; done

# ARGS are the benchmark's own flags: make bench-launch ARGS='--rounds 5 --write'
$(BENCHES): bench-%:
	@scripts/venv test
	@scripts/test-setup
	$(BIN)/python -m benchmarks.$* $(ARGS)

wheels:
	@scripts/try-wheels

docs:
	@scripts/venv docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "built site/index.html"

image:
	docker build -t ddpctl-trainer:latest .

clean:
	rm -rf $(VENV) .demo wheelhouse dist site
