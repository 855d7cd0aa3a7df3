"""Models that no release of transformers has, as one's own code makes them: each gives the bits of the plain model
through stops, edits and ways back, or is refused at load with the reason."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    apply_rotary_pos_emb,
    repeat_kv,
)

from djinn_jupyter.errors import ModelRefused
from tests.engine.desk import build_desk
from tests.engine.plain import generate
from tests.engine.test_more_families import NEW, PROMPT, stop_edit_and_go_back
from tests.families import build, randomise

LAYERS = 4


class Attention(LlamaAttention):  # type: ignore[misc]
    """Attention in the open, for others to change a part of."""

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, past_key_values: Any, **_: Any
    ) -> tuple[Tensor, None]:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (one(hidden_states).view(shape).transpose(1, 2) for one in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        q, v = self.queries(q, past_key_values), self.values(v)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        k, v = (repeat_kv(one, self.num_key_value_groups) for one in (k, v))
        scores = q @ k.transpose(2, 3) * self.scaling
        made = self.weights(scores if attention_mask is None else scores + attention_mask) @ v
        made = self.behind(made, hidden_states).transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)
        return self.o_proj(made), None

    def queries(self, q: Tensor, cache: Any) -> Tensor:
        return q

    def values(self, v: Tensor) -> Tensor:
        return v

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def behind(self, made_BHTd: Tensor, hidden_BTD: Tensor) -> Tensor:
        return made_BHTd


class BesideLogits(Attention):
    """A sink, by another name than any that transformers has."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.beside_logits = torch.nn.Parameter(torch.ones(config.num_attention_heads))

    def weights(self, scores: Tensor) -> Tensor:
        beside = self.beside_logits.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, beside], -1).softmax(-1)[..., :-1]


class OneMore(Attention):
    """A softmax whose weights add up to less than one, without a parameter."""

    def weights(self, scores: Tensor) -> Tensor:
        return torch.cat([scores, torch.zeros_like(scores[..., :1])], -1).softmax(-1)[..., :-1]


class GatedHeads(Attention):
    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.gate = torch.nn.Linear(config.hidden_size, config.num_attention_heads)

    def behind(self, made_BHTd: Tensor, hidden_BTD: Tensor) -> Tensor:
        return made_BHTd * self.gate(hidden_BTD).sigmoid().transpose(1, 2)[..., None]


class ByLength(Attention):
    """Queries grow with the number of keys."""

    def queries(self, q: Tensor, cache: Any) -> Tensor:
        before = 0 if cache is None else cache.get_seq_length(self.layer_idx)
        return q * math.log(before + q.shape[2] + 1)


class FirstValues(Attention):
    """Values of the first layer are mixed into those of the others, behind the hidden state's back."""

    first: ClassVar[list[Tensor]] = []

    def values(self, v: Tensor) -> Tensor:
        if self.layer_idx == 0:
            FirstValues.first = [v]
        return (v + FirstValues.first[0]) / 2


class Mixing(LlamaDecoderLayer):  # type: ignore[misc]
    """Each position is mixed with the one before it in the same pass."""

    def forward(self, hidden_states: Tensor, **given: Any) -> Any:
        shifted = torch.cat([torch.zeros_like(hidden_states[:, :1]), hidden_states[:, :-1]], 1)
        return super().forward(hidden_states + 0.5 * shifted, **given)


class Skipping(LlamaDecoderLayer):  # type: ignore[misc]
    """The last layers are given what the first ones were, as a U has it."""

    given: ClassVar[dict[int, Tensor]] = {}

    def forward(self, hidden_states: Tensor, **given: Any) -> Any:
        number = self.self_attn.layer_idx
        Skipping.given[number] = hidden_states
        if number >= LAYERS // 2:
            hidden_states = hidden_states + 0.5 * Skipping.given[LAYERS - 1 - number]
        return super().forward(hidden_states, **given)


class Remembering(LlamaDecoderLayer):  # type: ignore[misc]
    """A mean of all that was ever seen is added."""

    def forward(self, hidden_states: Tensor, **given: Any) -> Any:
        self.seen = 0.5 * getattr(self, "seen", 0.0) + hidden_states.mean((0, 1))
        return super().forward(hidden_states + self.seen, **given)


def made(kind: type) -> Any:
    """Return a tiny Llama with attention or layers of this kind."""
    model: Any = build("llama", layers=LAYERS, attention="eager")
    for number, layer in enumerate(model.model.layers):
        if issubclass(kind, LlamaDecoderLayer):
            layer.__class__ = kind
        else:
            layer.self_attn = kind(model.config, number)
    randomise(model, 1)
    model.generation_config = GenerationConfig()
    return model.eval().requires_grad_(False)


SERVED = {BesideLogits: False, OneMore: False, GatedHeads: False, ByLength: True, Mixing: True}
"""Whether what heads write are means of their values."""
REFUSED = {
    FirstValues: "the load-time self-test failed at 'stop before layer 1, edited branch, then unedited'",
    Skipping: "the load-time self-test failed at 'stop before layer 1, edited branch, then unedited'",
    Remembering: r"it keeps state in its modules: model\.layers\.0\.seen changed during a forward",
}


@pytest.mark.parametrize("kind", SERVED, ids=lambda kind: kind.__name__)
def test_a_stop_an_edit_and_a_way_back_change_no_bit_of_one_that_is_served(kind: type) -> None:
    desk = build_desk(made(kind))
    plain = generate(made(kind), PROMPT, NEW, **desk.engine.anatomy.keep_last)
    for boundary, step in ((0, 0), (2, 0), (LAYERS - 1, 2)):
        stop_edit_and_go_back(desk, plain, boundary, step)
    assert set(desk.engine.anatomy.means) == {SERVED[kind]}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_one_whose_values_go_past_the_hidden_state_is_refused_with_the_reason(kind: type) -> None:
    with pytest.raises(ModelRefused, match=REFUSED[kind]):
        build_desk(made(kind))
