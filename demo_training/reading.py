"""Reads stories that a model has told: in which mood, and whether each sentence is one of the grammar. Torch-free."""

from __future__ import annotations

import re
from functools import cache

from demo_training import lexicon as lx
from demo_training import templates as tp


def told_mood(text: str) -> str | None:
    """The mood with most words in the text; None if there is no mood word."""
    words = [lx.mood_of(word.strip(".,")) for word in text.split()]
    counts = {mood: words.count(mood) for mood in lx.MOODS}
    best = max(counts, key=lambda mood: counts[mood])
    return best if counts[best] else None


def _one_of(words: tuple[str, ...]) -> str:
    return "(?:" + "|".join(words) + ")"


@cache
def _sentences() -> tuple[re.Pattern[str], ...]:
    """One pattern for each sentence of a story, with any words of the right kind in its fields."""
    kinds = {k: _one_of(tuple(w for mood in lx.MOODS for w in lx.MOOD_WORDS[mood][k])) for k in lx.MOOD_KINDS}
    fields = kinds | {"a_feel": "an? " + kinds["feel"], "a_thing": "an? " + kinds["thing"]}
    fields |= {"name": _one_of(lx.NAMES), "friend": _one_of(lx.NAMES), "he": "(?:he|she)", "He": "(?:He|She)"}
    fields |= {"place": _one_of(lx.PLACES), "object": _one_of(lx.OBJECTS), "animal": _one_of(lx.ANIMALS)}
    fields |= {"child": "(?:boy|girl)", "month": _one_of(lx.CYCLES["month"])}
    templates = (*tp.OPENINGS, *tp.NEUTRAL_OPENINGS, *tp.MIDDLES, *tp.ENDINGS)
    dotted = [template.replace(".", r"\.") for template in templates]
    patterns = [re.sub(r"\{(\w+)\}", lambda match: fields[match[1]], template) for template in dotted]
    return tuple(re.compile(pattern) for pattern in patterns)


def well_formed(text: str) -> bool:
    """Return whether every complete sentence of a story is one of the grammar, whatever its moods. Not so if empty."""
    *complete, _ = text.split(".")
    sentences = [part.strip() + "." for part in complete]
    return bool(sentences) and all(any(p.fullmatch(s) for p in _sentences()) for s in sentences)
