# `make demo` probes the bundled run and prints the path of its report; `make test` runs the tests.
# Both create .venv once and reuse it.
PYTHON ?= python3
VENV := .venv
VENV_TL3 := .venv-tl3
BIN := $(VENV)/bin
# Toy models: a second thread costs more than it gives, and spins when the machine is shared.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
# Every worker imports all of it: compiled once and kept, collecting takes half the time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: audit bench demo docs examples gallery gpu house marimo notebooks phase install lint types clean fuzz mutants sbom \
	test test-experiments test-machines test-outside test-shapes test-slow test-system test-tl3 test-tools \
	test-triton test-versions wheel-check

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mechmarkov needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=python3.11")'
	@echo "Setting up $(VENV), once; this takes a few minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# An environment $(1) that sees the packages of $(2), and has some of its own in front of them.
define IN_FRONT_OF
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(2)/bin/python -c 'import site; print("import site; site.addsitedir(%r)" % site.getsitepackages()[0])' \
		> $$($(1)/bin/python -c 'import site; print(site.getsitepackages()[0])')/behind.pth
	grep -v -e '^transformer-lens' -e '^pymdown-extensions' constraints.txt > $(1)/constraints.txt
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -c $(1)/constraints.txt $(3)
endef

$(VENV_TL3)/installed: $(VENV)/installed
	$(call IN_FRONT_OF,$(@D),$(VENV),transformer-lens==3.9.0)
	@touch $@

demo: install
	$(BIN)/mechmarkov probe --steps all --out report

# Processes. Each begins with half of the tests; the one that ends first takes half of what the other has left.
WORKERS ?= 2
PYTEST := -m pytest -n $(WORKERS) --dist worksteal
test: install
	@echo "Left out: browser, clusters, killed processes, the wheel, coverage of intervals (make test-system); papers (make test-experiments)."
	$(BIN)/python $(PYTEST) -m 'not slow and not experiments and not system and not browser and not repeated'

# What works on whole processes: each file starts its own, so that a file stays in one worker, in this order.
test-system: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m '(system or browser or repeated) and not slow'

# The quick run of every measurement against its committed verdict.
test-experiments: install
	$(BIN)/python $(PYTEST) -m 'experiments and not slow' \
		tests/experiments tests/training/test_binary_runs.py

# Shapes and types of every call, as the annotations say (jaxtyping and beartype): nearly twice as slow.
# These files call 91 % of the annotated functions; the other files add few, for several times the time.
SHAPES := --jaxtyping-packages=mechmarkov,shapes.checked
SHAPED := tests/sources tests/theory tests/probing/test_ask.py tests/report/test_compare.py tests/test_show.py \
	$(patsubst %,tests/models/test_%.py,kernels init lens mixer read walk) \
	$(patsubst %,tests/runs/test_%.py,golden_runs import_steps import_tokens known_traps live_gpt2) \
	$(patsubst %,tests/sweeps/test_sweep_%.py,phase ray run) \
	$(patsubst %,tests/training/test_%.py,fleet objective optimiser recipe)
# Without the interrupted fleets, which take a quarter of the time, and what is given wrong shapes on purpose.
test-shapes: install
	$(BIN)/python $(PYTEST) $(SHAPES) -m 'not slow and not system and not browser and not repeated' \
		-k 'not (refused and (test_walk_bounds or test_sampling or test_kernels))' \
		--deselect tests/training/test_fleet.py::test_an_interrupted_fleet_resumes_to_the_bit $(SHAPED)

# Lines, names at the top, and how many files, returns and open calls lie between `train` and a gradient step.
house: install
	$(BIN)/python -m benchmarks.house

test-slow: install
	$(BIN)/python -m pytest -m slow

test-tl3: $(VENV_TL3)/installed
	$(VENV_TL3)/bin/python $(PYTEST) -m 'tl and not slow and not experiments'

# The rows of `mm.compat()` whose tools are no dependency, on both legs, in front of whose environments they are.
# SAELens asks for a TransformerLens before 4.
TOOLS := devinterp==2.0.1 nnsight==0.8.1
test-tools: $(VENV)-tools/installed $(VENV_TL3)-tools/installed
	$(VENV)-tools/bin/python -m pytest tests/models/test_compatibility.py tests/probes/test_degeneracy.py
	$(VENV_TL3)-tools/bin/python -m pytest tests/models/test_compatibility.py tests/probes/test_degeneracy.py

