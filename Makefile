# make demo, make test: everything is set up in .venv by the first call and found there by the next.
# PYTHON=/path/to/python chooses the interpreter that .venv is made with.

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-machines lint bench docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.has-examples
	@$(PY) examples/digits.py $(ARGS)

# Two processes of one thread each: TVM's workers spin while they wait, so more threads than cores cost time.
# A file's tests stay in one of them, since what they share (libraries of kernels, exported steps) is compiled once there.
# Files start in the order of tests/conftest.py, the longest first, not by their numbers of tests.
test: $(VENV)/.has-test
	@OMP_NUM_THREADS=1 TVM_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# The same with numpy's BLAS and our targets as on other processors, as far as this one can execute them.
test-machines: $(VENV)/.has-test
	@OMP_NUM_THREADS=1 TVM_NUM_THREADS=1 $(PY) tests/install/machines.py $(ARGS)

lint: $(VENV)/.has-dev
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

bench: $(VENV)/.has-examples
	@$(PY) -m gluongraph bench $(ARGS)

# The pages of docs/ and a reference made of the docstrings, in build/docs/index.html; a warning is an error.
docs: $(VENV)/.has-docs
	@$(PY) docs/site/build.py build/docs $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

# One stamp for each set of extras; a changed pyproject.toml installs again.
$(VENV)/.has-%: pyproject.toml | $(VENV)/.made
	@echo "installing gluongraph[$*] into $(VENV) ..."
	@$(PIP) install --editable '.[$*]'
	@touch $@

$(VENV)/.made:
	@python=$$(sh .ci/python) && echo "making $(VENV) with $$($$python --version)" && $$python -m venv --clear $(VENV)
	@touch $@
