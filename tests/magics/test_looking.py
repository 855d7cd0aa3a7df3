"""Looks at a stop, and where a session stands."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from djinn_jupyter.api import stops
from djinn_jupyter.api.arrays import from_numpy
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link import naming
from djinn_jupyter.magics import screen
from djinn_jupyter.magics.looking import look_at, pooled_for_card
from djinn_jupyter.magics.screen import Live, StandingCard
from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.html import card
from djinn_jupyter.wire import replies, requests
from djinn_jupyter.wire.nouns import StopIdentity
from tests.client.direct import DirectChannel
from tests.magics.conftest import Notebook, last
from tests.widgets import samples
from tests.widgets.pooled import pooled


def test_positions_and_heads_have_names_and_a_figure_by_hover(stopped: Notebook) -> None:
    for said, meant in [("last", (-1,)), ('" France"', (3,)), ("France", (3,)), ("2:4", (2, 3)), ("-1", (-1,))]:
        stopped.cell(f"%djinn_inspect --positions {said}")
        assert last(stopped, requests.ReadPooled).positions == meant
        stopped.cell(f"%djinn_inspect --positions {said} -o value")
        assert last(stopped, requests.Inspect).positions == meant
    stopped.cell("%djinn_inspect pattern.2 --head 3 --hover")
    assert last(stopped, requests.ReadPooled).site == "pattern.2[3]"
    assert "selects already" in stopped.fails("%djinn_inspect pattern.2[1] --head 3")
    assert "counted from 0" in stopped.fails("%djinn_inspect pattern.2 --head -1")
    stopped.cell("%djinn_inspect --hover")
    card, figure = (output.data for output in stopped.outputs)
    assert set(card) == {"text/plain", "text/html"}
    assert set(figure) == {"text/plain", "application/vnd.plotly.v1+json"}
    assert figure["application/vnd.plotly.v1+json"]["data"][0]["type"] == "heatmap"


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


@pytest.mark.parametrize("label", ["old", "old <b> \u2028 & co", "c'\u00e9\\ta\u202eit"])
def test_only_a_notebook_whose_outputs_name_the_former_session_hears_of_a_rename(
    bare: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    """Other notebooks of the folder hear nothing: neither a new one, nor one that names a session of a longer name."""
    former = str(tmp_path / f"{label}.ipynb")
    bare.engine.sessions[former] = samples.session(former, holder="kernel-2", tokens=8)
    output = nbformat.v4.new_output("display_data", {"text/html": str(card("", title="a", session=former))})
    cells = {"new": [], "longer": [f"session {label}-2"], "renamed": [output]}
    for name, held in cells.items():
        outputs = [one if isinstance(one, dict) else nbformat.v4.new_output("stream", text=one) for one in held]
        code = nbformat.v4.new_code_cell("%djinn_where", outputs=outputs)
        nbformat.write(nbformat.v4.new_notebook(cells=[code]), tmp_path / f"{name}.ipynb")
        monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / f"{name}.ipynb"))
        assert ("if this one was renamed: " in bare.cell("%djinn_load demo")) == (name == "renamed"), name


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
    pooled_for_card(Paused(SimpleNamespace(label="paris"), reply, 0))
    assert asked == [[first, *range(291, 300)]]


def asked_since(notebook: Notebook, before: int) -> list[requests.Request]:
    """The requests for values, from the one of this number on."""
    values = (requests.Inspect, requests.ReadPooled)
    return [one for one in notebook.engine.channel.requests[before:] if isinstance(one, values)]


def test_an_inspection_asks_once_for_what_it_draws(stopped: Notebook) -> None:
    for options in ["", "--hover", "--positions 1:3", "--positions last --hover"]:
        for site in ["", "pattern.2", "pattern.2[0]"]:
            before = len(stopped.engine.channel.requests)
            stopped.cell(f"%djinn_inspect {site} {options}")
            (asked,) = asked_since(stopped, before)
            assert isinstance(asked, requests.ReadPooled)
            assert asked.rounded == ("--hover" not in options)
            assert bool(asked.heads) == bool(site)
            assert asked.last == (0 if site else 16)
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
    look = look_at(session, "a.site", ahead=False)
    assert look.all_positions == tuple(range(300))
    assert look.positions == tuple(range(284, 300))
    assert (look.values == values[284:]).all()


STOP = samples.STOP


def later(number: int = 1, edition: int = 1) -> StopIdentity:
    return StopIdentity(session=STOP.session, number=number, edition=edition)


def test_where_draws_the_present_stop_again_or_the_result(notebook: Notebook) -> None:
    notebook.cell("%djinn_run The capital of France is")
    assert "finished: 3 new tokens" in notebook.cell("%djinn_where")
    notebook.state.outcomes.clear()
    assert notebook.cell("%djinn_where") == "paris is idle: 8 tokens\n"
    drawn = notebook.cell("%djinn_break 4\n%djinn_run The capital of France is").partition("paused")[2]
    html = notebook.html()
    assert notebook.cell("%djinn_where -o stop").partition("paused")[2] == drawn
    assert notebook.html() == html
    assert notebook.shell.user_ns["stop"].site == "resid_post.4"
    notebook.cell("%djinn_where --effect")
    assert "next token, if resumed as it is" in notebook.html()
    notebook.cell("%djinn_break 4\n%djinn_run The capital of France is")
    notebook.cell("%djinn_unload\n%djinn_load demo")
    assert "paused at resid_post.4" in notebook.cell("%djinn_where")


class Handle:
    """A display handle that keeps the views shown on the page."""

    def __init__(self) -> None:
        self.views: list[Any] = []

    def update(self, view: Any) -> None:
        self.views.append(view)


@pytest.fixture
def channel() -> DirectChannel:
    return DirectChannel(replies.Welcome(version="1", model=samples.model(), attached=()), lambda *_: None)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (replies.SessionRunning(session=STOP.session), "past"),
        (replies.SessionClosed(session=STOP.session), "closed since"),
        (replies.SessionEdited(session=STOP.session, stop=later(edition=2)), "edited since"),
        (
            replies.SessionPaused(session=STOP.session, stop=later(2, 2), site="z.1", step=0, reason="back"),
            "past",
        ),
        (replies.SessionPaused(session=STOP.session, stop=STOP, site="z.1", step=0, reason="step"), None),
        (replies.SessionRunning(session="another"), None),
    ],
)
def test_the_card_of_a_stop_says_when_it_is_past(channel: DirectChannel, event: Any, said: str | None) -> None:
    handle = Handle()
    card = StandingCard(channel, handle, views.stop_view(samples.paused()), STOP)
    channel.publish(event)
    channel.publish(event)
    assert card.said == said
    assert [said in view.plain for view in handle.views if said] == [True] * bool(said)


@pytest.mark.parametrize(
    ("notebook", "event", "hint"),
    [
        (None, replies.SessionRunning(session=STOP.session), "(past: %djinn_where --session paris)"),
        (STOP.session, replies.SessionRunning(session=STOP.session), "(past: %djinn_where)"),
        (None, replies.SessionClosed(session=STOP.session), "(closed since)"),
    ],
)
def test_the_card_names_the_session_that_it_was_read_from(
    channel: DirectChannel, monkeypatch: pytest.MonkeyPatch, notebook: str | None, event: Any, hint: str
) -> None:
    monkeypatch.setattr(naming, "notebook_path", lambda: notebook)
    handle = Handle()
    StandingCard(channel, handle, views.stop_view(samples.paused()), STOP)
    channel.publish(event)
    assert handle.views[-1].plain.endswith(hint)


def test_the_card_of_a_stop_says_that_the_line_is_down_until_it_is_back(channel: DirectChannel) -> None:
    handle, view = Handle(), views.stop_view(samples.paused())
    card = StandingCard(channel, handle, view, STOP)
    (heard,) = channel.line_watchers
    heard(time.time())
    down = f"the line to the engine is down since {time.strftime('%H:%M')}, shown as it was then"
    assert down in handle.views[-1].plain
    assert down in handle.views[-1].html
    heard(None)
    assert handle.views[-1] == view
    heard(time.time())
    channel.publish(replies.SessionRunning(session=STOP.session))  # caught up, before the line counts as back
    heard(None)
    assert card.said is not None
    assert "(past: " in handle.views[-1].plain
    assert channel.line_watchers == []


def test_a_run_that_fails_leaves_no_card_that_says_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle()

    def display(view: Any, display_id: bool = False) -> Handle:
        handle.update(view)
        return handle

    monkeypatch.setattr(screen, "_display", display)
    live = Live(static=False, session=STOP.session)
    live.gained(" Paris", 0.9)
    assert 'style="background:#bbde2f;color:#000" title="&#x27; Paris&#x27; 90 %"> Paris</bdi>' in handle.views[-1].html
    assert "Live while its cell runs" in handle.views[-1].plain
    assert "%djinn_where" in handle.views[-1].html
    live.broken_off("The engine has ended.")
    assert "broken off after 1 token (session paris)" in handle.views[-1].plain
    assert "unning" not in handle.views[-1].html


def test_a_load_that_fails_leaves_no_card_that_says_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle()

    def display(view: Any, **_: object) -> Handle:
        handle.update(view)
        return handle

    monkeypatch.setattr(screen, "_display", display)
    live = Live(static=False)
    live.progress("reading it")
    with pytest.raises(UsageError), live.loading("it"):
        raise UsageError("No.")
    assert {"text/plain": "loading it"} in handle.views
    assert handle.views[-1].plain == "reading it\nthe load of it did not succeed"
    assert "\u25cf" not in handle.views[-1].html
