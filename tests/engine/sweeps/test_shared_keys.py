"""Layers that read the keys and values of others share passes too: each line's own, beside those of the base."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.passes import wavefront
from djinn_jupyter.engine.passes.sections import Handing, MappingWatch, NotPacked, SharedEntry, first_other_keys
from djinn_jupyter.engine.passes.wavefront import Wavefront
from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.errors import DjinnError, UnknownSite
from djinn_jupyter.wire.edits import Zero
from djinn_jupyter.wire.sites import Site
from tests.engine.desk import Desk, build_desk, desk_of
from tests.engine.sweeps import plain_sweep
from tests.engine.sweeps.test_paths import paths
from tests.engine.sweeps.test_recheck import falls_back
from tests.engine.sweeps.test_sweeps import CLEAN, CORRUPTED, A, B, swept, values
from tests.families import build

pytestmark = pytest.mark.drawn

FAMILY = "gemma4_text:shared"  # layers 5 to 7 read the keys of layer 2 or, within a window, of layer 4
STREAMS = "gemma3n_text"  # layers 6 and 7 read those of layers below, and there are two residual streams
POSITIONS = (3, 7, 11)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of(FAMILY)
    yield desk
    desk.close_all()


def test_a_sweep_is_that_of_plain_hooks() -> None:
    """Where there are streams too; the other family is among those of `tests/engine/methods`."""
    model = build(STREAMS)
    plain = plain_sweep.patched(model, CLEAN, CORRUPTED, A, B, positions=POSITIONS)
    expected = torch.tensor(list(plain.values()), dtype=torch.float64).reshape(-1, len(POSITIONS))
    desk = build_desk(model)
    exact, fast = (swept(desk, positions=POSITIONS, mode=mode) for mode in ("exact", "fast"))
    assert torch.equal(values(exact), expected)
    assert (fast.mode, fast.notes) == ("fast", ())
    assert (values(fast) - expected).abs().max() <= 2e-5
    desk.close_all()


@pytest.mark.parametrize(
    "asked",
    [
        {"site": "k.4", "over": ("position", "head")},
        {"site": "v.2", "over": ("position", "head")},
        {"site": "k.4", "over": ("position",), "clean": None, "edit": Zero()},
        {"site": "attn_in", "positions": POSITIONS},
        {"site": "attn_in", "windows": (("layer", 3), ("position", 2)), "positions": POSITIONS},
        {"site": "z", "over": ("layer",), "in_pairs": True},
        {"site": "resid_post", "windows": (("layer", 3),), "positions": POSITIONS},
        {"site": "resid_post", "in_pairs": True, "positions": (7,)},
    ],
    ids=["keys", "values", "zeroed keys", "reads", "windows of reads", "pairs of layers", "windows", "pairs"],
)
def test_what_a_layer_hands_on_is_each_lines_own(desk: Desk, asked: dict[str, Any]) -> None:
    exact, fast = (swept(desk, mode=mode, **asked) for mode in ("exact", "fast"))
    assert (fast.mode, fast.notes) == ("fast", ())
    assert (values(fast) - values(exact)).abs().max() < 2e-5


def test_lines_that_read_what_was_handed_to_others_are_found_by_the_recheck(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = values(swept(desk, mode="exact"))
    swept(desk)
    leave = wavefront._Group.leave

    def crossed(self: Any, *left: Any) -> None:
        leave(self, *left)
        self.shared = {entry: (keys.roll(1, 0), kept) for entry, (keys, kept) in self.shared.items()}

    monkeypatch.setattr(wavefront._Group, "leave", crossed)
    falls_back(swept(desk), expected)


def test_keys_that_are_kept_for_layers_above_are_in_the_budget(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, held, take, leave = list[int](), list[int](), Reservation.take, wavefront._Group.leave

    def left(self: Any, *given: Any) -> None:
        leave(self, *given)
        held.append(sum(rows.nbytes for pair in self.shared.values() for rows in pair))

    swept(desk)
    monkeypatch.setattr(Reservation, "take", lambda room, size: taken.append(size) or take(room, size))
    monkeypatch.setattr(wavefront._Group, "leave", left)
    swept(desk, positions=(5,))
    with_keys = taken[-1]
    monkeypatch.setattr(Wavefront, "shared_bytes", lambda *rows: 0)
    swept(desk, positions=(5,))
    assert with_keys - taken[-1] >= 2 * max(held) > 0


def test_paths_are_computed_alone_and_say_so(llama: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family whose layers hand keys on, with a point for what each of its blocks adds: none of today's has both."""
    monkeypatch.setattr(Anatomy, "mappings", ("shared",))
    exact, fast = (paths(llama, "q.7[0]", mode=mode) for mode in ("exact", "fast"))
    assert fast.mode == "exact"
    assert "its layers read the keys of others, which paths do not hand on" in fast.notes[0]
    assert torch.equal(values(fast), values(exact))


def test_layers_of_three_blocks_have_no_point_between_two_and_no_paths(desk: Desk) -> None:
    """Attention, MLP and the inputs by layer each add to the residual: the last is no MLP."""
    for point in ("resid_mid", "mlp_in", "mlp_out", "mlp_out_post"):
        with pytest.raises(UnknownSite, match=rf"There is no {point}\.2 here"):
            desk.engine.forward.anatomy.resolve(Site(point=point, layer=2))
    with pytest.raises(DjinnError, match=r"layer 0 cannot be frozen: There is no mlp_out\.0 here"):
        paths(desk, "q.7[0]")


def test_what_is_handed_on_is_known_by_what_attention_gets() -> None:
    keys, kept, more = torch.zeros(3), torch.ones(3), torch.ones(2)
    mapping: dict[str, Any] = {}
    watch = MappingWatch(((), {"shared": mapping}), ["shared"])
    with pytest.raises(NotPacked, match="layer 5 attends to keys that no layer hands on"):
        watch.seen(5, (keys, kept), own=False)
    mapping["full"] = (keys, kept)
    assert watch.seen(2, (keys, kept), own=True) == Handing(made=(SharedEntry("shared", "full"),))
    reading = MappingWatch(((), {"shared": mapping}), ["shared"])
    assert reading.seen(5, (keys, kept), own=False) == Handing(read=SharedEntry("shared", "full"))
    mapping["other"] = more
    with pytest.raises(NotPacked, match="layer 3 hands on more than its keys and values"):
        reading.seen(3, (keys, kept), own=True)


def test_the_first_position_with_other_keys_or_values_is_found() -> None:
    base: tuple[Tensor, Tensor] = (torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 5, 4))
    keys, kept = base[0].clone(), base[1].clone()
    keys[0, 1, 3, 0], kept[0, 0, 2, 1] = 1.0, 1.0
    assert first_other_keys((keys, base[1]), base) == 3
    assert first_other_keys((keys, kept), base) == 2
    assert first_other_keys(base, base) is None
