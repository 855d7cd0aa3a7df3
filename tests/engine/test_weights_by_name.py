"""Matrices by name are those of the plain model: they make its points, in families that spell them in many ways."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.model.discovery.model_map import discover
from djinn_jupyter.engine.passes import weight_reader
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import DjinnError, OutOfDeviceMemory
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, desk_of
from tests.engine.memory.weights.streaming import streamed_desk
from tests.engine.model.looking import TOKENS, Subject, run
from tests.engine.plain import plain_of
from tests.families import build

MADE = {  # what each matrix is given, and what it makes
    "W_Q": ("attn_in", "q"),
    "W_K": ("attn_in", "k"),
    "W_V": ("attn_in", "v"),
    "W_gate": ("mlp_in", "mlp_pre"),
    "W_out": ("mlp_post", "mlp_out"),
}
BENT = {"gemma2"}  # its logits pass a soft-cap
NORMED = {"qwen3"}  # its points q and k are behind a norm
UNGATED = ("gpt2", "opt", "gpt_neox", "bloom", "falcon:new")
USUAL = ("llama", "gpt2", "gpt_neox", "phi3")  # each spells its maps in a way of its own
WHOLE = [
    pytest.param(family, marks=pytest.mark.slow)
    for family in ("opt", "gemma2", "qwen3", "granite", "bloom", "falcon:new")
]
LAYERS, LAYER = 4, 1


@functools.lru_cache(maxsize=2)
def small(family: str) -> Subject:
    model = build(family, layers=LAYERS)
    return Subject(model, discover(model))


def read(desk: Desk, name: str, **fields: Any) -> Tensor:
    reply = desk.ask(ask.ReadWeight(name=name, **fields))
    return to_tensor(reply.values)


def differences(value: Tensor) -> Tensor:
    """Return each position less the first one: what a bias adds is gone. The last axes become one."""
    flat = value.reshape(len(value), -1).double()
    return flat[1:] - flat[0]


def near(one: Tensor, other: Tensor) -> bool:
    return bool((one.double() - other.double()).abs().max() <= 2e-5 * other.double().abs().max())


def joined(matrix: Tensor) -> Tensor:
    """Return [D, heads x features] of [heads, D, features]; a matrix without heads unchanged."""
    return matrix.permute(1, 0, 2).flatten(1).double() if matrix.ndim == 3 else matrix.double()


@pytest.mark.parametrize("family", [*USUAL, *WHOLE])
def test_each_matrix_makes_its_point_in_the_plain_model(family: str) -> None:
    desk, tiny = desk_of(family, layers=LAYERS), small(family)
    points = {point for pair in MADE.values() for point in pair} | {"z", "attn_out"}
    seen = run(tiny, "embed", "resid_pre.0", "ln_final", *(f"{point}.{LAYER}" for point in points))
    at = {point: differences(seen[f"{point}.{LAYER}"]) for point in points}
    for name, (given, made) in MADE.items():
        if family in NORMED and made in ("q", "k"):
            continue
        matrix = read(desk, f"{'W_in' if name == 'W_gate' and family in UNGATED else name}.{LAYER}")
        assert near(at[given] @ joined(matrix), at[made]), name
    assert near(at["z"] @ read(desk, f"W_O.{LAYER}").flatten(0, 1).double(), at["attn_out"])
    assert torch.equal(read(desk, "W_E", rows=TOKENS), seen["embed"])
    logits = seen["ln_final"].double() @ read(desk, "W_U").double()
    assert near(differences(logits), differences(seen.logits[0])) == (family not in BENT)


def test_a_table_of_positions_begins_at_position_0() -> None:
    for family in ("gpt2", "opt"):  # opt's has two rows before it
        seen = run(small(family), "embed", "resid_pre.0")
        table = read(desk_of(family, layers=LAYERS), "W_pos", rows=tuple(range(len(TOKENS))))
        assert torch.equal(seen["embed"] + table, seen["resid_pre.0"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_are_the_plain_models_own_bits(dtype: torch.dtype) -> None:
    desk, plain = desk_of("llama", dtype=dtype, layers=LAYERS), plain_of("llama", dtype, layers=LAYERS)
    attention, mlp = plain.model.layers[2].self_attn, plain.model.layers[2].mlp
    assert torch.equal(read(desk, "W_Q.2[3]"), attention.q_proj.weight[24:32].T)
    assert torch.equal(read(desk, "W_V.2[1]"), attention.v_proj.weight[8:16].T)
    assert torch.equal(read(desk, "W_O.2[3,0]")[0], attention.o_proj.weight[:, 24:32].T)
    assert torch.equal(read(desk, "W_in.2"), mlp.up_proj.weight.T)
    assert torch.equal(read(desk, "W_gate.2[17]"), mlp.gate_proj.weight[17])
    assert torch.equal(read(desk, "W_out.2[17]"), mlp.down_proj.weight[:, 17])
    assert torch.equal(read(desk, "W_U", columns=(5, -1)), plain.lm_head.weight[[5, 127]].T)
    assert torch.equal(read(desk, "W_E[9]"), plain.model.embed_tokens.weight[9])


def test_a_head_is_multiplied_with_its_own_keys_and_values() -> None:
    desk, attention = desk_of("llama", layers=LAYERS), plain_of("llama", layers=LAYERS).model.layers[1].self_attn
    for head, group in enumerate((0, 0, 1, 1)):  # four heads read two keys and values
        own, shared = slice(8 * head, 8 * head + 8), slice(8 * group, 8 * group + 8)
        value, out = attention.v_proj.weight[shared].T, attention.o_proj.weight[:, own].T
        query, key = attention.q_proj.weight[own].T, attention.k_proj.weight[shared]
        assert near(read(desk, f"W_OV.1[{head}]"), value.double() @ out.double())
        assert near(read(desk, f"W_QK.1[{head}]"), query.double() @ key.double())
    part = read(desk, "W_OV.1[3]", rows=(1, 4), columns=(0,))
    assert near(part, read(desk, "W_OV.1[3]")[[1, 4]][:, [0]])


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
def test_a_folded_norm_leaves_a_map_of_the_residual_over_its_size(family: str) -> None:
    desk, tiny = desk_of(family, layers=LAYERS), small(family)
    last = len(tiny.anatomy.layers) - 1
    seen = run(tiny, f"resid_pre.{LAYER}", f"v.{LAYER}", f"resid_post.{last}", "ln_final")
    for name, given, made in (
        (f"W_V.{LAYER}", f"resid_pre.{LAYER}", seen[f"v.{LAYER}"]),
        ("W_U", f"resid_post.{last}", seen["ln_final"] @ read(desk, "W_U")),
    ):
        x = seen[given].double()
        centred = x - x.mean(-1, keepdim=True) if family == "gpt2" else x
        sized = x / centred.square().mean(-1, keepdim=True).sqrt()  # x itself: the mean is in the matrix
        assert near(differences(sized @ joined(read(desk, name, fold_norm=True))), differences(made)), name


def test_weights_that_stream_are_read_from_the_host() -> None:
    options: Any = {"layers": LAYERS, "dtype": torch.bfloat16}
    desk, whole = streamed_desk("llama", **options), desk_of("llama", **options)
    for name in ("W_Q.1[2]", "W_OV.3", "W_in.0", "W_out.2[5]", "W_U", "W_E"):
        assert torch.equal(read(desk, name), read(whole, name)), name
    assert torch.equal(read(desk, "W_K.1", fold_norm=True), read(whole, "W_K.1", fold_norm=True))
    desk.close_all()


def test_a_map_that_is_more_than_a_product_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama", layers=LAYERS)
    linear = desk.engine.model.model.layers[3].self_attn.o_proj
    monkeypatch.setattr(linear, "forward", lambda x: torch.nn.functional.linear(x, linear.weight).tanh())
    with pytest.raises(DjinnError, match="Linear is no product with one matrix"):
        read(desk, "W_O.3")


@pytest.mark.parametrize(
    ("family", "name", "fields", "said"),
    [
        ("llama", "W_x.1", {}, "is no matrix of a model"),
        ("llama", "W_Q", {}, "needs a layer"),
        ("llama", "W_U.1", {}, "without a layer"),
        ("llama", "W_Q.9", {}, "layers 0..3"),
        ("llama", "W_Q.1[4]", {}, r"no head 4 in W_Q\.1, which has heads 0\.\.3"),
        ("llama", "W_in.1[48]", {}, r"no column 48 in W_in\.1, which has columns 0\.\.47"),
        ("llama", "W_in.1", {"rows": (3, -33)}, r"no row -33 in W_in\.1, which has rows 0\.\.31"),
        ("llama", "W_in.1[4]", {"columns": (1,)}, "already"),
        ("llama", "W_pos", {}, "no table of positions"),
        ("llama", "W_O.1", {"fold_norm": True}, "W_O is none"),
        ("gpt2", "W_gate.1", {}, "has no gate"),
        ("mixtral", "W_in.1", {}, "mixture of experts"),
        ("qwen3", "W_QK.1", {}, "a norm stands behind"),
    ],
)
def test_what_a_model_has_not_is_refused_in_a_sentence(
    family: str, name: str, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(DjinnError, match=said):
        read(desk_of(family, layers=LAYERS), name, **fields)


def test_a_matrix_larger_than_a_reply_is_cropped_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djinn_jupyter.engine.passes.weight_reader.MOST_BYTES", 1000)
    desk = desk_of("llama", layers=LAYERS)
    with pytest.raises(DjinnError, match="choose heads, rows or columns"):
        read(desk, "W_U")
    assert read(desk, "W_U", columns=(3, 4)).shape == (32, 2)
    with pytest.raises(DjinnError, match="choose heads or columns"):  # a folded column needs all of its rows
        read(desk, "W_U", rows=(0,), fold_norm=True)


def test_only_the_columns_that_are_chosen_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("gpt2", layers=LAYERS)
    whole = {name: read(desk, name, fold_norm=True) for name in ("W_U", "W_Q.1", "W_in.1")}
    folded: list[torch.Size] = []

    def noted(normed: Any, columns: Tensor, name: Any) -> Any:
        folded.append(columns.shape)
        return gain(normed, columns, name)

    gain = weight_reader._gain
    monkeypatch.setattr(weight_reader, "_gain", noted)
    for name, matrix in whole.items():
        part = read(desk, name, rows=(1, 4), columns=(0, 5), fold_norm=True)
        assert near(part, matrix[..., [1, 4], :][..., [0, 5]])
    assert [shape[-2:] for shape in folded] == [(32, 2)] * len(whole)


def test_a_matrix_that_finds_no_device_memory_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama", layers=LAYERS)

    def full(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(weight_reader, "_cropped", full)
    with pytest.raises(OutOfDeviceMemory, match="choose heads or columns"):
        read(desk, "W_U")


def test_the_logits_of_a_model_that_scales_them_are_made() -> None:
    model = build("granite", layers=LAYERS)
    model.config.logits_scaling = 6.0  # as in granite-3.0-1b-a400m: 1/6 has more than four digits
    head = model.lm_head.weight.detach().clone()
    desk = build_desk(model)
    assert near(read(desk, "W_U"), head.T / 6)
    assert near(read(desk, "W_U", columns=(3,), fold_norm=True), read(desk, "W_U", fold_norm=True)[:, [3]])
    desk.close_all()


def test_a_layer_that_is_not_there_is_named_with_the_matrix_that_was_asked_for() -> None:
    desk = desk_of("llama")
    for name in ("W_OV.99[0]", "W_QK.99", "W_in.99[1]"):
        plain = name.partition("[")[0].replace(".", r"\.")
        with pytest.raises(DjinnError, match=rf"^There is no {plain}: this model has layers 0\.\."):
            read(desk, name)
