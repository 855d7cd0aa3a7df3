"""Drawn tokens are those of `generate` after `torch.manual_seed`, also after going back, and a fork draws its own."""

from __future__ import annotations

import inspect
import re
from itertools import product
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    WatermarkingConfig,
)
from transformers.generation import logits_process

from djinn_jupyter.engine.process.describe import generation_defaults
from djinn_jupyter.engine.session.generation import GENERATION, highest, make_sampler
from djinn_jupyter.errors import IllegalMove, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Sampling, SamplingChanges
from djinn_jupyter.wire.request_base import COLDEST
from tests.device import DEVICE
from tests.engine.desk import Desk, desk_of, engine_like, tokens
from tests.engine.plain import generate, plain_of
from tests.families import build

pytestmark = pytest.mark.drawn

PROMPT = tokens(14)
NEW = 8
SETTINGS = (
    {},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 1.0, "top_k": 0, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 0, "min_p": 0.6},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.3, "repetition_penalty": 1.3},
)
DRAW = Sampling(temperature=1.0, seed=5)
ENDS = (
    Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=2**64 - 1),
    Sampling(temperature=1e-9, top_k=2**63 - 1, top_p=1e-9, seed=-(2**63)),
    Sampling(temperature=COLDEST, seed=1, repetition_penalty=1e3),
    Sampling(temperature=1e9, top_k=1, repetition_penalty=1e-3),
    Sampling(temperature=1.0, min_p=0.0),
    Sampling(temperature=1.0, min_p=1.0, seed=1),
)


@pytest.fixture(params=["llama", "gemma3_text", "jamba"])
def desk(request: pytest.FixtureRequest):
    desk = desk_of(request.param)
    desk.open()
    yield desk
    desk.close_all()


def plain(desk: Desk, **settings: object):
    return generate(plain_of(desk.engine.model.config.model_type), PROMPT, NEW, **settings)


@pytest.mark.parametrize("ids", [1, 7, 127, 50257])
def test_the_highest_score_is_the_one_that_torch_finds(ids: int) -> None:
    """Also of level ones, of infinite ones and of those that are no numbers: the first of them."""
    drawn = torch.Generator().manual_seed(ids)
    odd = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3.4e38, 1e-45)
    for _ in range(200):
        scores_1V = torch.randn((1, ids), generator=drawn)
        if torch.rand((), generator=drawn) < 0.5:
            scores_1V = scores_1V.round() * -0.0 if torch.rand((), generator=drawn) < 0.3 else scores_1V.round()
        for value in odd:
            at = torch.randint(ids, (int(torch.randint(4, (), generator=drawn)),), generator=drawn)
            scores_1V[0, at] = value if torch.rand((), generator=drawn) < 0.3 else scores_1V[0, at]
        assert highest(scores_1V.to(DEVICE)) == int(torch.argmax(scores_1V, dim=-1))
    with torch.inference_mode():
        assert highest(torch.zeros((1, ids), device=DEVICE)) == 0


def test_scores_that_were_read_can_still_leave_the_device() -> None:
    scores_1V = torch.zeros((1, 7))
    highest(scores_1V)
    assert scores_1V.untyped_storage().resizable()


