"""Collections and scores: the logits of all positions of a prompt, in a pass of its own, the loss of its tokens, and
the requests."""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from djinn_jupyter.engine.loop import mailbox
from djinn_jupyter.engine.passes.breakpoints import Rule
from djinn_jupyter.engine.passes.forward import device_memory_for
from djinn_jupyter.engine.passes.shared_cache import difference, rounding_of
from djinn_jupyter.engine.requests import bounds, recipes
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.engine.session import queries
from djinn_jupyter.engine.session.residence import Blocked, Pieces, Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.engine.batches import Batches, FittingBatches, NotBatched, Prompts
from djinn_jupyter.methods.datasets.engine.collection import CheckedCollection, Collecting
from djinn_jupyter.methods.datasets.engine.places import CollectedSites, rows_of, values_alone
from djinn_jupyter.methods.datasets.engine.shard import Destination, InFolder, Note, WithClient, shard_path, tokens_of
from djinn_jupyter.methods.datasets.request import (
    CheckCollect,
    Collect,
    Collected,
    CollectFields,
    Score,
    Scored,
    shard_name,
)
from djinn_jupyter.wire import base, greeting, looks

LOSS_ROWS: Final = 256  # of logits that are fp32 at a time


def logits_of(
    runtime: Runtime, session: Session, tokens: tuple[int, ...], rules: tuple[Rule, ...]
) -> Generator[Blocked | None, None, Tensor]:
    """Return the logits [T, V] of all positions, in the model's dtype, under `rules`."""
    outcome = yield from queries.run_line(runtime, session, tokens, rules=rules, all_logits=True)
    return outcome.logits_1TV[0]


