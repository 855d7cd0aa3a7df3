"""An edit at a point equals plain PyTorch hooks at the module where, by hand, we know that point to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.wire.edits import Edit, Scale, Zero
from tests.engine.desk import Desk, desk_of, tokens
from tests.engine.plain import generate, plain_of

pytestmark = pytest.mark.drawn

# family: (path of the layers, point: (module of a layer, what of it)). `columns` are thirds of a fused projection.
# Where points of other families are, `tests/engine/model/test_points.py` finds by identities.
LLAMA = {
    "attn_in": ("input_layernorm", "output"),
    "q": ("self_attn.q_proj", "output"),
    "k": ("self_attn.k_proj", "output"),
    "v": ("self_attn.v_proj", "output"),
    "z": ("self_attn.o_proj", "input"),
    "attn_out": ("self_attn.o_proj", "output"),
    "resid_mid": ("post_attention_layernorm", "in place"),
    "mlp_in": ("post_attention_layernorm", "output"),
    "mlp_pre": ("mlp.gate_proj", "output"),
    "mlp_post": ("mlp.down_proj", "input"),
    "mlp_out": ("mlp.down_proj", "output"),
}
PLACES: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "llama": ("model.layers", LLAMA),
    "gpt2": (
        "transformer.h",
        {
            "attn_in": ("ln_1", "output"),
            "q": ("attn.c_attn", "columns 0"),
            "k": ("attn.c_attn", "columns 1"),
            "v": ("attn.c_attn", "columns 2"),
            "z": ("attn.c_proj", "input"),
            "attn_out": ("attn.c_proj", "output"),
            "resid_mid": ("ln_2", "in place"),
            "mlp_in": ("ln_2", "output"),
            "mlp_pre": ("mlp.c_fc", "output"),
            "mlp_post": ("mlp.c_proj", "input"),
            "mlp_out": ("mlp.c_proj", "output"),
        },
    ),
}
EACH = [(family, point) for family, (_, points) in PLACES.items() for point in points]
CASES = [(family, point, 2 * (number % 2)) for number, (family, point) in enumerate(EACH)]
HEAD_DIM = 8
LAYER = 5
PROMPT = tokens(11)
NEW = 4


@pytest.fixture
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = desk_of(request.param)
    desk.open()
    yield desk
    desk.close_all()


@contextmanager
def hooked(model: Any, path: str, side: str, change: Callable[[Tensor], Tensor], step: int) -> Iterator[None]:
    """Change the tensor at a module in the pass of `step`, with PyTorch alone."""
    module = model.get_submodule(path)
    passes = -1

    def before(module: Any, args: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes != step or side not in ("input", "in place"):
            return None
        if side == "in place":
            args[0].copy_(change(args[0]))
            return None
        return (change(args[0]), *args[1:])

    def after(module: Any, args: Any, output: Any) -> Any:
        if passes != step or side in ("input", "in place"):
            return None
        if side.startswith("columns"):
            third = int(side[-1])
            parts = list(output.chunk(3, dim=-1))
            parts[third] = change(parts[third])
            return torch.cat(parts, dim=-1)
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    hooks = [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def zeroed(first: int, last: int) -> Callable[[Tensor], Tensor]:
    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[..., first:last] = 0
        return value

    return change


@pytest.mark.parametrize(("desk", "point", "step"), CASES, indirect=["desk"], ids=[f"{f}-{p}" for f, p, _ in CASES])
def test_an_edit_is_what_hooks_would_do(desk: Desk, point: str, step: int) -> None:
    """One head (or the features 3 to 8) is zeroed, then all are scaled: tokens and logits have the bits that hooks
    give."""
    family = desk.engine.model.config.model_type
    layers, points = PLACES[family]
    path, side = points[point]
    heads = point in ("q", "k", "v", "z")
    selector, columns = ("1", (HEAD_DIM, 2 * HEAD_DIM)) if heads else ("3:9", (3, 9))
    cases: list[tuple[str, Edit, Callable[[Tensor], Tensor]]] = [
        (f"{point}.{LAYER}[{selector}]", Zero(), zeroed(*columns)),
        (f"{point}.{LAYER}", Scale(factor=1.75), lambda value: value * 1.75),
    ]
    model = plain_of(family)
    untouched = generate(model, PROMPT, NEW)
    for site, edit, change in cases:
        with hooked(model, f"{layers}.{LAYER}.{path}", side, change, step):
            expected = generate(model, PROMPT, NEW)
        desk.clear()
        desk.stop_at(site, f"step == {step}")
        desk.run(PROMPT, NEW)
        desk.edit(edit)
        assert desk.outcome(desk.resume()) == expected, site
        assert not torch.equal(expected.logits, untouched.logits), "the hooks did nothing"
        desk.back()
        assert desk.outcome(desk.resume()) == untouched, site


@pytest.mark.parametrize("desk", ["llama"], indirect=True)
@pytest.mark.parametrize("step", [0, 1])
def test_a_pattern_edited_under_eager_attention_is_a_changed_softmax(
    desk: Desk, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Head 2 of layer 5 looks nowhere: its row of the softmax is zero."""
    from transformers.models.llama import modeling_llama

    eager = desk_of("llama", attention="eager")
    eager.open()
    eager.stop_at("pattern.5[2]", f"step == {step}")
    eager.run(PROMPT, NEW)
    eager.edit(Zero())
    edited = eager.outcome(eager.resume())
    eager.close_all()

    softmax, calls = torch.nn.functional.softmax, []

    def changed(scores: Tensor, **options: Any) -> Tensor:
        pattern = softmax(scores, **options)
        calls.append(pattern)
        if len(calls) - 1 == step * eager.layers + LAYER:
            pattern = pattern.clone()
            pattern[:, 2] = 0
        return pattern

    with monkeypatch.context() as patch:
        patch.setattr(modeling_llama.nn.functional, "softmax", changed)
        expected = generate(plain_of("llama", attention="eager"), PROMPT, NEW)
    assert len(calls) == NEW * eager.layers
    assert edited == expected
