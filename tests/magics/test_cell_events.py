"""What a cell tells the engine: the session that it works on, and the trace of its requests."""

from __future__ import annotations

import timeit
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError, EngineError, IllegalMove, KeyRefused, OverQuota, UnknownSite
from djinn_jupyter.magics import kernel_state, load_ipython_extension, unload_ipython_extension
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.wire.logs import Trace, next_request
from djinn_jupyter.wire.requests import Note
from tests.magics.conftest import Notebook


def notes(notebook: Notebook) -> list[tuple[str, str]]:
    """Return the notes on cells, without `in_use`, which is sent when a session is chosen."""
    told = [(r.session, r.activity) for r in notebook.engine.channel.requests if isinstance(r, Note)]
    return [one for one in told if one[1] != "in_use"]


def test_which_session_the_magics_act_on_is_told_when_it_is_chosen(notebook: Notebook) -> None:
    notebook.cell("%djinn_fork alt")
    notebook.cell("%djinn_use alt")
    told = [r.session for r in notebook.engine.channel.requests if isinstance(r, Note) and r.activity == "in_use"]
    assert told == ["work/paris.ipynb", "alt"]


def hooks(notebook: Notebook) -> list[Any]:
    events = notebook.shell.events.callbacks
    every = [*events["pre_run_cell"], *events["post_run_cell"]]
    return [hook for hook in every if isinstance(getattr(hook, "__self__", None), kernel_state.CellEvents)]


def test_cells_that_need_nothing_of_a_session_tell_nothing(notebook: Notebook) -> None:
    for cell in [
        "1 + 1",
        "%djinn_status",
        "# a djinn",
        "print('%djinn_run')",
        "%djinn_sessions",
        "%djinn_break 4",
        "%djinn_breaks",
        "%djinn_swap out",
        "",
    ]:
        notebook.cell(cell)
        assert notes(notebook) == []
    notebook.cell("%djinn_run The capital of France is")
    kinds = [type(r).__name__ for r in notebook.engine.channel.requests]
    assert notes(notebook) == [("work/paris.ipynb", "expected"), ("work/paris.ipynb", "idle")]
    assert kinds.index("Note") < kinds.index("Run") < len(kinds) - 1 - kinds[::-1].index("Note")
    notebook.fails("%djinn_step 0")
    assert notes(notebook)[-1] == ("work/paris.ipynb", "idle")


def test_a_cell_that_uses_a_sessions_object_tells_its_name(notebook: Notebook) -> None:
    notebook.shell.push({"mine": notebook.client.load("demo", progress=str).session("rome")})
    notebook.cell("mine.describe()")
    assert notes(notebook) == [("rome", "expected"), ("rome", "idle")]


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("%djinn_run --session rome The capital of France is", {"rome"}),
        ("%djinn_lens\n%djinn_lens --session rome", {"rome", "work/paris.ipynb"}),
        ("%djinn_diff rome", {"rome", "work/paris.ipynb"}),
        ("%djinn_diff rome oslo --layers", {"rome", "oslo"}),
        ('%djinn_lens --session "rome"\n%djinn_swap out', {"rome"}),
    ],
)
def test_of_each_magic_the_session_that_it_uses_is_told_and_no_other(
    notebook: Notebook, cell: str, told: set[str]
) -> None:
    """A session that was swapped out is not brought back because a cell looks at another."""
    notebook.cell("%djinn_break 4\n%djinn_run The capital of France is\n%djinn_fork rome\n%djinn_fork oslo")
    before = len(notes(notebook))
    notebook.shell.run_cell(cell)
    assert {name for name, activity in notes(notebook)[before:] if activity == "expected"} == told


def test_an_engine_that_has_ended_hurts_no_cell(notebook: Notebook) -> None:
    notebook.engine.dead = True
    assert notebook.cell("# %djinn\nx = 3") == ""
    notebook.fails("%djinn_run The capital of France is")
    assert notebook.cell("print(x)").startswith("3")


def test_what_breaks_in_telling_does_not_reach_the_cell(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(request: object) -> None:
        raise RuntimeError("no more threads")

    notebook.shell.push({"mine": notebook.client.load("demo", progress=str).session("rome")})
    monkeypatch.setattr(notebook.engine.channel, "ask", broken)
    assert notebook.cell("name = mine.name\nprint(name)").strip() == "rome"


def test_hooks_are_registered_once_and_taken_away(bare: Notebook) -> None:
    load_ipython_extension(bare.shell, bare.client)
    for _ in range(2):
        bare.fails("%djinn_status")
        assert len(hooks(bare)) == 2
    unload_ipython_extension(bare.shell)
    assert hooks(bare) == []


def test_nothing_loaded_costs_nothing_measurable(bare: Notebook) -> None:
    """The bar is the smallest cell that IPython itself can run."""
    bare.fails("%djinn_status")
    (before, after) = hooks(bare)
    info = SimpleNamespace(raw_cell="x = 1\n" * 1000)

    def told() -> None:
        before(info)
        after(None)

    ours = min(timeit.repeat(told, number=100, repeat=5))
    whole = min(timeit.repeat(lambda: bare.shell.run_cell("pass"), number=100, repeat=3))
    assert ours < whole / 20


def failing(error: DjinnError) -> DjinnError:
    error.request = "386b5e69"
    return error


def test_what_failed_in_the_engine_names_its_request_and_what_was_refused_does_not(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, said in [
        (EngineError("It failed."), "It failed. (request 386b5e69: %djinn_log --request 386b5e69)"),
        (UnknownSite("There is no such site."), "There is no such site."),
        (IllegalMove("It is running."), "It is running."),
        (KeyRefused("The key is not admitted."), "The key is not admitted."),
        (OverQuota("The quota is used up."), "The quota is used up."),
    ]:

        def run(self: RemoteSession, *arguments: object, error: DjinnError = error, **given: object) -> None:
            raise failing(error)

        monkeypatch.setattr(RemoteSession, "run", run)
        assert notebook.fails("%djinn_run The capital") == said

    def describe(self: RemoteSession) -> None:
        raise failing(EngineError("It failed."))

    monkeypatch.setattr(RemoteSession, "describe", describe)
    monkeypatch.setattr(notebook.state.engine, "entry", entry_at(read_address("gpu-box:5556"), None))
    assert notebook.fails("%djinn_status") == "It failed. (request 386b5e69, in the log at gpu-box:5556)"


def test_the_requests_of_a_magic_are_of_one_trace_and_the_next_magic_has_its_own(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Trace] = []

    def describe(self: RemoteSession) -> None:
        asked.extend((next_request(), next_request()))
        raise EngineError("It failed.")

    monkeypatch.setattr(RemoteSession, "describe", describe)
    for _ in range(2):
        notebook.fails("%djinn_status")
    assert [one.asked_by for one in asked] == ["%djinn_status"] * 4
    first, second, third, fourth = (one.trace_id for one in asked)
    assert first == second != third == fourth
    assert len({one.span_id for one in asked}) == 4
    assert next_request().asked_by == ""
