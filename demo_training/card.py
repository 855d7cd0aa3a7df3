"""Writes the model card from the figures of `evaluation.json`; every figure on the card comes from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TITLES = {
    "facts.alone": "Facts: every held-out (phrasing, country), on its own",
    "facts.in_paragraph": "Facts: held out, as the fourth fact of a paragraph that does not tell the answer",
    "facts.after_960_tokens": "Facts: held out, after about 960 tokens of other documents",
    "facts.capital": "of the first: capital",
    "facts.language": "of the first: language",
    "facts.currency": "of the first: currency",
    "facts.continent": "of the first: continent",
    "facts.country": "of the first: country of a capital",
    "scenes": "Indirect object: held-out pairs of names",
    "scenes.after_neutral": "Indirect object: the same, after two neutral sentences",
    "stories": "Mood: the likeliest mood word has the mood of the story",
    "stories.neutral_opening": "Mood: the same, where the opening is neutral, after the first mood word",
    "induction.ids": "Induction: second copy of 8 to 100 random ids",
    "induction.ids_400": "Induction: second copy of 400 random ids",
    "induction.words": "Induction: second copy of 8 to 50 random words",
    "stories.pronoun": "Pronoun: he or she, by the name",
    "stories.person": "Person: the friend, once named",
    "succession": "Days, months, numbers: held-out (phrasing, item)",
}

HEAD = """# The demo model

A decoder of eight layers that ships with Djinn for Jupyter, so that its notebooks and tests have a trained model
without a download. It was trained from nothing on text from a small English-like grammar, chosen so that the classic
experiments of interpretability have a true answer. `python -m demo_training.train` makes it;
`python -m demo_training.evaluate` measures it and writes this page.

| | |
|---|---|
| architecture | `LlamaForCausalLM`: 8 layers, width 128, 4 heads of 32, gated MLP of 384, RoPE, tied embeddings |
| context | 1,024 tokens |
| vocabulary | {vocabulary} tokens: bytes, pieces, and every word of the grammar whole, with its leading space |
| parameters | {parameters:,} |
| weights | stored in bfloat16, computed in float32 unless another dtype is asked for |
| size of `model/` | {megabytes:.1f} MB |
| beginning | none: a prompt begins as a document begins, without a BOS token |
| end | `<|endoftext|>` closes every document and ends generation |
| training | {training} |

The weights begin at random, with two helps that are written out in `train.py`: queries equal keys and outputs are
transposed values, and head 0 of layer 0 begins by looking one token back. Training is free to undo both. No induction
head is put there: at the start no head scores above 0.02. The loss asks most for the tokens that the text determines
(the answer of a fact, a mood word, the person who receives), little for the rest.

## What it can do

Right answers among held-out questions, next token, top 1, from the weights as stored.

| skill | float32 | bfloat16 | questions |
|---|---|---|---|
"""

HELD_OUT = """
Held out by a hash of the name, so that none of these occurs in any training document:

* facts: one in five pairs of (phrasing, subject), in every context. There are 5 relations of 56 countries in 9 to 13
  phrasings each; every fact was seen in training in other phrasings. A phrasing is a whole pattern: "France is in
  Europe" may be held out while "On the map, France is in Europe" is not;
* scenes: one in five unordered pairs of names, as the two people of a scene or of a story;
* stories: one in five triples of (mood, protagonist, place);
* successions: one in five pairs of (phrasing, item).

Repeated sequences are drawn anew; the first token of the second copy is not counted, since nothing announces it. For
mood the first mood word of a story is not counted. Pronouns are counted in held-out stories.

## What one sees inside

Layer n is `resid_post.n`: the output of decoder layer n, counted from 0.

**Steering.** A mood vector is the mean residual at the last token of 28 prompts in one mood minus that of the same
prompts in another; each prompt stops where a mood word comes next. It is added with a coefficient at all positions of
prompt and continuation. The table gives the share of {prompts} greedy continuations that are told mostly in the mood
steered to and whose sentences are all well formed; in brackets the share told in that mood, well formed or not.
Coefficient 0 is the model unsteered. Pushed too far, the story falls into repeated mood words.

