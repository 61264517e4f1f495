# Needs make and Python 3.11 or newer with its venv module; everything else is installed into .venv. With a C++
# compiler, the native parts (setup.py) are built, and rebuilt when their sources change.
#
#   make demo      compile GPT-2 small, run it on the simulated trn1, compare with jaxlib
#   make test      the tests, without those marked slow (full-size models); of one with many parameter sets, three
#   make test-all  all tests, with all their parameter sets
#   make test-frameworks  the quick tests of the front ends with PyTorch, its libraries of models, ONNX, Keras and
#                  TensorFlow (3 GB, more unless pip's index has torch's wheels for CPUs alone)
#   make test-torch  all of the PyTorch front end's, with models by name
#   make lint      ruff and mypy
#   make viewers   XProf, and Chromium where Debian's packages and root are at hand: tests of profiles and reports use them
#   make sanitize  the native parts with address, undefined-behaviour and thread sanitizers, and their tests
#   make fuzz      every fuzz target for a minute (FUZZ_ARGUMENTS="neff --seconds 7200")
#   make bench     the table of benchmarks/models.py
#   make docs      the site, in build/docs/html; warnings and broken links are errors
#   make dist      sdist and wheel, in build/dist
#   make clean     remove .venv and build

# Python modules are compiled once, not by each process that imports them
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PYTEST_JOBS ?= 2

BIN := .venv/bin
# modules are compiled when they are first imported, most of them never
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile
INSTALLED := .venv/.installed
TEST_TOOLS := .venv/.test
FRAMEWORKS := .venv/.test-frameworks
SITE_TOOLS := .venv/.docs
VIEWERS := .venv/.viewers
NATIVE := $(wildcard runtime/*/*.cpp runtime/*/*.h)

.PHONY: demo test test-all test-torch test-frameworks lint style types format bench clean setup sanitize fuzz docs dist viewers
.DELETE_ON_ERROR:

demo: $(INSTALLED)
	$(BIN)/python examples/demo.py $(DEMO_ARGUMENTS)

test: $(TEST_TOOLS)
	$(BIN)/python -m pytest -n $(PYTEST_JOBS) $(PYTEST_ARGUMENTS)

test-all: $(TEST_TOOLS)
	$(BIN)/python -m pytest -n $(PYTEST_JOBS) -m "not torch" --cases 0 $(PYTEST_ARGUMENTS)

test-frameworks: $(TEST_TOOLS) $(FRAMEWORKS)
	$(BIN)/python -m pytest -n $(PYTEST_JOBS) -m "not slow" tests/driver/frontends $(PYTEST_ARGUMENTS)

test-torch: $(TEST_TOOLS) $(FRAMEWORKS)
	$(BIN)/python -m pytest -n $(PYTEST_JOBS) -m torch tests/driver/frontends/torch $(PYTEST_ARGUMENTS)

lint: style types

style: $(TEST_TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TEST_TOOLS)
	$(BIN)/mypy

format: $(TEST_TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(TEST_TOOLS)
	$(BIN)/python benchmarks/models.py $(BENCH_ARGUMENTS)

docs: $(SITE_TOOLS)
	$(BIN)/sphinx-build --builder html --write-all --fail-on-warning --keep-going --quiet --jobs auto -d build/docs/cache docs build/docs/html
	@echo "build/docs/html/index.html"

dist: $(TEST_TOOLS)
	$(BIN)/python -m build --outdir build/dist

sanitize: $(TEST_TOOLS)
	$(BIN)/python tests/sanitize/run.py $(SANITIZE_ARGUMENTS)

fuzz: $(TEST_TOOLS)
	$(BIN)/python tests/fuzz/run.py $(or $(FUZZ_ARGUMENTS),all --seconds 60)

setup: $(TEST_TOOLS)

viewers: $(VIEWERS)
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
		echo "no Chromium: the tests of how pages look will be skipped"

$(INSTALLED): pyproject.toml setup.py $(NATIVE)
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; install one, or say make PYTHON=/path/to/python"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: $(PYTHON) has no venv module; install it (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@test -x $(BIN)/pip || { rm -rf .venv && $(PYTHON) -m venv .venv; }
	$(PIP) --editable .
	@touch $@

$(FRAMEWORKS): private PIP += --constraint tests/driver/frontends/constraints.txt
$(FRAMEWORKS): tests/driver/frontends/constraints.txt

# an extra alone: installing the project once more would build the native parts
$(TEST_TOOLS) $(SITE_TOOLS) $(VIEWERS) $(FRAMEWORKS): .venv/.%: $(INSTALLED)
	@$(BIN)/python -c "import tomllib; \
		print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$*'])" \
		| xargs $(PIP)
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info
