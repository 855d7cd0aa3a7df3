"""Many prompts in a pass: as near to each alone as it says, at every site, for families of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.passes.columns import batches_of
from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.errors import OutOfDeviceMemory, SlabFull
from djinn_jupyter.methods.datasets.engine import collection
from djinn_jupyter.methods.datasets.engine.batches import Batches, WantedRows
from djinn_jupyter.methods.datasets.engine.shard import Shard
from tests.engine.collecting.test_collections import LAYERS, PROMPTS, collected, values
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.families import build

FAMILIES = ("llama", "deepseek_v3", "opt")  # the others are among the kinds of `tests/engine/methods`
LONG = (*PROMPTS, tokens(20, seed=5), tokens(1, seed=6))
SITES = ("resid_pre.0", "resid_post.1", f"resid_post.{LAYERS - 1}", "mlp_out.2", "z.1")


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    yield desk
    desk.close_all()


def both(desk: Desk, folder: Path, **fields: Any) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    exact = values(collected(desk, folder / "exact", **fields))
    reply = collected(desk, folder / "fast", mode="fast", **fields)
    return reply, values(reply), exact


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_many_lengths_share_a_pass(family: str, tmp_path: Path) -> None:
    desk = desk_of(family, layers=LAYERS)
    desk.open("a")
    reply, fast, exact = both(desk, tmp_path, sites=SITES, positions=None, prompts=LONG)
    assert (reply.mode, reply.notes, len(reply.rechecked)) == ("fast", (), collection.RECHECKED)
    assert 0 <= reply.largest_difference < 2e-5
    assert torch.equal(fast["tokens"], exact["tokens"])
    for site in SITES:
        assert (fast[site] - exact[site]).abs().max() < 2e-5, site
    desk.close_all()


def test_prompts_share_a_pass_where_layers_read_the_keys_of_others(tmp_path: Path) -> None:
    desk, sites = desk_of("gemma4_text:shared"), ("resid_post.7", "k.4", "z.5", "z.7")
    desk.open("a")
    reply, fast, exact = both(desk, tmp_path, sites=sites, positions=None, prompts=LONG)
    assert (reply.mode, reply.notes) == ("fast", ())
    for site in sites:
        assert (fast[site] - exact[site]).abs().max() < 1e-4 * exact[site].abs().max(), site
    desk.close_all()


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(torch.bfloat16, "float32"), (torch.float32, "bfloat16")],
)
def test_values_stored_in_another_dtype_are_rechecked_within_the_rounding_of_both(
    dtype: torch.dtype, stored: str, tmp_path: Path
) -> None:
    desk = desk_of("llama", dtype, layers=LAYERS)
    desk.open("a")
    reply = collected(desk, tmp_path, mode="fast", sites=SITES, positions=None, prompts=LONG, dtype=stored)
    assert (reply.mode, reply.notes, len(reply.rechecked)) == ("fast", (), collection.RECHECKED)
    desk.close_all()


def test_sites_inside_layers_are_read_in_the_shared_pass(desk: Desk, tmp_path: Path) -> None:
    sites = ("embed", "q.1", "k.1", "v.1[0]", "q_rot.1", "mlp_pre.1", "mlp_post.1", "resid_mid.1")
    reply, fast, exact = both(desk, tmp_path, sites=sites, positions=(0, -1), prompts=PROMPTS)
    assert (reply.mode, reply.notes) == ("fast", ())
    for site in sites:
        assert fast[site].shape == exact[site].shape
        assert (fast[site] - exact[site]).abs().max() < 2e-5, site


def test_layers_above_the_last_site_are_not_run_and_batches_run_each_layer_once(desk: Desk, tmp_path: Path) -> None:
    collected(desk, tmp_path / "first", mode="fast")  # with the trial
    before = desk.engine.runtime.counters.layers_run
    collected(desk, tmp_path / "second", mode="fast")
    assert desk.engine.runtime.counters.layers_run - before == 2 + 2 * collection.RECHECKED


def test_a_family_whose_prompts_touch_each_other_is_found_and_each_is_run_alone(tmp_path: Path) -> None:
    model = build("llama", layers=LAYERS)
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, output: output + output.mean(0, keepdim=True))
    desk = build_desk(model)
    desk.open("a")
    reply, fast, exact = both(desk, tmp_path)
    assert (reply.mode, reply.largest_difference) == ("exact", None)
    assert "other values among others than alone" in reply.notes[0]
    assert torch.equal(fast["resid_post.1"], exact["resid_post.1"])
    desk.close_all()


def test_a_batch_that_finds_no_room_is_halved_until_it_does(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tuple(tokens(9, seed=seed) for seed in range(8))
    monkeypatch.setattr(Batches, "of", lambda self, prompts: iter([list(range(len(prompts)))]))
    collected(desk, tmp_path / "trial", mode="fast")
    monkeypatch.setattr(Batches, "held_bytes", lambda self, rows: rows * 1000)
    run, take, ran = Batches.run, Reservation.take, list[int]()

    def scarce(room: Reservation, size: int) -> Any:
        if size > 3 * 9 * 1000:
            raise SlabFull("no room")
        return (yield from take(room, size))

    monkeypatch.setattr(Reservation, "take", scarce)
    monkeypatch.setattr(Batches, "run", lambda self, some, *a, **b: ran.append(len(some)) or run(self, some, *a, **b))
    reply, fast, exact = both(desk, tmp_path, prompts=prompts)
    assert (reply.mode, reply.notes, ran) == ("fast", (), [2, 3, 3])
    assert (fast["resid_post.1"] - exact["resid_post.1"]).abs().max() < 2e-5


def test_no_device_memory_ends_a_collection_in_a_sentence_and_says_nothing_of_the_family(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, *batch: Any, **given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nAnd more lines")

    with monkeypatch.context() as patch:
        patch.setattr(Batches, "_called", full)
        with pytest.raises(OutOfDeviceMemory, match=r"Tried to allocate 2 GiB\. Close sessions"):
            collected(desk, tmp_path, mode="fast")
    assert desk.engine.budget.held()["collections"] == 0
    assert list(tmp_path.iterdir()) == []
    assert collected(desk, tmp_path, mode="fast").mode == "fast"


def test_a_family_with_recurrent_states_says_so_and_runs_each_alone(tmp_path: Path) -> None:
    desk = desk_of("mamba2", layers=LAYERS)
    desk.open("a")
    reply, fast, exact = both(desk, tmp_path)
    assert (reply.mode, reply.notes) == (
        "exact",
        ("Each prompt was run alone, for these cannot share a pass: its layers keep recurrent states.",),
    )
    assert torch.equal(fast["resid_post.1"], exact["resid_post.1"])
    desk.close_all()


def _twice(self: Shard, indices: Any, values: Any) -> None:
    put_many(self, [indices[0], *indices[:-1]], values)


def _shifted(self: Shard, indices: Any, values: Any) -> None:
    put_many(self, indices, {name: value.roll(1, 0) for name, value in values.items()})


put_many = Shard.put_many


def test_a_prompt_written_twice_is_found_before_anything_is_on_the_disk(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shard, "put_many", _twice)
    with pytest.raises(Exception, match="computed twice"):
        collected(desk, tmp_path, mode="fast")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_another_prompts_are_found_and_each_is_run_alone(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shard, "put_many", _shifted)
    reply, fast, exact = both(desk, tmp_path)
    assert (reply.mode, reply.largest_difference) == ("exact", None)
    assert "more than rounding" in reply.notes[0]
    assert torch.equal(fast["resid_post.1"], exact["resid_post.1"])


def test_the_same_request_gives_the_same_bytes(desk: Desk, tmp_path: Path) -> None:
    one = collected(desk, tmp_path / "one", mode="fast", prompts=LONG)
    other = collected(desk, tmp_path / "other", mode="fast", prompts=LONG)
    assert Path(one.path).read_bytes() == Path(other.path).read_bytes()


def together(length: int) -> int:
    return 0


def test_lengths_that_are_not_alike_run_apart() -> None:
    assert list(batches_of([3, 9, 1, 9, 4], 99, lambda length: length > 3)) == [[1, 3, 4], [0, 2]]


def test_batches_are_sorted_by_length_and_bounded_with_what_fills_them_up() -> None:
    lengths = [3, 9, 1, 9, 4]
    assert list(batches_of(lengths, 18, together)) == [[1, 3], [4, 0, 2]]
    assert list(batches_of(lengths, 1, together)) == [[1], [3], [4], [0], [2]]
    assert sorted(n for batch in batches_of(lengths, 10, together) for n in batch) == [0, 1, 2, 3, 4]


def test_wanted_rows_count_prompts_and_positions() -> None:
    wanted = WantedRows.of([(1, 2, 3), (4,)], [[2, 0], None], torch.device("cpu"))
    assert (wanted.lines.tolist(), wanted.positions.tolist(), wanted.length) == ([0, 0, 1], [2, 0, 0], 3)
