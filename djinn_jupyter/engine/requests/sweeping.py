"""Sweeps: check the request and begin the job. The session of a sweep is empty: only its memory is used."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.engine.interventions.edit_kinds import LARGEST
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.making_rules import require_known_tokens
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.sweeps import swept_edits
from djinn_jupyter.engine.sweeps.metric import Metric
from djinn_jupyter.engine.sweeps.places import Places
from djinn_jupyter.engine.sweeps.sweep import Asked, Sweeping
from djinn_jupyter.engine.sweeps.together import Together
from djinn_jupyter.engine.sweeps.workspace import Workspace
from djinn_jupyter.errors import IllegalMove, PromptTooLong, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.sweeps import Line
from djinn_jupyter.wire.texts import in_quotes


class SweepRequests:
    def __init__(self, sessions: SessionTable, runtime: Runtime, workspace: Workspace) -> None:
        self._sessions, self._runtime, self._workspace = sessions, runtime, workspace
        self._together = Together(runtime)

    @handles(ask.Sweep, wakes_weights=True, changes=False)
    def sweep(self, request: ask.Sweep, holder: Holder) -> Steps:
        session = self._sessions.find(request.session)
        if session.state != "idle" or session.tokens or session.rules or session.watches:
            raise IllegalMove(
                f"Session {in_quotes(session.name)} has a line of its own; sweep in an empty one, as dj.sweep opens."
            )
        asked = self._checked(request)
        return Sweeping(self._runtime, session, asked, self._together).steps(self._workspace)

    def _checked(self, request: ask.Sweep) -> Asked:
        corrupted, notes = self._tokens(request.corrupted)
        clean, more = (None, ()) if request.clean is None else self._tokens(request.clean)
        metric = Metric.parse(request.metric, self._runtime.tokenizer)
        require_known_tokens(self._runtime, metric.condition)
        places = Places.of(self._runtime, request.site, request.over, len(corrupted), request.coefs)
        self._check_edit(request, places, len(corrupted), None if clean is None else len(clean))
        return Asked(
            places=places,
            corrupted=corrupted,
            clean=clean,
            edit=request.edit,
            noise=request.noise,
            metric=metric,
            mode=request.mode,
            seed=request.seed,
            notes=(*notes, *more),
        )

    def _check_edit(self, request: ask.Sweep, places: Places, corrupted: int, clean: int | None) -> None:
        scales = () if request.noise is None else (request.noise.scale,)
        strange = next((number for number in (*request.coefs, *scales) if not abs(number) <= LARGEST), None)
        if strange is not None:
            raise UsageError(f"A sweep takes numbers that are finite in float32, and {strange} is none.")
        if request.edit is not None:
            width = next(iter(places.taps.values())).width
            swept_edits.check(request.edit, width if width is not None else corrupted, coefs=bool(request.coefs))
        elif request.coefs:
            raise UsageError("A sweep over coef needs an edit with a coefficient, such as scale; patching has none.")
        if request.noise is not None:
            self._check_noise(request.noise.positions, corrupted, clean)
        if request.edit is None and clean is None:
            raise UsageError("A sweep needs a clean line to patch from, or an edit such as zero or scale.")
        if clean is not None and clean != corrupted and (request.noise or swept_edits.reads_a_line(request.edit)):
            raise UsageError(
                f"The clean line has {clean} tokens and the corrupted one {corrupted}, so their positions do not "
                "correspond; choose texts of equally many tokens."
            )

    def _check_noise(self, positions: Sequence[int], length: int, clean: int | None) -> None:
        if clean is None:
            raise UsageError("A sweep with noise needs the clean line: that is the line it spoils.")
        strange = next((position for position in positions if not -length <= position < length), None)
        if strange is not None:
            raise UsageError(f"Position {strange} is not in the line, which has {length} tokens.")

    def _tokens(self, line: Line) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return a line's tokens, and a note where its session would not have run them as a sweep does."""
        if not isinstance(line, str):
            return self._checked_tokens(line), ()
        session = self._sessions.find(line)
        if not session.tokens:
            raise UsageError(f"Session {in_quotes(line)} has no tokens yet; run a prompt in it, or give the text.")
        return self._checked_tokens(tuple(session.tokens)), _notes_on(session)

    def _checked_tokens(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        vocabulary, context = self._runtime.description.vocab_size, self._runtime.description.context_length
        strange = next((token for token in tokens if token >= vocabulary), None)
        if strange is not None:
            raise UsageError(f"Token id {strange} is not in the vocabulary: its ids are 0 to {vocabulary - 1}.")
        if context is not None and len(tokens) > context:
            raise PromptTooLong(f"A line has {len(tokens)} tokens and the model {context} positions; shorten it.")
        return tokens


def _notes_on(session: Session) -> tuple[str, ...]:
    if not session.rules_in_force and not session.edits_in_force:
        return ()
    return (
        f"The rules and edits of session {in_quotes(label(session.name))} are no part of the sweep: it runs the tokens "
        "alone.",
    )
