"""Serve nnsight's traces from passes of an engine: inputs become token sequences and sampling settings."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from greenlet import getcurrent
from nnsight.intervention.interleaver import Event, Interleaver, Mediator, Pending
from torch import Tensor

from djinn_jupyter.errors import UsageError
from djinn_jupyter.integrations.lines import FIRST, Standing, SteppedLines, Values, to_tensor, to_values
from djinn_jupyter.integrations.nnsight.locations import Location, Locations
from djinn_jupyter.wire.nouns import ModelDescription, Sampling

GIVEN: Final = frozenset({"input_ids", "attention_mask", "position_ids", "token_type_ids"})
WITHOUT_EFFECT: Final = frozenset({"use_cache", "return_dict", "pad_token_id", "streamer"})  # on the values of a pass
OF_SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
SEEDS: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLines:
    """The token ids of each line, without padding, and as given."""

    tokens: tuple[tuple[int, ...], ...]
    ids: Tensor
    padded_left: bool

    def together(self, values: Sequence[Values]) -> Values:
        """Return values of lines, [positions, ...] each, in one array, with NaN where a line is padded."""
        if len({value.shape[1:] for value in values}) != 1:
            raise UsageError("Lines of different lengths have values of different shapes here; give lines of one.")
        width = max(len(value) for value in values)
        if all(len(value) == width for value in values):
            return np.stack(values)
        made = np.full((len(values), width, *values[0].shape[1:]), np.nan, dtype=values[0].dtype)
        for row, value in zip(made, values, strict=True):
            row[self._of(width, len(value))] = value
        return made

    def apart(self, values: Values, like: Sequence[Values]) -> list[Values]:
        """Return the values of each line, without padding."""
        return [row[self._of(len(row), len(one))] for row, one in zip(values, like, strict=True)]

    def _of(self, width: int, length: int) -> slice:
        return slice(width - length, None) if self.padded_left else slice(0, length)


def lines_of(args: Sequence[Any], given: Mapping[str, Any]) -> TokenLines:
    """Return the lines of a forward. NotImplementedError for inputs that an engine does not take."""
    ids = given.get("input_ids", args[0] if args else None)
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim not in (1, 2):
        raise NotImplementedError("An engine is given text or token ids, [lines, positions], and nothing else.")
    ids = ids.to("cpu").reshape(-1, ids.shape[-1])
    mask = given.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else torch.as_tensor(mask).to("cpu")
    if mask.shape != ids.shape:
        raise NotImplementedError(f"A mask of shape {tuple(mask.shape)} is not one of {tuple(ids.shape)} token ids.")
    mask = mask.bool()
    left = not bool(mask[:, 0].all())
    _require_plain(given, mask, left)
    tokens = tuple(tuple(row[there].tolist()) for row, there in zip(ids, mask, strict=True))
    return TokenLines(tokens=tokens, ids=ids, padded_left=left)


def _require_plain(given: Mapping[str, Any], mask: Tensor, left: bool) -> None:
    """Raise NotImplementedError where masks, positions or types differ from those of whole lines."""
    steps = mask.long().diff(dim=-1)
    if bool((steps < 0 if left else steps > 0).any()) or not bool(mask.any(-1).all()):
        raise NotImplementedError("A line is masked at one end, as padding; an engine hides no token within it.")
    positions, types = given.get("position_ids"), given.get("token_type_ids")
    if positions is not None:
        plain = (mask.long().cumsum(-1) - 1)[mask]
        if not torch.equal(torch.as_tensor(positions).to("cpu").expand(mask.shape)[mask], plain):
            raise NotImplementedError("The positions of a line count its tokens from 0; an engine is given no others.")
    if types is not None and bool(torch.as_tensor(types).any()):
        raise NotImplementedError("An engine is given no token types.")


def require_known(given: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Raise NotImplementedError for a setting that an engine does not have."""
    for name, value in given.items():
        if name not in {*GIVEN, *WITHOUT_EFFECT, *known} and value is not None and value is not False:
            raise NotImplementedError(f"A pass on an engine does not take {name!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenGeneration:
    """The number of new tokens, and how each is chosen."""

    max_new_tokens: int
    sampling: Sampling


def generation_of(given: Mapping[str, Any], description: ModelDescription) -> GivenGeneration:
    """Return the settings of transformers' `generate` as Djinn's. NotImplementedError for those that Djinn lacks."""
    require_known(given, ("max_new_tokens", "do_sample", *OF_SAMPLING))
    defaults = description.generation_defaults
    count = given.get("max_new_tokens", defaults.get("max_new_tokens"))
    if count is None:
        raise NotImplementedError("Say how many tokens to generate: `max_new_tokens`.")
    count = int(count) if isinstance(count, str) else count
    chosen = {name: given[name] for name in OF_SAMPLING if given.get(name) is not None}
    draws = given.get("do_sample")
    if draws if draws is not None else defaults.get("do_sample") == "True":
        chosen.setdefault("seed", int(torch.randint(SEEDS, ())))  # `torch.manual_seed` repeats it, as in transformers
        if draws:
            chosen.setdefault("temperature", float(defaults.get("temperature", 1.0)))
        return GivenGeneration(max_new_tokens=count, sampling=Sampling(**chosen, model_defaults=True))
    penalty = chosen.get("repetition_penalty", defaults.get("repetition_penalty"))
    greedy = Sampling() if penalty is None else Sampling(repetition_penalty=float(penalty))
    return GivenGeneration(max_new_tokens=count, sampling=greedy)


# nnsight's workers, served from passes of an engine. A worker runs the user's code in this process and waits at a
# location. The pass stops there and the worker gets the value; then both continue. Only sites and numbers cross the
# wire.

RESULT: Final = "result"
STREAMER: Final = "generator.streamer.output"
BITS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Serving:
    """One run of nnsight's workers over the passes of these lines."""

    def __init__(
        self, interleaver: Interleaver, locations: Locations, stepped: SteppedLines, lines: TokenLines
    ) -> None:
        self._interleaver, self._locations = interleaver, locations
        self._stepped, self._lines = stepped, lines
        self._generating = False
        self._step, self._next = 0, 0  # the pass, and the number of its next location
        self._here: list[tuple[str, Tensor]] = []  # values given out at this stop
        self._handed_out: list[tuple[str, weakref.ref[Tensor], int]] = []  # and before, as the pass continued with them
        outside = (RESULT, f"{locations.root}.generator.output", f"{locations.root}.{STREAMER}")
        self._outside: Final = frozenset(outside)

    def forward(self) -> Any:
        """Run one pass. Return the model's result; None where not requested."""
        self._arm({FIRST})
        standing = self._stepped.run(self._lines.tokens)
        while standing is not None:
            self._serve(standing)
            if not self._arm({standing.site}):
                break
            standing = self._stepped.go_on()
        return self._end()

    def generate(self, generation: GivenGeneration, pad: int, put: Callable[[Tensor], object]) -> Tensor:
        """Run the passes of a generation. Return the ids of prompts and new tokens; each token is `put` as it comes."""
        self._generating = True
        put(self._lines.ids)
        self._arm(())
        count, sampling = generation.max_new_tokens, generation.sampling
        standing = self._stepped.run(self._lines.tokens, max_new_tokens=count, sampling=sampling)
        while standing is not None:
            self._come_to(standing.step, standing.drawn, pad, put)
            self._serve(standing)
            self._arm(())
            standing = self._stepped.go_on()
        drawn = {number: ended.tokens for number, ended in self._stepped.ended.items()}
        self._come_to(max(map(len, drawn.values())), drawn, pad, put)
        self._require_unchanged()
        new = [_column(drawn, step, pad) for step in range(self._step)]
        return torch.cat([self._lines.ids, *(column[:, None] for column in new)], dim=1)

    # --- the next stop ----------------------------------------------------------------------------------------------

    def _arm(self, at_least: Collection[str]) -> frozenset[str]:
        """Make the lines stop at the sites of awaited locations. Return these; a worker that waits for an unserved one
        gets the error where it waits."""
        while True:
            wanted = self._wanted()
            refused = self._stepped.arm(len(self._lines.tokens), wanted or at_least)
            if not refused:
                return wanted
            for site, why in refused.items():
                self._locations.refuse(site, str(why))

    def _wanted(self) -> frozenset[str]:
        self._refuse_unserved()
        names = {name for mediator in self._interleaver.mediators if (name := self._waited_for(mediator)) is not None}
        names |= {name for name in self._observed() if self._comes(name)}
        sites = {self._locations.named(name).site for name in names - self._outside}
        if names & self._outside - {RESULT}:
            sites.add(FIRST)  # a token is known when the next pass begins
        return frozenset(sites)

    def _waited_for(self, mediator: Mediator) -> str | None:
        """Return the location that a worker waits for, if still to come."""
        pending: Pending | None = mediator.pending
        if pending is None or pending.provider is None or pending.iteration is None:
            return None
        name = str(pending.provider)
        visits = mediator.occurrence(name)
        if pending.iteration == visits and self._comes(name):
            return name
        return name if self._generating and pending.iteration > visits else None

    def _comes(self, name: str) -> bool:
        """Return whether a pass still reaches a location: this one or, in a generation, the next."""
        if self._generating:
            return True
        return name not in {*self._outside, *self._locations.of_logits()} and self._locations.number(name) >= self._next

    def _observed(self) -> list[str]:
        """Return the locations that caches keep: those of all modules, where served. NotImplementedError for a named
        one that is not served."""
        kept = []
        for name, caches in self._interleaver.observers.items():
            why = self._locations.why_not(name)
            if why is None:
                kept.append(name)
            elif any(cache.targets is not None for _, cache, _ in caches):
                raise NotImplementedError(why)
        return kept

    def _refuse_unserved(self) -> None:
        refused = False
        for mediator in self._interleaver.mediators:
            while (why := self._why_not(mediator.pending)) is not None:
                refused = True
                _throw(mediator, NotImplementedError(why))
        if refused:
            self._interleaver.reindex()

    def _why_not(self, pending: Pending | None) -> str | None:
        if pending is None or pending.provider is None or pending.provider in self._outside:
            return None
        if pending.event is Event.SKIP:
            return f"{pending.provider}: an engine runs every module of a pass; assign the module's `output` instead."
        return self._locations.why_not(str(pending.provider))

    # --- at a stop --------------------------------------------------------------------------------------------------

    def _serve(self, standing: Standing) -> None:
        """Give present values to all who wait for them, and replace them by the results."""
        here: list[Values] = []
        value = torch.empty(0)
        for location in self._locations.at(standing.site):
            self._go_past(location.number)
            if self._is_awaited(location.name):
                if not here:
                    here = self._stepped.values()
                    value = _tensor_of(self._lines.together(self._rows(standing, here)))
                value = self._handed(location, value)
            else:
                self._count(location.name)
            self._next = location.number + 1
        self._handed_out += [(name, weakref.ref(part), part._version) for name, part in self._here]
        self._here.clear()
        if here:
            rows = self._lines.apart(to_values(value), self._rows(standing, here))
            self._stepped.edit(here, [rows[number] for number in standing.lines])

    def _end(self) -> Any:
        """Give out the logits of a pass, as it would end from its last stop."""
        self._require_unchanged()
        direct = all(mediator.batch_group is None for mediator in self._interleaver.mediators)
        asked = any(self._is_awaited(name) for name in self._locations.of_logits())
        if not (asked or direct or RESULT in self._interleaver.parked):
            self._go_past(len(self._locations.order))
            return None
        whole = self._locations.named(f"{self._locations.root}.output").form
        value = _tensor_of(self._lines.together(self._stepped.logits())).to(whole.dtype)
        for name in self._locations.of_logits():
            self._go_past(self._locations.number(name))
            if self._is_awaited(name):
                value = self._handed(self._locations.named(name), value)
            else:
                self._count(name)
            self._next = self._locations.number(name) + 1
        return whole.filled(value)

    def _handed(self, location: Location, value: Tensor) -> Tensor:
        """Give a value to the workers that wait for it. Return the changed value."""
        last = location.of_head and self._generating
        part = value[:, -1:] if last else _turned(location, value)
        before = part.clone()
        left = location.form.tensor_in(self._interleaver.handle(location.name, location.form.filled(part)))
        if location.shared and not _same_bits(part, before):
            raise NotImplementedError(
                f"{location.name} was changed in place, which reaches other modules than that one in the model: assign "
                f"the changed value."
            )
        if left.shape != part.shape:
            raise UsageError(
                f"{location.name} has the shape {tuple(part.shape)}; it was replaced by one of {tuple(left.shape)}."
            )
        self._require_unchanged()
        self._here += [(location.name, one) for one in (part, left) if not one.is_inference()]
        self._refuse_unserved()
        if left is part:
            return value
        with torch.inference_mode(mode=False):
            left = left.detach().to(value.dtype, copy=True)
        return torch.cat([value[:, :-1], left], dim=1) if last else _turned(location, left)

    def _rows(self, standing: Standing, here: list[Values]) -> list[Values]:
        """Return the values of all lines; NaN for a finished line."""
        there = dict(zip(standing.lines, here, strict=True))
        ended = np.full_like(here[0], np.nan)
        return [there.get(number, ended) for number in range(len(self._lines.tokens))]

    def _require_unchanged(self) -> None:
        for name, reference, version in self._handed_out:
            value = reference()
            if value is not None and value._version != version:
                raise NotImplementedError(
                    f"{name} was changed in place after the pass had gone on from it, which changes nothing on an "
                    f"engine: change it before another value is asked for, or change a copy."
                )

    # --- counts of each location's visits
    # ------------------------------------------------------------------------------

    def _is_awaited(self, name: str) -> bool:
        waiting = any(
            mediator.pending is not None
            and mediator.pending.provider == name
            and mediator.pending.iteration == mediator.occurrence(name)
            for mediator in self._interleaver.mediators
        )
        return waiting or name in self._interleaver.observers

    def _count(self, name: str) -> None:
        self._interleaver.counts[name] = self._interleaver.counts.get(name, 0) + 1

    def _go_past(self, number: int) -> None:
        """Count the locations up to this one that the pass skipped."""
        for name in self._locations.order[self._next : number]:
            self._count(name)
        self._next = max(self._next, number)

    def _come_to(
        self, step: int, drawn: Mapping[int, tuple[int, ...]], pad: int, put: Callable[[Tensor], object]
    ) -> None:
        """End the passes before this one."""
        while self._step < step:
            self._go_past(len(self._locations.order))
            put(_column(drawn, self._step, pad))
            self._step, self._next = self._step + 1, 0


def _column(drawn: Mapping[int, tuple[int, ...]], step: int, pad: int) -> Tensor:
    """Return the token that each line has sampled in a pass; the padding for a finished one."""
    lines = sorted(drawn)
    return torch.tensor([drawn[line][step] if step < len(drawn[line]) else pad for line in lines])


def _tensor_of(values: Values) -> Tensor:
    """Return a tensor that counts its changes, also where the caller is in inference mode."""
    with torch.inference_mode(mode=False):
        return to_tensor(values)


def _turned(location: Location, value: Tensor) -> Tensor:
    """Return a value in the axis order of the other side."""
    return value.transpose(1, 2) if location.heads_first else value


def _same_bits(one: Tensor, other: Tensor) -> bool:
    bits = BITS[one.element_size()]
    return torch.equal(one.contiguous().view(bits), other.contiguous().view(bits))


def _throw(mediator: Mediator, error: Exception) -> None:
    """Raise an error in a worker, at the user's line where it waits."""
    mediator.worker.parent = getcurrent()
    try:
        mediator.pending = mediator.worker.throw(error)
    except BaseException as left:
        left.__dict__.setdefault("__intervention_tb__", left.__traceback__)
        raise
