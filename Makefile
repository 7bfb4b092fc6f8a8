# make setup   makes .venv and installs the kit
# make run     runs every lesson on this machine; report in runs/<time>/
# make lab     opens JupyterLab on the lessons
# make test    runs the tests
# make test-deviceless   has cuDNN list plans for GPUs that are not here, in its own environment
# make student, make solved   write the lessons without or with solutions into build/
# make colab-check            rehearses Colab; COLAB_ARGS="--lessons all" for every lesson
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
RUN_ARGS ?=
TEST_ARGS ?=
TEST_JOBS ?= 2
COLAB_ARGS ?=

BIN := $(VENV)/bin
# A machine with a GPU and one without get different tested versions of torch.
KIND := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
# The CUDA compiler comes from PyPI where no toolkit is found, so compile checks always run.
HAVE_NVCC := $(shell { test -x "$$CUDA_HOME/bin/nvcc" || command -v nvcc || \
                       test -x /usr/local/cuda/bin/nvcc; } >/dev/null 2>&1 && echo yes)
# The widgets are tried in a browser where there is one.
HAVE_CHROMIUM := $(shell { command -v chromium || command -v chromium-browser; } >/dev/null 2>&1 \
                         && echo yes)
comma := ,
EXTRAS := lab,test$(if $(HAVE_NVCC),,$(comma)nvcc)$(if $(HAVE_CHROMIUM),$(comma)browser)
STAMP := $(VENV)/installed-$(KIND)-$(subst $(comma),-,$(EXTRAS))
PYTEST := $(BIN)/python -m pytest
NBVAL := --nbval-lax --nbval-current-env --nbval-cell-timeout=120 \
         --nbval-sanitize-with=tests/sanitize.cfg
# in the order of tests/conftest.py, which also says what stays in one process
PARALLEL := --numprocesses=$(TEST_JOBS) --dist=loadfile --no-loadscope-reorder

.PHONY: setup run lab test test-all test-gpu test-deviceless notebooks student solved \
        colab-check lint clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints/$(KIND).txt constraints/nvcc.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit( \
	  "labkit needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is %d.%d; " % v + \
	  "call make with PYTHON=python3.12, for example.")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "labkit: python3 cannot make \
	  a virtual environment; on Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) \
	  --constraint constraints/$(KIND).txt --editable '.[$(EXTRAS)]'
	@rm -f $(VENV)/installed-* && touch $@

run: setup
	$(BIN)/labkit run $(RUN_ARGS)

lab: setup
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

# Tests run on the CPU, also where there is a GPU; `make test-gpu` is for that.
test: export LABKIT_DEVICE = cpu
test: setup
	$(PYTEST) $(NBVAL) $(PARALLEL) -m "not gpu and not slow" $(TEST_ARGS) tests notebooks

test-all: export LABKIT_DEVICE = cpu
test-all: export LABKIT_EXAMPLES ?= 200
test-all: setup
	$(PYTEST) $(NBVAL) $(PARALLEL) -m "not gpu" $(TEST_ARGS) tests notebooks

test-gpu: export LABKIT_REQUIRE_GPU = 1
test-gpu: setup
	$(PYTEST) -m gpu $(TEST_ARGS) tests

# A libcudnn (0.8 GB) in an environment of its own, and a stand-in for the driver: cuDNN then plans
# for the T4, A100, L4, H100 and B200, and the cuDNN lessons run as on such a machine. No GPU.
DEVICELESS := $(VENV)-deviceless
DRIVER := build/driver
test-deviceless: export LABKIT_DEVICE = cpu
test-deviceless: export LABKIT_REQUIRE_CUDNN = 1
test-deviceless: export LD_LIBRARY_PATH = $(abspath $(DRIVER))
test-deviceless:
	LD_LIBRARY_PATH= $(MAKE) setup VENV=$(DEVICELESS) KIND=cpu EXTRAS=test,deviceless
	LD_LIBRARY_PATH= $(DEVICELESS)/bin/python tests/driver_stand_in.py $(DRIVER)
	$(DEVICELESS)/bin/python -m pytest -m "not gpu" -k "cudnn or has_plans" $(TEST_ARGS) \
	  tests/test_cudnn_*.py tests/test_exercises.py
	$(DEVICELESS)/bin/labkit run 12 13 14 15 16 $(RUN_ARGS)

# Runs the lessons on the CPU and stores them with their outputs, in canonical form.
notebooks: setup
	$(BIN)/python tests/notebook_format.py --execute

student: setup
	$(BIN)/labkit edition student --out build/student

solved: setup
	$(BIN)/labkit edition solved --out build/solved

# Needs python3.12, python3.13 and 10 GB of disk: Colab's torch is a CUDA build.
colab-check: setup
	$(BIN)/python tests/colab_rehearsal.py $(COLAB_ARGS)

lint: setup
	$(BIN)/ruff check .

clean:
	rm -rf $(VENV) $(DEVICELESS) runs build dist
