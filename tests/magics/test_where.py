"""`%djinn_where` draws a session's present stop again; the card of a past stop says so."""

from __future__ import annotations

import time
from typing import Any

import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.link import naming
from djinn_jupyter.magics import screen
from djinn_jupyter.magics.screen import Live, StandingCard
from djinn_jupyter.widgets import views
from djinn_jupyter.wire import replies
from djinn_jupyter.wire.nouns import StopIdentity
from tests.client.direct import DirectChannel
from tests.magics.conftest import Notebook
from tests.widgets import samples

STOP = samples.STOP


def later(number: int = 1, edition: int = 1) -> StopIdentity:
    return StopIdentity(session=STOP.session, number=number, edition=edition)


def test_where_draws_the_present_stop_again(notebook: Notebook) -> None:
    drawn = notebook.cell("%djinn_break 4\n%djinn_run The capital of France is").partition("paused")[2]
    html = notebook.html()
    assert notebook.cell("%djinn_where -o stop").partition("paused")[2] == drawn
    assert notebook.html() == html
    assert notebook.shell.user_ns["stop"].site == "resid_post.4"
    notebook.cell("%djinn_where --effect")
    assert "next token, if resumed as it is" in notebook.html()


def test_where_works_in_a_kernel_that_did_not_run_the_prompt(notebook: Notebook) -> None:
    notebook.cell("%djinn_break 4\n%djinn_run The capital of France is")
    notebook.cell("%djinn_unload\n%djinn_load demo")
    assert "paused at resid_post.4" in notebook.cell("%djinn_where")


def test_where_draws_the_result_of_a_run_that_has_ended_here(notebook: Notebook) -> None:
    notebook.cell("%djinn_run The capital of France is")
    assert "finished: 3 new tokens" in notebook.cell("%djinn_where")
    notebook.state.outcomes.clear()
    assert notebook.cell("%djinn_where") == "paris is idle: 8 tokens\n"


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
        (replies.SessionRunning(session=STOP.session), "moved on since"),
        (replies.SessionClosed(session=STOP.session), "closed since"),
        (replies.SessionEdited(session=STOP.session, stop=later(edition=2)), "edited since"),
        (
            replies.SessionPaused(session=STOP.session, stop=later(2, 2), site="z.1", step=0, reason="back"),
            "moved on since",
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
        (None, replies.SessionRunning(session=STOP.session), "since: %djinn_where --session paris)"),
        (STOP.session, replies.SessionRunning(session=STOP.session), "since: %djinn_where)"),
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
    assert "moved on since" in handle.views[-1].plain
    assert channel.line_watchers == []


def test_a_run_that_fails_leaves_no_card_that_says_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle()

    def display(view: Any, display_id: bool = False) -> Handle:
        handle.update(view)
        return handle

    monkeypatch.setattr(screen, "_display", display)
    live = Live(static=False, session=STOP.session)
    live.gained(" Paris")
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
    assert handle.views[-1].plain == "reading it\nit is not loaded"
    assert "dj-dot" not in handle.views[-1].html
