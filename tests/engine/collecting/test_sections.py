"""A layer in sections: what it gives is what it gives as a whole, and between two of them the model is as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING

from djinn_jupyter.engine.passes import sections
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.passes.sections import Sections
from djinn_jupyter.engine.passes.shared_cache import BaseRows, SharedCache
from tests.engine.desk import build_desk, desk_of, tokens
from tests.engine.session.test_sharing import run_at_once
from tests.families import build

LAYERS = 2
PROMPTS = (tokens(7, seed=1), tokens(7, seed=2))


def proved(forward: Forward) -> Sections:
    made = Sections(forward)
    assert len(list(made.prove())) == LAYERS
    assert list(made.prove()) == []  # once
    return made


def states(made: Sections) -> tuple[list[Tensor], list[int]]:
    """Return the hidden states after each layer, and how often its call was left."""
    forward, left = made.forward, []
    cache = SharedCache(forward.model.config, BaseRows({}), 0)
    arguments = forward.batch_arguments(PROMPTS, cache)
    found = [forward.anatomy.forms[0].take(*arguments[0])]
    for layer, given in enumerate(arguments):
        call, times = made.run(layer, given, found[-1]), 0
        while True:
            try:
                next(call)
            except StopIteration as done:
                found.append(done.value)
                break
            times += 1
            assert not [one for one in forward.anatomy.layers[layer].children() if "forward" in vars(one)]
        left.append(times)
    return found, left


@pytest.mark.parametrize(("family", "times"), [("gpt2", 2), ("llama", 3), ("gpt_neox", 2), ("mixtral", 1)])
def test_a_layer_in_sections_gives_what_it_gives_as_a_whole(
    family: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(family, layers=LAYERS)
    whole, never = states(Sections(desk.engine.forward))  # cut by none that is not proved
    monkeypatch.setattr(sections, "SECTION_WORK", 1)
    found, left = states(proved(desk.engine.forward))
    assert (never, left) == ([0] * LAYERS, [times] * LAYERS)
    assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=True))
    desk.close_all()


ALONE = {"mllama": "refuse several lines", "qwen4_exp_text": "recurrent"}


@pytest.mark.parametrize(("family", "why"), [(name, why) for name, why in ALONE.items() if name in CONFIG_MAPPING])
def test_a_model_that_takes_no_cache_of_ours_is_run_whole(family: str, why: str) -> None:
    """In transformers 5.15 Mllama takes several lines, and its rows share passes."""
    desk = build_desk(build(family, layers=4))
    for number, row in enumerate(run_at_once(desk, mode="fast", prompts=list(PROMPTS), new=2)):
        assert (row.shared == 0) == (row.note is not None and why in row.note)
        desk.open("alone")
        assert row.tokens == desk.run(PROMPTS[number], 2, "alone").tokens
    made = Sections(desk.engine.forward)
    list(made.prove())
    assert made.kept_bytes(1) == 0 or row.shared > 0
    desk.close_all()


def test_a_proof_that_was_broken_off_is_made_again() -> None:
    """Without it layers would be called whole from then on, and a collection that goes on would batch otherwise."""
    desk = desk_of("llama", layers=LAYERS)
    made = Sections(desk.engine.forward)
    broken_off = made.prove()
    next(broken_off)
    broken_off.close()
    assert len(list(made.prove())) == LAYERS
    desk.close_all()


def test_a_layer_that_adds_in_place_to_what_a_module_gave_is_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama", layers=LAYERS)

    def add(module: torch.nn.Module, args: tuple[Tensor]) -> None:
        args[0].add_(1)  # the norm's own output, once more at each entry

    model.model.layers[1].mlp.gate_proj.register_forward_pre_hook(add)
    monkeypatch.setattr(sections, "SECTION_WORK", 1)
    desk = build_desk(model)
    made = Sections(desk.engine.forward)
    list(made.prove())
    _, left = states(made)
    assert left == [0] * LAYERS
    desk.close_all()


def test_a_batch_is_as_long_as_its_longest_section_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama", layers=LAYERS)
    layer = desk.engine.forward.anatomy.layers[0]
    weights = [sum(one.numel() for one in module.parameters()) for module in (layer, layer.self_attn)]
    monkeypatch.setattr(sections, "SECTION_WORK", 100 * weights[0])
    assert Sections(desk.engine.forward).tokens() == 100
    assert proved(desk.engine.forward).tokens() == 100 * weights[0] // weights[1]
    desk.close_all()


def test_a_batch_is_as_long_as_the_longest_section_of_any_layer_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixtures begin with layers that have a plain block in the place of the experts."""
    model = build("llama", layers=LAYERS)
    mlp = model.model.layers[-1].mlp
    width, inner = mlp.up_proj.in_features, 8 * mlp.up_proj.out_features
    mlp.gate_proj, mlp.up_proj = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
    mlp.down_proj = torch.nn.Linear(inner, width, bias=False)
    desk = build_desk(model)
    monkeypatch.setattr(sections, "SECTION_WORK", 100 * width * inner)
    assert Sections(desk.engine.forward).tokens() == 100 * width * inner // sections._weights(model.model.layers[-1])
    assert proved(desk.engine.forward).tokens() == 100
    desk.close_all()
