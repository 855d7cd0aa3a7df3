"""Answers ReadHeads: checks it, runs its lines one after the other, and replies. Its session is empty: only its memory
is used."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.engine.forward.device_memory import device_memory_for
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.lines import fed_tokens, prompts_of, require_empty, under_rules_of
from djinn_jupyter.engine.requests.methods import MethodParts
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.influences import has_edits
from djinn_jupyter.engine.session.progress import publish_progress
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.methods.heads.engine.heads import HeadReading, block_of
from djinn_jupyter.methods.heads.request import HeadsRead, ReadHeads
from djinn_jupyter.wire.circumstances import Circumstances

Lines = Sequence[tuple[int, ...]]


def handlers(parts: MethodParts) -> tuple[HeadRequests, ...]:
    """Return what handles the requests of this method."""
    return (HeadRequests(parts),)


class HeadRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("heads")

    @handles(ReadHeads)
    def read_heads(self, request: ReadHeads, session: Session, holder: Holder) -> Steps[HeadsRead]:
        sessions, model = self._parts.sessions, self._runtime.description
        require_empty(session, "read heads", "engine.head_scores")
        lines = prompts_of(sessions, model, request.lines, tokens_of=_tokens_of)
        rules = under_rules_of(sessions, request.rules_of, session)
        heads = HeadReading(self._runtime, session, rules, patterns=request.patterns)
        return self._steps(session, lines, heads, self._parts.circumstances(session, rules))

    def _steps(self, session: Session, lines: Lines, heads: HeadReading, made: Circumstances) -> Steps[HeadsRead]:
        with (
            device_memory_for("the attention patterns of a line", "Close sessions, or give shorter lines."),
            self._workspace.opened(session) as room,
        ):
            for index, tokens in enumerate(lines):
                publish_progress(self._runtime, session, "reading heads", index, len(lines), "lines")
                if index and session.progress.can_end():
                    lines = lines[:index]
                    break
                yield from room.take(heads.bytes_of(len(tokens)))
                yield from heads.read(tokens)
                room.give_back(room.held)
                yield None
        patterns, (previous, duplicate, induction) = heads.patterns(), heads.counted
        return HeadsRead(
            layers=tuple(layer.tap.stage for layer in heads.layers),
            scores=to_array(heads.scores()),
            counted=(previous, duplicate, induction),
            texts=tuple(self._runtime.tokenizer.text_of(token) for token in lines[0]),
            patterns=None if patterns is None else to_array(patterns),
            pooled=block_of(len(lines[0])),
            lines=tuple(lines),
            made=made,
        )


def _tokens_of(session: Session) -> tuple[int, ...]:
    """Return the tokens of a session's line, those of a stopped pass among them."""
    if session.frame is not None and not has_edits(session):
        return tuple(session.tokens[: session.frame.end])
    return fed_tokens(session)
