"""A method of someone else (`tests/stranger`): a wheel, built and installed beside ours, of which nothing knows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import AutoModelForCausalLM

import djinn_jupyter as dj
from tests.engines import own_registry
from tests.threads import one_thread

pytestmark = pytest.mark.processes
ROOT: Final = Path(__file__).parents[2]
WHEEL: Final = ROOT / "tests" / "stranger"
PARTS: Final = ("request", "engine", "api", "magic", "card")
NAMED: Final = "entropy (djinn_entropy of djinn-entropy 1.0)"
KERNEL: Final = """
import json, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
import djinn_jupyter as dj
from djinn_entropy.api import HeadEntropies, entropy

folder, told = Path(sys.argv[1]), {}
engine = dj.load("demo", dtype="float32", threads=1, attention="eager")
for name, site, step in (("prompt", "resid_post.4", 0), ("later", "mlp_out.6", 2)):
    session = engine.session(name)
    session.breakpoint(site, when=f"step == {step}")
    session.run("The capital of France is", max_new_tokens=4)
    found = entropy(session)
    path = found.save(folder / f"{name}.entropy.djinn")
    told[name] = {
        "layers": found.layers,
        "line": found.tokens[0],
        "values": found.values.tolist(),
        "kept": HeadEntropies.read(path).values.tobytes() == found.values.tobytes(),
        "again": str(dj.reproduce(engine, path)),
        "shown": found._repr_mimebundle_(),
        "columns": found.columns(),
    }
session.edit(dj.scale(0.5))
try:
    entropy(session).save(folder / "edited.entropy.djinn")
except dj.DjinnError as error:
    told["edited"] = str(error)
shell = InteractiveShell.instance()
shell.run_cell("%load_ext djinn_jupyter")
imported = [name for name in sys.modules if name == "djinn_entropy.magic"]
shell.run_cell("%djinn_load demo --dtype float32 --attention eager")
for session in ("later", "nowhere"):
    shell.run_cell(f"%djinn_entropy --session {session}")
print(json.dumps(told | {"imported": imported}))
"""
REFUSED: Final = """
import djinn_jupyter as dj
from djinn_entropy.api import entropy
engine = dj.load("demo", dtype="float32", copy=2)
session = engine.session("main")
session.breakpoint("resid_post.4")
session.run("The capital of France is")
try:
    entropy(session)
except dj.DjinnError as error:
    print(error.code, error)
"""


AGAIN: Final = """
import sys
import djinn_jupyter as dj
engine = dj.load("demo", dtype="float32", attention="eager")
try:
    print(dj.reproduce(engine, sys.argv[1]))
except dj.DjinnError as error:
    print(error.code, error)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH on which the wheel is installed."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    quietly = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    build = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", wheels, WHEEL]
    subprocess.run([*quietly, *build], check=True)
    [wheel] = wheels.iterdir()
    subprocess.run([*quietly, "install", "--no-deps", "--no-index", "--target", site, wheel], check=True)
    return os.pathsep.join([str(site), str(ROOT)])


@pytest.fixture(scope="module", autouse=True)
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A registry of one's own, whose engines end with this module."""
    with own_registry(tmp_path_factory.mktemp("own")):
        yield


def said(path: str, *words: object) -> str:
    """Run Python with the wheel on its path, and return what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files that are kept."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def printed(path: str, kept: Path) -> list[str]:
    """The lines that a kernel's side prints, whose last one is what it found."""
    return said(path, "-c", KERNEL, kept).splitlines()


@pytest.fixture(scope="module")
def told(printed: list[str]) -> Any:
    return json.loads(printed[-1])


def plain_attention(line: list[int], layers: list[int], position: int = -1) -> torch.Tensor:
    """Return [layers, heads, keys], float64, of the model's own attention in one pass, without djinn."""
    folder = ROOT / "djinn_jupyter" / "demo" / "model"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with one_thread(), torch.no_grad():
        seen = model(torch.tensor([line]), output_attentions=True, use_cache=False).attentions
    return torch.stack([seen[layer][0, :, position].double() for layer in layers])


def test_the_wheel_is_small() -> None:
    """A method needs a question, an answer, a computation, a call, a magic and a card, and no more than that."""
    lines = sum(len((WHEEL / "djinn_entropy" / f"{part}.py").read_text().splitlines()) for part in PARTS)
    assert lines <= 150


def test_the_numbers_are_those_of_the_plain_model_bit_for_bit(told: Any) -> None:
    found = told["prompt"]
    assert found["layers"] == [0, 1, 2, 3, 4]
    expected_LH = torch.special.entr(plain_attention(found["line"], found["layers"])).sum(-1)
    assert torch.equal(torch.tensor(found["values"], dtype=torch.float64), expected_LH)


def test_behind_a_cache_they_are_the_plain_models_but_for_rounding(told: Any) -> None:
    """The plain model runs the whole line in one pass, whose fp32 sums have other last bits."""
    found = told["later"]
    assert (found["layers"], len(found["line"])) == ([0, 1, 2, 3, 4, 5, 6], 7)
    values_LH = torch.tensor(found["values"], dtype=torch.float64)
    for position, here in ((-1, True), (-2, False)):
        share_LHK = plain_attention(found["line"], found["layers"], position)
        expected_LH = -(share_LHK * share_LHK.clamp(min=1e-300).log()).sum(-1)
        assert bool((values_LH - expected_LH).abs().max() < 1e-5) is here


@pytest.mark.parametrize("stop", ["prompt", "later"])
def test_they_are_kept_and_made_again_with_the_same_bits(told: Any, stop: str) -> None:
    assert told[stop]["kept"] is True
    assert told[stop]["again"].startswith("The same bits")


def test_a_kernel_that_has_not_imported_it_reads_its_files(told: Any, path: str, kept: Path) -> None:
    assert said(path, "-c", AGAIN, kept / "prompt.entropy.djinn").startswith("The same bits")
    without = said(str(ROOT), "-c", AGAIN, kept / "prompt.entropy.djinn")
    assert without.startswith("UsageError prompt.entropy.djinn is no grid ")
    assert without.endswith("; a file of another distribution's method is read where that is installed.\n")


def test_a_stop_that_no_recipe_comes_to_is_not_kept(told: Any) -> None:
    assert told["edited"].startswith("No recipe makes this HeadEntropies again: ")


def test_they_are_a_table_and_a_card(told: Any) -> None:
    found = told["prompt"]
    assert found["columns"]["layer"] == [layer for layer in range(5) for _ in range(4)]
    assert found["columns"]["value"] == [value for row in found["values"] for value in row]
    assert found["shown"]["text/plain"].startswith("Entropy of attention, in nats\nlayer  head 0")
    assert "<table" in found["shown"]["text/html"]


def test_the_magic_shows_them_and_is_imported_when_it_is_used(told: Any, printed: list[str]) -> None:
    assert told["imported"] == []
    assert "Entropy of attention, in nats" in printed
    assert any("nowhere" in line for line in printed)


def test_the_doctor_names_the_method_and_its_distribution(path: str) -> None:
    assert NAMED in said(path, "-m", "djinn_jupyter.cli.main", "doctor")


def test_an_engine_that_lacks_it_refuses_it_by_its_name(path: str) -> None:
    dj.load("demo", dtype="float32", copy=2)  # by this process, which has no wheel
    refusal = said(path, "-c", REFUSED)
    assert refusal.startswith("VersionMismatch ")
    assert f"lacks the method {NAMED}" in refusal
