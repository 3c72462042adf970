JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
SOURCES = $(shell find include src python studies examples benchmarks tests -name '*.h' -o -name '*.cpp')

.DEFAULT_GOAL := help
# All targets that help lists are names, not files.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*## .*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: setup-build  ## install the Debian packages that are missing, and .venv (scripts/setup.sh names more goals)

setup-%:
	@scripts/setup.sh $*

build: build/release/.tests python  ## build everything: the library, the Python package, the studies, the tests
	cmake --build --preset release -j $(JOBS)

library: build/release/build.ninja  ## build the library alone, to install it (cmake --install build/release --prefix PREFIX)
	cmake --build --preset release -j $(JOBS) --target ddc

python: build/release/build.ninja  ## build the library and the Python package, and install it into .venv
	cmake --build --preset release -j $(JOBS) --target ddc_python
	@$(MAKE) --no-print-directory .venv/.ddc

wheelhouse: python  ## build wheels for the Pythons that are here (or PYTHONS="3.11 3.12"), and the sources, into wheelhouse/
	@PYTHONS="$(PYTHONS)" scripts/wheelhouse.sh

EXTENSION = $(wildcard build/release/python/_C.*.so)
.venv/.ddc: pyproject.toml README.md $(EXTENSION) $(shell find python/ddc -name __pycache__ -prune -o -type f -print)
	rm -rf dist
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w dist \
	  -C build-dir=build/wheel -C cmake.define.DDC_EXTENSION=$(CURDIR)/$(EXTENSION) .
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/*.whl
	touch $@

test: build  ## run the tests
	ctest --preset release
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n $(JOBS) --dist worksteal tests/python studies/tests/python

test-long: build  ## run the tests that take long: wide sweeps, many steps
	ctest --preset long
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n $(JOBS) --dist worksteal -m long tests/python studies/tests/python

demo: python  ## find the symmetries of a transformer, and train two copies of one function: AdamW parts them, we do not
	$(PYTHON) examples/python/quickstart.py --out out/demo

experiments: build/release/.studies setup-data  ## run the quick versions of all experiments, and report
	cmake --build --preset release -j $(JOBS) --target ddc_cli
	build/release/cli/ddc experiment --quick all

results: build/release/.studies setup-data  ## run all experiments in full (many hours; goes on where it stopped) into docs/results
	cmake --build --preset release -j $(JOBS) --target ddc_cli
	studies/results.sh

BENCH := OMP_WAIT_POLICY=passive $(PYTHON) -m ddc bench --out benchmarks/results/steps.json
bench: build/release/.bench python  ## time kernels and steps beside torch (an hour), into benchmarks/results
	cmake --build --preset release -j $(JOBS) --target kernels_benchmark
	for threads in 1 2; do OMP_NUM_THREADS=$$threads build/release/benchmarks/kernels_benchmark \
	  --benchmark_out=benchmarks/results/kernels-$$threads.json; done
	$(BENCH) --threads 1
	$(BENCH) --threads 2
	$(PYTHON) benchmarks/chart.py benchmarks/results/steps.json benchmarks/results/steps.svg

figures: build/release/.studies  ## print the measured figures of docs/results/exactness.md
	cmake --build --preset release -j $(JOBS) --target figures
	OMP_NUM_THREADS=1 build/release/examples/figures

discovery-cost: build/release/.studies  ## print what discovery costs, from 2 to 24 layers
	cmake --build --preset release -j $(JOBS) --target discovery_cost
	build/release/examples/discovery_cost
	build/release/examples/discovery_cost --model ln_relu --layers 28

step-memory: build/release/.studies  ## print what a step takes of memory, beside AdamW's
	cmake --build --preset release -j $(JOBS) --target step_memory
	OMP_NUM_THREADS=1 build/release/examples/step_memory

generated: python  ## write what is made from declarations: python/ddc/optimizers.pyi, docs/reference/options.md
	$(PYTHON) scripts/stubs.py
	$(PYTHON) scripts/options_table.py > docs/reference/options.md

families: setup-test python  ## find the symmetries of transformers' and timm's models, and write docs/reference/families.md
	$(PYTHON) examples/python/families.py --write docs/reference/families.md

fine-tune: setup-test setup-study python  ## fine-tune two copies of a pretrained model, and write out/fine_tune.html
	$(PYTHON) examples/python/fine_tune.py

docs: setup-docs setup-pages  ## build the site of the documentation in out/site, check it, and make pictures of its pages in out/screenshots
	$(PYTHON) -m codespell_lib
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	$(PYTHON) scripts/screenshots.py out/site out/screenshots

pictures: python  ## draw the figures of the documentation anew, from runs
	$(PYTHON) scripts/figures.py
	$(PYTHON) scripts/audit_picture.py

asan: build/asan-ubsan/build.ninja  ## run the C++ tests under the sanitizers
	cmake --build --preset asan-ubsan -j $(JOBS)
	ctest --preset asan-ubsan

# Of LibTorch and libgomp nothing is compiled for it: what they call is left out.
tsan: build/tsan/build.ninja  ## look for data races in what threads may call, and in the kernels of a step
	cmake --build --preset tsan -j $(JOBS) --target ddc_thread_tests kernel_races
	build/tsan/tests/kernel_races
	OMP_NUM_THREADS=2 TSAN_OPTIONS=ignore_noninstrumented_modules=1 build/tsan/tests/ddc_thread_tests --gtest_brief=1

FUZZ_SECONDS ?= 75
fuzz: setup-study setup-fuzz  ## fuzz the readers of files, five minutes in all (needs Clang)
	test -f build/fuzz/build.ninja || cmake --preset fuzz
	cmake --build --preset fuzz -j $(JOBS)
	@for target in safetensors symmetries description run; do \
	  mkdir -p build/fuzz/corpus/$$target tests/fuzz/corpus/$$target; \
	  build/fuzz/tests/fuzz/fuzz_$$target -max_total_time=$(FUZZ_SECONDS) -max_len=262144 -rss_limit_mb=4096 \
	    -print_final_stats=1 -artifact_prefix=build/fuzz/$$target- build/fuzz/corpus/$$target \
	    tests/fuzz/corpus/$$target || exit 1; \
	done

coverage: build/coverage/build.ninja setup-coverage  ## report the lines that the C++ tests reach
	find build/coverage -name '*.gcda' -delete
	cmake --build --preset coverage -j $(JOBS)
	ctest --preset coverage
	gcovr --root . --filter include/ --filter src/ -j $(JOBS) --print-summary build/coverage

format: setup-lint  ## format the sources
	clang-format -i $(SOURCES)
	$(PYTHON) -m ruff format --quiet .
	$(PYTHON) scripts/reflow.py

lint: setup-lint setup-study  ## check the format and the types of Python, and run clang-tidy
	clang-format --dry-run -Werror $(SOURCES)
	$(PYTHON) -m ruff format --check --quiet .
	$(PYTHON) -m ruff check --quiet .
	$(PYTHON) scripts/reflow.py --check
	! grep -rnE --include=*.h --include=*.cpp --include=*.py '^ *((//+|#|""") *)?Of ' \
	  include src python studies tests examples benchmarks scripts
	! grep -rnE '^ *//+ *What ' include
	$(PYTHON) -m mypy
	cmake --preset lint >/dev/null
	$(PYTHON) .venv/bin/run-clang-tidy.py -quiet -j $(JOBS) -clang-tidy-binary .venv/bin/clang-tidy -p build/lint

clean:  ## delete what was built
	rm -rf build out

# Goals install what they need, and add it to what is configured already. Later changes of the CMake files, and new
# sources, are Ninja's to notice.
build/release/build.ninja: | setup-build
	cmake --preset release -DDDC_BUILD_TESTS=OFF -DDDC_BUILD_EXAMPLES=OFF -DDDC_STUDIES=OFF
build/release/.studies: CMakePresets.json | build/release/build.ninja setup-study
	cmake --preset release -DDDC_BUILD_EXAMPLES=ON -DDDC_STUDIES=ON
	touch $@
build/release/.tests: CMakePresets.json | build/release/.studies setup-test setup-pages
	cmake --preset release -DDDC_BUILD_TESTS=ON
	touch $@
build/release/.bench: CMakePresets.json | build/release/build.ninja setup-study setup-bench
	cmake --preset release -DDDC_BUILD_EXAMPLES=ON
	touch $@
build/%/build.ninja: CMakePresets.json | setup-test setup-study
	cmake --preset $*
