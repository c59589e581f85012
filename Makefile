# Everything this project can do, from a fresh clone on a fresh machine. `make help` lists it.
#
# No target needs a prior step: each one builds what it needs. Slow results (the Python environment, cluster binaries,
# images, the example model) are cached by content under $(RLRUN_CACHE), outside the tree.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export RLRUN_CACHE ?= $(HOME)/.cache/rlrun
# The checkout itself is the installation: no step has to be repeated after an edit.
export PYTHONPATH := core:operator:cli:server:trainer_image:orchestrator_image:.
export PYTHONUNBUFFERED := 1
# Some shells and containers set it. A level starts hundreds of processes, and each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON3 ?= python3
VENV := $(RLRUN_CACHE)/venv/$(shell sha256sum requirements/dev.lock | cut -c1-16)
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
CODE := charts core operator cli server trainer_image orchestrator_image inference_image local_cluster demo examples bench docs/design/structure.py tests

# KEEP=1 leaves the local cluster up after `make demo` and `make test`.
KEEP ?=
# CONTROL=1 lets `make demo` train a second time without learning, which must not gain.
CONTROL ?=
# So many pytest workers share the unit and apiserver levels.
WORKERS ?= 2
# PARTS="trl async" runs these benchmarks only.
PARTS ?=

# SCALE="--scenario burst --repeats 1" passes options on; --help explains them.
SCALE ?=

# Interpreters with the packages of the images, and the example's model, for the tests on a GPU
# (docs/design/050-on-a-gpu.md). GPU_RUN="--max-steps 5" passes options on to `make test-gpu`.
TRAINER_PYTHON ?=
VLLM_PYTHON ?=
WEIGHTS ?=
GPU_RUN ?=

# So many runs of three teams share the GPUs of `make queues`.
RUNS ?= 200

# CHAOS="--level unit" passes options on to the fault tests.
CHAOS ?=

