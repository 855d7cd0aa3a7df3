"""The requests of a magic belong together, and an error that the engine met names them."""

from __future__ import annotations

import pytest

from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError, EngineError, IllegalMove, KeyRefused, OverQuota, UnknownSite
from djinn_jupyter.remote.addresses import entry_at, read_address
from djinn_jupyter.wire.logs import Trace, next_request
from tests.magics.conftest import Notebook


def failing(error: DjinnError) -> DjinnError:
    error.request = "386b5e69"
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (EngineError("It failed."), "It failed. (request 386b5e69: %djinn_log --request 386b5e69)"),
        (UnknownSite("There is no such site."), "There is no such site."),
        (IllegalMove("It is running."), "It is running."),
        (KeyRefused("The key is not admitted."), "The key is not admitted."),
        (OverQuota("The quota is used up."), "The quota is used up."),
    ],
)
def test_what_failed_in_the_engine_names_its_request_and_what_was_refused_does_not(
    notebook: Notebook, error: DjinnError, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: RemoteSession, *arguments: object, **given: object) -> None:
        raise failing(error)

    monkeypatch.setattr(RemoteSession, "run", run)
    assert notebook.fails("%djinn_run The capital") == said


def test_what_failed_in_an_engine_afar_names_the_machine_whose_user_reads_its_log(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
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
