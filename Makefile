# One entry for everything. `make` lists what there is.
PYTHON ?= python3
VENV ?= .venv
TORCH_VENV ?= .venv-torch
BIN := $(VENV)/bin
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help venv build develop demo test lint check rust-test py-test doctest bench bench-short beside torch stubs docs wheel clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

$(BIN)/.tools: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q 'maturin>=1.9,<2' 'numpy>=1.24'
	touch $@
$(BIN)/.tools-test: $(BIN)/.tools
	$(BIN)/python -m pip install -q 'pytest>=8' 'pytest-xdist>=3.5' 'ruff>=0.6' 'mypy>=1.11'
	touch $@
$(BIN)/.tools-demo: $(BIN)/.tools
	$(BIN)/python -m pip install -q 'matplotlib>=3.7' 'scikit-learn>=1.3'
	touch $@

venv: $(BIN)/.tools ## make .venv with what building needs
develop: $(BIN)/.tools ## build the optimised development profile into .venv (quick to rebuild; for daily tests)
	$(BIN)/maturin develop --quiet
build: $(BIN)/.tools ## build the release profile (LTO) into .venv
	$(BIN)/maturin develop --quiet --release
wheel: $(BIN)/.tools ## build a wheel into dist/
	$(BIN)/maturin build --release --out dist

demo: build $(BIN)/.tools-demo ## train a small network on real digits under several ways of keeping saved values
	$(BIN)/python examples/digits.py --out demo.png

lint: $(BIN)/.tools-test ## formatting, clippy, ruff, mypy; cheapest first
	$(BIN)/ruff check python tests examples benches
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	cargo clippy --quiet --features python --lib -- -D warnings
	$(BIN)/mypy --strict --follow-imports=silent python/stowgrad/_C.pyi
rust-test: ## the core without an interpreter
	cargo test --quiet
py-test: develop $(BIN)/.tools-test ## the Python tests, two at a time
	$(BIN)/python -m pytest -q -n $(JOBS)
doctest: develop $(BIN)/.tools-test ## the examples in docstrings and pages
	$(BIN)/python tests/doc_examples.py
bench-short: ## every Rust bench once, so that none rots
	cargo bench --quiet -- --test
test: lint rust-test bench-short doctest py-test ## everything that CI runs

bench: ## the Rust benches
	cargo bench
torch: ## a second environment with torch 2.13 for comparisons alone (about 4 GB)
	test -x $(TORCH_VENV)/bin/python || $(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install -q torch==2.13.0 numpy
beside: build ## the same work on stowgrad and torch in turn (needs `make torch`)
	$(BIN)/python benches/beside.py --against-python $(TORCH_VENV)/bin/python
stubs: develop ## write the type stubs from the entries of the core
	$(BIN)/python -m stowgrad._stubs > python/stowgrad/_C.pyi
docs: develop ## write docs/ops.md from the entries of the core
	$(BIN)/python -m stowgrad._stubs --ops > docs/ops.md
clean: ## remove what was built
	cargo clean
	rm -rf $(VENV) dist demo.png python/stowgrad/*.so
