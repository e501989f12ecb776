# Millrace from a fresh clone: `make run` tells a story, `make test` runs all tests. Both first
# install missing packages (scripts/deps.sh). `make help` lists the rest.
PRESET ?= release
BUILD  := build/$(PRESET)
PREFIX ?= /usr/local
JOBS   ?= $(shell scripts/jobs.sh)
# One more than compilers: some tests wait for processes that they have ended.
TEST_JOBS ?= $(shell expr $(JOBS) + 1)
PROMPT ?= Once upon a time
BENCH  ?= random:tinyllama-1.1b

# clang-format versions differ in details; the code is formatted with 14.
CLANG_FORMAT ?= $(firstword $(shell command -v clang-format-14 clang-format) clang-format)
CLANG_TIDY   ?= $(firstword $(shell command -v clang-tidy-14 clang-tidy) clang-tidy)
# Without python3-venv, Debian's Python leaves a folder with bin/python and no pip.
venv = @test -x $(1)/bin/pip || python3 -m venv $(1) || { \
	echo "make: no virtual environment in $(1) (Debian: install python3-venv)" >&2; exit 1; }
CODE = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

.PHONY: help run test test-lab test-compat test-serve test-python test-gpu sanitize-gpu cuda-archs build program configure deps bench install format \
        format-check check tidy docs clean package
.DEFAULT_GOAL := help

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PRESET=release|debug|asan|tsan  JOBS=$(JOBS)  PREFIX=$(PREFIX)"

run: program ## install missing packages, build, and tell a story with the bundled model
	@$(BUILD)/millrace run -p "$(PROMPT)" -n 300

run_tests = @ctest --test-dir $(BUILD) --output-on-failure -j $(TEST_JOBS) $(1) || { \
	    status=$$?; python3 -B scripts/failed_tests.py $(BUILD); exit $$status; }

test: build ## install missing packages, build, and run every test but the laboratory's
	$(call run_tests,-LE '^lab$$')

test-lab: build ## run the laboratory's tests
	$(call run_tests,-L '^lab$$')

test-compat: program ## compare with transformers and tokenizers, in its own virtual environment
	$(call venv,build/compat)
	build/compat/bin/pip install -q -r tests/compat/requirements.txt
	build/compat/bin/python -B tests/compat/record.py --check
	build/compat/bin/python -B tests/compat/record_keys.py --check
	MILLRACE_DEVICE=cpu MILLRACE_BIN=$(BUILD)/millrace python3 -B tests/cli/compat_test.py
	MILLRACE_DEVICE=cpu MILLRACE_BIN=$(BUILD)/millrace \
	    MILLRACE_PYTHON=$(CURDIR)/build/compat/bin/python python3 -B tests/cli/transformers_test.py

test-serve: build ## run the server's long tests, and the page's in Chromium, if installed
	ctest --test-dir $(BUILD) --output-on-failure -C serve -L serve

test-python: build ## make the wheel, install it into a virtual environment, and test it there
	ctest --test-dir $(BUILD) --output-on-failure -R python.wheel

test-gpu: build ## run the GPU tests; fails without a GPU
	MILLRACE_REQUIRE_GPU=1 ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -L gpu

sanitize-gpu: build ## run tests on the GPU under compute-sanitizer (FILTER=..., TOOL=memcheck)
	MILLRACE_REQUIRE_GPU=1 ctest --test-dir $(BUILD) --output-on-failure -C sanitize -L sanitize

cuda-archs: deps ## compile the kernels for GPUs of 7.5, 8.0, 8.9, 9.0 and 12.0 (nvcc 12.8 or later)
	@mkdir -p build && scripts/cuda_archs.sh $(JOBS)

build: configure ## build everything
	cmake --build $(BUILD) -j $(JOBS)

program: configure ## build only the program
	cmake --build $(BUILD) -j $(JOBS) --target millrace_cli

configure: deps
	@cmake --preset $(PRESET)

deps: ## install missing packages (apt)
	@scripts/deps.sh

# A shape is measured in two types, a file in its own.
BENCH_AS = $(if $(filter random:%,$(BENCH)),$(foreach type,$(1),$(BENCH):$(type)),$(BENCH))

bench: program ## measure decode, prefill and load on the TinyLlama shape (BENCH=random:SHAPE or FILE)
	for model in $(call BENCH_AS,q8_0 q4_0); do $(BUILD)/millrace bench decode $$model || exit; done
	$(BUILD)/millrace bench prefill $(call BENCH_AS,q8_0)
	$(BUILD)/millrace bench load $(call BENCH_AS,q8_0)

install: configure ## install to PREFIX
	cmake --build $(BUILD) -j $(JOBS) --target millrace_installed
	cmake --install $(BUILD) --prefix "$(PREFIX)"

package: deps ## archives, .deb packages and a wheel in out/packages (PACKAGE=-DMILLRACE_CUDA=OFF)
	@scripts/package.sh $(PACKAGE)

format: ## format the code in place
	@$(CLANG_FORMAT) -i $(CODE)

format-check: ## fail if the code is not formatted
	@$(CLANG_FORMAT) --dry-run -Werror $(CODE)

check: ## format, clang-tidy and tests of what differs from main: before a commit
	@python3 -B scripts/check.py -j $(JOBS) --build $(BUILD) $(FILES)

tidy: deps ## run clang-tidy over the code (FILES=... for some of it)
	@scripts/tidy.sh "$(CLANG_TIDY)" $(JOBS) $(FILES)

docs: ## make the documentation as a static site in build/site, with mkdocs in build/docs
	$(call venv,build/docs)
	build/docs/bin/pip install -q -r docs/requirements.txt
	build/docs/bin/mkdocs build --strict

clean: ## remove the build folders
	rm -rf build
