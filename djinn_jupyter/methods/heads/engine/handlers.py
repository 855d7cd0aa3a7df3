"""Heads: check the request and begin the job. Its session is empty: only its memory is used."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.device_memory import device_memory_for
from djinn_jupyter.engine.interventions.steering import Rule
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.lines import fed_tokens, prompts_of, require_empty, under_rules_of
from djinn_jupyter.engine.requests.methods import MethodParts
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.influences import has_edits
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.engine.session.telling import tell
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.methods.heads.engine.heads import KINDS, HeadsOfLayer, block_of, bytes_of, pattern_taps, read_line
from djinn_jupyter.methods.heads.request import HeadsRead, ReadHeads
from djinn_jupyter.wire.circumstances import Circumstances


def handlers(parts: MethodParts) -> tuple[HeadRequests, ...]:
    """Return what handles the requests of this method."""
    return (HeadRequests(parts),)


class HeadRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("heads")

    @handles(ReadHeads)
    def read_heads(self, request: ReadHeads, holder: Holder) -> Steps:
        sessions, model = self._parts.sessions, self._runtime.description
        session = require_empty(sessions.find(request.session), "read heads", "engine.head_scores")
        lines = prompts_of(sessions, model, request.lines, tokens_of=_tokens_of)
        rules = under_rules_of(sessions, request.rules_of, session)
        layers = [HeadsOfLayer(tap=tap, wanted=request.patterns) for tap in pattern_taps(self._runtime.of(session))]
        return self._steps(session, lines, rules, layers, self._parts.circumstances(session, rules))

    def _steps(
        self,
        session: Session,
        lines: Sequence[tuple[int, ...]],
        rules: Sequence[Rule],
        layers: Sequence[HeadsOfLayer],
        made: Circumstances,
    ) -> Steps:
        counted = [0] * len(KINDS)
        dtype = self._runtime.forward.model.dtype
        with (
            device_memory_for("the attention patterns of a line", "Close sessions, or give shorter lines."),
            self._workspace.opened(self._runtime.space, session) as room,
        ):
            for index, tokens in enumerate(lines):
                tell(self._runtime, session, "reading heads", index, len(lines))
                if index and session.progress.can_end():
                    lines = lines[:index]
                    break
                yield from room.take(bytes_of(len(tokens), layers, dtype))
                more = yield from read_line(self._runtime, session, tokens, layers, rules)
                room.give_back(room.held)
                counted = [a + b for a, b in zip(counted, more, strict=True)]
                yield None
        patterns = [layer.patterns for layer in layers if layer.patterns is not None]
        means = [layer.means(counted) for layer in layers]
        return HeadsRead(
            layers=tuple(layer.tap.stage for layer in layers),
            scores=to_array(
                torch.stack([_padded([of_layer[kind] for of_layer in means]) for kind in range(len(KINDS))])
            ),
            counted=(counted[0], counted[1], counted[2]),
            texts=tuple(self._runtime.tokenizer.text_of(token) for token in lines[0]),
            patterns=to_array(_padded(patterns)) if patterns else None,
            pooled=block_of(len(lines[0])),
            lines=tuple(lines),
            made=made,
        )


def _tokens_of(session: Session) -> tuple[int, ...]:
    """Return the tokens of a session's line, those of a stopped pass among them."""
    if session.frame is not None and not has_edits(session):
        return tuple(session.tokens[: session.frame.end])
    return fed_tokens(session)


def _padded(each: Sequence[Tensor]) -> Tensor:
    """Return the layers' tensors as one; layers with fewer heads than others are filled up with NaN."""
    most = max(len(one) for one in each)
    return torch.stack([torch.cat([one, one.new_full((most - len(one), *one.shape[1:]), torch.nan)]) for one in each])
