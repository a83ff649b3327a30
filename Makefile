# Everything here needs Rust (rustup or a distribution's), a C compiler, Python 3 with pip, and nothing that listens.
# Debian and Ubuntu: apt-get install build-essential curl openssl python3-pip libcurl4 libssl3 valgrind chromium

CARGO ?= cargo
COUNTED := --features bench --example instructions --config benches/optimized.toml --locked
STARTED := $(shell date +%s)

SECONDS ?= 30
SEED ?=
RUNS ?= 5
BENCH ?=
UPDATE ?=
VERSION ?=
ROOM ?=

.PHONY: help test quick mongod format lint deny audit rustdoc docs check instructions pending-lock fuzz soak bench lines release

help: ## Show what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The tests leave a fifth of two processors: enough to compile most of what `instructions` counts.
test: MEANWHILE := CARGO_INCREMENTAL=0 nice -n 19 $(CARGO) build $(COUNTED)
ifdef ROOM
test: mongod ## The whole check: format, lints, dependencies, documentation, all tests against a real mongod; ROOM=log: only the tests of one room
	$(CARGO) test --workspace --locked --no-fail-fast -- $(ROOM)::
else
test: mongod format lint deny audit rustdoc docs check instructions
	@echo "make test took $$(($$(date +%s) - $(STARTED))) s"
endif

# The rooms with changes that are not committed, or ROOM. Without either, the unit tests of all rooms.
CHANGED = $(shell { git diff --name-only HEAD; git ls-files --others --exclude-standard; } | sed -n 's,^src/\([a-z_]*\)[/.].*,\1::,p' | sort -u)

quick: format ## What a change needs before each commit: format, style, clippy, and the unit tests of the changed rooms (ROOM=log: of one)
	@tests/check-style
	$(CARGO) clippy --lib --bins --tests --locked -- -D warnings
	$(CARGO) test --lib --bins --locked -- $(if $(ROOM),$(ROOM)::,$(CHANGED))

mongod: ## Fetch the mongod of the tests (or take MONGOD=/path/to/mongod), and print its path
	@tests/get-mongod

format: ## Is the source formatted?
	$(CARGO) fmt --all --check

lint: ## Do the style check, clippy and rustc have anything to say?
	@tests/check-style
	$(CARGO) clippy --workspace --all-targets --all-features --locked -- -D warnings

deny: ## Is each dependency used, built by the promised Rust, and allowed by deny.toml with its licence and source?
	@tests/check-dependencies
	"$$(tests/get cargo-deny)" --locked check bans licenses sources

audit: ## Is any dependency known to be vulnerable? Skipped with a line where the advisory database cannot be fetched
	@if "$$(tests/get cargo-deny)" fetch db; then \
		"$$(tests/get cargo-deny)" --locked check --disable-fetch advisories; \
	else \
		echo "make audit: skipped, because the advisory database cannot be fetched"; \
	fi

# --examples, of which there are none without features, gives the dependencies the features that they have in `lint`.
rustdoc: ## Is the documentation of the code sound?
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --lib --bin loadtest --examples --locked

docs: ## The pages as static HTML with search, in target/site; a link that leads nowhere fails
	@deploy/site/make "$${CARGO_TARGET_DIR:-target}/site"

check: ## Run the tests (unit, property, integration), and print the ten slowest
	CARGO="$(CARGO)" MEANWHILE="$(MEANWHILE)" tests/timed --workspace --locked --no-fail-fast

instructions: ## Count the instructions of each stage of a reading's way, and compare with benches/instructions.toml (UPDATE=1 writes it)
	CARGO_INCREMENTAL=0 $(CARGO) run $(COUNTED) -- $(if $(UPDATE),--update,--check)

pending-lock: ## Measure how long the lock of pending is held, with a million devices and a release build
	$(CARGO) bench --features bench --bench pending_lock --locked

fuzz: ## Fuzz each of TARGETS (all) for SECONDS=30 with coverage; what breaks a promise lands in target/fuzz/artifacts
	@tests/fuzz/run $(SECONDS) $(TARGETS)

soak: ## Run each fault test for SECONDS=30, with a release build; SEED=n repeats the run that printed n
	FAULT_SECONDS=$(SECONDS) FAULT_SEED=$(SEED) $(CARGO) test --release --test main --locked faults::

bench: ## Measure tidegauge beside what else is installed, RUNS=5 times: Markdown tables with ratios; BENCH='--long', '--only quiet', '--json' and other options
	$(CARGO) build --release --workspace --locked
	target/release/loadtest bench --mongod "$$(tests/get-mongod)" --runs $(RUNS) $(BENCH)

lines: ## Count the product lines of each room, without blank lines, comments and tests
	@tests/count-lines

release: ## Build, test and pack a release in dist, from a clean checkout: VERSION=0.1.0 (docs/deploy.md)
	@deploy/release/make "$(VERSION)"

.NOTPARALLEL:
