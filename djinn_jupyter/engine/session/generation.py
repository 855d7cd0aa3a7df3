"""A run's settings and its progress, and its next token; it runs nothing. The fields of `generation_config.json` have
the names and defaults of transformers 5.23 (`GenerationConfig`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import fields
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel

from djinn_jupyter.engine.passes.frame import States
from djinn_jupyter.errors import UsageError
from djinn_jupyter.modules.files.files import FieldTable
from djinn_jupyter.settings import OF_DRAWING
from djinn_jupyter.wire.nouns import Mode, Sampling, SamplingChanges
from djinn_jupyter.wire.request_base import require_computable

GENERATION: Final = FieldTable(
    computed=frozenset({
        "bad_words_ids", "begin_suppress_tokens", "do_sample", "epsilon_cutoff", "eta_cutoff",
        "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "min_length",
        "min_new_tokens", "min_p", "no_repeat_ngram_size", "remove_invalid_values", "renormalize_logits",
        "repetition_penalty", "sequence_bias", "suppress_tokens", "temperature", "top_h", "top_k", "top_p",
        "typical_p", "watermarking_config",
    }),
    harmless=frozenset({
        "_from_model_config", "assistant_confidence_threshold", "assistant_ensemble_weight", "assistant_lookbehind",
        "bos_token_id", "cache_config", "compile_config", "continuous_batching_config", "decoder_start_token_id",
        "disable_compile", "diversity_penalty", "early_stopping", "eos_token_id", "length_penalty", "low_memory",
        "max_cache_len", "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "output_attentions", "output_hidden_states", "output_logits", "output_scores", "pad_token_id",
        "prefill_chunk_size", "return_dict_in_generate", "speculation_type", "target_lookbehind",
        "transformers_version", "use_cache",
    }),
    refused={
        "assistant_early_exit": (None, ""),
        "cache_implementation": ("hybrid", ""),  # which generate drops
        "constraints": (None, ""),
        "dola_layers": (None, ""),
        "encoder_no_repeat_ngram_size": (0, ""),
        "encoder_repetition_penalty": (1.0, ""),
        "force_words_ids": (None, ""),
        "guidance_scale": (1, ""),
        "is_assistant": (False, ""),
        "max_length": (20, ""),
        "max_new_tokens": (None, ""),
        "max_time": (None, ""),
        "num_beam_groups": (1, ""),
        "num_beams": (1, ""),
        "num_return_sequences": (1, ""),
        "penalty_alpha": (None, ""),
        "prompt_lookup_num_tokens": (None, ""),
        "stop_strings": (None, ""),
        "token_healing": (False, ""),
        "use_mtp": (False, ""),
    },
)  # fmt: skip
"""A run with `model_defaults` applies `computed` fields, and no other run does. No run applies `refused` ones: their
names are told. The harmless ones choose how fast `generate` is and what it returns, or need a refused one to count.
`eos_token_id` is heard in every run."""


def model_settings(model: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of the model's generation config that change `generate`'s result: computed here, and others."""
    config = model.generation_config
    given: Mapping[str, Any] = config.to_diff_dict() if config else {}
    defaults = GenerationConfig()._get_default_generation_params()
    computed = {
        name: value
        for name, value in given.items()
        if name in GENERATION.computed and not GENERATION.is_unset(name, value) and value != defaults.get(name)
    }
    return computed | GENERATION.unheard(given)


# The next token, exactly as `generate` chooses it: the model's own logits processors on fp32 logits of the last row,
# softmax, and `multinomial` with the session's own generator. A setting that is not given has the default of
# `generate` (top_k 50 when sampling). Reference: transformers, `GenerationMixin._sample`.

Processor = Callable[[Tensor, Tensor], Tensor]

_AS_GENERATE: Final = tuple(
    field.name for field in fields(Sampling) if field.name not in ("temperature", "seed", "model_defaults")
)  # settings that GenerationConfig has under the same name

_ENDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")  # which processors of other settings read


