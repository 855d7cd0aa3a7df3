"""Labels that the grammar gives to each token of a document: its word, the kind of the word, the slot that comes
next, and the document it is in. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from demo_training import grammar as g
from demo_training import lexicon as lx

SLOTS: Final = {
    "capital": "a capital comes next",
    "language": "a language comes next",
    "currency": "a currency comes next",
    "continent": "a continent comes next",
    "country": "a country comes next",
    "io": "the one who receives comes next",
    "pronoun": "he or she comes next",
    "person": "a person known already comes next",
    "succession": "the successor comes next",
    "repeat": "a word of a repeated list comes next",
    "random": "a word of a new list comes next",
    "feel": "a feeling comes next",
    "thing": "a word on a thing's mood comes next",
    "verb": "a mood's verb comes next",
    "adverb": "a mood's adverb comes next",
    "noun": "a mood's noun comes next",
}
DOCUMENTS: Final = {"facts": "facts", "scene": "a scene", "words": "a list of words", "succession": "a succession"}


@cache
def kinds() -> Mapping[str, tuple[str, ...]]:
    """Return what each word of the language is: a country, a happy word and so on."""
    found: dict[str, list[str]] = {}

    def say(words: Sequence[str], kind: str) -> None:
        for word in words:
            found.setdefault(word, []).append(kind)

    say(lx.NAMES, "a name")
    say(lx.WOMEN, "a woman's name")
    say(lx.MEN, "a man's name")
    say(lx.PLACES, "a place")
    say(lx.OBJECTS, "an object")
    say(lx.ANIMALS, "an animal")
    for relation in ("country", "capital", "language", "currency", "continent"):
        article = "a"
        say(sorted({getattr(row, relation) for row in lx.COUNTRIES}), f"{article} {relation}")
    for continent in sorted({row.continent for row in lx.COUNTRIES}):
        say([row.country for row in lx.COUNTRIES if row.continent == continent], f"a country in {continent}")
    for mood, groups in lx.MOOD_WORDS.items():
        say([word for group in groups.values() for word in group], f"{_a(mood)} word")
        for kind, group in groups.items():
            say(group, f"{_a(mood)} word ({kind})")
    for cycle, members in lx.CYCLES.items():
        say(members, f"a {cycle}")
    return {word: tuple(dict.fromkeys(said)) for word, said in found.items()}


def labels_of(document: g.Document, ends: Sequence[int], texts: Sequence[str]) -> list[set[str]]:
    """Return the labels of each token; `ends` are the characters where tokens end, `texts` their spellings."""
    slots = {slot.start: SLOTS[slot.kind] for slot in document.slots if slot.kind in SLOTS}
    where = _a(document.mood) + " story" if document.mood else DOCUMENTS[document.kind]
    told = _told_from(document)
    found = []
    for end, text in zip(ends, texts, strict=True):
        word = text.strip()
        labels = {f'the word "{text}"', *kinds().get(word, ())}
        if end in slots:
            labels.add(slots[end])
        if end >= told:
            labels.add(f"in {where}")
        found.append(labels)
    return found


def _told_from(document: g.Document) -> int:
    """Return the character at which it is known what a document is: a story's mood by its first word of a mood."""
    moods = [slot.start + 1 + len(slot.word) for slot in document.slots if slot.kind in lx.MOOD_KINDS]
    return min(moods) if document.mood and moods else 0


def _a(mood: str) -> str:
    return f"an {mood}" if mood[0] in "aeiou" else f"a {mood}"
