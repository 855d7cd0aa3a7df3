"""The classic experiments on the demo model, with plain forward hooks: steering, causal tracing, induction heads.

Layer n here is `resid_post.n`: the output of decoder layer n, counted from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from demo_training import grammar as g
from demo_training import lexicon as lx
from demo_training.packing import repeated_ids
from demo_training.reading import told_mood, well_formed

Change = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def at_layer(model: LlamaForCausalLM, layer: int, change: Change) -> Iterator[None]:
    """Replaces `resid_post.layer`, [rows, tokens, width], by `change` of it."""

    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return change(output)
        return (change(output[0]), *output[1:])

    handle = model.model.layers[layer].register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@torch.inference_mode()
def residuals(model: LlamaForCausalLM, ids: Sequence[int]) -> torch.Tensor:
    """`resid_post` of every layer for one row: [layers, tokens, width]."""
    kept: list[torch.Tensor] = []
    handles = [
        layer.register_forward_hook(
            lambda _m, _i, out: kept.append((out if isinstance(out, torch.Tensor) else out[0])[0])
        )
        for layer in model.model.layers
    ]
    try:
        model(input_ids=torch.tensor([list(ids)]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(kept)


PEOPLE = (("Mary", "park"), ("John", "school"), ("Emma", "beach"), ("Tom", "library"))
BEFORE_A_MOOD_WORD = (
    "{name} felt",
    "The {place} was",
    "All the people looked",
    "There was",
    "{name}",
    "{name} talked",
    "{name}'s voice was full of",
)


def mood_prompts(mood: str) -> list[str]:
    """Beginnings of stories in one mood, each cut where a mood word comes next. Two moods' lists differ in one word."""
    return [
        f"It was {article(mood)} day. {name} went to the {place}. " + end.format(name=name, place=place)
        for name, place in PEOPLE
        for end in BEFORE_A_MOOD_WORD
    ]


def article(mood: str) -> str:
    return f"an {mood}" if mood[0] in "aeiou" else f"a {mood}"


def mood_vectors(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, *, toward: str, away: str
) -> torch.Tensor:
    """Mean residual at the last token of one mood's prompts minus that of the other's: [layers, width]."""

    def mean(mood: str) -> torch.Tensor:
        rows = [residuals(model, tokenizer(prompt)["input_ids"])[:, -1] for prompt in mood_prompts(mood)]
        return torch.stack(rows).mean(0)

    return mean(toward) - mean(away)


@torch.inference_mode()
def continuations(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], *, tokens: int = 50
) -> list[str]:
    """Greedy continuations, without the prompts."""
    tokenizer.padding_side = "left"
    batch = tokenizer(list(prompts), return_tensors="pt", padding=True, return_token_type_ids=False)
    out = model.generate(**batch, max_new_tokens=tokens, do_sample=False)
    return tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def story_prompts(mood: str | None, count: int, seed: int = 900) -> list[str]:
    """The first two sentences of stories not seen in training; with no mood, both sentences are neutral."""
    prompts = []
    for k in range(count):
        rng = Random(seed + k)
        name, friend = rng.sample(lx.NAMES, 2)
        place = rng.choice(lx.PLACES)
        opening = f"It was {article(mood)} day." if mood else f"One day {name} left the house."
        prompts.append(f"{opening} {name} went to the {place} with {friend}.")
    return prompts


def mood_shares(texts: Sequence[str]) -> dict[str, float]:
    told = [told_mood(text) for text in texts]
    return {mood: told.count(mood) / len(told) for mood in lx.MOODS}


def steering(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    *,
    start: str | None,
    toward: str,
    away: str,
    layers: Sequence[int],
    coefficients: Sequence[float],
    prompts: int = 40,
) -> list[dict[str, Any]]:
    """For each layer and coefficient, shares of the continuations: told in the moods steered to and away from,
    well formed, and both told in the mood steered to and well formed (`steered`).
    """
    vectors = mood_vectors(model, tokenizer, toward=toward, away=away)
    asked = story_prompts(start, prompts)
    plain = continuations(model, tokenizer, asked)
    rows = []
    for layer in layers:
        for coefficient in coefficients:
            push = coefficient * vectors[layer]
            if coefficient == 0.0:
                texts = plain
            else:
                with at_layer(model, layer, lambda h, push=push: h + push):
                    texts = continuations(model, tokenizer, asked)
            rows.append({"layer": layer, "coefficient": coefficient, **told(texts, toward, away)})
    return rows


def told(texts: Sequence[str], toward: str, away: str) -> dict[str, float]:
    """The shares that `steering` reports."""
    moods, whole = [told_mood(text) for text in texts], [well_formed(text) for text in texts]
    both = sum(mood == toward and fine for mood, fine in zip(moods, whole, strict=True))
    counts = {"toward": moods.count(toward), "away": moods.count(away), "well_formed": sum(whole), "steered": both}
    return {name: count / len(texts) for name, count in counts.items()}


def put(value: torch.Tensor, position: int) -> Change:
    """The change that writes `value`, [width], at one position of the only row."""

    def change(h: torch.Tensor) -> torch.Tensor:
        h = h.clone()
        h[0, position] = value
        return h

    return change


def _subject_at(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], subject: str) -> int:
    return max(i for i, token in enumerate(tokenizer.convert_ids_to_tokens(ids)) if token.endswith(subject))


@torch.inference_mode()
def causal_trace(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    *,
    relation: str,
    template: str,
    pairs: int = 60,
    seed: int = 40,
) -> dict[str, list[float]]:
    """Share of pairs in which patching one position from the other country's prompt gives the other's answer.

    `template` ends where the answer begins and holds `{s}`. One number a layer, for the subject and the last.
    """
    rng, facts = Random(seed), g.facts_of(relation)
    subject_hits, last_hits = [0] * len(model.model.layers), [0] * len(model.model.layers)
    for _ in range(pairs):
        base, other = rng.sample(facts, 2)
        while base[1] == other[1]:
            base, other = rng.sample(facts, 2)
        ids = tokenizer(template.format(s=base[0]))["input_ids"]
        source = residuals(model, tokenizer(template.format(s=other[0]))["input_ids"])
        wanted = tokenizer.convert_tokens_to_ids("\u0120" + other[1])
        for position, hits in ((_subject_at(tokenizer, ids, base[0]), subject_hits), (len(ids) - 1, last_hits)):
            for layer in range(len(model.model.layers)):
                with at_layer(model, layer, put(source[layer, position], position)):
                    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
                hits[layer] += int(logits.argmax() == wanted)
    return {"subject": [n / pairs for n in subject_hits], "last": [n / pairs for n in last_hits]}


@torch.inference_mode()
def head_scores(
    model: LlamaForCausalLM, *, vocabulary: int, length: int = 50, rows: int = 12, seed: int = 77
) -> dict[str, Any]:
    """Mean attention of each head on random ids repeated once, as [layers][heads].

    induction: from a token of the second copy to the one after its first occurrence (Olsson et al. 2022);
    previous: from a token to the one before it.
    """
    rng = Random(seed)
    ids = torch.tensor([repeated_ids(rng, vocabulary, length, 2.0)[0] for _ in range(rows)])
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        patterns = model(input_ids=ids, use_cache=False, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(before)
    back = torch.stack([p.diagonal(1 - length, 2, 3)[..., 1:].mean((0, 2)) for p in patterns])
    previous = torch.stack([p.diagonal(-1, 2, 3).mean((0, 2)) for p in patterns])
    return {"induction": back.tolist(), "previous": previous.tolist()}
