"""Every block of code of the README and of docs/ runs as printed, in the order of its page, on one engine of the demo
model; those that need another machine are listed with the reason."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from transformers import AutoModelForCausalLM

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.demo import MODEL_PATH, SAE_PATH, TRANSCODERS_PATH
from djinn_jupyter.magics import load_ipython_extension
from tests import adapters, transcoders

pytestmark = pytest.mark.processes
ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
COMMANDS: Final = re.compile(r"(make|pip|djinn|hf|export|\$|#) ")

HUB, CLUSTER, PERSONS = "a JupyterHub", "a Ray cluster of several machines", "another person, with a key, and a machine"
SETS_UP, SERVES, GPUS = "it installs a package or downloads weights", "it serves until it is ended", "several GPUs"
# By page and beginning.
ELSEWHERE: Final = {
    ("README.md", "make lab"): "it opens JupyterLab; tests/house/test_make.py has the targets",
    ("README.md", "pip install"): SETS_UP,
    ("several_gpus.md", "%djinn_load MODEL --devices"): GPUS,
    ("several_gpus.md", "%djinn_load MODEL --tensor-parallel"): GPUS,
    ("cluster.md", "pip install 'djinn-jupyter[cluster]'"): SETS_UP,
    ("cluster.md", "$ djinn cluster start"): CLUSTER,
    ("cluster.md", "$ djinn key new"): CLUSTER,
    ("cluster.md", "pip install 'djinn-jupyter[cluster,store]'"): SETS_UP,
    ("cluster.md", "$ djinn cluster drain"): CLUSTER,
    ("colab.md", "%pip install"): SETS_UP,
    ("coming_from.md", ""): "each tool's blocks are one program: tests/integrations/test_coming_from.py",
    ("gpu.md", "make gpu"): "a GPU",
    ("jupyterhub.md", "# jupyterhub_config.py"): HUB,
    ("jupyterhub.md", "%load_ext djinn_jupyter\n%djinn_load demo --at hub"): HUB,
    ("metrics.md", "djinn start demo --metrics"): SERVES,
    ("one_h100.md", ""): "an H100, for hours",
    ("versions.md", "pip uninstall"): "it uninstalls what is tested: tests/distribution/test_wheels.py",
    ("quantized.md", "pip install"): SETS_UP,
    ("quantized.md", "%djinn_load models"): SETS_UP,
    ("sharing.md", "$ "): PERSONS,
    ("sharing.md", "# useradd"): PERSONS,
    ("sharing.md", "%djinn_share"): PERSONS,
}
TEXTS: Final = ["The capital of France is", "The capital of Italy is", "People in Italy speak", "In Spain people speak"]
# What the text of a page says is there: files, variables, a line.
THERE: Final = {
    "batches.md": f"texts = {TEXTS}; import numpy as np; vector = np.ones(128, dtype='float32')",
    "circuits.md": "known = [('embed', 'v.0[3]'), ('z.0[3]', 'logits')]",
    "modules.md": f"prompts = {TEXTS} * 5; labels = ['city'] * 10 + ['people'] * 10; moods = ['sad', 'merry'] * 10",
    "rules.md": "%djinn_run The capital of France is\nsession.run('The capital of France is')",
    "sweeps.md": f"prompts = {TEXTS}; pairs = [({TEXTS[0]!r}, {TEXTS[1]!r})] * 2",
    "views.md": "session.breakpoint('resid_post.4', when='step == 0'); stop = session.run('The capital of France is')",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    page: str
    line: int
    code: str

    @property
    def elsewhere(self) -> tuple[str, str] | None:
        """Its entry in ELSEWHERE."""
        return next((one for one in ELSEWHERE if one[0] == self.page and self.code.startswith(one[1])), None)


def blocks() -> Iterator[Block]:
    """The blocks of Python, magics and commands; the others are configuration and output."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            kind, code = found.groups()
            if kind in ("python", "console") or (kind == "" and (code.startswith("%") or COMMANDS.match(code))):
                yield Block(page=page.name, line=text[: found.start()].count("\n") + 1, code=code)


HERE: Final = [one for one in blocks() if one.elsewhere is None]


@pytest.fixture(scope="module")
def engine() -> Iterator[RemoteEngine]:
    engine = dj.load("demo")
    yield engine
    engine.stop(force=True, forget=True)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A new notebook in a folder of its own, which is the home too, with the files that pages name."""
    for path, source in (("saes/layer_4", SAE_PATH), ("transcoders", TRANSCODERS_PATH)):
        shutil.copytree(source, tmp_path / path)
    transcoders.across_saved(tmp_path / "clt", transcoders.drawn_across(128, 8))
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
    for name in ("sql", "law"):
        adapters.saved(tmp_path / "adapters" / name, adapters.drawn(model, ("q_proj", "v_proj")))
    (tmp_path / "prompts.txt").write_text("\n".join(TEXTS))
    (tmp_path / "export").mkdir()
    row = {"modelId": "demo", "layer": "4-res", "index": "17", "description": "soup"}
    (tmp_path / "export/batch-0.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "notebook.ipynb"))
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    load_ipython_extension(shell)
    yield shell
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


def run(shell: InteractiveShell, code: str, where: str) -> None:
    with capture_output() as said:
        done: Any = shell.run_cell(code)
    assert done.success, f"{where}\n{code}\n{said.stdout[-2000:]}{said.stderr[-2000:]}"


@pytest.mark.drawn
@pytest.mark.parametrize("page", dict.fromkeys(one.page for one in HERE))
def test_a_page_runs_as_printed(engine: RemoteEngine, shell: InteractiveShell, page: str) -> None:
    run(shell, "import djinn_jupyter as dj\n%djinn_load demo --fresh", "the beginning")
    shell.push({"engine": engine, "session": engine.session("python", fresh=True)})
    run(shell, THERE.get(page, ""), "what the page's text says is there")
    for block in HERE:
        if block.page == page:
            run(shell, block.code, f"{page}:{block.line}")
    for name in {one.name for one in engine.added_modules()}:
        for session in engine.sessions():
            engine.session(session.name, join=True).close()
        engine.remove_module(name)


def test_each_reason_is_of_a_block_that_is_there() -> None:
    assert {one.elsewhere for one in blocks()} - {None} == set(ELSEWHERE)
