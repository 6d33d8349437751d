# Every target sets up its environment first: nothing but Python 3.11+ and make is needed. PYTHON=python3.13 picks another Python.
SHELL := /bin/bash
IN_ENV := tools/setup.sh --

.PHONY: setup containers demo run test test-all lint loadtest bench mutations chaos schema audit

setup: ## build the environment, if anything it is made from has changed
	@tools/setup.sh

demo: ## start everything, run 20 tasks over HTTP and check what comes of them
	@$(IN_ENV) python -m taskgate.demo

run: ## the service in the foreground until Ctrl-C
	@$(IN_ENV) taskgate up

test: ## what needs Python alone
	@$(IN_ENV) python -m pytest -n 3 --dist worksteal -m "not full" $(ARGS)

test-all: ## all tests; needs redis-server, nginx, chromium, strace, faketime, openssl and systemd-analyze
	@tools/need.sh redis-server nginx chromium strace faketime openssl systemd-analyze
	@$(IN_ENV) python -m pytest -n 3 --dist worksteal $(ARGS)

lint: ## ruff and mypy over everything, bandit over what is installed; each is run, whatever the others find
	@$(IN_ENV) bash -c 'failed=0; for check in "ruff check ." "ruff format --check ." mypy "bandit -q -c pyproject.toml -r taskgate app workers"; do $$check || failed=1; done; exit $$failed'

loadtest: ## users that submit, poll and stream, against a service of their own
	@tools/setup.sh load -- python -m loadtest.run $(ARGS)

bench: ## the figures, side by side with other queues
	@$(IN_ENV) python -m loadtest.bench $(ARGS)

containers: ## image and docker-compose.yml: built, worked through TLS, killed and stopped under load; needs docker and docker-compose
	@tools/need.sh docker docker-compose
	@$(IN_ENV) python -m tests.containers $(ARGS)

mutations: ## break a copy of the code in every way of tests/mutations/mutations.toml; each must fail a test
	@$(IN_ENV) python -m tests.mutations $(ARGS)

chaos: ## random faults under load, and whether every promise was kept: ARGS="--minutes 3 --seed S"
	@$(IN_ENV) python -m loadtest.chaos $(ARGS)

audit: ## known vulnerabilities of the pinned dependencies, where OSV can be asked
	@$(IN_ENV) tools/audit.sh $(ARGS)

schema: ## Schemathesis: what the OpenAPI document says is what is answered: ARGS="--max-examples 200"
	@$(IN_ENV) tools/schemathesis.sh $(ARGS)
