"""Swap, sleep, checkpoint, restore: typed into a real shell."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.wire import replies, requests
from tests.magics.conftest import Notebook
from tests.magics.double import EngineDouble

PARIS = "work/paris.ipynb"


def test_swap_says_what_moved_where_and_how_long_it_took(stopped: Notebook) -> None:
    assert stopped.cell("%djinn_swap out -o moved") == "paris: moved 1.60 GiB to host in 34 ms\n"
    assert stopped.shell.user_ns["moved"].bytes_moved == 1_717_986_918
    assert "host" in stopped.cell("%djinn_sessions")
    assert stopped.cell("%djinn_swap in") == "paris: restored 1.60 GiB from host in 34 ms\n"
    assert stopped.cell("%djinn_swap in") == "paris: nothing to move, it is on the device\n"
    assert stopped.cell("%djinn_rest 300 -o leaves") == (
        "paris: wanted again in 300 s; it leaves the device until then\n"
    )
    assert stopped.shell.user_ns["leaves"] is True
    stopped.cell("%djinn_swap in")
    assert stopped.cell("%djinn_rest 20") == (
        "paris: wanted again in 20 s; it stays on the device unless others need its room\n"
    )
    assert stopped.cell("%djinn_swap out --disk") == "paris: moved 1.60 GiB to disk in 34 ms\n"
    assert stopped.engine.sessions[PARIS].residency == "disk"


def test_a_resume_that_had_to_wait_says_for_what_and_one_that_had_not_says_nothing(stopped: Notebook) -> None:
    stopped.cell("%djinn_swap out")
    assert "restored 1.60 GiB from host in 34 ms" in stopped.cell("%djinn_resume")
    assert "restored 1.60 GiB from host in 34 ms" in stopped.html()
    assert "when it was needed" in stopped.cell("%djinn_status")
    assert "restored" not in stopped.cell("%djinn_run The capital of France is")


def test_the_weights_sleep_and_wake_and_status_says_where_they_are(notebook: Notebook) -> None:
    said = notebook.cell("%djinn_status")
    assert "26.7 MiB on the device" in said
    assert "3.00 MiB of 1.00 GiB in use, 12 pages; 5.00 MiB came, 2.00 MiB went back" in said
    assert notebook.cell("%djinn_sleep") == "the weights of demo left the device: 26.7 MiB in 20 ms\n"
    assert notebook.cell("%djinn_nap") == notebook.cell("%djinn_sleep")
    assert notebook.cell("%djinn_sleep --wake") == "the weights of demo are on the device already\n"


def test_a_checkpoint_is_kept_listed_gone_back_to_and_deleted(stopped: Notebook) -> None:
    assert stopped.cell("%djinn_checkpoint") == "no checkpoints"
    said = stopped.cell("%djinn_checkpoint noon -o saved")
    assert said == "checkpoint noon saved: 5 tokens, stopped at resid_post.4, step 0, 1.00 MiB\n"
    assert stopped.shell.user_ns["saved"].checkpoint.name == "noon"
    assert "already" in stopped.fails("%djinn_checkpoint noon")
    assert "saved" in stopped.cell("%djinn_checkpoint noon --replace")
    stopped.cell("%djinn_resume")
    said = stopped.cell("%djinn_restore noon")
    assert said.startswith("paris restored from noon: 1 breakpoint (resid_post.4), stopped at resid_post.4, step 0")
    assert "paused at resid_post.4" in said
    assert "noon" in stopped.cell("%djinn_checkpoint")
    assert stopped.cell("%djinn_checkpoint noon --drop") == "checkpoint noon deleted\n"
    assert stopped.cell("%djinn_checkpoint") == "no checkpoints"
    stopped.cell("%djinn_use -o session\n%djinn_checkpoint noon\nstop = session.stop\n%djinn_restore noon")
    stopped._run("stop.hidden")
    assert "has moved on" in stopped.error


def test_a_checkpoint_can_be_opened_beside_the_session_in_use(stopped: Notebook) -> None:
    stopped.cell("%djinn_checkpoint noon\n%djinn_restore noon --as rome")
    assert set(stopped.engine.sessions) == {PARIS, "rome"}
    assert stopped.cell("%djinn_use") == "paris is in use\n"
    assert "already" in stopped.fails("%djinn_restore noon --as rome")
    stopped.cell("%djinn_restore noon --as rome --replace --use -o session")
    assert stopped.cell("%djinn_use") == "rome is in use\n"
    assert repr(stopped.shell.user_ns["session"]) == "Session rome of demo"


def test_a_recovered_session_says_so_until_that_is_accepted(stopped: Notebook) -> None:
    stopped.engine._change(PARIS, exactness="recomputed")
    assert "recomputed" in stopped.cell("%djinn_sessions")
    said = "tokens were run again after the engine had died, which on this machine gives the same bits (%djinn_accept"
    assert said in stopped.cell("%djinn_load demo")
    assert stopped.cell("%djinn_accept") == "paris counts as exact from now on\n"
    assert any(isinstance(r, requests.AcceptRecomputed) for r in stopped.engine.channel.requests)
    assert "recomputed" not in stopped.cell("%djinn_sessions")


def test_what_is_not_kept_is_one_line_below_the_cell_that_did_it(
    stopped: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is there also where a later magic of the cell did something that is kept."""
    why = "The journal does not have the latest of session 'paris': No space left on device."
    real = stopped.engine._reply

    def reply(request: Any) -> replies.Reply:
        made = real(request)
        return msgspec.structs.replace(made, not_kept=why) if isinstance(request, requests.ApplyEdit) else made

    monkeypatch.setattr(stopped.engine, "_reply", reply)
    said = stopped.cell("%djinn_edit scale 0.5\n%djinn_breaks")
    assert said.count(f"Not kept: {why}\n") == 1
    assert "Not kept" not in stopped.cell("%djinn_breaks")


@pytest.fixture
def beside(stopped: Notebook, monkeypatch: pytest.MonkeyPatch) -> EngineDouble:
    """Another engine, which `--to 2` means."""
    other = EngineDouble()
    other.moves = stopped.engine.moves
    engine = RemoteEngine(other.channel)
    found = {"2": engine}
    monkeypatch.setattr(stopped.state.client, "beside", lambda here, where, progress: found[where], raising=False)
    return other


def test_a_notebook_goes_along_with_the_session_that_moves(stopped: Notebook, beside: EngineDouble) -> None:
    said = stopped.cell("%djinn_move --to 2 -o moved")
    assert said == "paris moved to demo; this notebook goes on with it there\n"
    assert PARIS in beside.sessions
    assert PARIS not in stopped.engine.sessions
    assert stopped.shell.user_ns["moved"].name == PARIS
    before = len(beside.channel.requests)
    stopped.cell("%djinn_resume")
    assert any(isinstance(one, requests.Resume) for one in beside.channel.requests[before:])


def test_another_session_moves_without_the_notebook(stopped: Notebook, beside: EngineDouble) -> None:
    stopped.cell("%djinn_fork rome")
    assert stopped.cell("%djinn_move --to 2 --session rome") == "rome moved to demo\n"
    assert set(beside.sessions) == {"rome"}
    assert stopped.state.present == PARIS
    assert "rome" not in stopped.state.held
    beside.sessions[PARIS] = beside.sessions["rome"]
    assert "already" in stopped.fails("%djinn_move --to 2")
    assert PARIS in stopped.engine.sessions
