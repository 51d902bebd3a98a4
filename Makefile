PYTHON ?= python3
# With TORCH=, each target has an environment for that PyTorch and that Python: make demo TORCH=2.15.0 PYTHON=python3.14.
# All but torch is what constraints.txt names; TORCH=newest is the newest of everything, looked for anew each time.
ifdef TORCH
VENV := .venvs/torch-$(TORCH)-$(shell $(PYTHON) -c "import sys; print('py%d.%d' % sys.version_info[:2])")
else
VENV := .venv
endif
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LIBRARIES := $(VENV)/.libraries
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CASES ?= 100
SEED ?= 0
WORKERS ?= 2

.PHONY: demo test test-torch test-slow test-nullgpu run-nullgpu gpu gpu-calibrate lint format type golden bench bench-models libraries fuzz clean anew

demo: $(STAMP)
	mkdir -p build
	$(BIN)/remat-codegen examples/gpt2.py:GPT2 --budget 1GiB -o build/gpt2_remat.py --verify

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile

# The same with another PyTorch, or another Python, which have to be named.
test-torch:
	@test -n "$(TORCH)" || { echo "say which: make test-torch TORCH=2.15.0, or TORCH=newest" >&2; exit 2; }
	$(MAKE) test

# The models of torchvision, timm and transformers among them.
test-slow: $(LIBRARIES)
	$(BIN)/python -m pytest -m slow

# The tests on CUDA devices, with a GPU that computes nothing (tests/nullgpu/README.md). NDEV=2 make test-nullgpu has two of them,
# CC=80 is another generation.
test-nullgpu:
	$(MAKE) run-nullgpu TORCH=$(or $(TORCH),2.14.1)

run-nullgpu: $(STAMP)
	$(BIN)/python tests/nullgpu/run.py -m pytest tests/cuda

# Everything on a real GPU, with the interpreter and the PyTorch that are there and without network: benchmarks/gpu.py says how.
# make gpu PYTHON=python3 WHEELS=folder; PART=peaks runs one part, AGAIN=1 all of them anew, SMALL=1 small models,
# MINUTES=9 ends in time; the same command goes on from there.
gpu:
	$(PYTHON) benchmarks/gpu.py $(if $(WHEELS),--wheels $(WHEELS)) $(if $(PART),--part $(PART)) \
		$(if $(AGAIN),--again) $(if $(SMALL),--small) $(if $(MINUTES),--minutes $(MINUTES))

# How far estimated times are off on the GPU that is here, at most 8 minutes, and its entry for remat_devices.toml.
gpu-calibrate:
	$(MAKE) gpu PART=calibrate

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/black --check --quiet .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/black --quiet .

type: $(STAMP)
	$(BIN)/mypy

# Writes the committed outputs anew; look at the difference before committing it.
golden: $(STAMP)
	$(BIN)/python -m pytest tests/golden --update-golden

bench: $(STAMP)
	set -e; for file in $(filter-out %_models.py,$(wildcard benchmarks/bench_*.py)); do echo "== $$file"; $(BIN)/python $$file; done

# The table of models in docs/models.md, which takes an hour.
bench-models: $(LIBRARIES)
	$(BIN)/python benchmarks/bench_models.py

# Random cases beside the fixed ones of `make test`: make fuzz CASES=1000 SEED=7
fuzz: $(STAMP)
	CASES=$(CASES) $(BIN)/python -m pytest tests/property --hypothesis-profile=fuzz --hypothesis-seed=$(SEED) --timeout=0

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

libraries: $(LIBRARIES)

$(LIBRARIES): $(STAMP) constraints-models.txt
	$(PIP) --no-deps -r constraints-models.txt
	touch $@

# The environment is installed anew where what it is made from is newer.
$(STAMP): pyproject.toml constraints.txt $(if $(filter newest,$(TORCH)),anew)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),newest)
	$(PIP) --upgrade --upgrade-strategy eager -e '.[dev,highs]'
else
	sed 's/^torch==.*/$(if $(TORCH),torch==$(TORCH),&)/' constraints.txt > $(VENV)/constraints.txt
	$(PIP) -e '.[dev,highs]' -c $(VENV)/constraints.txt
endif
	touch $@

anew:
