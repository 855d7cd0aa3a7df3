from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo_training import grammar as g
from demo_training import lexicon as lx
from demo_training import templates as tp
from demo_training.reading import told_mood, well_formed

SOME = 1500


def test_the_same_seed_gives_the_same_documents() -> None:
    assert list(islice(g.training_documents(3), 200)) == list(islice(g.training_documents(3), 200))
    assert list(islice(g.training_documents(3), 200)) != list(islice(g.training_documents(4), 200))


def test_nothing_held_out_is_in_training() -> None:
    documents = list(islice(g.training_documents(20), SOME))
    assert {document.kind for document in documents} == {"facts", "scene", "story", "words", "succession"}
    assert not [key for document in documents for key in document.keys if g.held_out(key)]


@given(seed=st.integers(0, 10**6), mood=st.sampled_from(lx.MOODS))
def test_a_held_out_document_is_held_out(seed: int, mood: str) -> None:
    rng = g.Random(seed)
    assert g.held_out(g.facts(rng, count=3, held=True).keys[-1])
    for document in (g.scene(rng, held=True), g.story(rng, mood, held=True), g.succession(rng, held=True)):
        assert all(map(g.held_out, document.keys))
        assert document.keys


def test_a_held_out_statement_stands_in_no_training_text() -> None:
    text = "\n".join(document.text for document in islice(g.training_documents(21), SOME))
    plain = [(t, s, a) for _, t, s, a in g.fact_keys(True) if "{filler}" not in t and "{name}" not in t]
    statements = [template.format(s=subject, a=answer) for template, subject, answer in plain]
    longest = [s for s in statements if not any(s in other for other in everything() if other != s)]
    assert len(longest) > 300
    assert not [s for s in longest if s in text]


def everything() -> list[str]:
    """All statements about all subjects that hold no person and no filler."""
    return [
        template.format(s=subject, a=answer)
        for relation, patterns in tp.FACTS.items()
        for template in patterns
        if "{filler}" not in template and "{name}" not in template
        for subject, answer in g.facts_of(relation)
    ]


@pytest.mark.parametrize("relation", lx.RELATIONS)
def test_every_fact_is_trained_in_several_phrasings(relation: str) -> None:
    seen = [subject for found, _, subject, _ in g.fact_keys(False) if found == relation]
    assert min(seen.count(subject) for subject, _ in g.facts_of(relation)) >= 4


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_slots_point_at_their_words(seed: int) -> None:
    for document in islice(g.training_documents(seed), 12):
        for slot in document.slots:
            assert document.text[slot.start :].startswith(" " + slot.word)
        if document.mood:
            told = [lx.mood_of(slot.word) for slot in document.slots if slot.kind in lx.MOOD_KINDS]
            assert set(told) == {document.mood}


def test_no_word_has_two_moods_and_neutral_sentences_have_none() -> None:
    words = [w for kinds in lx.MOOD_WORDS.values() for mood in [set().union(*kinds.values())] for w in mood]
    assert len(words) == len(set(words))
    neutral = " ".join((*tp.FILLERS, *tp.NEUTRAL_OPENINGS, *tp.SCENES, *lx.PLACES, *lx.OBJECTS, *lx.ANIMALS))
    assert not {word.strip(".,") for word in neutral.split()} & set(words)


def test_the_table_of_countries_has_no_doubles() -> None:
    for column in ("country", "capital"):
        assert len({getattr(row, column) for row in lx.COUNTRIES}) == len(lx.COUNTRIES) == 56
    assert not set(lx.WOMEN) & set(lx.MEN)


@given(seed=st.integers(0, 10**6), mood=st.sampled_from(lx.MOODS))
def test_a_story_reads_as_it_was_told(seed: int, mood: str) -> None:
    text = g.story(g.Random(seed), mood).text
    assert told_mood(text) == mood
    assert well_formed(text)
    assert not well_formed(text + " Glad glad glad.")
