"""Collections and scores: check the request and begin the job. Its session is empty: only its memory is used."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import torch

from djinn_jupyter.engine.collecting.batches import Batches
from djinn_jupyter.engine.collecting.collection import Asked, Collecting, UntilDone
from djinn_jupyter.engine.collecting.places import Places, rows_of
from djinn_jupyter.engine.collecting.scoring import logits_of, loss_of
from djinn_jupyter.engine.collecting.shard_file import Note, shard_path
from djinn_jupyter.engine.interventions.steering import Rule
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.sweeps.workspace import Workspace
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import IllegalMove, PromptTooLong, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Scored
from djinn_jupyter.wire.texts import in_quotes

FORMAT: Final = 1
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class CollectionRequests:
    """`until_done` makes the steps that wait for file work."""

    def __init__(
        self,
        sessions: SessionTable,
        runtime: Runtime,
        workspace: Workspace,
        persistence: Persistence,
        until_done: UntilDone,
    ) -> None:
        self._sessions, self._runtime, self._workspace = sessions, runtime, workspace
        self._persistence, self._until_done = persistence, until_done
        self._batches = Batches(runtime)

    @handles(ask.Collect, wakes_weights=True, changes=False)
    def collect(self, request: ask.Collect, holder: Holder) -> Steps:
        session = require_empty(self._sessions.find(request.session), "collect")
        asked = self._checked(request)
        files = self._persistence.file_worker
        work = Collecting(self._runtime, session, asked, self._batches, files, self._until_done)
        return work.steps(self._workspace)

    def _checked(self, request: ask.Collect) -> Asked:
        places = Places.of(self._runtime, request.sites)
        folder = Path(request.folder)
        if not folder.is_absolute():
            raise UsageError(f"A collection's folder is given by its full path, which {request.folder!r} is not.")
        for index, tokens in enumerate(request.prompts):
            require_line(self._runtime, tokens, request.first + index)
            rows_of(request.positions, len(tokens), request.first + index)
        return Asked(
            path=shard_path(folder, request.shard),
            shard=request.shard,
            first=request.first,
            prompts=request.prompts,
            places=places,
            positions=request.positions,
            dtype=None if request.dtype is None else DTYPES[request.dtype],
            mode=request.mode,
            seed=request.seed,
            note=self._note(request, places),
        )

    def _note(self, request: ask.Collect, places: Places) -> Note:
        """Return the note by which this shard is told from others. It is compared before a shard that is there is left
        as it is."""
        return {
            "format": FORMAT,
            "model": {"name": self._runtime.description.name, **msgspec.to_builtins(self._persistence.identity)},
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


class ScoreRequests:
    def __init__(self, sessions: SessionTable, runtime: Runtime) -> None:
        self._sessions, self._runtime = sessions, runtime

    @handles(ask.Score, wakes_weights=True, changes=False)
    def score(self, request: ask.Score, holder: Holder) -> Steps:
        session = require_empty(self._sessions.find(request.session), "score")
        prompts = [self._tokens(line, request.first + index) for index, line in enumerate(request.prompts)]
        rules = () if request.rules_of is None else self._sessions.find(request.rules_of).rules_in_force
        return self._steps(session, prompts, rules, request.what)

    def _tokens(self, line: tuple[int, ...] | str, number: int) -> tuple[int, ...]:
        if isinstance(line, str):
            line = fed_tokens(self._sessions.find(line))
        require_line(self._runtime, line, number)
        return line

    def _steps(self, session: Session, prompts: list[tuple[int, ...]], rules: tuple[Rule, ...], what: str) -> Steps:
        found = []
        for tokens in prompts:
            logits_TV = yield from logits_of(self._runtime, session, tokens, rules)
            found.append(logits_TV.float().to("cpu") if what == "logits" else loss_of(logits_TV, tokens))
            yield None
        return Scored(tokens=tuple(prompts), values=to_array(torch.cat(found)))


def fed_tokens(session: Session) -> tuple[int, ...]:
    """Return the tokens of a session's line that have been fed. Raises UsageError where a pass of their own is not what
    the session computed."""
    if session.edits_in_force:
        raise UsageError(
            f"Session {in_quotes(session.name)} has edits made at stops, which are no part of a pass over its tokens; "
            "give the text itself, or make the edit a rule (steer)."
        )
    if not session.committed:
        raise UsageError(
            f"Session {in_quotes(session.name)} has finished no pass yet; run a prompt in it, or give the text."
        )
    return tuple(session.tokens[: session.committed])


def require_empty(session: Session, verb: str) -> Session:
    """Return the session. Raises IllegalMove where it has a line of its own, which a pass here would overwrite."""
    if session.state != "idle" or session.tokens or session.rules or session.watches:
        raise IllegalMove(
            f"Session {in_quotes(session.name)} has a line of its own; {verb} in an empty one, as engine.{verb} opens."
        )
    return session


def require_line(runtime: Runtime, tokens: tuple[int, ...], number: int) -> None:
    """Raise the error for which a prompt cannot be run."""
    vocabulary, context = runtime.description.vocab_size, runtime.description.context_length
    strange = next((token for token in tokens if token >= vocabulary), None)
    if strange is not None:
        raise UsageError(
            f"Prompt {number} (counted from 0) has the token id {strange}, which is not in the vocabulary: its ids are "
            f"0 to {vocabulary - 1}."
        )
    if context is not None and len(tokens) > context:
        raise PromptTooLong(
            f"Prompt {number} (counted from 0) has {len(tokens)} tokens and the model {context} positions; shorten it "
            f"by {len(tokens) - context}, or leave it out."
        )
