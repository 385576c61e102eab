# Two commands: `make demo` shows Twinrail at work, `make test` proves it. Both make their own .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check docs bench clean

demo: .venv/run
	$(BIN)/twinrail sweep scenarios/library/vgg16-4gpu-pcie.yaml --out runs/demo

test: .venv/test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not cuda"

check: .venv/check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

bench: .venv/run
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/run: setup.cfg constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

.venv/test: .venv/run
	$(PIP) --editable .[test]
	touch $@

.venv/docs: .venv/run
	$(PIP) --editable .[docs]
	touch $@

.venv/check: .venv/test
	$(PIP) --editable .[check]
	touch $@
