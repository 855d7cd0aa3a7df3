"""A result is a value: it is copied and pickled, shows the same in another process, and is told in 2,000 characters."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

import djinn_jupyter as dj
from djinn_jupyter.api import memory_trace, rules, studies
from djinn_jupyter.api.engine import RemoteEngine, SessionList
from djinn_jupyter.api.loading import EngineList
from djinn_jupyter.api.result import Result
from djinn_jupyter.api.result_files import Reproduction
from djinn_jupyter.api.stops import Finished, Generated, Paused
from djinn_jupyter.api.tables import SHORT, Displayed, Listing, Tabular, card_of, shortened
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.link.transport import WireBytes
from djinn_jupyter.methods.datasets.api import activations
from djinn_jupyter.methods.features.api import examples
from djinn_jupyter.methods.graphs import api
from djinn_jupyter.modules.training.process import TrainedModule
from tests.client import tables
from tests.client.reached import reached
from tests.widgets import samples

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
    return engine.session("done", fresh=True).run(LINE, max_new_tokens=1)


def traced(engine: RemoteEngine) -> memory_trace.MemoryTrace:
    with engine.memory_trace(hertz=100) as trace:
        trace.moves.append(memory_trace.TracedTransfer(at=1.0, session="mine", transfer=None))
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
    examples.FeatureValues: lambda engine, folder: tables.paged(engine, folder).over,
    examples.FeatureExample: lambda engine, folder: tables.paged(engine, folder).examples[0],
    api.GraphNode: lambda engine, folder: tables.graphed(engine, folder).nodes[0],
    studies.StudyRow: lambda engine, folder: tables.studied(engine).check().rows[0],
    SessionList: lambda engine, folder: stop(engine) and engine.sessions(),
    EngineList: lambda engine, folder: EngineList([samples.entry()], ("identity.model", "pid")),
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


def test_what_needs_the_engine_is_refused_in_a_sentence(engine: RemoteEngine) -> None:
    for read in READ.values():
        for moved in [False, True]:
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


REFUSING: Final = """
import pickle, sys
sys.modules["refusing"] = type("Refusing", (), {"__getattr__": lambda self, name: 1 / 0})()
from msgspec import UNSET
import djinn_jupyter.wire.base
assert pickle.loads(pickle.dumps(UNSET)) is UNSET
"""


def test_a_field_without_a_value_is_pickled_beside_a_module_that_refuses_every_name() -> None:
    """As transformers 5.15 has them where torchvision is missing: it went through all modules for the name."""
    subprocess.run([sys.executable, "-c", REFUSING], check=True)


def test_a_trace_that_runs_is_copied_as_it_is(engine: RemoteEngine) -> None:
    with engine.memory_trace(hertz=1) as trace:
        for same in (copy.copy(trace), pickled(trace)):
            assert not same.running
            assert same.stop().columns() == trace.columns()
            same.readings.clear()
        assert trace.running
        assert trace.readings


LONG: Final = [3 + number % 40 for number in range(40)]
HOSTILE: Final = "</td><script>alert(1)</script>&"
RAW: Final = re.compile(r"\b(?!Array)[A-Z]\w+\(\w+=")
ABSTRACT: Final = {Displayed, Tabular, Generated, Result}


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the readings be of lines of forty tokens."""
    other = [*LONG[:-1], 7]
    monkeypatch.setattr(tables, "LINE", LONG)
    monkeypatch.setattr(tables, "OTHER", other)
    monkeypatch.setattr(tables, "LINES", {**tables.LINES, "clean": LONG, "corrupted": other})


def require_short(result: Any) -> str:
    bundle = result._repr_mimebundle_()
    for text in (repr(result), bundle["text/plain"]):
        assert 0 < len(text) <= SHORT
        assert not RAW.search(text), text
    assert "<script" not in bundle["text/html"]
    assert not RAW.search(bundle["text/html"])
    return str(bundle["text/plain"])


@pytest.mark.parametrize("kind", tables.TABLES, ids=lambda kind: kind.__name__)
def test_a_reading_of_many_numbers_is_told_in_short(
    engine: RemoteEngine, tmp_path: Path, kind: type, long: None
) -> None:
    require_short(tables.TABLES[kind](engine, tmp_path))


def every(base: type) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield kind
        yield from every(kind)


def test_no_displayed_result_is_forgotten() -> None:
    assert {*python_api.public_classes()} - HANDLES <= set(RESULTS)
    ours = {kind for kind in every(Displayed) if kind.__module__.startswith("djinn_jupyter.")}
    kinds = {kind for kind in ours if not kind.__subclasses__() or kind is Listing} - ABSTRACT
    here = {*tables.TABLES, Paused, Finished, Reproduction, SessionList, EngineList, TrainedModule}
    assert {kind.__name__ for kind in kinds} == {kind.__name__ for kind in here}  # slots make a class anew


