"""Collections and scores: check the request and begin the job. Its session is empty: only its memory is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from djinn_jupyter.engine.forward.device_memory import device_memory_for
from djinn_jupyter.engine.interventions.steering import Rule
from djinn_jupyter.engine.requests.answer_sizes import require_answerable
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.lines import prompts_of, require_empty, require_prompt, under_rules_of
from djinn_jupyter.engine.requests.methods import MethodParts
from djinn_jupyter.engine.requests.origin import modules_at
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Pieces, Steps
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.engine.batches import Batches
from djinn_jupyter.methods.datasets.engine.collection import CheckedCollection, Collecting
from djinn_jupyter.methods.datasets.engine.destinations import Destination, InFolder, WithClient
from djinn_jupyter.methods.datasets.engine.places import CollectedSites, rows_of
from djinn_jupyter.methods.datasets.engine.scoring import logits_of, loss_of
from djinn_jupyter.methods.datasets.engine.shard import tokens_of
from djinn_jupyter.methods.datasets.engine.shard_file import Note, shard_path
from djinn_jupyter.methods.datasets.engine.shared_losses import SharedLosses
from djinn_jupyter.methods.datasets.request.collecting import (
    CheckCollect,
    Collect,
    Collected,
    CollectFields,
    shard_name,
)
from djinn_jupyter.methods.datasets.request.scoring import Score, Scored
from djinn_jupyter.wire.checking import Checked
from djinn_jupyter.wire.circumstances import Circumstances
from djinn_jupyter.wire.progress import Progress

FORMAT: Final = 1
ALIKE: Final = ("format", "model", "adapter", "modules")  # in a note, what follows from the engine and not the request
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def handlers(parts: MethodParts) -> tuple[CollectionRequests, ScoreRequests]:
    """Return what handles the requests of this method."""
    return CollectionRequests(parts), ScoreRequests(parts)


class CollectionRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("collections")
        self._batches = Batches(parts.runtime)

    @handles(Collect)
    def collect(self, request: Collect, session: Session, holder: Holder) -> Steps[Collected]:
        require_empty(session, "collect", "engine.collect")
        asked = self._checked(request, session)
        return Collecting(self._parts, session, asked, self._batches).steps(self._workspace)

    @handles(CheckCollect)
    def check(self, request: CheckCollect, session: Session, holder: Holder) -> Steps[Checked]:
        require_empty(session, "collect", "engine.collect")
        asked = self._checked(request, session)
        return self._checked_place(asked)

    def _checked_place(self, asked: CheckedCollection) -> Steps[Checked]:
        tokens = tokens_of(asked.prompts)
        yield from self._parts.file_work(lambda: asked.destination.check(tokens, asked.note))
        return Checked(alike=tuple((name, json.dumps(asked.note[name], sort_keys=True)) for name in ALIKE))

    def _checked(self, request: CollectFields[Any], session: Session) -> CheckedCollection:
        places = CollectedSites.of(self._runtime, request.sites)
        destination = _destination(request)
        for index, tokens in enumerate(request.prompts):
            require_prompt(self._runtime.description, tokens, request.first + index)
            rows_of(request.positions, len(tokens), request.first + index)
        return CheckedCollection(
            destination=destination,
            shard=request.shard,
            first=request.first,
            last=request.last,
            prompts=request.prompts,
            places=places,
            positions=request.positions,
            dtype=None if request.dtype is None else DTYPES[request.dtype],
            mode=request.mode,
            seed=request.seed,
            note=self._note(request, places, session),
            made=self._parts.circumstances(session, taps=places.taps.values()),
        )

    def _note(self, request: CollectFields[Any], places: CollectedSites, session: Session) -> Note:
        """Return the note by which this shard is told from others. It is compared before a shard that is there is left
        as it is."""
        return {
            "format": FORMAT,
            "model": {"name": self._runtime.description.name, **msgspec.to_builtins(self._parts.identity)},
            "adapter": None if session.adapter is None else session.adapter.identity.digest,
            "modules": [[one.name, one.at, one.digest] for one in modules_at(places.taps.values())] or None,
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
    def score(self, request: Score, session: Session, holder: Holder) -> Steps[Scored]:
        sessions, model = self._parts.sessions, self._runtime.description
        require_empty(session, "score", "engine.loss")
        prompts = prompts_of(sessions, model, request.prompts, first=request.first)
        if request.what == "logits":
            require_answerable(sum(map(len, prompts)), model.vocab_size)
        rules = under_rules_of(sessions, request.rules_of, session)
        return self._steps(session, prompts, rules, request, self._parts.circumstances(session, rules))

    def _steps(
        self,
        session: Session,
        prompts: list[tuple[int, ...]],
        rules: tuple[Rule, ...],
        request: Score,
        made: Circumstances,
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
            session.progress.note(Progress(doing=doing, done=request.first + index, total=None))
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
        """Compute losses in shared passes, where nothing stands against that."""
        if request.what == "logits":
            raise UsageError("Logits of all positions are computed one prompt at a time; leave fast out.")
        if rules or not session.as_loaded:
            shared.refuse("passes with steering rules, an adapter, or an attention of their own are not shared")
            return
        session.progress.note(Progress(doing="computing losses", done=request.first, total=None))
        with (
            device_memory_for("a batch of these prompts", "Close sessions, or run each prompt alone."),
            self._workspace.opened(session) as room,
        ):
            yield from shared.compute(room, prompts, request.seed)
