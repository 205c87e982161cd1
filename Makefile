# Everything sets itself up: in the active virtual environment or, without one, in .venv. Safe to repeat.
PYTHON ?= python3
VENV := $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
# Where there is no NVIDIA GPU, the CPU build of torch: 1 minute instead of several GB.
CPU := $(if $(shell command -v nvidia-smi),,-c constraints-cpu.txt)
READY := $(VENV)/.context-lab-ready

.PHONY: quickstart test test-slow test-oldest lint setup clean

quickstart: $(READY)
	$(BIN)/lab compare configs/quickstart.yaml

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# The oldest transformers that is supported names a cache differently; what touches it is tested there too.
test-oldest:
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check $(CPU) "transformers==5.17.0" -e ".[test]"
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -n 2 --dist loadfile -m "not slow" \
		tests/test_cache.py tests/test_generate.py tests/test_model.py tests/test_seq2seq.py tests/test_eval_*.py tests/test_adopt.py \
		tests/test_rope_*.py tests/test_export*.py tests/test_extend.py

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

setup: $(READY)

$(READY): pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CPU) -e ".[test]"
	touch $@

clean:
	rm -rf .venv build *.egg-info
