"""Looking at values, by users' words for heads, positions and sessions."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from djinn_jupyter.api import stops
from djinn_jupyter.api.arrays import from_numpy
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.magics.looking import look_at, pooled_for_card
from djinn_jupyter.wire import requests
from tests.magics.conftest import Notebook, last
from tests.widgets import samples
from tests.widgets.pooled import pooled


def test_hover_adds_a_plotly_figure(stopped: Notebook) -> None:
    stopped.cell("%djinn_inspect --hover")
    card, figure = (output.data for output in stopped.outputs)
    assert set(card) == {"text/plain", "text/html"}
    assert set(figure) == {"text/plain", "application/vnd.plotly.v1+json"}
    assert figure["application/vnd.plotly.v1+json"]["data"][0]["type"] == "heatmap"


def test_a_head_is_chosen_by_its_number(stopped: Notebook) -> None:
    stopped.cell("%djinn_inspect pattern.2 --head 3 --hover")
    assert last(stopped, requests.ReadPooled).site == "pattern.2[3]"
    assert "selects already" in stopped.fails("%djinn_inspect pattern.2[1] --head 3")
    assert "counted from 0" in stopped.fails("%djinn_inspect pattern.2 --head -1")


@pytest.mark.parametrize(
    ("said", "meant"), [("last", (-1,)), ('" France"', (3,)), ("France", (3,)), ("2:4", (2, 3)), ("-1", (-1,))]
)
def test_positions_have_names(stopped: Notebook, said: str, meant: tuple[int, ...]) -> None:
    stopped.cell(f"%djinn_inspect --positions {said}")
    assert last(stopped, requests.ReadPooled).positions == meant
    stopped.cell(f"%djinn_inspect --positions {said} -o value")
    assert last(stopped, requests.Inspect).positions == meant


def test_a_comparison_by_layer_with_a_finished_side_says_what_is_missing(stopped: Notebook) -> None:
    stopped.cell("%djinn_fork rome\n%djinn_resume --free")
    said = stopped.cell("%djinn_diff rome paris --layers")
    assert "rome against paris" in said
    assert "paris has finished: its residuals are gone" in said


def test_after_a_rename_the_former_session_is_pointed_out(
    bare: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, other = (str(tmp_path / f"{name}.ipynb") for name in ("old", "new", "other"))
    Path(other).touch()
    for name in (other, old):
        monkeypatch.setenv("JPY_SESSION_NAME", name)
        assert "renamed" not in bare.cell("%djinn_load demo\n%djinn_run The capital of France is")
    monkeypatch.setenv("JPY_SESSION_NAME", new)
    said = bare.cell("%djinn_load demo")
    assert "session old (8 tokens) is of a notebook of this folder that is not there any more" in said
    assert "%djinn_use old" in said
    assert "other" not in said
    assert "renamed" not in bare.cell("%djinn_load demo")  # once
    assert bare.cell("%djinn_use old") == "old is in use\n"


def test_a_former_session_is_pointed_out_with_its_folder_where_another_has_its_name(
    bare: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("ada", "bob"):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / folder / "old.ipynb"))
        bare.cell("%djinn_load demo\n%djinn_run The capital of France is")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "bob" / "new.ipynb"))
    hints = re.findall(r"%djinn_use \S+", bare.cell("%djinn_load demo"))
    assert hints == ["%djinn_use bob/old"]
    assert bare.cell(f"{hints[0]} -o found") == "old is in use\n"
    assert bare.shell.user_ns["found"].name == str(tmp_path / "bob" / "old.ipynb")


def test_a_model_in_a_folder_called_demo_is_passed_over_with_a_word(
    bare: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "./demo" not in bare.cell("%djinn_load demo")
    (tmp_path / "demo" / "config.json").write_text("{}")
    assert "the one in the folder of that name here is ./demo.\n" in bare.cell("%djinn_load demo")


def test_a_card_is_drawn_of_what_the_engine_pools(bare: Notebook) -> None:
    bare.cell("%djinn_load demo\n%djinn_break resid_post.4\n%djinn_run The capital of France is")
    assert last(bare, requests.ReadPooled).alone is None
    assert "<img" in bare.html()
    assert not any(isinstance(request, requests.Inspect) for request in bare.engine.channel.requests)


@pytest.mark.parametrize(("matched", "first"), [(None, 290), (3, 3)])
def test_the_rows_of_a_long_pass_are_read_besides_the_whole(
    matched: int | None, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(stops, "read_pooled", lambda session, *, alone, **_: asked.append(alone))
    point = samples.described_breakpoint(when="norm > 15")
    reply = samples.paused(texts=tuple("a" * 300), matched=matched, breakpoint=point)
    pooled_for_card(Paused(SimpleNamespace(label="paris"), reply, 0))  # type: ignore[arg-type]
    assert asked == [[first, *range(291, 300)]]


def asked_since(notebook: Notebook, before: int) -> list[requests.Request]:
    """The requests for values, from the one of this number on."""
    values = (requests.Inspect, requests.ReadPooled)
    return [one for one in notebook.engine.channel.requests[before:] if isinstance(one, values)]


@pytest.mark.parametrize("options", ["", "--hover", "--positions 1:3", "--positions last --hover"])
@pytest.mark.parametrize("site", ["", "pattern.2", "pattern.2[0]"])
def test_an_inspection_asks_once_for_what_it_draws(stopped: Notebook, site: str, options: str) -> None:
    before = len(stopped.engine.channel.requests)
    stopped.cell(f"%djinn_inspect {site} {options}")
    (asked,) = asked_since(stopped, before)
    assert isinstance(asked, requests.ReadPooled)
    assert asked.rounded == ("--hover" not in options)
    assert bool(asked.heads) == bool(site)
    assert asked.last == (0 if site else 16)


def test_an_inspection_that_is_kept_is_whole_and_asked_for_once(stopped: Notebook) -> None:
    before = len(stopped.engine.channel.requests)
    stopped.cell("%djinn_inspect --hover -o value")
    (asked,) = asked_since(stopped, before)
    assert isinstance(asked, requests.Inspect)
    assert stopped.shell.user_ns["value"].value.shape == (5, samples.WIDTH)


def test_of_a_long_pass_its_last_rows_are_read_with_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    values = samples.values(300, samples.WIDTH)
    rows = from_numpy(values[-16:])
    monkeypatch.setattr(stops, "read_pooled", lambda *asked, **given: pooled(values, last=rows))
    stop = SimpleNamespace(site="a.site", texts=("a",) * 300, positions=range(300))
    session = SimpleNamespace(name="paris", stop=stop)
    look = look_at(session, "a.site", ahead=False)  # type: ignore[arg-type]
    assert look.all_positions == tuple(range(300))
    assert look.positions == tuple(range(284, 300))
    assert (look.values == values[284:]).all()
