"""A result is a value: each class of results can be copied and pickled, and shows the same in another process."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import memory_trace, rules
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.link.transport import WireBytes
from djinn_jupyter.methods.datasets.api import activations
from djinn_jupyter.methods.graphs import api
from djinn_jupyter.modules.training.process import TrainedModule
from tests.client import tables
from tests.client.reached import reached

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
import python_api

LINE: Final = tables.LINE
HANDLES: Final = {dj.RemoteEngine, dj.RemoteSession}  # refused: tests/process/test_real_engine.py
IN_ANOTHER_PROCESS: Final = """
import pickle, sys
results = pickle.load(sys.stdin.buffer)
def shown(one):
    bundle = getattr(one, "_repr_mimebundle_", lambda: None)()
    return repr(one), bundle
pickle.dump([shown(one) for one in results], sys.stdout.buffer)
"""


def stop(engine: RemoteEngine) -> Any:
    return tables.stopped(engine).stop


def finished(engine: RemoteEngine) -> dj.Finished:
    found = engine.session("done", fresh=True).run(LINE, max_new_tokens=1)
    assert isinstance(found, dj.Finished)
    return found


def traced(engine: RemoteEngine) -> memory_trace.MemoryTrace:
    with engine.memory_trace(hertz=100) as trace:
        trace.moves.append(memory_trace.TracedTransfer(at=1.0, session="mine", transfer=None))  # type: ignore[arg-type]
    return trace


def trained(engine: RemoteEngine, folder: Path) -> TrainedModule:
    collection = engine.collect([LINE, tables.OTHER], "resid_post.1", to=folder / "acts")
    return dj.steering_vector(collection, [True, False], to=folder / "mean")


def of_torch(engine: RemoteEngine, folder: Path) -> activations.TorchValues:
    return engine.collect([LINE, tables.OTHER], "resid_post.1", to=folder)["resid_post.1"].torch()


OTHERS: Final[dict[type, Callable[[RemoteEngine, Path], Any]]] = {
    dj.Paused: lambda engine, folder: stop(engine),
    dj.Finished: lambda engine, folder: finished(engine),
    dj.Interrupted: lambda engine, folder: dj.Interrupted(stop(engine)),
    dj.BatchInterrupted: lambda engine, folder: dj.BatchInterrupted([finished(engine), None]),
    dj.BatchEnded: lambda engine, folder: dj.BatchEnded("One failed.", [finished(engine), dj.DjinnError("It did.")]),
    dj.WorkInterrupted: lambda engine, folder: dj.WorkInterrupted("The sweep was.", engine.loss([LINE])),
    dj.DjinnError: lambda engine, folder: dj.DjinnError("It is wrong."),
    dj.Reproduction: lambda engine, folder: dj.reproduce(engine, engine.loss([LINE])),
    TrainedModule: trained,
    api.GraphNode: lambda engine, folder: tables.graphed(engine, folder).nodes[0],
    WireBytes: lambda engine, folder: engine.wire_bytes,
    rules.SteeringRule: lambda engine, folder: tables.ruled(engine)[0],
    activations.TorchValues: of_torch,
    memory_trace.Reading: lambda engine, folder: traced(engine).readings[0],
    memory_trace.TracedTransfer: lambda engine, folder: traced(engine).moves[0],
}
RESULTS: Final = {**tables.TABLES, **OTHERS}


def pickled(one: Any) -> Any:
    """Return the result as another process gets it."""
    return pickle.loads(pickle.dumps(one))  # noqa: S301  of our own making


def shown(one: object) -> tuple[str, Any]:
    return repr(one), getattr(one, "_repr_mimebundle_", lambda: None)()


def test_no_result_is_forgotten() -> None:
    assert {*python_api.public_classes()} - HANDLES <= set(RESULTS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, desk: Any) -> Iterator[dict[type, tuple[Any, tuple[str, Any]]]]:
    """One result of each class, pickled to another process and shown there."""
    with reached(desk) as [engine]:
        results = {kind: make(engine, tmp_path_factory.mktemp(kind.__name__)) for kind, make in RESULTS.items()}
        command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
        done = subprocess.run(command, input=pickle.dumps([*results.values()]), stdout=subprocess.PIPE, check=True)
        there = pickle.loads(done.stdout)  # noqa: S301
        yield {kind: (one, seen) for (kind, one), seen in zip(results.items(), there, strict=True)}


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_a_result_shows_the_same_wherever_it_is_copied(made: Any, kind: type) -> None:
    one, there = made[kind]
    assert there == shown(one)
    for same in (copy.copy(one), copy.deepcopy(one), pickled(one)):
        assert type(same) is type(one)
        assert shown(same) == there


READ: Final[dict[str, Callable[[Any], object]]] = {
    "hidden": lambda stop: stop.hidden,
    "lens": lambda stop: stop.lens(),
    "effect": lambda stop: stop.effect(),
    "resume": lambda stop: stop.session.resume(),
    "breakpoint": lambda stop: stop.session.breakpoint(0),
    "batch": lambda stop: stop.session.run([LINE, LINE]),
    "listen": lambda stop: stop.session.run(LINE, on_token=print),
}


@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("moved", [False, True])
def test_what_needs_the_engine_is_refused_in_a_sentence(
    engine: RemoteEngine, read: Callable[[Any], object], moved: bool
) -> None:
    one = stop(engine)
    if moved:
        one.session.step()
    there = pickled(one)
    again = pickled(there)
    for each in (there, again):
        assert repr(each.session) == repr(one.session)
        with pytest.raises(IllegalMove, match=r"^This is a copy of a result, without its engine: load "):
            read(each)


def test_a_copy_in_the_same_process_reads_on_and_is_moved_on_with_it(engine: RemoteEngine) -> None:
    one = stop(engine)
    shallow, deep = copy.copy(one), copy.deepcopy(one)
    assert shallow.session is deep.session is one.session
    assert (shallow.hidden == one.hidden).all()
    deep.hidden[:] = 0
    assert one.hidden.any()
    one.session.step()
    for each in (shallow, deep):
        with pytest.raises(IllegalMove, match="has moved on"):
            each.lens()


def test_what_was_read_before_goes_with_the_copy(engine: RemoteEngine) -> None:
    one, done = stop(engine), finished(engine)
    hidden, logits = one.hidden, done.logits
    assert (pickled(one).hidden == hidden).all()
    assert (pickled(done).logits == logits).all()
    with pytest.raises(IllegalMove, match="copy of a result"):
        pickled(finished(engine)).logits  # noqa: B018


def test_an_interrupt_that_crosses_processes_has_what_was_kept(engine: RemoteEngine) -> None:
    kept = engine.loss([LINE])
    there = pickled([dj.WorkInterrupted("The sweep was.", kept), dj.BatchInterrupted([None])])
    assert (there[0].kept.values == kept.values).all()
    assert there[1].rows == [None]


def test_a_trace_that_runs_is_copied_as_it_is(engine: RemoteEngine) -> None:
    with engine.memory_trace(hertz=1) as trace:
        for same in (copy.copy(trace), pickled(trace)):
            assert not same.running
            assert same.stop().columns() == trace.columns()
            same.readings.clear()
        assert trace.running
        assert trace.readings
