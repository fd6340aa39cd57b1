# Every target sets up what it needs, once, in .venv. Another Python: make test PYTHON=/path/to/python3.12

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.11 python3 python3.12 python3.13 python3.14)

# All checkouts of this machine use one folder of compiled kernels: compiling those of all tests takes a third of their time.
NUMBA_CACHE_DIR ?= $(if $(HOME),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dboost)
ifneq ($(NUMBA_CACHE_DIR),)
export NUMBA_CACHE_DIR
endif

# Every process of the tests that starts would compile dboost, its tests and the plugins of pytest again.
unexport PYTHONDONTWRITEBYTECODE

# Processes that run tests. On two processors, more of them use the time for which tests on clusters wait: make test PROCESSES=3
PROCESSES ?= 2

PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(if $(filter true 1,$(CI)),-m "" --durations=60)

# pip would compile all modules in one process. They are compiled after it in several.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
COMPILE = $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

.PHONY: help demo test test-pythons deploy-test image-test lint style format bench docs clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    train on real rows and show what comes out"
	@echo "make test    lint, types and tests (with CI=true the slow tests too, with TURN=all all of their cells)"
	@echo "make test-pythons  install the wheel for every Python of this machine and run the README (half an hour)"
	@echo "make deploy-test  image, manifests and their commands, as far as this machine can without containers"
	@echo "make image-test  build the image and run the Kubernetes manifests on podman, with faults (root, Linux; half an hour)"
	@echo "make lint    ruff and mypy"
	@echo "make format  let ruff format the code"
	@echo "make docs    build the documents into docs/_build/html"
	@echo "make bench   compare with LightGBM, XGBoost and scikit-learn (BENCH='--quick' for a minute's look)"
	@echo "make clean   remove what was made (the environment too)"

demo: $(VENV)/.run
	$(BIN)/dboost demo

# Types are checked while the tests run: mypy uses one processor, and tests on clusters leave some of their time unused.
# pytest ends with 3 when it failed itself (a process of its, between two tests), which says nothing about dboost.
test: style
	@$(BIN)/mypy & types=$$!; \
	$(PYTEST) || { test $$? -eq 3 && echo "pytest itself has failed: once more" && $(PYTEST); }; tests=$$?; \
	wait $$types && exit $$tests || { echo "mypy has found errors: see above, before the tests"; exit 1; }

test-pythons: $(VENV)/.dev
	TEST_PYTHONS=all $(BIN)/python -m pytest -n 0 -v -m "" tests/project/test_packaging.py tests/project/test_install.py

image-test: $(VENV)/.dev
	IMAGE_TEST=1 $(BIN)/python -m pytest -n 0 -v -m "" deploy/tests/test_containers.py

# The proofs of the deployment that need no engine of containers; `make test` runs the fast ones too.
deploy-test: $(VENV)/.dev
	$(PYTEST) -m "" deploy/tests

lint: style
	$(BIN)/mypy

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(BENCH)

docs: $(VENV)/.dev
	rm -rf docs/_generated
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

clean:
	rm -rf docs/_build docs/_generated
	rm -rf $(VENV) build dist *.egg-info demo-output benchmarks/data
	rm -rf .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find dboost tests benchmarks deploy docs examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The first Python of the candidates that is new enough and able to make environments; some are names that do not start.
$(VENV)/bin/python:
	@for python in $(CANDIDATES); do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        echo "making $(VENV) with $$python"; exec "$$python" -m venv $(VENV); \
	    fi; \
	done; \
	echo "dboost needs Python 3.11 or newer with the venv module; tried: $(CANDIDATES). Say make PYTHON=/path/to/python" >&2; \
	exit 1

$(VENV)/.run: requirements/run.txt pyproject.toml | $(VENV)/bin/python
	$(INSTALL) -r requirements/run.txt
	$(INSTALL) --no-deps --editable .
	$(COMPILE)
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	$(INSTALL) -r requirements/dev.txt
	$(COMPILE)
	@touch $@
