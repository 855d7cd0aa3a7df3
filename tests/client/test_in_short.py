"""Whatever a cell returns is told in 2,000 characters: its numbers, in words, with texts that are no markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.result import Result
from djinn_jupyter.api.result_files import Reproduction
from djinn_jupyter.api.stops import Finished, Generated, Paused
from djinn_jupyter.api.tables import SHORT, Displayed, Listing, Tabular, shortened
from djinn_jupyter.modules.training.process import TrainedModule
from tests.client import tables
from tests.widgets import samples

LONG: Final = [3 + number % 40 for number in range(60)]
HOSTILE: Final = "</td><script>alert(1)</script>&"
RAW: Final = re.compile(r"\b(?!Array)[A-Z]\w+\(\w+=")
ABSTRACT: Final = {Displayed, Tabular, Generated, Result}


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the readings be of lines of sixty tokens."""
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


def test_no_result_is_forgotten() -> None:
    ours = {kind for kind in every(Displayed) if kind.__module__.startswith("djinn_jupyter.")}
    kinds = {kind for kind in ours if not kind.__subclasses__() or kind is Listing} - ABSTRACT
    here = {*tables.TABLES, Paused, Finished, Reproduction, TrainedModule}
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


def test_a_long_run_is_told_in_short_and_a_stop_with_many_edits(engine: RemoteEngine) -> None:
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
