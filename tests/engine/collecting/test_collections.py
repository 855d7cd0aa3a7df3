"""A collection's values are those of plain hooks on the plain model; whole shards stay, whatever happens."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter import files
from djinn_jupyter.errors import (
    IllegalMove,
    InvalidEdit,
    PromptTooLong,
    SlabFull,
    StorageFailed,
    UnknownSite,
    UsageError,
)
from djinn_jupyter.methods.datasets.engine.collection import Collecting
from djinn_jupyter.methods.datasets.engine.shard import Shard
from djinn_jupyter.methods.datasets.request import Collect, Collected
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from tests.device import DEVICE
from tests.engine.collecting import plain_collection
from tests.engine.desk import ME, Desk, desk_of, tokens
from tests.engine.plain import plain_of

LAYERS = 4
PROMPTS = tuple(tokens(length, seed=length) for length in (7, 3, 12, 7))


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("a")
    yield desk
    desk.close_all()


def collected(desk: Desk, folder: Path, **fields: Any) -> Any:
    asked = {"shard": 0, "first": 0, "last": True, "prompts": PROMPTS, "sites": ("resid_post.1",), "positions": (-1,)}
    asked["mode"] = "exact"
    return desk.ask(Collect(session="a", folder=str(folder), **{**asked, **fields}))


def values(reply: Any) -> dict[str, torch.Tensor]:
    assert isinstance(reply, Collected), reply
    return plain_collection.read(Path(reply.path))[0]


def test_values_have_the_bits_of_plain_hooks_on_the_plain_model(tmp_path: Path) -> None:
    """Of recurrent states; other families are held to hooks in `tests/engine/methods`."""
    desk = desk_of("mamba2", layers=LAYERS)
    desk.open("a")
    sites = ("resid_post.0", f"resid_post.{LAYERS - 1}")
    found = values(collected(desk, tmp_path, sites=sites, positions=None))
    plain = [plain_collection.residuals(plain_of("mamba2", layers=LAYERS), prompt) for prompt in PROMPTS]
    assert torch.equal(found[sites[0]], torch.cat([layers[0] for layers in plain]))
    assert torch.equal(found[sites[1]], torch.cat([layers[-1] for layers in plain]))
    assert found[sites[0]].dtype == plain[0][0].dtype
    assert found["tokens"].tolist() == [token for prompt in PROMPTS for token in prompt]
    assert found["starts"].tolist() == [0, 7, 10, 22, 29]
    desk.close_all()


def test_chosen_positions_heads_and_a_dtype(desk: Desk, tmp_path: Path) -> None:
    found = values(collected(desk, tmp_path, sites=("resid_post.1", "z.2[1]"), positions=(0, -1), dtype="bfloat16"))
    plain = [plain_collection.residuals(plain_of("llama", layers=LAYERS), prompt)[1][[0, -1]] for prompt in PROMPTS]
    assert torch.equal(found["resid_post.1"], torch.stack(plain).to(torch.bfloat16))
    assert found["z.2[1]"].shape[:3] == (4, 2, 1)


@pytest.mark.parametrize(
    ("sites", "layers"),
    [
        (("embed",), 0),
        (("resid_post.1",), 2),
        (("resid_pre.2", "resid_post.0"), 2),
        (("z.1",), 1),
        (("z.1", "mlp_out.1"), 2),
        (("resid_post.3",), 4),
        (("ln_final",), 4),
    ],
)
def test_layers_above_the_last_site_are_not_run(
    desk: Desk, tmp_path: Path, sites: tuple[str, ...], layers: int
) -> None:
    before = desk.engine.runtime.counters.layers_run
    collected(desk, tmp_path, sites=sites)
    assert desk.engine.runtime.counters.layers_run - before == layers * len(PROMPTS)


def test_a_shard_that_is_there_is_not_computed_again(desk: Desk, tmp_path: Path) -> None:
    first = collected(desk, tmp_path)
    before = desk.engine.runtime.counters.layers_run
    again = collected(desk, tmp_path)
    assert (first.existed, again.existed) == (False, True)
    assert desk.engine.runtime.counters.layers_run == before
    assert again.bytes_stored == first.bytes_stored == Path(first.path).stat().st_size


def test_a_request_that_ends_while_the_shard_is_computed_leaves_whole_shards_and_nothing_else(
    desk: Desk, tmp_path: Path
) -> None:
    """The next one, after a kill too, goes on behind them: the folder is the same to the bit."""
    for shard in range(2):
        collected(desk, tmp_path / "whole", shard=shard, first=4 * shard, last=shard == 1)
    collected(desk, tmp_path / "cut", shard=0, first=0, last=False)
    replies: list[Any] = []
    cut = Collect(
        session="a",
        folder=str(tmp_path / "cut"),
        shard=1,
        first=4,
        last=True,
        prompts=PROMPTS,
        sites=("resid_post.1",),
        positions=(-1,),
        mode="exact",
    )
    desk.post(cut, replies)
    desk.engine.tick()
    desk.close("a")
    assert isinstance(replies[0], told.Failed)
    (tmp_path / "cut" / ".shard-00001.safetensors.killed.part").write_bytes(b"half")
    desk.open("a")
    assert not collected(desk, tmp_path / "cut", shard=1, first=4).existed
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_prompt_put_in_twice_and_one_left_out_are_found() -> None:
    shard = Shard(((1, 2), (3,)), None)
    shard.put(0, {"z.1": torch.zeros(2, 4)})
    with pytest.raises(RuntimeError, match="prompt 0 of the shard was computed twice"):
        shard.put(0, {"z.1": torch.zeros(2, 4)})
    with pytest.raises(RuntimeError, match="prompt 1 of the shard was not computed"):
        shard.whole()


def test_a_shard_written_in_the_place_of_another_is_found(desk: Desk, tmp_path: Path) -> None:
    written = Path(collected(desk, tmp_path, last=False).path)
    written.with_name("shard-00001.safetensors").write_bytes(written.read_bytes())
    with pytest.raises(UsageError, match="shard: 0 there, 1 here"):
        collected(desk, tmp_path, shard=1, first=4)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompts": (*PROMPTS[:3], tokens(7, seed=8))}, "has other prompts than these"),
        ({"sites": ("resid_post.2",)}, r'\(sites: \["resid_post.1"\] there, \["resid_post.2"\] here\)'),
        ({"positions": None}, "positions: .* there, null here"),
        ({"dtype": "float16"}, "dtype: null there"),
        ({"last": False}, "last: true there"),
    ],
)
def test_a_folder_of_another_collection_is_left_as_it_is(
    desk: Desk, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    collected(desk, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=said):
        collected(desk, tmp_path, **fields)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("damage", "error", "said"),
    [
        (lambda file: file[:-5], StorageFailed, "delete it and collect again"),
        (lambda file: file[:40], UsageError, "is no shard of a collection"),
        (lambda file: b"", UsageError, "is no shard of a collection"),
        (lambda file: b"\xff" * 64, UsageError, "is no shard of a collection"),
        (lambda file: (16).to_bytes(8, "little") + b'{"__metadata__":1}', UsageError, "is no shard of a collection"),
    ],
)
def test_a_damaged_shard_is_refused(desk: Desk, tmp_path: Path, damage: Any, error: Any, said: str) -> None:
    path = Path(collected(desk, tmp_path).path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(error, match=said):
        collected(desk, tmp_path)


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"sites": ("resid_past.1",)}, UnknownSite, "resid_past"),
        ({"sites": ("resid_post.9",)}, UnknownSite, "layer"),
        ({"sites": ("pattern.1",)}, UnknownSite, "a row for each pair of positions"),
        ({"sites": ("logits",)}, UnknownSite, "logits='all'"),
        ({"sites": ("z.1", "z.1")}, UsageError, "named twice"),
        ({"positions": (5,)}, InvalidEdit, "Prompt 1 .* has 3 tokens, and so no position 5"),
        ({"prompts": (*PROMPTS, (1, 128)), "first": 8}, UsageError, "Prompt 12 .* token id 128"),
        ({"prompts": (PROMPTS[0] * 100,)}, PromptTooLong, "Prompt 0 .* has 700 tokens and the model"),
        ({"folder": "acts"}, UsageError, "full path"),
    ],
)
def test_what_cannot_be_collected_is_refused_in_a_sentence_and_nothing_is_written(
    desk: Desk, tmp_path: Path, fields: dict[str, Any], error: Any, said: str
) -> None:
    with pytest.raises(error, match=said):
        collected(desk, **{"folder": tmp_path / "acts", **fields})
    assert not (tmp_path / "acts").exists()


def test_a_session_with_a_line_of_its_own_is_not_collected_in(desk: Desk, tmp_path: Path) -> None:
    desk.run(PROMPTS[0], 0)
    with pytest.raises(IllegalMove, match="collect in an empty one"):
        collected(desk, tmp_path)


def test_a_full_disk_is_one_sentence_and_leaves_no_half_of_a_shard(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected(desk, tmp_path, last=False)
    before = contents(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "force", full)
        with pytest.raises(StorageFailed, match=r"No space left on device\. Shards that are whole stay"):
            collected(desk, tmp_path, shard=1, first=4)
    assert contents(tmp_path) == before
    assert not collected(desk, tmp_path, shard=1, first=4).existed


def test_a_folder_that_cannot_be_made_is_one_sentence(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageFailed, match="Not a directory"):
        collected(desk, tmp_path / "file" / "acts")


def test_memory_of_the_shard_is_in_the_budget_and_given_back(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard lies on the host, and in the budget where the host is the device."""
    held: list[int] = []
    tell = Collecting._tell

    def told_(self: Collecting, done: int) -> None:
        held.append(desk.engine.budget.taken)
        tell(self, done)

    monkeypatch.setattr(Collecting, "_tell", told_)
    collected(desk, tmp_path, positions=None)
    on_device = 29 * desk.engine.forward.anatomy.hidden_size * 4 if DEVICE.type == "cpu" else 0
    assert held[0] - desk.engine.budget.taken == on_device


def test_a_shard_without_room_names_the_remedy_and_holds_nothing(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a shard lies on the host."""
    monkeypatch.setattr(Shard, "bytes_for", lambda shard, values: 2**50)
    said = r"Asked for .* have fewer prompts in each, by shard_prompts"
    with pytest.raises(SlabFull, match=said) if DEVICE.type == "cpu" else nullcontext():
        collected(desk, tmp_path, positions=None)
    desk.settle()
    assert desk.engine.budget.held()["collections"] == 0


def test_others_are_answered_between_two_prompts(desk: Desk, tmp_path: Path) -> None:
    replies: list[Any] = []
    desk.post(
        Collect(
            session="a",
            folder=str(tmp_path),
            shard=0,
            first=0,
            last=True,
            prompts=PROMPTS * 8,
            sites=("resid_post.3",),
            mode="exact",
        ),
        replies,
    )
    desk.engine.tick()
    desk.engine.submit(ask.Open(session="b"), ME, replies.append)
    while not replies:
        desk.engine.tick()
    assert isinstance(replies[0], told.Opened)
    while len(replies) < 2:
        desk.engine.tick()
    assert isinstance(replies[1], Collected)
