"""Paths are those of plain hooks on the plain model, where every block between is frozen by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.methods.paths.engine import path_sweep
from djinn_jupyter.methods.paths.engine.path_lines import PathLines
from djinn_jupyter.methods.sweep.request import Sweep
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Set, Zero
from tests.device import DEVICE
from tests.engine.desk import Desk, array, build_desk, desk_of, tokens
from tests.engine.plain import plain_of
from tests.engine.sweeps.plain_paths import PlainPaths
from tests.engine.sweeps.test_sweeps import CLEAN, CORRUPTED, LAYERS, METRIC, A, values
from tests.engine.variants import two_ropes

pytestmark = pytest.mark.drawn

QUERIES = (("q", 2, 0), ("q", 3, 1), ("q", 3, 2))  # in two layers
MLP = (("mlp_in", 2, None),)
END = (("end", LAYERS - 1, None),)
SPELLED = {QUERIES: ("q.2[0]", "q.3[1,2]"), MLP: ("mlp_in.2",), END: ("logits",)}


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


def paths(desk: Desk, *receivers: str, **fields: Any) -> Any:
    desk.open("a")
    asked = {"corrupted": CORRUPTED, "clean": CLEAN, "site": "z", "over": ("layer", "head"), "metrics": (METRIC,)}
    return desk.ask(Sweep(session="a", receivers=receivers, **{**asked, **fields}))


def by_hand(family: str, receivers: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return cells_of(PlainPaths(plain_of(family, dtype, layers=LAYERS), family, CORRUPTED, CLEAN), receivers)


def cells_of(plain: PlainPaths, receivers: Any) -> torch.Tensor:
    cells = [[plain.metric((layer, head), receivers) for head in range(4)] for layer in range(LAYERS)]
    return torch.tensor(cells, dtype=torch.float64)


@pytest.mark.parametrize(
    ("family", "receivers"),
    [
        ("llama", QUERIES),  # keys shared by groups of heads
        ("gpt2", QUERIES),  # queries, keys and values in one projection
        ("gpt_neox", MLP),  # attention and MLP side by side
        ("gemma2", QUERIES),  # a norm behind each block
        ("gemma2", MLP),
        ("bloom", END),  # distances as a bias; the blocks add the residual themselves
        ("mistral", QUERIES),  # windows
        ("mistral", END),
        ("gemma3_text", QUERIES),  # windows beside full attention
        ("mixtral", MLP),  # experts
        ("cohere", MLP),  # attention and MLP side by side behind one norm
        ("olmo2", MLP),  # norms behind the blocks alone
        ("qwen3", QUERIES),  # norms of queries and keys
        ("starcoder2", QUERIES),  # norms that shift
        ("gpt_bigcode", MLP),  # one key for all heads
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_exact_has_the_bits_of_plain_hooks_and_fast_is_as_near_as_it_says(
    family: str, receivers: Any, dtype: torch.dtype
) -> None:
    desk = desk_of(family, dtype, layers=LAYERS)
    plain = by_hand(family, receivers, dtype)
    alone, together = (paths(desk, *SPELLED[receivers], mode=mode) for mode in ("exact", "fast"))
    most = 2e-5 if dtype == torch.float32 else together.measured[0].tolerance
    assert torch.equal(values(alone), plain)
    assert (together.mode, together.notes) == ("fast", ())
    assert (values(together) - plain).abs().max() <= most
    assert 0 <= together.measured[0].largest_difference <= most
    assert values(together).std() > 1e-4  # the paths do something
    assert together.receivers == (("resid_post.3",) if receivers is END else SPELLED[receivers])
    desk.close_all()


@pytest.mark.parametrize(
    ("receivers", "dtype"), [(QUERIES, torch.float32), (MLP, torch.bfloat16), (END, torch.float32)]
)
def test_lines_that_have_a_long_rotary_s_other_frequencies(receivers: Any, dtype: torch.dtype) -> None:
    """They begin at position 20, for all positions of the line."""
    corrupted, clean = (*CORRUPTED, *tokens(12, seed=3)), (*CLEAN, *tokens(12, seed=4))
    desk = build_desk(two_ropes(layers=LAYERS, dtype=dtype))
    alone, together = (
        paths(desk, *SPELLED[receivers], corrupted=corrupted, clean=clean, mode=mode) for mode in ("exact", "fast")
    )
    plain = PlainPaths(two_ropes(layers=LAYERS, dtype=dtype).to(DEVICE), "long rotary", corrupted, clean)
    assert torch.equal(values(alone), cells_of(plain, receivers))
    assert together.mode == "fast"
    assert values(alone).std() > 1e-4
    desk.close_all()


def test_a_path_has_the_bits_of_the_same_by_the_verbs(desk: Desk) -> None:
    """Freeze by rules, read the receivers where they lie, put their values in place in another run."""
    reply = paths(desk, "q.3[2]", "k.3[1]", site="z.1[2]", over=(), mode="exact")
    desk.open("line"), desk.open("source"), desk.open("first"), desk.open("second")
    for name, line in (("line", CORRUPTED), ("source", CLEAN)):
        desk.stop_at("resid_post.3", name=name)
        desk.run(line, 0, name)
    desk.steer("z.1[2]", Set(value=array(desk.value("z.1", "source")[:, [2]])), "first")
    for site in ("mlp_out.1", "attn_out.2", "mlp_out.2"):
        desk.steer(site, Set(value=array(desk.value(site, "line"))), "first")
    desk.stop_at("z.3", name="first")
    desk.run(CORRUPTED, 0, "first")
    for site, head in (("q.3", 2), ("k.3", 1)):
        desk.steer(f"{site}[{head}]", Set(value=array(desk.value(site, "first")[:, [head]])), "second")
    desk.run(CORRUPTED, 0, "second")
    logits = desk.logits("second")
    assert float(values(reply)) == float(logits[A]) - float(logits[42])


def test_senders_that_reach_no_receiver_are_not_computed(desk: Desk) -> None:
    alone, together = (paths(desk, "q.2[0]", mode=mode) for mode in ("exact", "fast"))
    assert alone.computed == together.computed == 2 * 4
    assert (values(alone)[2:] == alone.measured[0].corrupted).all()
    assert len(together.rechecked) == 4  # one of them was left out


@pytest.mark.parametrize(
    ("site", "over", "receivers", "edit"),
    [
        ("mlp_out", ("layer",), ("q.3[1]", "mlp_in.3"), None),
        ("attn_out", ("layer", "position"), ("resid_post.2",), None),
        ("z", ("layer", "head"), ("mlp_in.2",), Zero()),  # also from the receiver's own layer
        ("resid_pre", ("layer",), ("k.3[0]", "v.3[1]"), None),
        ("q.1", ("head",), ("z.2[0]", "mlp_post.2"), None),
    ],
)
def test_other_senders_and_receivers_have_together_what_they_have_alone(
    desk: Desk, site: str, over: tuple[str, ...], receivers: tuple[str, ...], edit: Any
) -> None:
    alone, together = (
        paths(desk, *receivers, site=site, over=over, edit=edit, mode=mode) for mode in ("exact", "fast")
    )
    assert (together.mode, together.notes) == ("fast", ())
    assert (values(alone) - values(together)).abs().max() < 2e-5
    assert values(alone).std() > 1e-4


def test_the_clean_line_is_edited_where_that_is_asked(desk: Desk) -> None:
    into_clean = paths(desk, "q.2[0]", into="clean", mode="exact")
    swapped = paths(desk, "q.2[0]", clean=CORRUPTED, corrupted=CLEAN, mode="exact")
    assert torch.equal(values(into_clean), values(swapped))
    assert (into_clean.into, into_clean.edit) == ("clean", "patch from the corrupted line")
    both = (into_clean.measured[0].clean, into_clean.measured[0].corrupted)
    assert both == (swapped.measured[0].corrupted, swapped.measured[0].clean)


def test_a_path_in_a_line_of_eager_attention_has_the_bits_of_eager_hooks(desk: Desk) -> None:
    desk.open("line")
    desk.ask(ask.SetAttention(session="line", attention="eager"))
    desk.run(CORRUPTED, 0, "line")
    reply = paths(desk, "q.2[0]", corrupted="line")
    model = plain_of("llama", attention="eager", layers=LAYERS)
    hooks = PlainPaths(model, "llama", CORRUPTED, CLEAN)
    cells = [hooks.metric((layer, head), QUERIES[:1]) for layer in range(2) for head in range(4)]
    assert (reply.mode, values(reply)[:2].flatten().tolist()) == ("exact", cells)
    told = paths(desk, "q.2[0]", corrupted="line", mode="fast").notes
    assert "Each cell was computed alone, for passes of eager attention are shared with no other." in told
    assert paths(desk, "pattern.2[0]", corrupted="line", over=(), site="z.1[2]").computed == 1  # a point of eager alone


def test_a_sweep_of_paths_yields_though_no_path_is_computed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_sweep, "COMPARED", 1)
    paths(desk, "logits")  # the family's test is over
    replies: list[Any] = []
    asked = {"corrupted": CORRUPTED, "clean": CORRUPTED, "site": "z", "over": ("layer", "head"), "metrics": (METRIC,)}
    desk.open("a")
    desk.post(Sweep(session="a", receivers=("logits",), **asked), replies)
    ticks = 0
    while not replies:
        assert desk.engine.tick()
        ticks += 1
    assert replies[0].computed == 0
    assert ticks >= LAYERS * 4


def test_what_frozen_blocks_gave_is_in_the_budget(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    under_way: list[PathLines] = []
    take, run = Reservation.take, PathLines.run
    monkeypatch.setattr(Reservation, "take", lambda room, size: taken.append(size) or take(room, size))
    monkeypatch.setattr(PathLines, "run", lambda self, paths: under_way.append(self) or run(self, paths))
    paths(desk, "logits")
    frozen = [of for layer in under_way[0]._blocks.values() for of in layer._returned.values()]
    tensors = [one for of in frozen for one in (of if isinstance(of, tuple) else (of,)) if one is not None]
    assert len(tensors) == 2 * LAYERS
    assert sum(tensor.nbytes for tensor in tensors) in taken


def test_a_block_that_was_not_frozen_is_found_and_every_path_computed_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = values(paths(desk, "q.3[1]", mode="exact"))
    called = PathLines._called
    monkeypatch.setattr(PathLines, "_pass_on", _without_freezing(called))
    reply = paths(desk, "q.3[1]")
    assert reply.mode == "exact"
    assert "differed from the same computed alone" in reply.notes[-1]
    assert torch.equal(values(reply), exact)


def _without_freezing(called: Any) -> Any:
    pass_on = PathLines._pass_on

    def planted(self: PathLines, layer: int, paths: Any, sent: Any) -> None:
        rows = sent.rows(paths)
        pass_on(self, layer, paths, sent)
        sent.keep(paths, called(self, layer, rows))

    return planted


@pytest.mark.parametrize(
    ("fields", "receivers", "said"),
    [
        (
            {"site": "z.3[1]", "over": ()},
            ("q.2[0]",),
            "No path leads from z.3 to q.2: a receiver lies after its sender",
        ),
        ({}, ("q.9[0]",), "q.9"),
        ({}, ("q.2[9]",), "9"),
        ({}, ("model.layers.2.mlp",), "A path ends at a point of a layer"),
        ({}, ("attn_out.2",), "a path ends at what one reads: attn_in, q, k or v"),
        ({}, ("pattern.2",), "pattern.2 cannot be edited here"),
        (
            {"clean": tokens(9)},
            ("q.2[0]",),
            "the corrupted one 12, so their positions do not correspond; choose texts of equally many tokens.",
        ),
        ({"windows": (("layer", 2),)}, ("q.2[0]",), "A path has one sender a cell"),
        ({"clean": None, "edit": Zero(), "into": "clean"}, ("q.2[0]",), "into the clean line needs that line"),
    ],
)
def test_what_is_no_path_is_one_sentence(desk: Desk, fields: Any, receivers: tuple[str, ...], said: str) -> None:
    with pytest.raises(DjinnError) as raised:
        paths(desk, *receivers, **fields)
    assert said in str(raised.value)


def test_a_layer_that_cannot_be_frozen_is_refused_by_name() -> None:
    desk = desk_of("mamba2", layers=LAYERS)
    with pytest.raises(DjinnError, match="layer 0 cannot be frozen"):
        paths(desk, "logits", site="resid_pre", over=("layer",))
    desk.close_all()