.PHONY: help
help: ## List every target
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  \033[36m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.complete:
	@$(PYTHON3) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed: set PYTHON3=..."'
	@$(PYTHON3) -m local_cluster.tools.python_environment $(VENV) requirements/dev.lock

.PHONY: venv
venv: $(VENV)/.complete ## Make the Python environment; prints where it is
	@echo $(VENV)

# --- the two commands ------------------------------------------------------------------------------------------------

.PHONY: demo
demo: machine $(VENV)/.complete ## Train a real RLRun on a real local cluster and prove the adapter (KEEP=1: leave it up; CONTROL=1: and once without learning)
	@KEEP=$(KEEP) CONTROL=$(CONTROL) PY=$(PY) demo/run.sh

.PHONY: test
test: machine $(VENV)/.complete ## All that a change must pass, runs on the local cluster among it (KEEP=1: leave the cluster up)
	@KEEP=$(KEEP) WORKERS=$(WORKERS) PY=$(PY) tests/run.sh

.PHONY: test-all
test-all: machine $(VENV)/.complete ## Everything: also all runs with torch and vLLM, Kueue, the whole page, the laboratory (KEEP=1)
	@ALL=1 KEEP=$(KEEP) WORKERS=$(WORKERS) PY=$(PY) tests/run.sh

# --- between two edits -----------------------------------------------------------------------------------------------

.PHONY: check
check: $(VENV)/.complete ## Lint, types and the fast unit tests, side by side: about a minute and a half
	@$(MAKE) --no-print-directory --jobs --output-sync=target lint types test-fast

# --- benchmarks ------------------------------------------------------------------------------------------------------

.PHONY: bench
bench: $(VENV)/.complete ## Compare with TRL, bare Jobs and a plain training loop, about two and a half hours (PARTS="trl async": only these)
	@KEEP=$(KEEP) PY=$(PY) bench/run.sh $(PARTS)

.PHONY: scale
scale: $(VENV)/.complete ## Up to 10,000 runs on a control plane with KWOK nodes, about two hours (SCALE="--scenario gaps", --list)
	@$(PY) -m bench.scale $(SCALE)

.PHONY: scale-gate
scale-gate: $(VENV)/.complete ## Fail if a number of build/bench/scale.jsonl is worse than its range in docs/bench/scale.jsonl by more than 20 %
	@$(PY) -m bench.scale --compare docs/bench/scale.jsonl build/bench/scale.jsonl

.PHONY: bench-table
bench-table: $(VENV)/.complete ## Put the rows of build/bench into docs/bench and write the tables of docs/benchmarks.md and docs/bench/README.md
	@$(PY) -m bench.results_table

# --- fault tests -----------------------------------------------------------------------------------------------------

.PHONY: chaos
chaos: $(VENV)/.complete ## Inject faults at three levels (CHAOS="--level unit --seed 7": only that; --self-test, --help, --list)
	@CHAOS="$(CHAOS)" KEEP=$(KEEP) PY=$(PY) tests/chaos/run.sh

.PHONY: chaos-table
chaos-table: $(VENV)/.complete ## Keep the results of build/chaos.json in docs/faults and write docs/faults.md
	@$(PY) -m tests.chaos.document

# --- tests of the tests ----------------------------------------------------------------------------------------------

# PROOFS="--level unit --field 'sampling.*'" passes options on; --help explains them.
PROOFS ?=

.PHONY: proofs
proofs: $(VENV)/.complete ## Remove each field's effect and require that a test of docs/fields.md fails (PROOFS="--level e2e")
	@$(PY) -m tests.proofs --workers $(WORKERS) $(PROOFS)

# MUTANTS="--level image --module '*/packing.py'" passes options on; --help explains them.
MUTANTS ?=

.PHONY: mutants
mutants: $(VENV)/.complete ## Change the modules that decide and require that their tests notice 85 % (MUTANTS="--level image")
	@nice -n 10 $(PY) -m tests.mutants --workers $(WORKERS) $(MUTANTS)

# --- one level at a time ---------------------------------------------------------------------------------------------

.PHONY: lint
lint: $(VENV)/.complete ## Style, format, the layers between packages, the places of tests and the types of the page's JavaScript
	@$(PY) -m ruff check $(CODE)
	@$(PY) -m ruff format --check $(CODE)
	@PYTHONPATH=$(PYTHONPATH) $(VENV)/bin/lint-imports
	@$(PYTEST) -q tests/lab/repository
	@DENO_DIR=$(RLRUN_CACHE)/deno DENO_NO_UPDATE_CHECK=1 $(VENV)/bin/deno check --quiet --no-remote --config server/page_types/deno.json server/rlrun_server/page/static/main.js

.PHONY: format
format: $(VENV)/.complete ## Rewrite the code in the project's format
	@$(PY) -m ruff check --fix $(CODE)
	@$(PY) -m ruff format $(CODE)

.PHONY: types
types: $(VENV)/.complete ## mypy --strict over every package and the fault tests
	@$(PY) -m mypy -p rlrun -p rlrun_operator -p rlrun_cli -p rlrun_trainer -p rlrun_orchestrator -p rlrun_environment -p rlrun_adapter_sidecar -p rlrun_model_fetcher -p rlrun_egress_proxy -p rlrun_engine_access -p rlrun_server -p rlrun_tinker -p local_cluster -p demo -p bench -p tests.support.images -p tests.support.contracts -p tests.chaos -p tests.proofs -p tests.mutants -p tests.pictures -p tests.gpu

.PHONY: test-fast
test-fast: $(VENV)/.complete ## The unit tests that take less than a second and start no server
	@$(PYTEST) tests/unit -m "not slow" -n $(WORKERS) --dist worksteal

.PHONY: test-unit
test-unit: $(VENV)/.complete ## Pure tests and tests against small real servers on this machine; minutes
	@$(PYTEST) tests/unit -n $(WORKERS) --dist worksteal
	@$(PYTEST) -p schemathesis tests/unit/rlrun_server/rest/integration/test_fuzz.py

.PHONY: test-lab
test-lab: $(VENV)/.complete ## Tests of benchmarks, fault injection, demo and local cluster
	@$(PYTEST) tests/lab -n $(WORKERS) --dist worksteal

.PHONY: test-trainer
test-trainer: $(VENV)/.complete ## The trainer's tests, inside the trainer image (torch lives there)
	@$(PY) -m local_cluster.images run trainer -- python -m pytest tests/image/rlrun_trainer tests/image/bench tests/image/examples

.PHONY: test-gpu-trainer
test-gpu-trainer: ## The trainer's tests on a GPU of this machine (TRAINER_PYTHON=)
	@$(if $(TRAINER_PYTHON),,$(error TRAINER_PYTHON is not set: see docs/design/050-on-a-gpu.md))
	@RLRUN_TEST_DEVICE=cuda HF_HUB_OFFLINE=1 $(TRAINER_PYTHON) -m pytest tests/image/rlrun_trainer

.PHONY: test-gpu
test-gpu: $(VENV)/.complete ## A run with trainer and vLLM on a GPU of this machine, without a cluster (WEIGHTS=, TRAINER_PYTHON=, VLLM_PYTHON=)
	@$(if $(and $(WEIGHTS),$(TRAINER_PYTHON),$(VLLM_PYTHON)),,$(error WEIGHTS, TRAINER_PYTHON or VLLM_PYTHON is not set: see docs/design/050-on-a-gpu.md))
	@HF_HUB_OFFLINE=1 $(PY) -m tests.gpu --weights $(WEIGHTS) --python trainer=$(TRAINER_PYTHON) --python vllm=$(VLLM_PYTHON) $(GPU_RUN)

.PHONY: test-inference
test-inference: $(VENV)/.complete ## What the CPU image adds to vLLM, inside that image
	@$(PY) -m local_cluster.images run inference-cpu -- python -m pytest tests/image/rlrun_inference

.PHONY: test-apiserver
test-apiserver: $(VENV)/.complete ## Against a real kube-apiserver and etcd, without a node
	@$(PYTEST) tests/apiserver -n $(WORKERS)

.PHONY: test-browser
test-browser: $(VENV)/.complete ## The whole web page in Chromium, on a real API server; pictures in build/browser
	@$(PYTEST) tests/browser

.PHONY: test-e2e
test-e2e: up ## Runs on the local cluster, which stays up, those with torch and vLLM included
	@$(PY) -m local_cluster.images all --tests
	@$(PYTEST) tests/e2e -m "not alone" -n 2
	@$(PYTEST) tests/e2e -m alone

# --- pictures ---------------------------------------------------------------------------------------------------------

.PHONY: pictures
pictures: $(VENV)/.complete ## Record the web page and take its pictures on the local cluster, into docs/images (KEEP=1: leave it up)
	@KEEP=$(KEEP) PY=$(PY) tests/pictures/run.sh

# --- structure -------------------------------------------------------------------------------------------------------

# AGAINST=FILE shows the figures of another tree beside those of this one.

.PHONY: structure
structure: $(VENV)/.complete ## Measure folders, imports between them and circles (AGAINST=FILE)
	@$(PY) docs/design/structure.py $(if $(AGAINST),--against $(AGAINST))

# --- local cluster ---------------------------------------------------------------------------------------------------

.PHONY: machine
machine: # Stops where the local cluster cannot run, before anything is built
	@$(PYTHON3) -m local_cluster.host.machine

.PHONY: up
up: machine $(VENV)/.complete ## Bring up the local cluster with all images; safe to repeat (GPUS=8: fake GPUs; GPU_TAINT=1; POLICIES=1: enforced; GVISOR=1)
	@$(PY) -m local_cluster up --images $(if $(POLICIES),--policies) $(if $(GVISOR),--gvisor) $(if $(GPUS),--gpus $(GPUS)) $(if $(GPU_TAINT),--gpu-taint)

.PHONY: quickstart
quickstart: up ## Type the quickstart line by line: a registry on this machine, fake GPUs, helm install by digest, a run; stays up
	@$(PYTEST) tests/quickstart

.PHONY: policies
policies: ## Who reaches whom: each pod of a run against each port of its own and other runs, with enforced NetworkPolicies
	@$(MAKE) --no-print-directory up POLICIES=1
	@$(PY) -m local_cluster.images all --tests
	@$(PYTEST) tests/policies

.PHONY: gvisor
gvisor: ## Environments on gVisor: user code does not see the node's kernel, and a run trains as without
	@$(MAKE) --no-print-directory up GVISOR=1
	@$(PY) -m local_cluster.images all --tests
	@$(PYTEST) tests/gvisor

.PHONY: monitoring
monitoring: ## Prometheus in the cluster, behind enforced NetworkPolicies: it scrapes all that has metrics, and every query of the dashboards shows something
	@$(MAKE) --no-print-directory up POLICIES=1
	@$(PY) -m local_cluster.images all --tests
	@$(PYTEST) tests/monitoring

.PHONY: queues
queues: $(VENV)/.complete ## Runs of three teams in queues of Kueue on KWOK nodes: no half run, no quota exceeded (RUNS=30: fewer than 200)
	@RLRUN_QUEUED_RUNS=$(RUNS) $(PYTEST) tests/queues -s

.PHONY: down
down: $(VENV)/.complete ## Remove all that the local cluster made on this machine, caches aside
	@$(PY) -m local_cluster down

.PHONY: kubeconfig
kubeconfig: $(VENV)/.complete ## Print the local cluster's kubeconfig: export KUBECONFIG=$$(make -s kubeconfig)
	@$(PY) -m local_cluster kubeconfig

# --- images for a cluster of one's own --------------------------------------------------------------------------------

# REGISTRY=registry.example.com/ml; TAG, BUILDER (docker, podman, buildah), BASE and NEWEST (images
# with Python 3.11 and 3.13), ENGINE (vLLM's image), PLATFORM (linux/amd64, linux/arm64), PIP_INDEX_URL (an index in place
# of PyPI) and CPU=1 may follow. KEY is the key with which cosign signs a release: a file, or one in a KMS. Without it
# cosign asks for a login (keyless).
# Variables of the environment with these names, such as those of CI and pip, are not meant for images.
given = $(if $(filter command,$(origin $(1))),$($(1)))
BUILD = --builder "$(call given,BUILDER)" --base "$(call given,BASE)" --newest "$(call given,NEWEST)" --engine "$(call given,ENGINE)" \
	--platform "$(call given,PLATFORM)" --index "$(call given,PIP_INDEX_URL)"

.PHONY: push
push: ## Build the images and push them to REGISTRY=...; prints the file with the chart's values for them
	@test -n "$(call given,REGISTRY)" || { echo "Say where to: make push REGISTRY=registry.example.com/ml" >&2; exit 2; }
	@$(PYTHON3) -m local_cluster.images.push "$(call given,REGISTRY)" --tag "$(call given,TAG)" $(BUILD) $(if $(call given,CPU),--cpu)

.PHONY: release
release: ## Push images and chart of this version to REGISTRY=..., each by digest and signed, the images with SBOMs (KEY=)
	@test -n "$(call given,REGISTRY)" || { echo "Say where to: make release REGISTRY=registry.example.com/ml" >&2; exit 2; }
	@$(PYTHON3) -m local_cluster.images.release "$(call given,REGISTRY)" $(BUILD) --key "$(call given,KEY)"

# --- generated files -------------------------------------------------------------------------------------------------

.PHONY: generate
generate: $(VENV)/.complete ## CRDs, reference pages and the schema of the chart's models from the schema, the tables of fields and values, the page of the command line, the packages of the environment image
	@$(PY) -m rlrun.codegen.crd
	@$(PY) charts/rlrun/models_schema.py
	@$(PY) charts/rlrun/values_table.py
	@$(PY) -m rlrun.codegen.reference_pages
	@$(PY) -m rlrun_server.rest.openapi_document docs/reference/openapi.json
	@$(PY) -m tests.support.field_proofs
	@$(PY) -m tests.support.command_reference
	@$(PY) -m tests.support.environment_image

# UPDATE=preact@11.3.0 takes another version of one package.
UPDATE ?=

.PHONY: vendor
vendor: $(VENV)/.complete ## Copy the page's libraries from their npm packages again, and compare them (UPDATE=PACKAGE@VERSION)
	@$(PY) server/vendor.py $(if $(UPDATE),--update $(UPDATE))

.PHONY: lock
lock: $(VENV)/.complete ## Resolve requirements/*.lock again from pyproject.toml
	@requirements/lock.sh $(VENV)/bin/uv
