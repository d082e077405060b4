# Everything a developer or operator runs. `make up` and `make test` set up what they need themselves.
SHELL := /bin/bash
PYTHON ?= python3
CONFIG ?= routes.yaml
BIN := .venv/bin

.PHONY: up test check env env-worker clean

up: env env-worker
	@exec $(BIN)/dcugate up --config $(CONFIG)

test: env env-worker check
	$(BIN)/pytest

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

env: .venv/.ready
env-worker: .venv-worker/.ready

.venv/.ready: pyproject.toml constraints/gateway.txt scripts/make-env
	@PYTHON=$(PYTHON) scripts/make-env gateway

.venv-worker/.ready: constraints/worker.txt scripts/make-env
	@PYTHON=$(PYTHON) scripts/make-env worker

clean:
	rm -rf .venv .venv-worker build *.egg-info
