"""The whole way: kernels in processes of their own, sockets, the engine process, a tiny random Llama."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_evaluation.machine import computed_on
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.memory_trace import reading_of
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.errors import SessionsWouldSuffer, UsageError
from djinn_jupyter.widgets.views import memory_view
from tests.engines import own_registry
from tests.process.echoes import echo_between_threads
from tests.process.kernels import Kernel
from tests.waiting import SECONDS

PROMPT = [1, 5, 6, 7, 8]


@pytest.fixture(scope="module")
def engine(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    with own_registry(tmp_path_factory.mktemp("own")):
        yield dj.load(llama, dtype="float32", device=computed_on(), threads=1, metrics="127.0.0.1:0")


def test_the_page_of_metrics_is_where_the_registry_says(engine: RemoteEngine, llama: Path) -> None:
    address = engine.entry.metrics
    with urlopen(f"http://{address}/metrics", timeout=SECONDS) as page:
        told = page.read().decode()
    assert f'model="{llama.name}"' in told
    assert str(llama) not in told
    assert "djinn_passes_total" in told
    asked = {"dtype": "float32", "device": computed_on(), "threads": 1}
    assert dj.load(llama, metrics=address, **asked) is not None
    with pytest.raises(UsageError, match=f"already runs with its metrics at {address}: leave --metrics out"):
        dj.load(llama, metrics="127.0.0.1:1", **asked)


def test_all_that_the_process_takes_is_in_the_books_or_shown_as_beyond_them(engine: RemoteEngine) -> None:
    process = engine.statistics().process
    if process.anonymous_bytes is None or process.runtime_bytes is None:
        assert process.beyond_bytes is None  # where the system does not tell
        return
    assert process.accounted_bytes + process.runtime_bytes + process.beyond_bytes >= process.anonymous_bytes
    assert process.beyond_bytes < process.anonymous_bytes
    assert "of it, not accounted for" in memory_view("tiny", [reading_of(0.0, engine.statistics(), ())], ()).plain


def test_stop_look_edit_resume(engine: RemoteEngine) -> None:
    session = engine.session("look")
    assert "look" in {one.name for one in engine.sessions()}
    plain = session.run(PROMPT, max_new_tokens=6)
    assert isinstance(plain, Finished)
    session.breakpoint("resid_post.4", when="step == 0")
    stop = session.run(PROMPT, max_new_tokens=6)
    assert stop.hidden.shape == (len(PROMPT), engine.description.hidden_size)
    assert stop.hidden.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(stop.hidden, axis=1), stop.norms, rtol=1e-5)
    resumed = session.resume()
    assert resumed.tokens == plain.tokens
    assert resumed.logits.tobytes() == plain.logits.tobytes()
    session.back()
    before = session.stop.hidden
    edited = session.edit(dj.scale(0.5), positions=-1)
    assert edited.relative_size == pytest.approx(0.5)
    assert (session.stop.hidden[-1] == before[-1] * np.float32(0.5)).all()
    assert (session.stop.hidden[:-1] == before[:-1]).all()
    session.close()
    assert "look" not in {one.name for one in engine.sessions()}


def test_only_what_is_asked_for_crosses_the_wire(engine: RemoteEngine) -> None:
    session = engine.session("bytes")
    session.breakpoint("resid_post.4", when="step == 0")
    before = engine.wire_bytes
    stop = session.run(PROMPT)
    assert engine.wire_bytes.arrays_received == before.arrays_received
    assert stop.hidden.nbytes == 5 * 32 * 4
    assert engine.wire_bytes.arrays_received == before.arrays_received + stop.hidden.nbytes
    session.close()


def test_two_kernels_at_once_do_not_disturb_each_other(engine: RemoteEngine, llama: Path) -> None:
    code = f"""
        engine = dj.load({str(llama)!r}, dtype="float32", device={computed_on()!r})
        session = engine.session(input_name := "from-" + str(__import__("os").getpid()))
        session.breakpoint("resid_post.3", when="step == 2")
        for _ in range(3):
            stop = session.run({PROMPT}, max_new_tokens=8)
            done = session.resume()
            tell(done.tokens)
            tell(done.logits.tobytes().hex()[:64])
        tell(engine.entry.pid)
        """
    kernels = [Kernel(code), Kernel(code)]
    heard = [[kernel.heard() for _ in range(7)] for kernel in kernels]
    for kernel in kernels:
        kernel.end()
    assert heard[0] == heard[1]
    assert heard[0][0:2] == heard[0][2:4] == heard[0][4:6]
    assert heard[0][6] == str(engine.entry.pid)


def test_restart_and_run_all_gives_the_same_again(engine: RemoteEngine, llama: Path) -> None:
    code = f"""
        session = dj.load({str(llama)!r}, dtype="float32", device={computed_on()!r}).session("notebook", fresh=True)
        session.breakpoint(4)
        stop = session.run({PROMPT}, max_new_tokens=5, temperature=1.0, seed=3)
        tell(stop)
        tell(session.edit(dj.add(stop.hidden[-1], coef=0.1), positions=-1).norm_after)
        session.clear()
        tell(session.resume())
        tell([b.site for b in session.breakpoints()])
        input()
        """
    heard = []
    for _ in range(2):
        kernel = Kernel(code, holder="kernel-of-the-notebook")
        heard.append([kernel.heard() for _ in range(4)])
        kernel.kill()  # as a restart may do
    assert heard[0] == heard[1]


def test_a_session_is_attachable_from_a_second_kernel(engine: RemoteEngine, llama: Path) -> None:
    """It says whose notebook it runs, so that another client cannot end what the notebook has open. An interrupt leaves
    its session intact at a boundary."""
    session = engine.session("shared")
    session.breakpoint("resid_post.4", when="step == 0")
    stop = session.run(PROMPT)
    kernel = Kernel(
        f"""
        import os
        os.environ["JPY_SESSION_NAME"] = "trips/rome.ipynb"
        engine = dj.load({str(llama)!r}, dtype="float32", device={computed_on()!r})
        session = engine.session("shared", join=True)
        tell(session.stop)
        tell(session.resume(free=True).reason)
        session = engine.session()
        tell(session.describe().notebook)
        input()
        plain = session.run({PROMPT}, max_new_tokens=150, ignore_eos=True)
        first = [True]
        def heard(event):
            if first:
                first.clear()
                tell("running")
        try:
            session.run({PROMPT}, max_new_tokens=150, ignore_eos=True, on_token=heard)
        except KeyboardInterrupt as interrupted:
            tell(interrupted)
        tell(session.resume().tokens == plain.tokens)
        tell(session.close())
        """,
        holder="kernel-rome",
    )
    assert kernel.heard() == repr(stop)
    assert kernel.heard() == "length"
    assert kernel.heard() == "trips/rome.ipynb"
    with pytest.raises(SessionsWouldSuffer, match=r"'rome' is open in the notebook trips/rome.ipynb; to close it"):
        engine.reach("trips/rome.ipynb").close()
    kernel.go_on()
    assert kernel.heard() == "running"
    kernel.process.send_signal(signal.SIGINT)
    assert kernel.heard().startswith("Session 'rome' is intact. Paused at ")
    assert kernel.heard() == "True"
    assert kernel.heard().isdigit()  # the pages that are free again
    kernel.end()
    session.close()


def test_an_engine_and_its_sessions_stay_in_their_process(engine: RemoteEngine) -> None:
    """As multiprocessing hands its arguments to a process that it spawns."""
    session = engine.session("not carried", fresh=True)
    for handle, copied in itertools.product((engine, session), (pickle.dumps, copy.deepcopy)):
        with pytest.raises(UsageError, match=r"belong to one process, .* load the engine again there"):
            copied(handle)
    session.close()


def test_an_engine_without_a_journal_leaves_none_and_keeps_as_many_stops_as_it_was_told(
    engine: RemoteEngine, llama: Path
) -> None:
    journals = Path(os.environ["JUPYTER_DATA_DIR"]) / "djinn" / "journals"

    def left() -> set[Path]:
        """Return all but the running time, which the engine with a journal writes now and then."""
        return {path for path in journals.rglob("*") if "times" not in path.parts}

    before = left()
    other = dj.load(
        llama, dtype="float16", device=computed_on(), threads=1, no_journal=True, stops_kept=2, disk_memory=0
    )
    session = other.session("fleeting")
    session.breakpoint("resid_post.2")
    session.run(PROMPT, max_new_tokens=3)
    for _ in range(2):
        session.resume()
    assert session.describe().stops_kept == 2
    other.stop(force=True)
    assert left() == before


ECHOES = 3  # 2 to 2.6 on an idle machine; both wake four threads in two processes
TRIES = 60  # a process that polls or sleeps needs more in every one; a busy machine lets one through sooner or later


@pytest.mark.alone
def test_a_round_trip_takes_a_few_echoes(engine: RemoteEngine) -> None:
    """No process polls or sleeps meanwhile. The bar in milliseconds is the benchmark's `round_trip`."""
    session = engine.session("quick")
    session.run(PROMPT, max_new_tokens=1)
    session.describe()
    with echo_between_threads() as echo:
        ratios = (_median_seconds(session.describe, 100) / _median_seconds(echo, 100) for _ in range(TRIES))
        assert any(ratio <= ECHOES for ratio in ratios)
    session.close()


@pytest.mark.alone
def test_a_round_trip_stays_short_while_another_session_runs(engine: RemoteEngine) -> None:
    """It is shorter than one token of the other session: requests are read between layers."""
    session, busy = engine.session("quick"), engine.session("busy")
    session.run(PROMPT, max_new_tokens=1)
    token = _median_seconds(lambda: busy.run(PROMPT, max_new_tokens=60, ignore_eos=True), 3) / 60
    running = threading.Thread(target=busy.run, args=[PROMPT], kwargs={"max_new_tokens": 480, "ignore_eos": True})
    medians = []
    running.start()
    while busy.describe().state != "running":
        pass
    while running.is_alive() and len(medians) < 8:
        medians.append(_median_seconds(session.describe, 40))
    busy.pause()
    running.join()
    assert min(medians) <= token, (medians, token)
    session.close()
    busy.close()


def _median_seconds(work: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)