def test_logits_that_are_no_numbers_never_reach_the_draw(llama: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the draw's own check of them is an assertion within a kernel, after which CUDA does nothing more."""
    monkeypatch.setattr(torch, "multinomial", lambda *_, **__: pytest.fail("drawn"))
    model = llama.engine.model
    sampler = make_sampler(model, DRAW, len(PROMPT), NEW, model.device)
    for bad, at in product((float("nan"), float("inf")), (0, 3, 126)):
        logits_1V = torch.randn((1, 127), device=model.device)  # no multiple of what a processor takes at once
        logits_1V[0, at] = bad
        with pytest.raises(UsageError, match="so that no token can be drawn"):
            sampler.choose(PROMPT, logits_1V)


class Results(TorchDispatchMode):
    """Notes the operations that run inside it, but for views, each with the number of its result's entries."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.found.append((str(function), result.numel() if isinstance(result, torch.Tensor) else 1))
        return result


def test_probabilities_are_drawn_from_with_no_look_at_each_of_them(llama: Desk) -> None:
    sampler = make_sampler(llama.engine.model, DRAW, len(PROMPT), NEW, DEVICE)
    with Results() as results:
        sampler.choose(PROMPT, torch.randn(1, 128, device=DEVICE))
    names = [name for name, _ in results.found]
    between = results.found[names.index("aten._softmax.default") + 1 : names.index("aten.multinomial.default")]
    assert between
    assert {entries for _, entries in between} == {1}


def test_a_choice_reads_no_signatures_of_processors(llama: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = make_sampler(llama.engine.model, DRAW, len(PROMPT), NEW, DEVICE)
    monkeypatch.setattr(logits_process.inspect, "signature", lambda *_: pytest.fail("read"))
    sampler.choose(PROMPT, torch.randn(1, 128, device=DEVICE))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_seeded_run_is_generate(desk: Desk, settings: dict[str, float]) -> None:
    for seed in (0, 7):
        sampling = Sampling(seed=seed, **{"temperature": 1.0, **settings})
        finished = desk.run(PROMPT, NEW, sampling=sampling)
        assert desk.outcome(finished) == plain(desk, seed=seed, **settings)


def test_a_greedy_run_with_a_repetition_penalty_is_generate(desk: Desk) -> None:
    finished = desk.run(PROMPT, NEW, sampling=Sampling(repetition_penalty=1.5))
    assert desk.outcome(finished) == plain(desk, repetition_penalty=1.5)


def test_a_greedy_choice_without_settings_copies_no_logits(llama: Desk) -> None:
    sampler = make_sampler(llama.engine.model, Sampling(), len(PROMPT), NEW, DEVICE)
    assert not sampler.processors
    logits_1V = torch.zeros((1, 128), device=DEVICE)
    logits_1V[0, 7] = 1.0
    assert sampler.choose(PROMPT, logits_1V) == 7


def test_scores_are_those_of_transformers_warpers_in_its_order(llama: Desk) -> None:
    sampling = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.5, repetition_penalty=1.2)
    sampler = make_sampler(llama.engine.model, sampling, len(PROMPT), NEW, DEVICE)
    tokens_1T = torch.tensor([PROMPT], device=DEVICE)
    logits_1V = 3 * torch.randn(1, 128, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    expected = logits_1V
    for warper in (
        logits_process.RepetitionPenaltyLogitsProcessor(1.2),
        logits_process.TemperatureLogitsWarper(0.8),
        logits_process.TopKLogitsWarper(40),
        logits_process.TopPLogitsWarper(0.95),
        logits_process.MinPLogitsWarper(0.5),
    ):
        left = expected
        expected = warper(tokens_1T, left)
    assert torch.equal(sampler.scores(PROMPT, logits_1V), expected)
    assert (expected == -torch.inf).sum() > (left == -torch.inf).sum()  # min_p took some of those that were left


def test_another_program_that_draws_meanwhile_changes_nothing(desk: Desk) -> None:
    desk.stop_at("resid_post.3")
    reply = desk.run(PROMPT, NEW, sampling=DRAW)
    for _ in range(NEW - 1):
        torch.rand(3)
        reply = desk.resume()
    assert desk.outcome(desk.resume()) == plain(desk, seed=5)
    assert reply.step == NEW - 1


@pytest.mark.parametrize("step", [0, 3])
def test_going_back_and_on_draws_the_same_numbers(desk: Desk, step: int) -> None:
    desk.stop_at("resid_post.4", f"step == {step}")
    desk.run(PROMPT, NEW, sampling=DRAW)
    first = desk.outcome(desk.resume())
    assert first == plain(desk, seed=5)
    desk.back()
    assert desk.outcome(desk.resume()) == first


@pytest.mark.parametrize("count", [1, NEW])
def test_going_back_by_tokens_draws_the_same_numbers(desk: Desk, count: int) -> None:
    first = desk.outcome(desk.run(PROMPT, NEW, sampling=DRAW))
    desk.back(count, by="token")
    assert desk.outcome(desk.resume()) == first


def test_a_fork_draws_its_own_numbers(desk: Desk) -> None:
    """Each goes on with the generator as it was at the stop, independent of the other's draws."""
    desk.stop_at("resid_post.4", "step == 2")
    desk.run(PROMPT, NEW, sampling=DRAW)
    desk.fork("b")
    desk.fork("c")
    expected = plain(desk, seed=5)
    assert desk.outcome(desk.resume("b"), "b") == expected
    desk.step(2, by="token", name="c")
    assert desk.outcome(desk.resume("a")) == expected
    assert desk.outcome(desk.resume("c"), "c") == expected


class Changing(LogitsProcessor):
    """Chooses the first `at` tokens by one temperature and the others by another, 0 for the most probable one; a seed
    begins the numbers of the others."""

    def __init__(self, at: int, first: float, then: float, seed: int | None) -> None:
        self.at, self.first, self.then, self.seed = at, first, then, seed

    def __call__(self, tokens_1T: torch.Tensor, scores_1V: torch.Tensor) -> torch.Tensor:
        new = tokens_1T.shape[1] - len(PROMPT)
        if new == self.at and self.seed is not None:
            torch.manual_seed(self.seed)
        heat = self.first if new < self.at else self.then
        if heat > 0:
            return scores_1V / heat
        return torch.full_like(scores_1V, -torch.inf).scatter(1, scores_1V.argmax(-1, keepdim=True), 0.0)


def by_hand(desk: Desk, at: int, first: Sampling, changes: SamplingChanges) -> object:
    seed = changes.seed if first.temperature or changes.seed is not None else first.seed
    then = first.temperature if changes.temperature is None else changes.temperature
    switch = LogitsProcessorList([Changing(at, first.temperature, then, seed)])
    return plain(desk, seed=first.seed, top_k=0, logits_processor=switch)


HOT = Sampling(temperature=0.9, top_k=0, seed=5)
CHANGED = (
    (Sampling(), SamplingChanges(temperature=1.3, top_k=0)),
    (Sampling(), SamplingChanges(temperature=1.3, top_k=0, seed=8)),
    (HOT, SamplingChanges(temperature=2.0)),
    (HOT, SamplingChanges(seed=8)),
    (HOT, SamplingChanges(temperature=0.0)),
)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize(("first", "changes"), CHANGED, ids=str)
def test_a_run_goes_on_with_other_settings(desk: Desk, first: Sampling, changes: SamplingChanges, at: int) -> None:
    """From the stop on, also in a fork. Going back by tokens leads to the same tokens again; going back to the stop, or
    to before it, brings the former settings back."""
    desk.stop_at("resid_post.4", f"step == {at}")
    desk.run(PROMPT, NEW, sampling=first)
    expected, as_begun = by_hand(desk, at, first, changes), by_hand(desk, NEW, first, SamplingChanges())
    assert expected != as_begun
    desk.ask(ask.Fork(session="a", name="b", sampling=changes))
    ended = desk.ask(ask.Resume(session="a", sampling=changes))
    assert desk.outcome(ended) == expected
    assert desk.outcome(desk.resume("b"), "b") == expected
    for name in "ab":
        for count in (1, NEW - at):
            desk.back(count, by="token", name=name)
            assert desk.outcome(desk.resume(name, free=True), name) == expected
        if at:
            desk.back(NEW, by="token", name=name)
            assert desk.outcome(desk.resume(name, free=True), name) == as_begun
    desk.run(PROMPT, NEW, sampling=first)
    desk.ask(ask.Resume(session="a", sampling=changes, free=True))
    desk.back()
    assert desk.outcome(desk.resume()) == as_begun


def test_settings_that_chose_a_token_are_kept(desk: Desk) -> None:
    desk.stop_at("resid_post.4", "step == 2 or step == 5")
    desk.stop_at("resid_post.6", "step == 2")
    desk.run(PROMPT, NEW, sampling=HOT)
    desk.ask(ask.Resume(session="a", sampling=SamplingChanges(temperature=3.0)))
    desk.ask(ask.Resume(session="a", sampling=SamplingChanges(temperature=2.0)))
    ended = desk.outcome(desk.ask(ask.Resume(session="a", sampling=SamplingChanges(repetition_penalty=9.0))))
    earlier = desk.session().generation.earlier
    assert [(at, one.temperature, one.repetition_penalty) for at, one in earlier] == [(2, 0.9, None), (5, 2.0, None)]
    desk.back(NEW - 1, by="token")
    assert desk.session().generation.sampler.sampling == HOT
    for _ in range(3):
        desk.resume()
    assert desk.outcome(desk.resume()) == by_hand(desk, NEW, HOT, SamplingChanges()) != ended


@pytest.mark.parametrize(
    "changes", [SamplingChanges(seed=3), SamplingChanges(top_k=5), SamplingChanges(min_p=0.1)], ids=str
)
def test_settings_that_would_change_nothing_are_refused_at_the_stop(desk: Desk, changes: SamplingChanges) -> None:
    desk.stop_at("resid_post.4", "step == 1")
    stopped = desk.run(PROMPT, NEW)
    for request in (ask.Resume(session="a", sampling=changes), ask.Fork(session="a", name="b", sampling=changes)):
        with pytest.raises(UsageError, match=r"takes the most probable token each time, and .* give a temperature too"):
            desk.ask(request)
    assert desk.ask(ask.ReadStop(session="a")) == stopped
    assert desk.outcome(desk.resume()) == plain(desk)


def test_a_session_that_is_not_stopped_has_nothing_to_draw(desk: Desk) -> None:
    hot = SamplingChanges(temperature=1.0)
    for _ in range(2):
        for request in (ask.Resume(session="a", sampling=hot), ask.Fork(session="a", name="b", sampling=hot)):
            with pytest.raises(IllegalMove):
                desk.ask(request)
        desk.run(PROMPT, NEW)


def test_the_models_own_settings_are_ignored_by_name_or_applied(desk: Desk) -> None:
    settings = desk.engine.model.generation_config
    settings.temperature, settings.do_sample, settings.top_p = 0.5, True, 0.9
    try:
        applied = desk.run(PROMPT, NEW, sampling=Sampling(seed=3, model_defaults=True))
        outcome = desk.outcome(applied)
    finally:
        settings.temperature = settings.do_sample = settings.top_p = None
    assert outcome == plain(desk, seed=3, temperature=0.5, top_p=0.9)
    assert applied.ignored_defaults == ()


# Every field of GenerationConfig at values that are not its default; an unknown one too.
OTHER_VALUES: dict[str, list[Any]] = {
    "max_length": [16, 4096], "max_new_tokens": [3], "min_length": [18], "min_new_tokens": [4],
    "early_stopping": [True], "max_time": [1e-09], "stop_strings": [["w"]], "do_sample": [True], "num_beams": [3],
    "use_mtp": [True], "use_cache": [False], "cache_implementation": ["hybrid", "static", "quantized"],
    "cache_config": [{"nbits": 4}], "max_cache_len": [9], "temperature": [0.3], "top_k": [2], "top_p": [0.3],
    "min_p": [0.9], "top_h": [0.2], "typical_p": [0.3], "epsilon_cutoff": [0.02], "eta_cutoff": [0.02],
    "repetition_penalty": [3.0], "encoder_repetition_penalty": [3.0], "length_penalty": [3.0],
    "no_repeat_ngram_size": [1], "bad_words_ids": [[[n] for n in range(40, 90)]], "renormalize_logits": [True],
    "forced_bos_token_id": [9], "forced_eos_token_id": [9], "remove_invalid_values": [True],
    "exponential_decay_length_penalty": [[1, 9.0]], "suppress_tokens": [list(range(40, 90))],
    "begin_suppress_tokens": [list(range(40, 90))], "sequence_bias": [[[[9], 99.0]]], "token_healing": [True],
    "guidance_scale": [3.0], "watermarking_config": [WatermarkingConfig(greenlist_ratio=0.3, bias=50.0)],
    "num_return_sequences": [2], "output_attentions": [True], "output_hidden_states": [True],
    "output_scores": [True], "output_logits": [True], "return_dict_in_generate": [True], "pad_token_id": [7],
    "bos_token_id": [7], "encoder_no_repeat_ngram_size": [1], "decoder_start_token_id": [7], "is_assistant": [True],
    "num_assistant_tokens": [3], "num_assistant_tokens_schedule": ["heuristic"],
    "assistant_confidence_threshold": [0.9], "prompt_lookup_num_tokens": [2], "max_matching_ngram_size": [1],
    "assistant_early_exit": [2], "assistant_lookbehind": [1], "target_lookbehind": [1],
    "assistant_ensemble_weight": [0.5], "speculation_type": ["ngram"], "compile_config": [None],
    "disable_compile": [True], "continuous_batching_config": [None], "low_memory": [True], "penalty_alpha": [0.6],
    "dola_layers": ["low"], "diversity_penalty": [1.0], "num_beam_groups": [2], "constraints": [["none"]],
    "force_words_ids": [[[9]]], "prefill_chunk_size": [4], "of_no_version": [1],
}  # fmt: skip
OF_EVERY_RUN = {"eos_token_id", "transformers_version", "_from_model_config"}


def test_the_values_above_are_of_every_field() -> None:
    assert {*GENERATION.computed, *GENERATION.harmless, *GENERATION.refused} - set(OTHER_VALUES) == OF_EVERY_RUN


@pytest.mark.parametrize("draws", [False, True], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_model_setting_gives_the_tokens_of_generate_or_is_told(
    name: str, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `model_defaults`, and without: what `generate` would do otherwise is told by name there."""
    desk, model = desk_of("llama", layers=2), build("llama", layers=2).to(DEVICE)
    prompt = PROMPT[:1] if name == "forced_bos_token_id" else PROMPT
    for value in OTHER_VALUES[name]:
        config = GenerationConfig(do_sample=draws or None, bos_token_id=1, eos_token_id=2)
        setattr(config, name, value)
        monkeypatch.setattr(desk.engine.model, "generation_config", config)
        described = with_settings(desk)
        described.open()
        plainly = Sampling(seed=5, temperature=float(draws))
        runs = [
            described.run(prompt, NEW, sampling=sampling, ignore_eos=False)
            for sampling in (plainly, replace(plainly, temperature=0.0, model_defaults=True))
        ]
        described.close_all()
        untold = [run.tokens for run in runs if not named(name, run)]
        if untold:
            assert set(untold) == {generated(model, config, prompt)}, value


def with_settings(desk: Desk) -> Desk:
    """Return the desk of an engine whose model was loaded with its present settings."""
    told = generation_defaults(desk.engine.model)
    description = replace(desk.engine.description, generation_defaults=told, eos_token_ids=(2,))
    return Desk(engine_like(desk, description=description))


def named(name: str, finished: Any) -> bool:
    return any(one.startswith(f"{name}=") for one in finished.ignored_defaults)


def generated(model: Any, config: GenerationConfig, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Return the new tokens of `generate` on the model with these settings."""
    torch.manual_seed(5)
    model.generation_config = config
    tokens_1T = torch.tensor([prompt], device=model.device)
    made = model.generate(tokens_1T, attention_mask=torch.ones_like(tokens_1T), max_new_tokens=NEW)
    return tuple(getattr(made, "sequences", made)[0, len(prompt) :].tolist())


@pytest.mark.parametrize("sampling", ENDS, ids=str)
def test_the_ends_of_what_may_be_asked_for_can_be_drawn_with(desk: Desk, sampling: Sampling) -> None:
    """The model's processors take every setting that the noun `Sampling` accepts."""
    assert len(desk.run(PROMPT, NEW, sampling=sampling).tokens) == NEW


# --- the fields of settings -------------------------------------------------------------------------------------------


def test_every_field_of_transformers_is_in_the_table() -> None:
    assert not GENERATION.unknown(GenerationConfig().to_dict())


def test_every_field_that_chooses_processors_is_computed_or_told() -> None:
    source = inspect.getsource(GenerationMixin._get_logits_processor)
    read = set(re.findall(r"generation_config\.([a-z]\w*)", source)) - {"num_beams", "use_cache", "max_length"}
    assert len(read) > 20
    assert read - GENERATION.computed - set(GENERATION.refused) == set()