@dataclass(slots=True, kw_only=True)
class Sampler:
    """`draws` is True where a random number is drawn per token. `processors` are those of `generate`, in its order;
    without any the scores are the logits. `generator` is the only state; the sampler was made from `sampling` and
    `prompt_length`."""

    sampling: Sampling
    prompt_length: int
    processors: Sequence[Processor]
    draws: bool
    generator: torch.Generator

    def choose(self, tokens: Sequence[int], logits_1V: Tensor) -> int:
        """Return the next token id. `tokens` are all so far, `logits_1V` the last position's logits."""
        scores_1V = self.scores(tokens, logits_1V)
        if not self.draws:
            return highest(scores_1V)
        probabilities_1V = torch.nn.functional.softmax(scores_1V, dim=-1)
        # Multinomial's own check on a GPU ends CUDA's context. One probability shows all: their sum divides each.
        if not math.isfinite(probabilities_1V[0, 0]):
            raise UsageError("The model's logits hold NaN or infinity here, so that no token can be drawn.")
        return int(torch.multinomial(probabilities_1V, num_samples=1, generator=self.generator))

    def scores(self, tokens: Sequence[int], logits_1V: Tensor) -> Tensor:
        """Return the scores [1, V] in fp32 by which the next token is chosen."""
        if not self.processors:
            return logits_1V.to(torch.float32)
        tokens_1T = torch.tensor([tokens], device=logits_1V.device)
        scores_1V = logits_1V.to(copy=True, dtype=torch.float32)
        for process in self.processors:  # their list's own call reads the signature of each, at every token
            scores_1V = process(tokens_1T, scores_1V)
        return scores_1V


def highest(scores_1V: Tensor) -> int:
    """Return the id that `torch.argmax` returns: that of the first of the highest scores, where a NaN is higher than
    all. On a CPU numpy finds it in a sixth of the time: 4.5 us of 50,257 scores, on one core of an EPYC. It reads them
    by DLPack: `Tensor.numpy` has the storage never shrink again, and scores can be the logits that a session keeps."""
    if scores_1V.device.type == "cpu":
        return int(np.from_dlpack(scores_1V.detach()).argmax())
    return int(torch.argmax(scores_1V, dim=-1))


def make_sampler(
    model: PreTrainedModel, sampling: Sampling, prompt_length: int, most_new: int, device: torch.device
) -> Sampler:
    """Return a sampler for one run of at most `most_new` tokens, its generator freshly seeded with `sampling.seed`."""
    config = GenerationConfig()
    if sampling.model_defaults:
        given = model.generation_config.to_dict()
        config.update(
            **{name: given[name] for name in (*GENERATION.computed, *_ENDS) if name in given}, defaults_only=True
        )
    config.update(**GenerationConfig._get_default_generation_params(), defaults_only=True)
    draws = _configure(config, sampling, most_new)
    generator = torch.Generator(device=device)
    generator.manual_seed(sampling.seed)
    processors = _processors(model, config, prompt_length, device)
    return Sampler(
        sampling=sampling, prompt_length=prompt_length, processors=processors, draws=draws, generator=generator
    )


def _configure(config: GenerationConfig, sampling: Sampling, most_new: int) -> bool:
    """Write the requested settings into `config`. Return True where tokens are drawn."""
    for name, asked in {"max_new_tokens": most_new, **{name: getattr(sampling, name) for name in _AS_GENERATE}}.items():
        if asked is not None:
            setattr(config, name, asked)
    if sampling.temperature > 0:
        config.do_sample, config.temperature = True, sampling.temperature
    return bool(config.do_sample)


def _processors(model: Any, config: GenerationConfig, prompt_length: int, device: torch.device) -> Sequence[Processor]:
    # These are private calls of `generate`: a list of processors written here could only drift from it.
    model._prepare_special_tokens(config, False, device=device)
    model._prepare_generated_length(config, True, True, "input_ids", prompt_length, None)
    processors: Sequence[Processor] = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=prompt_length,
        prefix_allowed_tokens_fn=None,
        logits_processor=LogitsProcessorList(),
        device=str(device),
        model_kwargs={},
    )
    return processors


STATE_PERIOD: Final = 16
GROWING_KEPT: Final = 16


