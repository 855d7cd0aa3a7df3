"""Tab completion through the shell's own completer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from IPython.core.completer import provisionalcompleter

from djinn_jupyter.remote.addresses import entry_at, key_folder, read_address
from djinn_jupyter.settings import Identity
from tests.magics.conftest import Notebook


def complete(notebook: Notebook, line: str) -> list[str]:
    """The texts that Tab offers for the last word of the line, as the kernel asks for them."""
    start = len(line) - len(line.split(" ")[-1])
    with provisionalcompleter():
        found = list(notebook.shell.Completer.completions(line, len(line)))
    return [line[start : c.start] + c.text for c in found]


def test_what_is_begun_is_completed_and_other_lines_are_left_alone(notebook: Notebook) -> None:
    for line, first in [
        ("%djinn_break resid_po", "resid_post.0"),
        ("%djinn_inspect pattern.", "pattern.0"),
        ("%djinn_steer mlp_out.", "mlp_out.0"),
        ("%djinn_edit --site z.", "z.0"),
        ("%djinn_break model.layers", "model.layers.2.mlp"),
        ("%djinn_use par", "paris"),
        ("%djinn_run --session par", "paris"),
        ("%djinn_edit patch_from par", "paris"),
        ("%djinn_edit sc", "scale"),
        ("%djinn_steer 4 pro", "project_out"),
        ("%djinn_load de", "demo"),
        ("%djinn_swap o", "out"),
        ("%djinn_break 4 --wh", "--when"),
        ("%%djinn_run --max", "--max-tokens"),
    ]:
        assert complete(notebook, line)[0] == first
    notebook.cell("%djinn_checkpoint noon\n%djinn_checkpoint night")
    assert complete(notebook, "%djinn_restore n") == ["night", "noon"]
    assert complete(notebook, "%djinn_break resid_post.") == [f"resid_post.{i}" for i in range(8)]
    offered = complete(notebook, "%djinn_break ")
    assert {"embed", "resid_pre.0", "z.7", "logits"} <= set(offered)
    assert {"%djinn_break", "%djinn_breaks"} <= set(complete(notebook, "%djinn_bre"))
    for line in ["%djinn_run The cap", "print(resid_po", "%time resid_po", "%djinn_break 4 resid"]:
        assert not [m for m in complete(notebook, line) if "resid_post" in m or m.startswith("--")]
    notebook.engine.dead = True
    assert "paris" not in complete(notebook, "%djinn_use par")


def test_engines_to_which_a_session_can_move_are_offered(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of the cluster, or the other copies on this machine; models and options that differ are none."""
    engine, entry = notebook.state.engine, entry_at(read_address("10.0.0.3:7001"), None)
    here = [Identity(model="demo"), Identity(model="demo", copy=2), Identity(model="gpt2", copy=3)]
    monkeypatch.setattr(engine, "entry", msgspec.structs.replace(entry, identity=here[0]))
    every = [msgspec.structs.replace(entry, identity=one) for one in here]
    monkeypatch.setattr(notebook.state.client, "engines", lambda: tuple(every), raising=False)
    assert complete(notebook, "%djinn_move --to ") == ["2"]
    in_cluster = msgspec.structs.replace(entry, in_cluster=True, machines=("gpu-3", "gpu-4", "head"))
    monkeypatch.setattr(engine, "entry", in_cluster)
    assert complete(notebook, "%djinn_move --to g") == ["gpu-3", "gpu-4"]
    assert "--to" in complete(notebook, "%djinn_move --")


def test_places_with_a_trusted_key_are_offered(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    for place in ("gpu-box:5556", "gpu-attic"):
        key_folder().trust(place, bytes(32))
    assert complete(notebook, "%djinn_load demo --at ") == ["gpu-attic", "gpu-box:5556"]
    monkeypatch.setattr(notebook.state.client, "engines", lambda: (), raising=False)
    monkeypatch.setattr(notebook.state.engine, "entry", entry_at(read_address("gpu-box"), None))
    assert complete(notebook, "%djinn_move --to gpu-b") == ["gpu-box:5556"]


def test_a_point_of_the_whole_model_that_it_lacks_is_not_offered(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = notebook.state.engine.description
    points = tuple(
        msgspec.structs.replace(one, absent="no module returns it" if one.point == "ln_final" else None)
        for one in described.points
    )
    lacking = msgspec.structs.replace(described, points=points)
    monkeypatch.setattr(type(notebook.state.engine), "description", property(lambda _: lacking))
    offered = complete(notebook, "%djinn_break ")
    assert "embed" in offered
    assert "ln_final" not in offered


def test_a_folder_with_a_model_is_offered(notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    (tmp_path / "notes").mkdir()
    assert complete(notebook, f"%djinn_load {tmp_path}/") == [f"{tmp_path}/tiny"]
    (tmp_path / ("x" * 250)).mkdir()
    (tmp_path / "loop").symlink_to("loop")
    assert complete(notebook, f"%djinn_load {tmp_path}/") == [f"{tmp_path}/tiny"]


def test_tab_behind_no_folder_prints_nothing(notebook: Notebook, capfd: pytest.CaptureFixture[str]) -> None:
    for word in ["~nobody-here/", "~nobody-here", "a/" * 2500, "a" * 300 + "/"]:
        complete(notebook, f"%djinn_load {word}")
        assert capfd.readouterr() == ("", "")


def test_without_an_engine_nothing_is_invented(bare: Notebook) -> None:
    assert not [m for m in complete(bare, "%djinn_break resid") if "resid" in m]
