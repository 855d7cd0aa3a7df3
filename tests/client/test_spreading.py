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
PAIRS: dict[str, Any] = {
    "clean": [CLEAN, CLEAN, OTHER, CLEAN, OTHER],
    "corrupted": [CORRUPTED, OTHER, CORRUPTED, CORRUPTED, CLEAN],
}
ASKED: dict[str, Any] = {"site": "resid_post", "over": ("layer", "position"), "metric": METRIC, **PAIRS}


@pytest.fixture
def engines() -> Iterator[list[RemoteEngine]]:
    """Two engines of one model; in one process they compute in turns, for parts of transformers are the process's."""
    turns = threading.Lock()
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        desks = [build_desk(build("llama", layers=3), tokenizer()) for _ in range(2)]
        for desk in desks:
            patch.setattr(desk.engine, "tick", in_turns(turns, desk.engine.tick))
        patch.setattr(CallSize, "note", lambda *call: None)  # a slow machine would share calls among fewer rows
        yield [stack.enter_context(reached(desk))[0] for desk in desks]


def in_turns(turns: threading.Lock, tick: Callable[[], Any]) -> Callable[[], Any]:
    def ticked() -> Any:
        with turns:
            return tick()

    return ticked


class Took:
    """Counts the pairs that each engine sweeps, each at least one; one engine is `lost` with its first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lost: RemoteEngine | None = None) -> None:
        self.pairs: dict[int, list[int]] = {}
        plain = sweeping._Sweep.of
        both = threading.Barrier(2, timeout=20)

        def counted(sweep: Any, corrupted: object, clean: object) -> dj.Grid:
            mine = self.pairs.setdefault(id(sweep.engine), [])
            mine.append(sweep.pair)
            if len(mine) == 1:
                both.wait()  # so that each engine has a pair
            if sweep.engine is lost:
                raise EngineUnavailable("Its process has ended.")
            return plain(sweep, corrupted, clean)

        monkeypatch.setattr(sweeping._Sweep, "of", counted)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_the_grid_is_that_of_one_engine(
    engines: list[RemoteEngine], monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    alone = dj.sweep(engines[0], **ASKED, mode=mode)
    took = Took(monkeypatch)
    grid = dj.sweep(engines[0], beside=engines[1:], **ASKED, mode=mode)
    assert grid.values.tobytes() == alone.values.tobytes()
    assert (grid.columns(), grid.notes, grid.is_whole) == (alone.columns(), alone.notes, True)
    assert sorted(number for numbers in took.pairs.values() for number in numbers) == [0, 1, 2, 3, 4]
    assert len(took.pairs) == 2
    assert [engine.sessions() for engine in engines] == [(), ()]


def test_samples_of_noise_are_spread_too(engines: list[RemoteEngine]) -> None:
    asked: dict[str, Any] = {"clean": CLEAN, "site": "resid_post", "over": "layer", "metric": METRIC, "mode": "exact"}
    asked |= {"noise": dj.noise("0:2"), "samples": 4, "positions": [1]}
    over_both = dj.sweep(engines[0], beside=engines[1:], **asked)
    assert over_both.values.tobytes() == dj.sweep(engines[0], **asked).values.tobytes()


def test_the_pair_of_an_engine_that_is_lost_goes_to_another(
    engines: list[RemoteEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = dj.sweep(engines[0], **ASKED, mode="exact")
    took = Took(monkeypatch, lost=engines[1])
    grid = dj.sweep(engines[0], beside=engines[1:], **ASKED, mode="exact")
    assert grid.values.tobytes() == alone.values.tobytes()
    assert grid.notes[-1] == "An engine was lost, and another computed its pair: Its process has ended."
    assert sorted(took.pairs[id(engines[0])]) == [0, 1, 2, 3, 4]
    assert len(took.pairs[id(engines[1])]) == 1


def test_where_no_engine_is_left_the_finished_pairs_are_kept(
    engines: list[RemoteEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sweeping._Sweep.of

    def fails_later(sweep: Any, corrupted: object, clean: object) -> dj.Grid:
        if sweep.pair >= 2:
            raise EngineUnavailable("Its process has ended.")
        return plain(sweep, corrupted, clean)

    monkeypatch.setattr(sweeping._Sweep, "of", fails_later)
    with pytest.raises(SweepEnded, match=r"in pair 2: No engine is left to compute with\. Its") as ended:
        dj.sweep(engines[0], beside=engines[1:], **ASKED)
    assert (len(ended.value.grid.replies), ended.value.grid.missing) == (2, 3)
    monkeypatch.undo()
    whole = dj.sweep(engines[0], beside=engines[1:], **ASKED, so_far=ended.value.grid, mode="fast")
    assert np.array_equal(whole.values, dj.sweep(engines[0], **ASKED, mode="fast").values)


def test_a_pair_that_fails_ends_the_sweep_with_its_sentence(engines: list[RemoteEngine]) -> None:
    asked = {**ASKED, "corrupted": [CORRUPTED, OTHER, CORRUPTED, [1, 2], CLEAN]}
    with pytest.raises((SweepEnded, UsageError), match="token"):
        dj.sweep(engines[0], beside=engines[1:], **asked)
    assert [engine.sessions() for engine in engines] == [(), ()]


def test_an_interrupt_ends_the_pairs_under_way(engines: list[RemoteEngine]) -> None:
    begun, ended = threading.Barrier(3, timeout=20), threading.Event()

    class Endless:
        def run(self, engine: RemoteEngine, tell: Tell) -> int:
            begun.wait()
            tell(_interrupted)
            assert ended.wait(20)
            raise DjinnError("The session was closed.")

        def end(self) -> None:
            ended.set()

    def _interrupted() -> None:
        raise KeyboardInterrupt

    threading.Thread(target=begun.wait, daemon=True).start()
    outcome = spread(engines, [Endless(), Endless(), Endless()])
    assert (outcome.found, outcome.error, outcome.interrupted) == ({}, None, True)


def test_a_pair_whose_engine_is_lost_on_the_way_goes_to_another_too(
    engines: list[RemoteEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its cells were told: alone at one engine the sweep would end with these."""
    alone = dj.sweep(engines[0], **ASKED, mode="exact")
    Took(monkeypatch)
    counted = sweeping._Sweep.of

    def lost_on_the_way(sweep: Any, corrupted: object, clean: object) -> dj.Grid:
        grid = counted(sweep, corrupted, clean)
        if sweep.engine is engines[1]:
            raise SweepEnded("3 cells were finished.", grid) from EngineUnavailable("Its process has ended.")
        return grid

    monkeypatch.setattr(sweeping._Sweep, "of", lost_on_the_way)
    grid = dj.sweep(engines[0], beside=engines[1:], **ASKED, mode="exact")
    assert grid.values.tobytes() == alone.values.tobytes()
    assert grid.notes[-1].endswith("its pair: Its process has ended.")