$(VENV)-tools/installed: $(VENV)/installed
$(VENV_TL3)-tools/installed: TOOLS += sae-lens==6.54.12
$(VENV_TL3)-tools/installed: $(VENV_TL3)/installed
%-tools/installed:
	$(call IN_FRONT_OF,$(@D),$*,$(TOOLS))
	@touch $@

# Other people's packages, each trained by its own loop and brought in; all are pinned in constraints-outside.txt.
# Some pin an older numpy or hub than they need: they come without what they ask for.
OUTSIDE := lightning x-transformers mambapy hmmlearn emic tiktoken gim-explain
OUTSIDE_WITHOUT := litgpt==0.5.13 picogpt==0.1.1 autoresearch-nano==1.0.0
test-outside: $(VENV)-outside/installed $(VENV_TL3)/installed
	$(VENV)-outside/bin/python -m pytest tests/outside
	$(VENV_TL3)/bin/python -m pytest tests/outside/test_transformer_lens.py

$(VENV)-outside/installed: constraints-outside.txt $(VENV)/installed
	$(call IN_FRONT_OF,$(@D),$(VENV),-c constraints-outside.txt $(OUTSIDE))
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(OUTSIDE_WITHOUT)
	@touch $@

# A GPU's kernels, interpreted on the processor, and compiled for a GPU that is not here.
test-triton: $(VENV)-triton/installed
	$(VENV)-triton/bin/python $(PYTEST) tests/devices/test_gpu_attention.py

$(VENV)-triton/installed: $(VENV)/installed
	$(call IN_FRONT_OF,$(@D),$(VENV),triton==3.7.1)
	@touch $@

# The suite on each Python from 3.11 up that is here, with the lowest torch and the pinned one.
test-versions: install
	$(BIN)/python tests/robustness/versions.py

# Runs, robustness and training as on another machine: an ASCII locale, another time zone and hash seed, no HOME, a
# current folder that cannot be written. Minutes; not in the gate.
test-machines: install
	$(BIN)/python tests/robustness/machines.py

# Small changes of the code, 200 at places drawn with a fixed seed: do the tests notice? Hours; `tests/README.md`.
MUTANTS ?= 200
mutants: $(VENV)-mutants/installed
	$(VENV)-mutants/bin/python tests/robustness/mutants.py map
	$(VENV)-mutants/bin/python tests/robustness/mutants.py run --count $(MUTANTS)
	$(VENV)-mutants/bin/python tests/robustness/mutants.py report

$(VENV)-mutants/installed: $(VENV)/installed
	$(call IN_FRONT_OF,$(@D),$(VENV),cosmic-ray==8.7.0 pytest-cov==7.1.0)
	@touch $@

# Probing at the sizes people train; the table is written into benchmarks/README.md. Hours on a shared machine.
bench: install
	$(BIN)/python -m benchmarks.probe --exponents

# Where there is a GPU: what runs on it gives what the processor gives; the tables of benchmarks/README.md.
# HookedTransformer, the peer, is there with TransformerLens 3.9.
gpu: install $(VENV_TL3)/installed
	$(BIN)/python -m pytest tests/devices
	$(VENV_TL3)/bin/python -m benchmarks.fleet --device cuda --models 256
	$(BIN)/python -m benchmarks.gpu

# 10 000 broken copies of a file of each format, and other examples of every property than the gate's.
fuzz: install
	$(BIN)/python tests/robustness/fuzz.py --count 10000
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m hypothesis --hypothesis-profile=random