def test_many_sessions_stops_and_rules_are_told_in_short(engine: RemoteEngine) -> None:
    for number in range(40):
        engine.session(f"{number} {HOSTILE.replace('/', '')}")
    session = engine.session("mine", fresh=True)
    session.breakpoint("resid_post.1")
    session.run(tables.LINE, max_new_tokens=40, ignore_eos=True)
    for number in range(30):
        session.steer("mlp_out.1", dj.scale(0.5 + number))
        session.resume()
    for listed in (engine.sessions(), session.history(), session.rules(), engine.tree()):
        assert len(listed) >= 2
        require_short(listed)
    told = repr(engine.sessions())
    assert "characters are left out" in told
    assert "mine " in told or "39 " in told
    session = engine.session("mine", fresh=True)
    long = replace(samples.finished(), text="word <b>" * 1000, prompt_text=HOSTILE * 100)
    assert "characters are left out" in require_short(Finished(session, long, 0))
    stop = replace(samples.paused(), edits=tuple(f"scale {number} {HOSTILE}" for number in range(100)))
    require_short(Paused(session, stop, 0))


def test_a_text_is_shortened_in_whole_lines_and_to_its_limit() -> None:
    lines = "\n".join(f"line {number}" for number in range(1000))
    told = shortened(lines).splitlines()
    assert (told[0], told[-1]) == ("line 0", "line 999")
    assert all(re.fullmatch(r"line \d+|\.\.\. [\d,]+ characters are left out \.\.\.", line) for line in told)
    for text in ("x" * 10**6, "\n" * 10**4, "a\n" + "x" * 10**4, "x" * 10**4 + "\nb"):
        assert len(shortened(text)) <= SHORT
    assert shortened("x" * SHORT) == "x" * SHORT


def test_a_long_grid_tells_its_largest_changes(engine: RemoteEngine, long: None) -> None:
    grid = dj.sweep(engine, **tables.LINES, site="z", over="layer,position,head")
    told = require_short(grid)
    *place, change = grid.top(1)[0]
    assert f"{', '.join(map(str, place))}: {change:+.4g}" in told
    assert f"corrupted: {grid.corrupted:.3g}" in told


API = """
from djinn_jupyter.api.tables import Tabular

class Counted(Tabular):
    _view = "counted_view"

    def columns(self):
        return {"word": ["heads"], "count": [3]}

class Inherited(Counted):
    pass
"""
CARD = """
from djinn_jupyter.widgets.view import View

def counted_view(counted):
    return View(plain=f"{counted.columns()['count'][0]} heads", html="<b>3</b>")
"""


def result_of(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, card: str | None, kind: str = "Counted") -> Any:
    """Return a result of a package that is written here."""
    package = folder.joinpath(*name.split("."))
    package.mkdir(parents=True)
    files = {"__init__.py": "", "api.py": API} | ({} if card is None else {"card.py": card})
    for file, text in files.items():
        (package / file).write_text(text)
    monkeypatch.syspath_prepend(folder)
    return getattr(import_module(f"{name}.api"), kind)()


@pytest.mark.parametrize(
    ("name", "kind"), [("drawn", "Counted"), ("drawn_so", "Inherited"), ("drawn_at.api.counted", "Counted")]
)
def test_a_result_of_another_package_is_drawn_by_its_own_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    result = result_of(tmp_path, monkeypatch, name, CARD, kind)
    assert card_of(type(result)).__module__ == f"{name}.card"
    shown = result._repr_mimebundle_()
    assert (shown["text/plain"], shown["text/html"]) == ("3 heads", "<b>3</b>")


@pytest.mark.parametrize(
    ("name", "card", "why"),
    [
        ("undrawn", None, "ModuleNotFoundError: No module named 'undrawn.card'"),
        ("unhelped", "import absent_of_all\n", "ModuleNotFoundError: No module named 'absent_of_all'"),
        ("misnamed", "", "AttributeError: module 'misnamed.card' has no attribute 'counted_view'"),
        ("broken", "raise OSError('x' * 10_000)\n", "OSError: x"),
    ],
)
def test_without_its_card_a_result_is_shown_as_text_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, card: str | None, why: str
) -> None:
    shown = result_of(tmp_path, monkeypatch, name, card)._repr_mimebundle_()
    assert shown.keys() == {"text/plain"}
    text = shown["text/plain"]
    assert text.startswith(
        "word   count\nheads  3\nThe card of Counted cannot be imported; mend or install what it needs ("
    )
    assert why in text
    assert len(text) <= SHORT
