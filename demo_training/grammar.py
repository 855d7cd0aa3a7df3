"""The grammar of the demo language: from a seed to documents, and the split into training and held-out.

A document is one of
* facts        one to six statements about countries, in several phrasings, with neutral sentences between;
* scenes       indirect objects: two people, one gives something to the other;
* story        five to nine sentences whose mood words all belong to one mood;
* words        a random list of words, repeated;
* succession   days, months and numbers in order.

What is held out is decided by a hash of its name (`held_out`), not by chance, so training and held-out never meet:
* a fact     by (template, subject): one in five never occurs in training, in any context;
* a scene    by the unordered pair of its people: one in five pairs never shares a training scene or story;
* a story    by (mood, protagonist, place): one in five never occurs in training;
* a succession by (template, item): one in five never occurs in training.
Word lists are drawn anew each time: a list of eight or more out of about 640 words does not come twice in practice.

Torch-free. Offsets are characters into the text and point at the space before a word.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random

from demo_training import lexicon as lx
from demo_training import templates as tp

HELD_OUT_SHARE = 5
_FIELD = re.compile(r"\{(\w+)\}")
_ARTICLED = {"a_feel": "feel", "a_thing": "thing"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A place in a text with a known answer: `text[start:]` begins with `" " + word`."""

    start: int
    kind: str
    word: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A text, what it is, and its answers. `key` names what the split decides on; facts lists have one key a fact."""

    text: str
    kind: str
    keys: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()
    mood: str | None = None


@dataclass(kw_only=True, slots=True)
class _Draft:
    """A text being written; remembers where the wanted fields landed."""

    text: str = ""
    slots: list[Slot] = field(default_factory=list)

    def add(self, template: str, values: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """Append one sentence. `wanted` maps a field to the kind of slot to record for it.

        A person or pronoun is recorded only within a sentence, and a person only if named before: then it is known.
        """
        if self.text:
            self.text += " "
        position = 0
        for match in _FIELD.finditer(template):
            self.text += template[position : match.start()]
            name, word = match[1], values[match[1]]
            kind = wanted.get(name)
            within = match.start() > 0 or kind not in ("person", "pronoun")
            if kind and within and (kind != "person" or word in self.text):
                self.slots.append(Slot(start=len(self.text) - 1, kind=kind, word=word))
            self.text += word
            position = match.end()
        self.text += template[position:]


@cache
def held_out(key: str) -> bool:
    """Return whether this fact, pair, story plan or succession is kept out of training."""
    digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
    return int.from_bytes(digest) % HELD_OUT_SHARE == 0


def _pronoun(name: str) -> str:
    return "she" if name in lx.WOMEN else "he"


def pair_key(first: str, second: str) -> str:
    return "pair " + " ".join(sorted((first, second)))


def _pair(rng: Random, *, held: bool) -> tuple[str, str]:
    while True:
        first, second = rng.sample(lx.NAMES, 2)
        if held_out(pair_key(first, second)) == held:
            return first, second


def filler(rng: Random, avoid: tuple[str, ...] = ()) -> str:
    """Return a sentence that bears no fact and no mood, with no name of `avoid`."""
    other = rng.choice([name for name in lx.NAMES if name not in avoid])
    place, place2 = rng.sample(lx.PLACES, 2)
    values = {"other": other, "place": place, "place2": place2}
    values |= {"object": rng.choice(lx.OBJECTS), "animal": rng.choice(lx.ANIMALS)}
    return rng.choice(tp.FILLERS).format_map(values)


def facts_of(relation: str) -> tuple[tuple[str, str], ...]:
    """All (subject, answer) of a relation."""
    if relation == "country":
        return tuple((row.capital, row.country) for row in lx.COUNTRIES)
    return tuple((row.country, getattr(row, relation)) for row in lx.COUNTRIES)


def fact_key(template: str, subject: str) -> str:
    return f"fact {subject} in {template}"


@cache
def fact_keys(held: bool) -> tuple[tuple[str, str, str, str], ...]:
    """All (relation, template, subject, answer) of one side of the split."""
    return tuple(
        (relation, template, subject, answer)
        for relation, patterns in tp.FACTS.items()
        for template in patterns
        for subject, answer in facts_of(relation)
        if held_out(fact_key(template, subject)) == held
    )


def _add_fact(draft: _Draft, rng: Random, fact: tuple[str, str, str, str]) -> str:
    relation, template, subject, answer = fact
    name = rng.choice(lx.NAMES)
    draft_template = template
    while "{filler}" in draft_template:
        draft_template = draft_template.replace("{filler}", filler(rng, (name,)), 1)
    values = {"s": subject, "a": answer, "name": name, "he": _pronoun(name)}
    draft.add(draft_template, values, {"a": relation})
    return fact_key(template, subject)


def facts(rng: Random, *, count: int, held: bool = False, profile: bool = False) -> Document:
    """`count` facts about different subjects, mostly of one country if `profile`. The last is held out if `held`."""
    draft, keys, seen = _Draft(), [], set[tuple[str, str]]()
    last = rng.choice(fact_keys(held))
    home = {last[2], last[3]} | {c.country for c in lx.COUNTRIES if last[2] in (c.country, c.capital)}
    while len(keys) < count:
        fact = last if len(keys) == count - 1 else rng.choice(fact_keys(False))
        about = (fact[0], fact[2])
        if fact is not last and (about in seen or about == (last[0], last[2])):
            continue
        if profile and fact is not last and fact[2] not in home and rng.random() < 0.98:
            continue
        if draft.text and rng.random() < 0.2:
            draft.add(filler(rng), {}, {})
        seen.add(about)
        keys.append(_add_fact(draft, rng, fact))
    return Document(text=draft.text, kind="facts", keys=tuple(keys), slots=tuple(draft.slots))


def fact_document(rng: Random, fact: tuple[str, str, str, str]) -> Document:
    """This one fact (relation, template, subject, answer) on its own."""
    draft = _Draft()
    key = _add_fact(draft, rng, fact)
    return Document(text=draft.text, kind="facts", keys=(key,), slots=tuple(draft.slots))


def scene(rng: Random, *, held: bool = False, lead: int = 0) -> Document:
    """An indirect-object scene after `lead` neutral sentences; its slot of kind `io` is the answer."""
    draft = _Draft()
    first, second = _pair(rng, held=held)
    giver, taker = rng.sample((first, second), 2)
    for _ in range(lead):
        draft.add(filler(rng, (first, second)), {}, {})
    template = rng.choice(tp.SCENES).replace("{filler}", filler(rng, (first, second)))
    values = {"A": first, "B": second, "S": giver, "IO": taker}
    values |= {"place": rng.choice(lx.PLACES), "object": rng.choice(lx.OBJECTS)}
    draft.add(template, values, {"IO": "io"})
    if rng.random() < 0.7:
        for template in rng.sample(tp.SCENE_ENDS, rng.randint(1, 2)):
            draft.add(template, values, {"S": "person", "IO": "person"})
    return Document(text=draft.text, kind="scene", keys=(pair_key(first, second),), slots=tuple(draft.slots))


def story_key(mood: str, name: str, place: str) -> str:
    return f"story {mood} {name} {place}"


def _story_values(rng: Random, mood: str, held: bool) -> tuple[dict[str, str], str]:
    while True:
        name, friend = _pair(rng, held=False)
        place = rng.choice(lx.PLACES)
        if held_out(story_key(mood, name, place)) == held:
            break
    pronoun = _pronoun(name)
    values = {"name": name, "friend": friend, "place": place, "he": pronoun, "He": pronoun.title()}
    values |= {"child": "girl" if name in lx.WOMEN else "boy", "month": rng.choice(lx.CYCLES["month"])}
    values |= {"animal": rng.choice(lx.ANIMALS), "object": rng.choice(lx.OBJECTS)}
    return values, story_key(mood, name, place)


def _mood_sentence(draft: _Draft, rng: Random, template: str, values: dict[str, str], mood: str) -> None:
    words = {kind: rng.choice(lx.MOOD_WORDS[mood][kind]) for kind in lx.MOOD_KINDS}
    for articled, kind in _ARTICLED.items():
        article = "an" if words[kind][0] in "aeiou" else "a"
        template = template.replace("{" + articled + "}", article + " {" + kind + "}")
    wanted = {kind: kind for kind in lx.MOOD_KINDS} | {"he": "pronoun", "friend": "person"}
    draft.add(template, values | words, wanted)


def story(rng: Random, mood: str, *, held: bool = False, neutral: bool = False) -> Document:
    """A story in one mood. `neutral`: the first sentence does not tell which."""
    draft = _Draft()
    values, key = _story_values(rng, mood, held)
    opening = rng.choice(tp.NEUTRAL_OPENINGS if neutral else tp.OPENINGS)
    count = rng.randint(3, 7)
    if "{name}" in opening:
        middles = rng.sample(tp.MIDDLES, count)
    else:
        middles = [tp.MIDDLES[0], *rng.sample(tp.MIDDLES[1:], count)]
    for template in [opening, *middles, rng.choice(tp.ENDINGS)]:
        _mood_sentence(draft, rng, template, values, mood)
    return Document(text=draft.text, kind="story", keys=(key,), slots=tuple(draft.slots), mood=mood)


def words(rng: Random, *, length: int, copies: float = 2.0) -> Document:
    """A list of `length` random words and then the same again, up to `copies` times in all."""
    chosen = rng.choices(all_words(), k=length)
    total = max(length + 1, round(length * copies))
    draft = _Draft(text="Words:")
    for at in range(total):
        draft.add("{w}", {"w": chosen[at % length]}, {"w": "random" if at < length else "repeat"})
    return Document(text=draft.text, kind="words", slots=tuple(draft.slots))


def succession(rng: Random, *, held: bool = False) -> Document:
    """Days, months or numbers: a run in order, or a statement about one and the next."""
    kind = rng.choice(tuple(lx.CYCLES))
    cycle = lx.CYCLES[kind]
    if not held and rng.random() < 0.4:
        start, length = rng.randrange(len(cycle)), rng.randint(3, len(cycle))
        run = [cycle[(start + i) % len(cycle)] for i in range(length)]
        return Document(text=", ".join(run) + ".", kind="succession")
    while True:
        template, at = rng.choice(tp.SUCCESSIONS), rng.randrange(len(cycle))
        key = f"succession {cycle[at]} in {template}"
        if held_out(key) == held:
            break
    draft = _Draft()
    values = {"kind": kind, "x": cycle[at], "y": cycle[(at + 1) % len(cycle)]}
    draft.add(template, values, {"y": "succession"})
    return Document(text=draft.text, kind="succession", keys=(key,), slots=tuple(draft.slots))


@cache
def all_words() -> tuple[str, ...]:
    """Every word of the language, sorted; each is one token after a space."""
    values: list[str] = [
        *lx.NAMES,
        *lx.PLACES,
        *lx.OBJECTS,
        *lx.ANIMALS,
        "he",
        "she",
        "He",
        "She",
        "boy",
        "girl",
        "a",
        "an",
    ]
    for row in lx.COUNTRIES:
        values += [row.country, row.capital, row.language, row.currency, row.continent]
    for kinds in lx.MOOD_WORDS.values():
        values += [word for group in kinds.values() for word in group]
    for kind, cycle in lx.CYCLES.items():
        values += [kind, *cycle]
    patterns = [*(t for group in tp.FACTS.values() for t in group), *tp.SCENES, *tp.SCENE_ENDS, *tp.FILLERS]
    patterns += [*tp.OPENINGS, *tp.NEUTRAL_OPENINGS, *tp.MIDDLES, *tp.ENDINGS, *tp.SUCCESSIONS, "Words"]
    for pattern in patterns:
        values += re.findall(r"[A-Za-z]+", _FIELD.sub(" ", pattern).replace("'s", " "))
    return tuple(sorted(set(values)))


def training_documents(seed: int) -> Iterator[Document]:
    """An endless stream of training documents; nothing held out is in it. The same seed gives the same stream."""
    rng = Random(seed)
    while True:
        choice = rng.random()
        if choice < 0.38:
            yield facts(rng, count=rng.choice((1, 1, 2, 3, 4, 6)), profile=rng.random() < 0.4)
        elif choice < 0.67:
            yield scene(rng, lead=rng.choice((0, 0, 0, 1, 2)))
        elif choice < 0.94:
            yield story(rng, rng.choice(lx.MOODS), neutral=rng.random() < 0.35)
        elif choice < 0.97:
            yield words(rng, length=int(2 ** rng.uniform(2, 6)), copies=rng.uniform(1.6, 3))
        else:
            yield succession(rng)
