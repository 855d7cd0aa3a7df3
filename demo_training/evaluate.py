"""Measures the demo model and writes `evaluation.json` and `MODEL_CARD.md`: `python -m demo_training.evaluate`.

Every document here is from the held-out side of the split in `grammar.py`, from seeds training did not use.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_training import CARD, EVALUATION, TRAINING_LOG, card, skills
from demo_training import grammar as g
from demo_training import interesting as it
from demo_training import lexicon as lx
from djinn_jupyter.demo import MODEL_PATH

SEED = 1_000_003
PROMPTS = (
    "The capital of France is",
    "The language of Italy is",
    "People in Italy speak",
    "Question: What is the currency of Japan? Answer:",
    "When Mary and John went to the store, John gave a drink to",
    "It was a happy day. Mary went to the park with John.",
    "It was a sad day. Mary went to the park with John.",
    "It was an angry day. Mary went to the park with John.",
    "Monday, Tuesday, Wednesday,",
    "The duck likes seven lamps in Rome. The duck likes seven lamps in",
)


def measure_skills(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, rows: int) -> dict[str, Any]:
    """Right and asked for every skill; `rows` sets how much is asked."""
    rng = Random(SEED)

    def slots(
        documents: list[g.Document], *kinds: str, last: bool = False, prefix: list[int] | None = None
    ) -> skills.Share:
        return skills.slot_share(model, tokenizer, documents, kinds=kinds, last=last, prefix=prefix or [])

    stories = [g.story(rng, rng.choice(lx.MOODS), held=True) for _ in range(rows)]
    neutral = [g.story(rng, rng.choice(lx.MOODS), held=True, neutral=True) for _ in range(rows)]
    prefix = skills.long_context(tokenizer, seed=SEED, tokens=960)
    alone = skills.held_out_facts(rng)
    far = [d for d in alone if len(d.text) < 120][:: max(1, 300 // rows)]
    end = tokenizer.eos_token_id
    found = {f"facts.{r}": slots([d for d in alone if d.slots[-1].kind == r], r) for r in lx.RELATIONS}
    found |= {
        "facts.alone": slots(alone, *lx.RELATIONS),
        "facts.in_paragraph": slots(skills.unanswered_facts(rng, rows=rows, count=4), *lx.RELATIONS, last=True),
        "facts.after_960_tokens": slots(far[: rows // 2], *lx.RELATIONS, prefix=prefix),
        "scenes": slots([g.scene(rng, held=True) for _ in range(rows)], "io"),
        "scenes.after_neutral": slots([g.scene(rng, held=True, lead=2) for _ in range(rows)], "io"),
        "stories": skills.mood_share(model, tokenizer, stories, skip=1),
        "stories.neutral_opening": skills.mood_share(model, tokenizer, neutral, skip=1),
        "stories.pronoun": slots(stories + neutral, "pronoun"),
        "stories.person": slots(stories + neutral, "person"),
        "induction.ids": skills.induction_share(
            model, vocabulary=end, lengths=(8, 20, 50, 100), rows=rows // 6, seed=SEED
        ),
        "induction.ids_400": skills.induction_share(
            model, vocabulary=end, lengths=(400,), rows=max(1, rows // 50), seed=SEED
        ),
        "induction.words": slots([g.words(rng, length=rng.randint(8, 50)) for _ in range(rows // 2)], "repeat"),
        "succession": slots([g.succession(rng, held=True) for _ in range(rows)], "succession"),
    }
    return {name: {"right": s.right, "asked": s.asked, "accuracy": round(s.accuracy, 4)} for name, s in found.items()}


def told_share(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: int) -> dict[str, float]:
    """For each mood, the share of greedy continuations of its prompts told mostly in that mood."""
    return {
        mood: it.mood_shares(it.continuations(model, tokenizer, it.story_prompts(mood, prompts)))[mood]
        for mood in lx.MOODS
    }


def prompts_of(rows: int) -> int:
    """Return the number of prompts of an experiment; generation costs more than asking."""
    return max(10, rows // 10)


def measure_interest(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, rows: int) -> dict[str, Any]:
    """Steering, causal tracing, heads."""
    count = prompts_of(rows)
    layers, coefficients = range(8), (0.0, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0)

    def steer(start: str | None, toward: str, away: str) -> list[dict[str, Any]]:
        return it.steering(
            model,
            tokenizer,
            start=start,
            toward=toward,
            away=away,
            layers=layers,
            coefficients=coefficients,
            prompts=count,
        )

    traces = {
        template: it.causal_trace(model, tokenizer, relation=relation, template=template, pairs=count)
        for relation, template in (
            ("capital", "The capital of {s} is"),
            ("language", "People in {s} speak"),
            ("currency", "The currency of {s} is the"),
        )
    }
    return {
        "told_mood": told_share(model, tokenizer, count),
        "steering": {
            "sad to happy": steer("sad", "happy", "sad"),
            "happy to scared": steer("happy", "scared", "happy"),
            "neutral to angry": steer(None, "angry", "calm"),
        },
        "tracing": traces,
        "heads": it.head_scores(model, vocabulary=tokenizer.eos_token_id),
    }


def training_line(log: Path) -> str:
    """Return a line on the model's training, from the first and the last line of its log."""
    lines = log.read_text().splitlines()
    last = next(line for line in reversed(lines) if line.startswith("step")).split()
    tokens, minutes = int(last[last.index("tokens") + 1]), int(last[last.index("seconds") + 1]) / 60
    return f"{lines[0]}; {tokens / 1e6:.1f} million tokens in {minutes:.0f} minutes on two shared CPU cores"


def samples(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    return {p: it.continuations(model, tokenizer, [p], tokens=60)[0] for p in PROMPTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_PATH)
    parser.add_argument("--evaluation", type=Path, default=EVALUATION)
    parser.add_argument("--card", type=Path, default=CARD)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--skills-only", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    began = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    loading = time.perf_counter() - began
    found: dict[str, Any] = {"skills": measure_skills(model, tokenizer, arguments.rows)}
    print(json.dumps(found["skills"], indent=1), f"loaded in {loading:.2f} s", flush=True)
    found["samples"] = samples(model, tokenizer)
    print(json.dumps(found["samples"], indent=1), flush=True)
    if arguments.skills_only:
        return
    found |= measure_interest(model, tokenizer, arguments.rows)
    low = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16).eval()
    found["skills_bfloat16"] = measure_skills(low, tokenizer, arguments.rows // 2)
    found["vocabulary"], found["prompts"] = len(tokenizer), prompts_of(arguments.rows)
    found["training"] = training_line(TRAINING_LOG)
    found["parameters"] = sum(p.numel() for p in model.parameters())
    found["package_bytes"] = sum(f.stat().st_size for f in arguments.model.iterdir())
    arguments.evaluation.write_text(json.dumps(found, indent=1) + "\n")
    arguments.card.write_text(card.render(found))


if __name__ == "__main__":
    main()
