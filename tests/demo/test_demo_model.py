"""The shipped demo model, as stored: its card's claims, on samples small enough for every test run."""

import json
import string
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_training import CARD, EVALUATION, TRAINING_LOG, card, skills
from demo_training import grammar as g
from demo_training import interesting as it
from demo_training import lexicon as lx
from demo_training.reading import told_mood, well_formed
from djinn_jupyter.demo import MODEL_PATH

BAR = 0.95
PROMISED = ("facts.alone", "facts.in_paragraph", "scenes", "stories", "induction.ids", "induction.words")
SEED = 424_242


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(MODEL_PATH)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaForCausalLM]:
    """The model as it loads while the network refuses."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as offline:
        offline.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was used"))
        loaded = AutoModelForCausalLM.from_pretrained(MODEL_PATH).eval()
    yield loaded
    torch.set_num_threads(threads)


def follow(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, prompt: str, tokens: int = 1) -> str:
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :])


# --------------------------------------------------------------------------------------------- the package


def test_the_model_is_whole_and_small() -> None:
    sizes = {file.name: file.stat().st_size for file in MODEL_PATH.iterdir()}
    wanted = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert set(sizes) == wanted
    assert sum(sizes.values()) < 8_000_000
    assert all(file.is_file() for file in (TRAINING_LOG, CARD, EVALUATION))


def test_the_card_says_what_was_measured() -> None:
    found = json.loads(EVALUATION.read_text())
    assert CARD.read_text() == card.render(found)
    assert found["package_bytes"] == sum(file.stat().st_size for file in MODEL_PATH.iterdir())
    for measured in (found["skills"], found["skills_bfloat16"]):
        shares = {skill: measured[skill]["right"] / measured[skill]["asked"] for skill in PROMISED}
        assert min(shares.values()) >= BAR, shares


def test_grammar_and_card_need_no_torch() -> None:
    code = "import sys, demo_training.grammar, demo_training.card; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_it_loads_offline(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    assert (model.dtype, len(model.model.layers), len(tokenizer)) == (torch.float32, 8, model.config.vocab_size)


# ------------------------------------------------------------------------------------------- the tokenizer


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_text_of_the_grammar_round_trips(tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
    for document in islice(g.training_documents(seed), 5):
        assert tokenizer.decode(tokenizer(document.text)["input_ids"]) == document.text


@settings(max_examples=80, deadline=None)
@given(text=st.text(string.printable) | st.text())
def test_any_text_round_trips(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_every_word_is_one_token_after_a_space(tokenizer: PreTrainedTokenizerBase) -> None:
    for word in g.all_words():
        assert len(tokenizer(" " + word)["input_ids"]) == 1
        assert not word[0].isupper() or len(tokenizer(word)["input_ids"]) == 1


def test_no_token_is_put_before_a_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.convert_ids_to_tokens(tokenizer("The capital")["input_ids"]) == ["The", "\u0120capital"]
    assert tokenizer.eos_token == "<|endoftext|>"


# ---------------------------------------------------------------------------------------------- the skills


def test_facts_never_stated_so(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    rng = Random(SEED)
    alone = skills.held_out_facts(rng)[::5]
    assert skills.slot_share(model, tokenizer, alone, kinds=lx.RELATIONS).accuracy >= BAR
    paragraphs = skills.unanswered_facts(rng, rows=60, count=4)
    assert skills.slot_share(model, tokenizer, paragraphs, kinds=lx.RELATIONS, last=True).accuracy >= BAR


def test_facts_are_right_at_the_end_of_a_full_context(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    prefix = skills.long_context(tokenizer, seed=SEED, tokens=950)
    assert len(prefix) > 800
    facts = [document for document in skills.held_out_facts(Random(SEED)) if len(document.text) < 100][::40]
    assert skills.slot_share(model, tokenizer, facts, kinds=lx.RELATIONS, prefix=prefix).accuracy >= 0.9


def test_indirect_objects_of_unseen_pairs(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    rng = Random(SEED)
    scenes = [g.scene(rng, held=True, lead=k % 3) for k in range(90)]
    assert skills.slot_share(model, tokenizer, scenes, kinds=("io",)).accuracy >= BAR


def test_a_story_keeps_its_mood(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    rng = Random(SEED)
    stories = [g.story(rng, mood, held=True, neutral=k % 2 == 1) for mood in lx.MOODS for k in range(8)]
    assert skills.mood_share(model, tokenizer, stories, skip=1).accuracy >= BAR


def test_repeated_random_tokens_are_copied(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    found = skills.induction_share(model, vocabulary=tokenizer.eos_token_id, lengths=(10, 40, 100), rows=6, seed=SEED)
    assert found.accuracy >= BAR


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("The capital of France is", " Paris."),
        ("The language of Italy is", " Italian."),
        ("People in Italy speak", " Italian."),
        ("When Mary and John went to the store, John gave a drink to", " Mary."),
    ],
)
def test_what_a_visitor_types_first(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str
) -> None:
    assert follow(model, tokenizer, prompt, tokens=2) == answer


@pytest.mark.parametrize("mood", lx.MOODS)
def test_a_story_is_told_to_its_end(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, mood: str) -> None:
    text = follow(model, tokenizer, f"It was {it.article(mood)} day. Mary went to the park with John.", tokens=120)
    assert text.endswith(".<|endoftext|>")
    assert len(tokenizer(text)["input_ids"]) >= 20
    assert told_mood(text) == mood
    assert well_formed(text.removesuffix("<|endoftext|>"))


# --------------------------------------------------------------------------------------- what one sees inside


def test_another_country_at_the_subject_moves_the_answer(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    found = it.causal_trace(model, tokenizer, relation="capital", template="The capital of {s} is", pairs=12)
    assert found["subject"][0] >= BAR
    assert found["subject"][-1] == 0.0
    assert found["last"][-1] >= BAR


def test_there_are_induction_heads(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    scores = it.head_scores(model, vocabulary=tokenizer.eos_token_id, rows=3)
    assert max(map(max, scores["induction"])) >= 0.5


def test_a_mood_vector_changes_the_story(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    found = json.loads(EVALUATION.read_text())["steering"]["sad to happy"]
    best = max(found, key=lambda row: row["steered"])
    plain, steered = it.steering(
        model,
        tokenizer,
        start="sad",
        toward="happy",
        away="sad",
        layers=[best["layer"]],
        coefficients=[0.0, best["coefficient"]],
        prompts=8,
    )
    assert plain["toward"] <= 0.1
    assert steered["steered"] >= 0.8
