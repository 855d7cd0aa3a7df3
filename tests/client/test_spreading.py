"""Pairs of a sweep and shards of a collection, spread over several engines of one model: the result is that of one
engine, whichever computed which."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.engine.passes.wavefront import CallSize
from djinn_jupyter.errors import DjinnError, EngineUnavailable, StorageFailed, SweepEnded, UnknownSite, UsageError
from djinn_jupyter.methods.common.api import Tell, spread
from djinn_jupyter.methods.datasets.api import collecting
from djinn_jupyter.methods.sweep.api import sweeping
from djinn_jupyter.methods.sweep.request import Swept
from tests import saes
from tests.client.reached import reached
from tests.client.test_sweeping import CLEAN, CORRUPTED, METRIC
from tests.engine.desk import build_desk
from tests.engine.words import tokenizer
from tests.families import build

OTHER = (9, 8, 7, 41, 22)
PAIRS: dict[str, Any] = {"clean": [CLEAN, CLEAN, OTHER], "corrupted": [CORRUPTED, OTHER, CORRUPTED]}
ASKED: dict[str, Any] = {"site": "resid_post", "over": ("layer", "position"), "metric": METRIC, **PAIRS}
LOST = "Its process has ended."


@pytest.fixture(scope="module")
def engines() -> Iterator[list[RemoteEngine]]:
    """Two engines of one model; in one process they compute in turns, for parts of transformers are the process's."""
    turns = threading.Lock()
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        desks = [build_desk(build("llama", layers=2), tokenizer()) for _ in range(2)]
        for desk in desks:
            patch.setattr(desk.engine, "tick", in_turns(turns, desk.engine.tick))
        patch.setattr(CallSize, "note", lambda *call: None)  # a slow machine would share calls among fewer rows
        yield [stack.enter_context(reached(desk))[0] for desk in desks]


def in_turns(turns: threading.Lock, tick: Callable[[], Any]) -> Callable[[], Any]:
    def ticked() -> Any:
        with turns:
            return tick()

    return ticked


@pytest.fixture(scope="module")
def alone(engines: list[RemoteEngine]) -> dj.Grid:
    return dj.sweep(engines[0], **ASKED, mode="exact")


@pytest.fixture(autouse=True)
def left_empty(engines: list[RemoteEngine]) -> Iterator[None]:
    yield
    assert [engine.sessions() for engine in engines] == [(), ()]