"""

LIMITS = """
## What it is not

It knows the grammar's few hundred words, 56 countries and nothing else. Text outside the grammar can be written and
read as bytes and pieces, but the model has nothing to say about it. Its figures say nothing about larger models. The
facts are those of `lexicon.py`: one language, one currency and one continent a country, where the world often has
several, and `America` is one continent. It is no source of facts about a country.
"""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _skills(found: Mapping[str, Any]) -> str:
    rows = []
    for name, title in TITLES.items():
        full, low = found["skills"][name], found["skills_bfloat16"][name]
        rows.append(f"| {title} | {_percent(full['accuracy'])} | {_percent(low['accuracy'])} | {full['asked']} |\n")
    return "".join(rows)


def _steering(found: Mapping[str, Any]) -> str:
    coefficients = sorted({row["coefficient"] for rows in found["steering"].values() for row in rows})
    out = "| from, to | layer | " + " | ".join(f"{c:g}" for c in coefficients) + " |\n"
    out += "|---|---|" + "---|" * len(coefficients) + "\n"
    for name, rows in found["steering"].items():
        layer = best_layer(rows)
        cells = [f"{100 * r['steered']:.0f} % ({100 * r['toward']:.0f} %)" for r in rows if r["layer"] == layer]
        out += f"| {name} | {layer} | " + " | ".join(cells) + " |\n"
    return out


def best_layer(rows: list[dict[str, Any]]) -> int:
    """The layer where the most stories are steered, over its coefficients together; the lowest of equals."""
    layers = sorted({row["layer"] for row in rows})
    return max(layers, key=lambda n: sum(row["steered"] for row in rows if row["layer"] == n))


def _tracing(found: Mapping[str, Any]) -> str:
    out = (
        "\n**Causal tracing.** The residual at one position is replaced by that of a prompt on another country.\n"
        "The table gives the share of pairs of countries that then answer for the other country, by layer, for the\n"
        "subject's position and for the last.\n\n"
    )
    out += "| prompt, position | " + " | ".join(str(n) for n in range(8)) + " |\n|---|" + "---|" * 8 + "\n"
    for template, curves in found["tracing"].items():
        for position, curve in curves.items():
            cells = " | ".join(f"{share:.2f}" for share in curve)
            out += f"| {template.format(s='...')}, {position} | {cells} |\n"
    return out


def _heads(found: Mapping[str, Any]) -> str:
    out = "\n**Heads.** Mean attention on 50 random ids repeated once: induction is to the token after the earlier\n"
    out += "occurrence, previous to the token before. The five highest of each, as layer.head:\n\n"
    for kind in ("induction", "previous"):
        scores = [(s, f"{n}.{h}") for n, row in enumerate(found["heads"][kind]) for h, s in enumerate(row)]
        best = sorted(scores, reverse=True)[:5]
        out += f"* {kind}: " + ", ".join(f"{name} ({score:.2f})" for score, name in best) + "\n"
    return out


def _samples(found: Mapping[str, Any]) -> str:
    out = "\n## What it says\n\nGreedy, float32, up to 60 tokens; the prompt is in bold.\n\n"
    return out + "".join(f"* **{prompt}**{text}\n" for prompt, text in found["samples"].items())


def render(found: Mapping[str, Any]) -> str:
    """The card, from what `evaluation.json` holds."""
    head = HEAD.format(
        vocabulary=f"{found['vocabulary']:,}",
        parameters=found["parameters"],
        megabytes=found["package_bytes"] / 1e6,
        training=found["training"],
    )
    shares = ", ".join(f"{mood} {_percent(share)}" for mood, share in found["told_mood"].items())
    told = f"\nGreedy stories told mostly in the mood of their opening: {shares}.\n"
    kept = HELD_OUT.format(prompts=found["prompts"])
    return (
        head
        + _skills(found)
        + told
        + kept
        + _steering(found)
        + _tracing(found)
        + _heads(found)
        + _samples(found)
        + LIMITS
    )