@dataclass(slots=True, kw_only=True)
class Generation:
    """`begins` is the number of tokens before the first new one, `fed_from` the number committed before the run,
    `extends` the number of the session's tokens before it; its prompt lies between those and the first new one. `eos`
    is empty when the end of text is ignored. `layers_run` and `passes` count from the run's beginning to its present
    place, over all stops; going back reduces them. `drawn` holds the generator's state before each new token, where
    tokens are drawn; going back by tokens needs it. `earlier` has the former settings of sampling, each with the number
    of new tokens that were chosen under it or before. `states` are the recurrent states at every STATE_PERIOD-th
    committed length, for families that have them; where their size grows with the length, at most about GROWING_KEPT of
    them, denser near the end. `log_probabilities` are those of the new tokens under the model's own logits, None where
    they were not kept."""

    begins: int
    fed_from: int
    max_new_tokens: int
    sampler: Sampler
    stop: tuple[str, ...]
    eos: frozenset[int]
    ignored_defaults: tuple[str, ...]
    extends: int = 0
    earlier: tuple[tuple[int, Sampling], ...] = ()
    layers_run: int = 0
    passes: int = 0
    drawn: list[Tensor] = field(default_factory=list)
    log_probabilities: list[float | None] = field(default_factory=list)
    mode: Mode = "exact"  # "fast" shares passes with other runs
    shared: int = 0  # passes that were computed together with others
    difference: float | None = None  # the largest of its shared logits from the same computed again alone
    states: dict[int, States] = field(default_factory=dict)

    def copy(self) -> Generation:
        """Return the same generation with its own generator and accounting."""
        generator = torch.Generator(device=self.sampler.generator.device)
        generator.set_state(self.sampler.generator.get_state())
        sampler = replace(self.sampler, generator=generator)
        return replace(
            self,
            sampler=sampler,
            drawn=list(self.drawn),
            states=dict(self.states),
            log_probabilities=list(self.log_probabilities),
        )

    def changed(self, model: PreTrainedModel, changes: SamplingChanges, new: int) -> Generation:
        """Return a copy that draws with other settings behind its first `new` tokens. Without a seed its random numbers
        go on. Raises UsageError for settings that change nothing, because no token is drawn."""
        own = self.sampler
        sampling = own.sampling.changed(changes)
        require_computable(sampling)
        made = self.copy()
        made.sampler = self._sampler(model, sampling)
        idle = [name for name in (*OF_DRAWING, "seed") if getattr(changes, name, None) is not None]
        if idle and not made.sampler.draws and changes.temperature is None:
            raise UsageError(
                f"The run takes the most probable token each time, and {' and '.join(idle)} would change nothing: give "
                "a temperature too."
            )
        if own.draws and changes.seed is None:
            made.sampler.generator.set_state(own.generator.get_state())
        if made.sampler.draws:  # tokens that were not drawn took no number
            made.drawn += [made.sampler.generator.get_state()] * (new - len(made.drawn))
        if not self.earlier or self.earlier[-1][0] < new:  # else no token was chosen by these
            made.earlier = (*self.earlier, (new, own.sampling))
        return made

    def draw_again(self, model: PreTrainedModel, new: int) -> None:
        """Choose the token behind the first `new` ones as it was chosen: with its settings and its random number."""
        while self.earlier and new < self.earlier[-1][0]:
            *earlier, (_, sampling) = self.earlier
            self.sampler, self.earlier = self._sampler(model, sampling), tuple(earlier)
        if self.sampler.draws and 0 <= new < len(self.drawn):
            self.sampler.generator.set_state(self.drawn[new])

    def _sampler(self, model: PreTrainedModel, sampling: Sampling) -> Sampler:
        own = self.sampler
        return make_sampler(model, sampling, own.prompt_length, self.max_new_tokens, own.generator.device)

    def going_on(self, before: Generation) -> Generation:
        """Return this generation as if it had run the prompt of `before` itself, which ran for no new token."""
        return replace(
            self,
            fed_from=before.fed_from,
            extends=before.extends,
            layers_run=before.layers_run,
            passes=before.passes,
            states=dict(before.states),
        )

    def share(self, mode: Mode) -> None:
        """Share passes from here on, or stop sharing."""
        self.mode = mode

    def keep_states(self, length: int, states: States, needed: Container[int]) -> bool:
        """Keep the states at a committed length. Return True where others were dropped: keeping all growing states
        would take memory quadratic in the length. States at the lengths `needed` stay: the passes before those cannot
        be run again alike."""
        self.states[length] = states
        regular = sorted(at for at in self.states if at % STATE_PERIOD == 0 and at not in needed)
        if len(regular) <= GROWING_KEPT or _nbytes(self.states[regular[0]]) == _nbytes(self.states[regular[-1]]):
            return False
        for at in regular[1:-1:2]:
            del self.states[at]
        return True

    def note_probability(self, logits_1V: Tensor, token: int, new: int) -> None:
        """Record the log-probability of the newest of `new` tokens. 25 us with 50,000 ids, 76 us with 152,000."""
        del self.log_probabilities[new - 1 :]
        self.log_probabilities += [None] * (new - 1 - len(self.log_probabilities))
        self.log_probabilities.append(float(torch.log_softmax(logits_1V[0], dim=-1)[token]))

    def probabilities_of(self, new: int) -> list[float | None]:
        """Return the log-probabilities of the first `new` tokens; None for one that was not sampled."""
        known = self.log_probabilities[:new]
        return known + [None] * (new - len(known))

    def new_tokens(self, tokens: list[int]) -> list[int]:
        return tokens[self.begins :]


def _nbytes(states: States) -> int:
    return sum(state.nbytes for state in states.values())


class GenerationCopies:
    """Copy each generation once, so that the stops of a fork share them like those of its parent."""

    def __init__(self) -> None:
        self._copies: dict[int, Generation] = {}

    def __call__(self, generation: Generation) -> Generation:
        return self._copies.setdefault(id(generation), generation.copy())
