"""A sweep's cells are those of plain hooks on the plain model, and faults of the shared pass are found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.passes import wavefront
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.wavefront import CallSize, Wavefront
from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import (
    OutOfDeviceMemory,
    SlabFull,
)
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.methods.sweep.engine import sweep as sweeps
from djinn_jupyter.methods.sweep.request import Sweep, SweepProgressed, Swept
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Zero
from tests.engine.desk import ME, Desk, build_desk, desk_of, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.families import build

LAYERS = 4
CORRUPTED = tokens(12)
CLEAN = (*CORRUPTED[:5], *tokens(12, seed=2)[5:])  # the first five positions are the same
A, B = 17, 42
METRIC = f"logit({A}) - logit({B})"
GRID = ("layer", "position")


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


def swept(desk: Desk, **fields: Any) -> Any:
    desk.open("a")
    asked = {"corrupted": CORRUPTED, "clean": CLEAN, "site": "resid_post", "over": GRID, "metrics": (METRIC,)}
    return desk.ask(Sweep(session="a", **{**asked, **fields}))


def values(reply: Any) -> Tensor:
    assert isinstance(reply, Swept), reply
    return to_tensor(reply.measured[0].values)


@pytest.mark.parametrize(("family", "packs"), [("gpt2", True), ("bloom", False)])
def test_lines_of_all_starts_share_a_call_where_attention_is_looked_up(
    family: str, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(family, layers=LAYERS)
    calls: list[int] = []
    call = Wavefront._called
    monkeypatch.setattr(
        Wavefront, "_called", lambda self, layer, some: calls.append(len(some)) or call(self, layer, some)
    )
    monkeypatch.setattr(CallSize, "note", lambda *call: None)  # a slow machine would run lines singly
    assert swept(desk).mode == "fast"
    assert (max(calls) > 2) == packs
    desk.close_all()


@pytest.mark.parametrize("family", ["gemma2", "granite"])  # soft-capped, scaled
def test_a_metric_of_a_few_tokens_needs_their_columns_of_the_head_alone(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(family, layers=LAYERS)
    asked: list[int] = []
    lens = Forward.shared_lens
    monkeypatch.setattr(Forward, "shared_lens", lambda self, *rows: asked.append(len(rows)) or lens(self, *rows))
    few, all_of_them = swept(desk), values(swept(desk, mode="exact"))
    assert asked[-1] == 2
    assert (values(few) - all_of_them).abs().max() < 2e-5
    swept(desk, metrics=(f"prob({A}) - prob({B})",))
    assert asked[-1] == 1
    desk.close_all()


def test_a_family_whose_lines_touch_each_other_is_found_and_computed_a_cell_at_a_time() -> None:
    model = build("llama", layers=LAYERS)
    desk = build_desk(model)
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, output: output + output.mean((0, 1)))
    reply = swept(desk)
    assert reply.mode == "exact"
    assert "other values among others than alone" in reply.notes[0]
    assert torch.equal(values(reply), values(swept(desk, mode="exact")))
    desk.close_all()


def test_an_exact_cell_has_the_bits_of_the_same_edit_at_a_stop(desk: Desk) -> None:
    reply = swept(desk, site="z", over=("layer", "head"), edit=Zero(), clean=None, mode="exact", metrics=("logit(17)",))
    desk.open("b")
    desk.stop_at("z.2", name="b")
    desk.run(CORRUPTED, 0, "b")
    desk.edit(Zero(), "b", site="z.2[3]")
    desk.resume("b")
    assert float(values(reply)[2, 3]) == float(desk.logits("b")[A])
    assert reply.measured[0].clean is None


def test_cells_that_the_edit_leaves_as_they_are_are_not_computed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[int] = []
    whole = sweeps.SweepJob._run_chunk

    def counted(self: Any, room: Any, front: Any, lines: Any, found: Any) -> Any:
        yield from whole(self, room, front, lines, found)
        run.append(front.rows_run)

    monkeypatch.setattr(sweeps.SweepJob, "_run_chunk", counted)
    reply = swept(desk)
    after = range(5, 12)
    assert reply.computed == (LAYERS - 1) * len(after) + 1  # behind the last layer only the last position counts
    assert run == [sum(12 - start for start in after) * sum(range(LAYERS))]
    assert (values(reply)[:, :5] == reply.measured[0].corrupted).all()
    assert values(reply)[-1, -1] == pytest.approx(reply.measured[0].clean, abs=2e-5)


# --- beside others ---------------------------------------------------------------------------------------------------


def begun(desk: Desk, mode: Any = "exact") -> list[Any]:
    """A sweep that has some cells, in a session such as dj.sweep opens."""
    if "a" in desk.engine.sessions:
        desk.close("a")
    desk.ask(ask.Open(session="a", temporary=True))
    desk.events.clear()
    replies: list[Any] = []
    asked = Sweep(
        session="a", corrupted=CORRUPTED, clean=CLEAN, site="resid_post", over=GRID, metrics=(METRIC,), mode=mode
    )
    desk.post(asked, replies)
    while not progress(desk):
        assert desk.engine.tick()
    assert not replies
    return replies


def progress(desk: Desk) -> list[SweepProgressed]:
    return [event for event in desk.events if isinstance(event, SweepProgressed)]


def test_closing_its_session_ends_a_sweep_and_its_finished_cells_are_right(desk: Desk) -> None:
    expected = values(swept(desk, mode="exact")).reshape(-1)
    replies = begun(desk)
    desk.close("a")
    assert replies[0].message == "Session 'a' was closed."
    cells = {n: v for event in progress(desk) for n, v in zip(event.cells, event.values, strict=True)}
    assert 0 < len(cells) < expected.numel()
    assert all(value == (float(expected[number]),) for number, value in cells.items())
    desk.settle()
    assert desk.engine.budget.held()["sweeps"] == 0


def test_a_sweep_ends_with_its_holder_and_its_session_is_in_no_journal(desk: Desk, tmp_path: Path) -> None:
    journal(desk, tmp_path / "alive")
    desk.open("b")
    replies = begun(desk)
    written(desk)
    after = build_desk(build("llama", layers=LAYERS))
    assert journal(after, crashed(tmp_path / "alive", tmp_path / "crashed")) == ("b",)
    desk.engine.lose_holder(ME)
    while not replies:
        assert desk.engine.tick()
    assert replies[0].message == "Session 'a' was closed."
    assert list(desk.engine.sessions) == ["b"]
    forget(after)
    forget(desk)


@pytest.mark.parametrize(("site", "over", "mode"), [("resid_post", GRID, "exact"), ("z", ("layer", "head"), "fast")])
def test_a_sweep_closed_at_any_tick_gives_its_memory_back(desk: Desk, site: str, over: Any, mode: Any) -> None:
    asked = {"corrupted": CORRUPTED, "clean": CLEAN, "site": site, "over": over, "metrics": (METRIC,), "mode": mode}
    replies: list[Any] = []
    ticks = 0
    while not any(isinstance(reply, Swept) for reply in replies):
        replies.clear()
        desk.open("a")
        desk.post(Sweep(session="a", **asked), replies)
        for _ in range(ticks):
            desk.engine.tick()
        desk.close("a")
        assert len(replies) == 1
        assert desk.engine.budget.held()["sweeps"] == 0
        desk.engine.budget.check()
        ticks += 5
    assert ticks > 15


def test_others_run_while_a_sweep_is_under_way(desk: Desk) -> None:
    desk.open("b")
    alone = desk.outcome(desk.run(tokens(9), 3, "b"), "b")
    replies = begun(desk)
    assert desk.outcome(desk.run(tokens(9), 3, "b"), "b") == alone
    assert not replies  # the run was through before the sweep
    while not replies:
        assert desk.engine.tick()
    assert torch.equal(values(replies[0]), values(swept(desk, mode="exact")))


def test_a_sweep_without_memory_is_refused_and_holds_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Reservation.take
    monkeypatch.setattr(Reservation, "take", lambda room, size: take(room, 2**50 if room.held else size))
    with pytest.raises(SlabFull, match=r"Asked for .* free"):
        swept(desk)
    desk.settle()
    assert desk.engine.budget.held()["sweeps"] == 0


def test_a_chunk_that_finds_no_room_is_halved_until_it_does(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, take, refused = values(swept(desk, mode="exact")), Reservation.take, []
    most = 40_000

    def scarce(room: Reservation, size: int) -> Any:
        if room.held and size > most:
            refused.append(size)
            raise SlabFull("no room")
        return (yield from take(room, size))

    monkeypatch.setattr(Reservation, "take", scarce)
    reply = swept(desk)
    assert refused
    assert (reply.mode, reply.notes) == ("fast", ())
    assert (values(reply) - expected).abs().max() < 2e-5


def test_the_tensors_of_both_lines_are_in_the_budget_before_they_exist(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    run, take = LinesAlone.run, Reservation.take

    def noted(self: Any, *args: Any, **given: Any) -> Any:
        asked.append(desk.engine.budget.held()["sweeps"])
        line = yield from run(self, *args, **given)
        assert line.nbytes <= desk.engine.budget.held()["sweeps"]
        return line

    swept(desk)  # the family's test is over
    monkeypatch.setattr(LinesAlone, "run", noted)
    monkeypatch.setattr(Reservation, "take", lambda room, size: asked.append(-size) or take(room, size))
    swept(desk)
    assert len([size for size in asked if size > 0]) == 2
    assert asked[0] < 0 < asked[1]


def test_no_device_memory_ends_a_sweep_and_says_nothing_of_the_family(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, lines: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(Wavefront, "run", full)
        with pytest.raises(OutOfDeviceMemory, match=r"Tried to allocate 2 GiB\. Close sessions"):
            swept(desk)
    assert desk.engine.budget.held()["sweeps"] == 0
    assert swept(desk).mode == "fast"


def test_keys_joined_for_a_call_are_bounded_and_masks_are_not_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    fronts, lines = [], []
    begin, call = Wavefront.__init__, Wavefront._called

    def begun(self: Any, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        fronts.append(self)

    def called(self: Any, layer: int, some: Any) -> Any:
        lines.append(sum(one.rows_BnD.shape[0] for one in some))
        return call(self, layer, some)

    monkeypatch.setattr(Wavefront, "__init__", begun)
    monkeypatch.setattr(Wavefront, "_called", called)
    expected = values(swept(desk))
    assert max(lines) > 2
    line = fronts[-1].joined_bytes(1)
    assert (line, fronts[-1].joined_bytes(3)) == (fronts[-1].base.nbytes // LAYERS, 3 * line)
    lines.clear()
    monkeypatch.setattr(wavefront, "MOST_JOINED", 2 * line)
    assert (values(swept(desk)) - expected).abs().max() < 2e-5
    assert max(lines) == 2
    assert not fronts[-1]._calls


def test_a_sweep_yields_after_some_cells_though_none_is_computed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "COMPARED", 1)
    desk.open("a")
    replies: list[Any] = []
    asked = {"corrupted": CORRUPTED, "clean": CORRUPTED, "site": "resid_post", "over": GRID, "metrics": (METRIC,)}
    desk.post(Sweep(session="a", **asked), replies)
    ticks = 0
    while not replies:
        assert desk.engine.tick()
        ticks += 1
    assert replies[0].computed == 0
    assert ticks >= LAYERS * len(CORRUPTED)


def test_a_line_may_be_that_of_a_session(desk: Desk) -> None:
    desk.open("in/b.ipynb")
    desk.run(CLEAN, 0, "in/b.ipynb")
    desk.steer("resid_post.1", Zero(), "in/b.ipynb")
    reply = swept(desk, clean="in/b.ipynb", mode="exact")
    assert torch.equal(values(reply), values(swept(desk, mode="exact")))
    assert reply.notes == ("The rules and edits of session 'b' are no part of the sweep: it runs the tokens alone.",)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_the_grid_fills_coarse_first(desk: Desk, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "CHUNK_ROWS", 64)
    desk.events.clear()
    clean = tokens(12, seed=2)  # every position differs
    swept(desk, clean=clean, mode=mode)
    told_in_order = [number for event in progress(desk) for number in event.cells]
    assert sorted(told_in_order) == list(range(LAYERS * 12))
    places = [divmod(number, 12) for number in told_in_order]
    assert places[0] == (0, 0)
    assert mode == "fast" or all(position % 4 == 0 for _, position in places[:12])
    assert {(0, 8), (2, 0), (2, 8)} < set(places[:12])
    assert len(progress(desk)) > 3