@torch.inference_mode()
def loss_of(logits_TV: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Return the negative log-likelihood [T - 1], fp32 on the host, of each token except the first."""
    targets = torch.tensor(tokens[1:], dtype=torch.long, device=logits_TV.device)  # for one token: empty
    pieces = zip(logits_TV[:-1].split(LOSS_ROWS), targets.split(LOSS_ROWS), strict=True)
    return torch.cat([cross_entropy(rows.float(), wanted, reduction="none") for rows, wanted in pieces]).to("cpu")


# The losses of many prompts in shared passes; some prompts are computed again alone. Layers run as in a collection of
# the last residual; the model's own epilogue then reads each prompt's rows.

RECHECKED: Final = 4  # prompts that are computed again alone


@dataclass(slots=True)
class SharedLosses:
    """The losses of prompts, computed together; `first` is the number of the first in its list. `largest` is the
    difference of those that were computed again alone; `why_not` is the reason why none is shared."""

    runtime: Runtime
    session: Session
    batches: Batches
    first: int = 0
    losses: dict[int, Tensor] = field(default_factory=dict)
    largest: float | None = None
    why_not: str | None = None

    def refuse(self, why: str) -> None:
        """Share no pass, for this reason."""
        self.why_not = why

    def compute(self, room: Reservation, prompts: Prompts, seed: int) -> Generator[Blocked | None, None, None]:
        """Compute the losses of all prompts, by number; none where they cannot share a pass."""
        forward = self.runtime.forward
        last = CollectedSites.of(self.runtime, (f"resid_post.{forward.layers - 1}",))
        self.why_not = yield from self.batches.why_not(self._alone, last)
        if self.why_not is not None:
            return
        logits = LOSS_ROWS * self.runtime.description.vocab_size * torch.float32.itemsize
        fitting = FittingBatches(self.batches, prompts, room, beside=2 * logits)
        while (taken := (yield from fitting.take())) is not None:
            batch, _ = taken
            together = [prompts[number] for number in batch]
            try:
                yield from self._batch(batch, together, last)
            except NotBatched as error:
                self._forget(str(error))
                return
            finally:
                room.give_back(room.held)
        yield from self._recheck(prompts, seed)

    def _batch(
        self, numbers: Sequence[int], prompts: Prompts, last: CollectedSites
    ) -> Generator[Blocked | None, None, None]:
        found: dict[str, Tensor] = {}
        for found_or_none in self.batches.run(prompts, [None] * len(prompts), last, None):
            found = found_or_none or found
            yield None
        [rows_RD] = found.values()
        parts = rows_RD.split([len(tokens) for tokens in prompts])
        for number, tokens, rows_TD in zip(numbers, prompts, parts, strict=True):
            pieces = []
            for first in range(0, max(len(tokens) - 1, 1), LOSS_ROWS):
                end = min(first + LOSS_ROWS, len(tokens) - 1)
                logits = self.runtime.forward.shared_lens(rows_TD[first : end + 1])
                pieces.append(loss_of(logits, tokens[first : end + 1]))
                yield None
            self.losses[number] = torch.cat(pieces)

    def _recheck(self, prompts: Prompts, seed: int) -> Generator[Blocked | None, None, None]:
        """Compute some prompts again alone; their losses replace the others. If one differs by more than rounding, none
        of the shared losses is kept."""
        with_losses = [number for number, tokens in enumerate(prompts) if len(tokens) > 1]
        for number in random.Random(seed).sample(with_losses, min(RECHECKED, len(with_losses))):
            logits_TV = yield from logits_of(self.runtime, self.session, prompts[number], ())
            exact = loss_of(logits_TV, prompts[number])
            apart = float(difference(self.losses[number], exact).abs().max())
            self.largest = apart if self.largest is None else max(self.largest, apart)
            if apart > self._tolerance(logits_TV):
                self._forget(
                    f"prompt {self.first + number} (counted from 0), computed with others, differed from the same "
                    f"computed alone by up to {apart:.2g}, more than rounding"
                )
                return
            self.losses[number] = exact
            yield None

    def _tolerance(self, logits_TV: Tensor) -> float:
        """Return the tolerance of a loss, by the largest finite one of these logits: some heads give -inf for tokens
        that are never meant."""
        share = rounding_of(self.runtime.forward.model.dtype, self.runtime.forward.layers)
        return 2 * share * max(1.0, float(torch.where(logits_TV.isfinite(), logits_TV, 0.0).abs().max()))

    def _forget(self, why: str) -> None:
        """Drop all shared losses, for this reason."""
        self.losses.clear()
        self.largest, self.why_not = None, why

    def _alone(
        self, tokens: tuple[int, ...], places: CollectedSites
    ) -> Generator[Blocked | None, None, dict[str, Tensor]]:
        return (yield from values_alone(self.runtime, self.session, tokens, places))


# Collections and scores: check the request and begin the job. Its session is empty: only its memory is used.

FORMAT: Final = 1
ALIKE: Final = ("format", "model", "adapter", "modules")  # in a note, what follows from the engine and not the request
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def handlers(parts: MethodParts) -> tuple[CollectionRequests, ScoreRequests]:
    """Return the handlers of this method's requests."""
    return CollectionRequests(parts), ScoreRequests(parts)


class CollectionRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("collections")
        self._batches = Batches(parts.runtime)

    @handles(Collect)
    def collect(self, request: Collect, session: Session, holder: mailbox.Holder) -> Steps[Collected]:
        bounds.require_empty(session, "collect", "engine.collect")
        asked = self._checked(request, session)
        return Collecting(self._parts, session, asked, self._batches).steps(self._workspace)

    @handles(CheckCollect)
    def check(self, request: CheckCollect, session: Session, holder: mailbox.Holder) -> Steps[greeting.Checked]:
        bounds.require_empty(session, "collect", "engine.collect")
        asked = self._checked(request, session)
        return self._checked_place(asked)

    def _checked_place(self, asked: CheckedCollection) -> Steps[greeting.Checked]:
        tokens = tokens_of(asked.request.prompts)
        yield from self._parts.file_work(lambda: asked.destination.check(tokens, asked.note))
        return greeting.Checked(alike=tuple((name, json.dumps(asked.note[name], sort_keys=True)) for name in ALIKE))

    def _checked(self, request: CollectFields[Any], session: Session) -> CheckedCollection:
        places = CollectedSites.of(self._runtime, request.sites)
        destination, model = _destination(request), self._runtime.description
        for index, tokens in enumerate(request.prompts):
            bounds.require_prompt(model, tokens, request.first + index)
            rows_of(request.positions, len(tokens), request.first + index)
        return CheckedCollection(
            request=request,
            destination=destination,
            places=places,
            dtype=None if request.dtype is None else DTYPES[request.dtype],
            note=self._note(request, places, session),
            made=self._parts.circumstances(session, taps=places.taps.values()),
        )

    def _note(self, request: CollectFields[Any], places: CollectedSites, session: Session) -> Note:
        """Return the note that identifies this shard. It is compared before an existing shard is kept."""
        return {
            "format": FORMAT,
            "model": {"name": self._runtime.description.name, **msgspec.to_builtins(self._parts.identity)},
            "adapter": None if session.adapter is None else session.adapter.identity.digest,
            "modules": [[one.name, one.at, one.digest] for one in recipes.modules_at(places.taps.values())] or None,
            "sites": [str(site) for site in places.taps],
            "positions": None if request.positions is None else list(request.positions),
            "dtype": request.dtype,
            "mode": request.mode,
            "seed": request.seed,
            "shard": request.shard,
            "first": request.first,
            "prompts": len(request.prompts),
            "last": request.last,
        }


def _destination(request: CollectFields[Any]) -> Destination:
    if request.folder is None:
        return WithClient(shard_name(request.shard), request.there)
    if request.there is not None:
        raise UsageError("The note of a shard that is there is sent in place of a folder, not with one.")
    folder = Path(request.folder)
    if not folder.is_absolute():
        raise UsageError(f"A collection's folder is given by its full path, which {request.folder!r} is not.")
    return InFolder(shard_path(folder, request.shard))


class ScoreRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("losses")
        self._batches = Batches(parts.runtime)

    @handles(Score)
    def score(self, request: Score, session: Session, holder: mailbox.Holder) -> Steps[Scored]:
        sessions, model = self._parts.sessions, self._runtime.description
        bounds.require_empty(session, "score", "engine.loss")
        prompts = bounds.prompts_of(sessions, model, request.prompts, first=request.first)
        if request.what == "logits":
            bounds.require_answerable(sum(map(len, prompts)), model.vocab_size)
        rules = bounds.under_rules_of(sessions, request.rules_of, session)
        return self._steps(session, prompts, rules, request, self._parts.circumstances(session, rules))

    def _steps(
        self,
        session: Session,
        prompts: list[tuple[int, ...]],
        rules: tuple[Rule, ...],
        request: Score,
        made: looks.Circumstances,
    ) -> Steps[Scored]:
        shared = SharedLosses(self._runtime, session, self._batches, first=request.first)
        if request.mode == "fast":
            yield from self._together(shared, session, prompts, rules, request)
        found = []
        doing = "computing losses" if request.what == "loss" else "computing logits"
        for index, tokens in enumerate(prompts):
            if index in shared.losses:
                found.append(shared.losses[index])
                continue
            session.progress.note(base.Progress(doing=doing, done=request.first + index, total=None))
            logits_TV = yield from logits_of(self._runtime, session, tokens, rules)
            found.append(logits_TV.float().to("cpu") if request.what == "logits" else loss_of(logits_TV, tokens))
            yield None
        return Scored(
            tokens=tuple(prompts),
            values=to_array(found[0] if len(found) == 1 else torch.cat(found)),
            made=made,
            seed=request.seed,
            mode="fast" if shared.losses else "exact",
            largest_difference=shared.largest,
            notes=() if shared.why_not is None else (f"Each prompt was computed alone, for {shared.why_not}.",),
        )

    def _together(
        self,
        shared: SharedLosses,
        session: Session,
        prompts: list[tuple[int, ...]],
        rules: tuple[Rule, ...],
        request: Score,
    ) -> Pieces:
        """Compute losses in shared passes, if nothing prevents it."""
        if request.what == "logits":
            raise UsageError("Logits of all positions are computed one prompt at a time; leave fast out.")
        if rules or not session.as_loaded:
            shared.refuse("passes with steering rules, an adapter, or an attention of their own are not shared")
            return
        session.progress.note(base.Progress(doing="computing losses", done=request.first, total=None))
        with (
            device_memory_for("a batch of these prompts", "Close sessions, or run each prompt alone."),
            self._workspace.opened(session) as room,
        ):
            yield from shared.compute(room, prompts, request.seed)