def test_the_cells_of_the_pair_that_fails_are_kept(
    engines: list[RemoteEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sweeping._Sweep.of

    def fails(sweep: Any, corrupted: object, clean: object) -> dj.Grid:
        grid = plain(sweep, corrupted, clean)
        if sweep.pair == 0:
            raise SweepEnded("Some cells were finished: there is no memory.", grid)
        return grid

    monkeypatch.setattr(sweeping._Sweep, "of", fails)
    with pytest.raises(SweepEnded, match="in pair 0: Some cells were finished: there is no memory") as ended:
        dj.sweep(engines[0], beside=engines[1:], **ASKED)
    assert (len(ended.value.grid.replies), ended.value.grid.missing) == (1, 4)


def test_pairs_of_other_shapes_are_named_as_at_one_engine(engines: list[RemoteEngine]) -> None:
    asked = {**ASKED, "clean": [CLEAN, (1, *CLEAN)], "corrupted": [CORRUPTED, (1, *CORRUPTED)]}
    with pytest.raises(SweepEnded, match=r"in pair 1: its cells are \[3, 6\], and the first pair's \[3, 5\]") as ended:
        dj.sweep(engines[0], beside=engines[1:], **asked)
    assert len(ended.value.grid.replies) == 1


def test_an_error_of_any_kind_in_a_piece_ends_all(engines: list[RemoteEngine]) -> None:
    class Piece:
        def run(self, engine: RemoteEngine, tell: Tell) -> float:
            return 1 / 0

        def end(self) -> None: ...

    found = spread(engines, [Piece(), Piece(), Piece()])
    assert isinstance(found.error, ZeroDivisionError)
    assert found.failed in (0, 1)


def test_an_error_in_what_is_shown_ends_the_pieces_under_way(engines: list[RemoteEngine]) -> None:
    ended = threading.Event()

    class Piece:
        def run(self, engine: RemoteEngine, tell: Tell) -> None:
            tell(lambda: 1 / 0)
            assert ended.wait(20)

        def end(self) -> None:
            ended.set()

    with pytest.raises(ZeroDivisionError):
        spread(engines, [Piece(), Piece()])
    assert ended.is_set()


def test_all_that_was_told_is_shown(engines: list[RemoteEngine]) -> None:
    shown: list[int] = []

    class Piece:
        def __init__(self, number: int) -> None:
            self.number = number

        def run(self, engine: RemoteEngine, tell: Tell) -> int:
            for _ in range(100):
                tell(lambda: shown.append(self.number))
            return self.number

        def end(self) -> None: ...

    assert spread(engines, [Piece(n) for n in range(20)]).first == list(range(20))
    assert sorted(shown) == sorted(list(range(20)) * 100)


def test_progress_is_shown_by_the_thread_that_asked(engines: list[RemoteEngine]) -> None:
    shown = set()
    dj.sweep(
        engines[0],
        beside=engines[1:],
        **ASKED,
        on_progress=lambda grid, done, total: shown.add(threading.current_thread()),
    )
    assert shown == {threading.current_thread()}


def test_engines_that_differ_are_named(engines: list[RemoteEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    Took(monkeypatch)
    counted = sweeping._Sweep.of

    def with_threads(sweep: Any, corrupted: object, clean: object) -> dj.Grid:
        grid = counted(sweep, corrupted, clean)
        [reply] = grid.replies
        assert isinstance(reply, Swept)
        by = msgspec.structs.replace(reply.made.by, threads=engines.index(sweep.engine) + 1)
        return dj.Grid([msgspec.structs.replace(reply, made=msgspec.structs.replace(reply.made, by=by))])

    monkeypatch.setattr(sweeping._Sweep, "of", with_threads)
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
    with (
        reached(build_desk(build("gpt2", layers=2), tokenizer())) as [other],
        pytest.raises(UsageError, match="Work is spread over engines of one model; these serve"),
    ):
        dj.sweep(engines[0], beside=[other], **ASKED)


def test_a_collection_is_that_of_one_engine(
    engines: list[RemoteEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [list(range(1, 2 + n % 5)) for n in range(11)]
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
    assert sorted(number for numbers in at.values() for number in numbers) == [0, 1, 2, 3, 4, 5]
    assert len(at) == 2
    assert (acts.complete, len(acts), done[-1], max(done)) == (True, 11, 11, 11)
    for one, other in zip(alone.shards, acts.shards, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()


def test_a_collection_that_another_engine_would_refuse_begins_nowhere(
    engines: list[RemoteEngine], tmp_path: Path
) -> None:
    """Its module is at the first engine, which alone would write shards."""
    engines[0].add_module("sae", saes.saved(tmp_path / "sae", saes.drawn(32)), at="resid_post.1")
    asked: dict[str, Any] = {"to": tmp_path / "acts", "beside": engines[1:], "shard_prompts": 1}
    with pytest.raises(UnknownSite, match=r"An engine refuses the collection, so that none has begun it: .*sae"):
        engines[0].collect([[1, 2], [3, 4]], ["sae.1"], **asked)
    assert not (tmp_path / "acts").exists()
    assert [engine.sessions() for engine in engines] == [(), ()]


def test_a_collection_is_refused_where_a_module_of_that_name_is_another(
    engines: list[RemoteEngine], tmp_path: Path
) -> None:
    """Their shards would be no collection."""
    for number, engine in enumerate(engines):
        folder = saes.saved(tmp_path / f"sae {number}", saes.drawn(32, seed=number))
        engine.add_module("sae", folder, at="resid_post.1")
    asked: dict[str, Any] = {"to": tmp_path / "acts", "beside": engines[1:], "shard_prompts": 1}
    with pytest.raises(UsageError, match=r"its modules is \[\[\"sae\", .*, and that of the engine asked first \[\["):
        engines[0].collect([[1, 2], [3, 4]], ["sae.1"], **asked)
    assert not (tmp_path / "acts").exists()


def test_a_folder_in_which_an_engine_cannot_write_is_told_before_any_begins(
    engines: list[RemoteEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"to": tmp_path / "acts", "beside": engines[1:], "shard_prompts": 1}
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    said = r"An engine refuses the collection, so that none has begun it: .* could not be written: Permission denied"
    with pytest.raises(StorageFailed, match=said):
        engines[0].collect([[1, 2], [3, 4]], ["resid_post.1"], **asked)
    assert not (tmp_path / "acts").exists()


def test_pairs_that_another_engine_would_refuse_are_swept_nowhere(
    engines: list[RemoteEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines[0].add_module("sae", saes.saved(tmp_path / "sae", saes.drawn(32)), at="resid_post.1")
    monkeypatch.setattr(sweeping._Sweep, "of", lambda *lines: pytest.fail("a pair was swept"))
    asked = {**ASKED, "site": "sae.1", "over": "position"}
    with pytest.raises(UnknownSite, match=r"An engine refuses the sweep, so that none has begun it: .*sae"):
        dj.sweep(engines[0], beside=engines[1:], **asked)


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
