PYTHON ?= python3
CONFIG ?= configs/controlled_generation/sentiment_smollm2.yaml
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --no-compile --constraint constraints.txt
# Tests start dozens of processes, each of which would compile torch and transformers again.
unexport PYTHONDONTWRITEBYTECODE
# A stamp is younger than what it was installed from, so nothing is installed twice.
DEMO := .venv/installed-demo
DEV := .venv/installed-dev
BENCH := .venv/installed-bench
DOCS := .venv/installed-docs
# In our order (tests/conftest.py), not in the order of the numbers of tests.
PYTEST := $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder
SUITES ?= ctrleval ctc perplexity distinct

.DEFAULT_GOAL := help
.PHONY: help demo transfer test soak lint docs bench gpu clean release-check constraints lowest

help:  ## list what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 12

demo: $(DEMO)  ## fine-tune a small generator on a reward; writes runs/demo
	WANDB_MODE=offline $(BIN)/ctrlreward train --config $(CONFIG) $(ARGS)

# M0 to M7 of textual transfer in minutes each (MODELS="m0 m2" for some); the sentences are
# downloaded at first use.
TRANSFER := configs/textual_transfer
MODELS ?= m0 m1 m2 m3 m4 m5 m6 m7
transfer: $(DEMO)  ## train models of textual transfer; writes runs/textual_transfer
	for model in $(MODELS); do WANDB_MODE=offline $(BIN)/ctrlreward train --config $(TRANSFER)/yelp.yaml \
		--config $(TRANSFER)/small.yaml --values.model $$model $(ARGS) || exit; done
	$(BIN)/python -m ctrlreward.recipes.papers.textual_transfer.tables \
		$(addprefix runs/textual_transfer/,$(MODELS)) --json runs/textual_transfer/tables.json \
		--figure runs/textual_transfer/trajectories.png

# Tiny models gain nothing from threads. A process more than two cores uses the time in which tests
# wait for servers and Ray.
test: export OMP_NUM_THREADS ?= 1
test: $(DEV)  ## run the tests (ARGS="-k samples" for some of them)
	$(PYTEST) $(ARGS)

soak: export OMP_NUM_THREADS ?= 1
soak: $(DEV)  ## run the tests that take minutes: faults, hostile input
	$(PYTEST) -m soak $(ARGS)

lint: $(DEV)  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --package ctrlreward
	$(BIN)/mypy tests/users_file.py

# Warnings are errors: a link that leads nowhere, a page without a line in docs/index.md.
docs: $(DOCS)  ## build the site into build/docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs $(ARGS)

bench: $(BENCH)  ## time us against others (SUITES="ctc distinct" for some)
	@for suite in $(SUITES); do \
		echo "== $$suite"; $(BIN)/python benchmarks/$$suite.py $(ARGS) || exit; done

# With `dev`, as it has the second device of the tests and TRL.
gpu: $(DEV)  ## run what needs a GPU on one, or on the second device of the tests; writes runs/gpu
	$(BIN)/python benchmarks/gpu.py $(ARGS)

release-check: $(DEV)  ## build the committed state twice, install, score, train; writes dist
	.ci/release

# The newest versions that the extras allow and that have wheels. Run the tests before committing
# them. torch keeps its version, whose wheel is for CPUs: change it by hand.
constraints: | $(BIN)/python  ## write the versions of constraints.txt anew
	$(BIN)/python -m pip install -qq uv
	grep ^torch== constraints.txt >torch.held
	(head -1 constraints.txt; $(BIN)/uv pip compile --quiet --python $(BIN)/python --only-binary :all: --constraint torch.held \
		--extra bench --extra dev --extra docs --no-annotate --no-header pyproject.toml | grep -vE '^( |cuda-|nvidia-|triton=)') > constraints.new
	mv constraints.new constraints.txt && rm torch.held

# What pyproject.toml promises: its oldest versions, in an environment of their own.
lowest: export OMP_NUM_THREADS ?= 1
lowest: | $(BIN)/python  ## run the tests with the oldest versions that pyproject.toml allows
	$(BIN)/python -m pip install -qq uv
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python .venv-lowest
	$(BIN)/uv pip install --quiet --python .venv-lowest --resolution lowest-direct \
		--only-binary :all: --no-binary ctrlreward --editable '.[dev]'
	.venv-lowest/bin/pytest --numprocesses 3 --dist loadfile $(ARGS)

clean:  ## remove what was built; keeps .venv and runs
	rm -rf build dist docs/api *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -exec rm -rf {} +

$(BIN)/python:
	@echo "installing into .venv: a minute or two"
	$(PYTHON) -m venv .venv

$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[demo]'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $(DEMO) $@

$(BENCH): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[bench]'
	@touch $(DEMO) $@

$(DOCS): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[docs]'
	@touch $@