class Took:
    """Counts the pairs that each engine sweeps, each at least one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pairs: dict[int, list[int]] = {}
        plain = sweeping._Sweep.of
        both = threading.Barrier(2, timeout=20)

        def counted(sweep: Any, corrupted: object, clean: object) -> dj.Grid:
            mine = self.pairs.setdefault(id(sweep.engine), [])
            mine.append(sweep.pair)
            if len(mine) == 1:
                both.wait()  # so that each engine has a pair
            return plain(sweep, corrupted, clean)

        monkeypatch.setattr(sweeping._Sweep, "of", counted)


def behind(monkeypatch: pytest.MonkeyPatch, then: Callable[[Any, dj.Grid], dj.Grid]) -> None:
    """Return of each pair what `then` returns, given the sweep and the pair's grid."""
    plain = sweeping._Sweep.of
    monkeypatch.setattr(sweeping._Sweep, "of", lambda sweep, *lines: then(sweep, plain(sweep, *lines)))


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_the_grid_is_that_of_one_engine(
    engines: list[RemoteEngine], monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    alone = dj.sweep(engines[0], **ASKED, mode=mode)
    took, shown = Took(monkeypatch), set[threading.Thread]()
    show = {"on_progress": lambda grid, done, total: shown.add(threading.current_thread())}
    grid = dj.sweep(engines[0], beside=engines[1:], **ASKED, **show, mode=mode)
    assert grid.values.tobytes() == alone.values.tobytes()
    assert (grid.columns(), grid.notes, grid.is_whole) == (alone.columns(), alone.notes, True)
    assert sorted(number for numbers in took.pairs.values() for number in numbers) == [0, 1, 2]
    assert len(took.pairs) == 2
    assert shown == {threading.current_thread()}


def test_samples_of_noise_are_spread_too(engines: list[RemoteEngine]) -> None:
    asked: dict[str, Any] = {"clean": CLEAN, "site": "resid_post", "over": "layer", "metric": METRIC, "mode": "exact"}
    asked |= {"noise": dj.noise("0:2"), "samples": 4, "positions": [1]}
    over_both = dj.sweep(engines[0], beside=engines[1:], **asked)
    assert over_both.values.tobytes() == dj.sweep(engines[0], **asked).values.tobytes()


@pytest.mark.parametrize("when", ["at once", "on the way"])
def test_the_pair_of_an_engine_that_is_lost_goes_to_another(
    engines: list[RemoteEngine], alone: dj.Grid, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """On the way some of its cells were told: alone at one engine the sweep would end with these."""
    took = Took(monkeypatch)

    def lost(sweep: Any, grid: dj.Grid) -> dj.Grid:
        if sweep.engine is not engines[1]:
            return grid
        if when == "at once":
            raise EngineUnavailable(LOST)
        raise SweepEnded("3 cells were finished.", grid) from EngineUnavailable(LOST)

    behind(monkeypatch, lost)
    grid = dj.sweep(engines[0], beside=engines[1:], **ASKED, mode="exact")
    assert grid.values.tobytes() == alone.values.tobytes()
    assert grid.notes[-1] == f"An engine was lost, and another computed its pair: {LOST}"
    assert sorted(took.pairs[id(engines[0])]) == [0, 1, 2]
    assert len(took.pairs[id(engines[1])]) == 1


def test_where_no_engine_is_left_the_finished_pairs_are_kept(
    engines: list[RemoteEngine], alone: dj.Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_later(sweep: Any, grid: dj.Grid) -> dj.Grid:
        if sweep.pair >= 2:
            raise EngineUnavailable(LOST)
        return grid

    behind(monkeypatch, fails_later)
    with pytest.raises(SweepEnded, match=r"in pair 2: No engine is left to compute with\. Its") as ended:
        dj.sweep(engines[0], beside=engines[1:], **ASKED, mode="exact")
    assert (len(ended.value.grid.replies), ended.value.grid.missing) == (2, 1)
    monkeypatch.undo()
    whole = dj.sweep(engines[0], beside=engines[1:], **ASKED, so_far=ended.value.grid, mode="exact")
    assert np.array_equal(whole.values, alone.values)


def test_a_pair_that_fails_ends_the_sweep_with_its_sentence(
    engines: list[RemoteEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {**ASKED, "corrupted": [CORRUPTED, [1, 2], CORRUPTED]}
    with pytest.raises((SweepEnded, UsageError), match="token"):
        dj.sweep(engines[0], beside=engines[1:], **asked)
    asked = {**ASKED, "clean": [CLEAN, (1, *CLEAN)], "corrupted": [CORRUPTED, (1, *CORRUPTED)]}
    with pytest.raises(SweepEnded, match=r"in pair 1: its cells are \[2, 6\], and the first pair's \[2, 5\]") as ended:
        dj.sweep(engines[0], beside=engines[1:], **asked)
    assert len(ended.value.grid.replies) == 1

    def fails(sweep: Any, grid: dj.Grid) -> dj.Grid:
        if sweep.pair == 0:
            raise SweepEnded("Some cells were finished: there is no memory.", grid)
        return grid

    behind(monkeypatch, fails)
    with pytest.raises(SweepEnded, match="in pair 0: Some cells were finished: there is no memory") as ended:
        dj.sweep(engines[0], beside=engines[1:], **ASKED)
    assert (len(ended.value.grid.replies), ended.value.grid.missing) == (1, 2)


class Piece:
    """A piece whose run is the function, given its number and `tell`."""

    def __init__(self, run: Callable[[int, Tell], Any], number: int = 0, end: Callable[[], object] = int) -> None:
        self._run, self._number, self._end = run, number, end

    def run(self, engine: RemoteEngine, tell: Tell) -> Any:
        return self._run(self._number, tell)

    def end(self) -> None:
        self._end()


def test_an_interrupt_ends_the_pairs_under_way(engines: list[RemoteEngine]) -> None:
    begun, ended = threading.Barrier(3, timeout=20), threading.Event()

    def endless(number: int, tell: Tell) -> int:
        begun.wait()
        tell(_interrupted)
        assert ended.wait(20)
        raise DjinnError("The session was closed.")

    def _interrupted() -> None:
        raise KeyboardInterrupt

    threading.Thread(target=begun.wait, daemon=True).start()
    outcome = spread(engines, [Piece(endless, end=ended.set) for _ in range(3)])
    assert (outcome.found, outcome.error, outcome.interrupted) == ({}, None, True)


def test_an_error_of_any_kind_in_a_piece_ends_all(engines: list[RemoteEngine]) -> None:
    found = spread(engines, [Piece(lambda number, tell: 1 / 0) for _ in range(3)])
    assert isinstance(found.error, ZeroDivisionError)
    assert found.failed in (0, 1)


def test_all_that_was_told_is_shown_and_an_error_there_ends_the_pieces_under_way(engines: list[RemoteEngine]) -> None:
    shown: list[int] = []

    def tells(number: int, tell: Tell) -> int:
        for _ in range(100):
            tell(lambda: shown.append(number))
        return number

    assert spread(engines, [Piece(tells, number) for number in range(20)]).first == list(range(20))
    assert sorted(shown) == sorted(list(range(20)) * 100)
    ended = threading.Event()

    def fails(number: int, tell: Tell) -> None:
        tell(lambda: 1 / 0)
        assert ended.wait(20)

    with pytest.raises(ZeroDivisionError):
        spread(engines, [Piece(fails, end=ended.set) for _ in range(2)])
    assert ended.is_set()


def test_engines_that_differ_are_named(engines: list[RemoteEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    Took(monkeypatch)

    def with_threads(sweep: Any, grid: dj.Grid) -> dj.Grid:
        [reply] = grid.replies
        assert isinstance(reply, Swept)
        by = msgspec.structs.replace(reply.made.by, threads=engines.index(sweep.engine) + 1)
        return dj.Grid([msgspec.structs.replace(reply, made=msgspec.structs.replace(reply.made, by=by))])

    behind(monkeypatch, with_threads)
    grid = dj.sweep(engines[0], beside=engines[1:], **ASKED)
    assert any("computed by engines that differ in threads (" in note for note in grid.notes)


def test_engines_of_several_models_and_sessions_are_refused(engines: list[RemoteEngine]) -> None:
    session = engines[0].session("mine")
    session.run(CORRUPTED, max_new_tokens=0)
    with pytest.raises(UsageError, match="A session is at one engine, and pairs are spread over several"):
        dj.sweep(engines[0], beside=engines[1:], **{**ASKED, "corrupted": [session, *ASKED["corrupted"][1:]]})
    pairs = {"clean": [session, CLEAN], "corrupted": [CORRUPTED, OTHER], "metric": METRIC}
    with pytest.raises(UsageError, match="session"):
        dj.path(engines[0], "z -> logits", beside=engines[1:], **pairs)
    session.close()
    with (
        reached(build_desk(build("gpt2", layers=2), tokenizer())) as [other],
        pytest.raises(UsageError, match="Work is spread over engines of one model; these serve"),
    ):
        dj.sweep(engines[0], beside=[other], **ASKED)


def test_a_collection_is_that_of_one_engine(
    engines: list[RemoteEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [list(range(1, 2 + n % 5)) for n in range(7)]
    asked: dict[str, Any] = {"sites": ["resid_post.1", "z.*"], "shard_prompts": 2, "mode": "exact"}
    alone = engines[0].collect(prompts, to=tmp_path / "alone", **asked)
    both, at = threading.Barrier(2, timeout=20), dict[int, list[int]]()
    plain = collecting._ShardOfMany.run

    def counted(shard: Any, engine: Any, tell: Tell) -> Any:
        mine = at.setdefault(id(engine), [])
        mine.append(shard.request_in("counted").shard)
        if len(mine) == 1:
            both.wait()
        return plain(shard, engine, tell)

    monkeypatch.setattr(collecting._ShardOfMany, "run", counted)
    done: list[int] = []
    acts = engines[0].collect(prompts, to=tmp_path / "spread", beside=engines[1:], on_progress=done.append, **asked)
    assert sorted(number for numbers in at.values() for number in numbers) == [0, 1, 2, 3]
    assert len(at) == 2
    assert (acts.complete, len(acts), done[-1], max(done)) == (True, 7, 7, 7)
    for one, other in zip(alone.shards, acts.shards, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()


def test_what_another_engine_would_refuse_begins_nowhere(
    engines: list[RemoteEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module is at the first engine, which alone would write shards; then another of that name is at the second."""
    lines, to = [[1, 2], [3, 4]], tmp_path / "acts"
    spread: dict[str, Any] = {"beside": engines[1:], "to": to, "shard_prompts": 1}
    monkeypatch.setattr(sweeping._Sweep, "of", lambda *lines: pytest.fail("a pair was swept"))
    engines[0].add_module("sae", saes.saved(tmp_path / "first", saes.drawn(32)), at="resid_post.1")
    with pytest.raises(UnknownSite, match=r"An engine refuses the collection, so that none has begun it: .*sae"):
        engines[0].collect(lines, ["sae.1"], **spread)
    with pytest.raises(UnknownSite, match=r"An engine refuses the sweep, so that none has begun it: .*sae"):
        dj.sweep(engines[0], beside=engines[1:], **{**ASKED, "site": "sae.1", "over": "position"})
    engines[1].add_module("sae", saes.saved(tmp_path / "second", saes.drawn(32, seed=1)), at="resid_post.1")
    with pytest.raises(UsageError, match=r"its modules is \[\[\"sae\", .*, and that of the engine asked first \[\["):
        engines[0].collect(lines, ["sae.1"], **spread)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StorageFailed, match=r"An engine refuses the collection, so that none has begun it: .* denied"):
        engines[0].collect(lines, ["resid_post.1"], **spread)
    assert not to.exists()
    for engine in engines:
        engine.remove_module("sae")


def test_a_shard_that_fails_ends_the_collection_with_its_sentence(
    engines: list[RemoteEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[1, 2], [3, 4], [5, 100_000]]
    with pytest.raises(UsageError, match=r"Prompt 2 .* has the token id 100000, which is not in the vocabulary"):
        engines[0].collect(prompts, ["resid_post.1"], to=tmp_path, beside=engines[1:], shard_prompts=1)

    def lost(shard: Any, engine: Any, tell: Tell) -> Any:
        raise EngineUnavailable("Its process has ended.")

    monkeypatch.setattr(collecting._ShardOfMany, "run", lost)
    with pytest.raises(EngineUnavailable, match=r"No engine is left to compute with\. Its process has ended"):
        engines[0].collect(prompts[:2], ["resid_post.1"], to=tmp_path / "b", beside=engines[1:], shard_prompts=1)