# Every notebook from its first cell to its last; what the cells showed is kept in build/notebooks.
EXECUTED := build/notebooks/executed
notebooks: install
	rm -rf build/notebooks && mkdir -p build/notebooks/tutorials
	for path in experiments/*/notebook.py; do \
		$(BIN)/jupytext --quiet --to ipynb --output build/notebooks/$$(basename $$(dirname $$path)).ipynb $$path; done
	for path in docs/tutorials/*.py; do \
		$(BIN)/jupytext --quiet --to ipynb --output build/notebooks/tutorials/$$(basename $$path .py).ipynb $$path; done
	PYTHONPATH=$(CURDIR) $(BIN)/python -m pytest -n $(WORKERS) --nbmake --overwrite --nbmake-timeout=120 build/notebooks
	@touch $(EXECUTED)

# The tutorials once more, as marimo runs them: cell after cell as their names depend on each other.
marimo: $(VENV)-marimo/installed
	rm -rf build/marimo && mkdir -p build/marimo
	set -e; for path in docs/tutorials/*.py; do name=build/marimo/$$(basename $$path .py); \
		$(BIN)/jupytext --quiet --to ipynb --output $$name.ipynb $$path; \
		$(VENV)-marimo/bin/marimo -q convert $$name.ipynb -o $$name.py; \
		PYTHONPATH=$(CURDIR) $(VENV)-marimo/bin/marimo -q export html $$name.py -o $$name.html > $$name.log 2>&1 \
			|| { cat $$name.log; exit 1; }; done

$(VENV)-marimo/installed: $(VENV)/installed
	$(call IN_FRONT_OF,$(@D),$(VENV),marimo==0.25.2)
	@touch $@

$(EXECUTED): $(wildcard docs/tutorials/*.py)
	$(MAKE) notebooks

# Twenty-eight reports that open in a browser, and the glossary of their scores.
GALLERY := build/gallery/glossary.md
gallery: $(GALLERY)
$(GALLERY): docs/guide/gallery.py $(wildcard mechmarkov/report/*.py mechmarkov/report/*/* probes/*.py probes/*/*.py)
	$(BIN)/python docs/guide/gallery.py build/gallery

# The guide, in build/guide/site; a warning or a link that leads nowhere is an error.
docs: $(VENV)/docs $(EXECUTED) $(GALLERY)
	$(BIN)/python docs/guide/pages.py build/guide/pages
	@$(BIN)/zensical build --strict --clean > build/guide/log 2>&1 || { cat build/guide/log; exit 1; }
	@! grep -E '^(griffe|mkdocstrings|autorefs):|[Ww]arning' build/guide/log
	$(BIN)/python docs/guide/pages.py --finish build/guide/site
	$(BIN)/python docs/guide/try_search.py build/guide/site
	@echo "$(CURDIR)/build/guide/site/index.html"

$(VENV)/docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

lint: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# What the wheel needs, at the pinned versions, as it carries it; and whether anybody knows of a hole in one of them.
# What cannot be looked up fails the audit: it is none.
sbom: $(VENV)-supply/installed
	$(VENV)-supply/bin/python tests/sbom.py $(VENV)-supply/bin/cyclonedx-py
audit: $(VENV)-supply/installed
	$(VENV)-supply/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

$(VENV)-supply/installed: $(VENV)/installed
	$(call IN_FRONT_OF,$(@D),$(VENV),cyclonedx-bom==7.5.0 pip-audit==2.10.1)
	@touch $@

# The wheel as a release has it: built, checked, and used in an environment of its own, away from the checkout.
wheel-check: install
	rm -rf dist build/wheel-check
	$(BIN)/hatchling build -d dist
	$(BIN)/python tests/wheel_check.py dist/*.whl
	$(PYTHON) -m venv build/wheel-check
	build/wheel-check/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build/wheel-check && bin/mechmarkov --version && bin/mechmarkov probes && bin/mechmarkov probe --out report

clean:
	rm -rf $(VENV) $(VENV)-mutants $(VENV)-outside $(VENV)-supply $(VENV)-tools $(VENV_TL3) $(VENV_TL3)-tools
	rm -rf $(VENV)-triton report dist build

# The bundled runs, trained again. `walk` and `trap` differ in p alone, and in how the trap stays exact.
EXAMPLE_STEPS := [0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 50]
examples: install
	rm -rf build/examples
	$(BIN)/mechmarkov train walk-k6-half --set 'checkpoints=$(EXAMPLE_STEPS)' --out build/examples/walk
	$(BIN)/mechmarkov train walk-k6-trap --set 'checkpoints=$(EXAMPLE_STEPS)' --out build/examples/trap
	$(BIN)/mechmarkov train in-context-k3-shortformer --out build/examples/induction
	$(BIN)/mechmarkov train in-context-k3-mamba --out build/examples/mamba
	$(BIN)/mechmarkov train causal-graph --out build/examples/graph
	mkdir -p mechmarkov/runs/examples
	for run in walk trap induction mamba graph; do cp build/examples/$$run/run.pt mechmarkov/runs/examples/$$run.pt; done

# The phase diagram of docs/: 400 runs. Done again it trains nothing and only draws.
phase: install
	$(BIN)/mechmarkov sweep binary-phase --out build/binary-phase
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=2 \
		--window-size=1100,530 --screenshot=docs/binary-phase.png build/binary-phase/phase.html
