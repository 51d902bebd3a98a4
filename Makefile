PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LIBRARIES := $(VENV)/.libraries
CASES ?= 100
SEED ?= 0
WORKERS ?= 2

.PHONY: demo test test-slow lint format type golden bench bench-models libraries fuzz clean

demo: $(STAMP)
	mkdir -p build
	$(BIN)/remat-codegen examples/gpt2.py:GPT2 --budget 1GiB -o build/gpt2_remat.py --verify

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile

# The models of torchvision, timm and transformers among them.
test-slow: $(LIBRARIES)
	$(BIN)/python -m pytest -m slow

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

# The table of models in README, which takes an hour.
bench-models: $(LIBRARIES)
	$(BIN)/python benchmarks/bench_models.py

# Random cases beside the fixed ones of `make test`: make fuzz CASES=1000 SEED=7
fuzz: $(STAMP)
	CASES=$(CASES) $(BIN)/python -m pytest tests/property --hypothesis-profile=fuzz --hypothesis-seed=$(SEED) --timeout=0

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

libraries: $(LIBRARIES)

$(LIBRARIES): $(STAMP) constraints-models.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r constraints-models.txt
	touch $@

# The environment is installed anew where what it is made from is newer.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,highs]' -c constraints.txt
	touch $@
