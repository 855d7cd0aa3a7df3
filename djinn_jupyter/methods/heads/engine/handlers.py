"""The attention of heads: scores of every head for token sequences, their patterns, and the request.

A pattern is computed where the engine has it as a point: from the softmax of eager attention, or from queries and keys
where attention is fused.

Shapes: T positions, H heads, K keys (as many as positions), P blocks of pooled positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.controller import PassRule
from djinn_jupyter.engine.passes.forward import device_memory_for
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.requests.bounds import fed_tokens, prompts_of, require_empty, under_rules_of
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.session import queries, reports, residence, run
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.methods.heads.engine.page import HeadPageRequests, Lines
from djinn_jupyter.methods.heads.request import KINDS, HeadsRead, ReadHeads
from djinn_jupyter.wire import looks, sites

SIDE: Final = 64  # blocks of a pooled pattern, down and across


def pattern_taps(runtime: Runtime) -> list[Tap]:
    """Return the taps of the layers with attention patterns. Raises UnknownSite where none has any."""
    found: list[Tap] = []
    why: UnknownSite | None = None
    for layer in range(runtime.forward.layers):
        try:
            found.append(runtime.resolve(sites.Site(point="pattern", layer=layer)))
        except UnknownSite as error:
            why = why or error
    if not found:
        raise UnknownSite(f"No layer of this model has attention patterns to read: {why}") from None
    return found


@dataclass(slots=True, kw_only=True)
class HeadsOfLayer:
    """Sums the attention of a layer's heads, sequence by sequence. `patterns` [H, P, P] are those of the first one, if
    `wanted`."""

    tap: Tap
    wanted: bool = False
    patterns: Tensor | None = None
    targets: Sequence[Tensor] = ()  # of the present sequence: a mask [T, K] for each of KINDS
    sums: list[Tensor | float] = field(default_factory=lambda: [0.0] * len(KINDS))

    def observe(self, site_value: SiteValue) -> None:
        pattern_THK = site_value.value[..., : site_value.rows]  # without the column of a sink
        if self.wanted and self.patterns is None:
            self.patterns = pooled(pattern_THK.transpose(0, 1))
        for kind, mask_TK in enumerate(self.targets):
            part = pattern_THK.masked_fill(~mask_TK[:, None, :].to(pattern_THK.device), 0)
            self.sums[kind] = self.sums[kind] + part.sum((0, 2), dtype=torch.float64)

    def mark(self) -> Callable[[], None]:
        """Return a callable that restores the present sums."""
        sums, patterns = list(self.sums), self.patterns

        def go_back() -> None:
            self.sums, self.patterns = sums, patterns

        return go_back

    def means(self, counted: Sequence[int]) -> list[Tensor]:
        """Return the mean attention [H] for each of KINDS, over so many positions; NaN over none."""
        heads = next((len(one) for one in self.sums if isinstance(one, Tensor)), 0)
        return [
            (torch.as_tensor(total).cpu() / count).expand(heads) if count else torch.full((heads,), torch.nan)
            for total, count in zip(self.sums, counted, strict=True)
        ]


class HeadReading:
    """The heads of all layers, read sequence by sequence under the rules. `counted` are the numbers of positions so far
    with a target of each of KINDS."""

    def __init__(self, runtime: Runtime, session: Session, rules: Sequence[PassRule], *, patterns: bool) -> None:
        self._runtime, self._session, self._rules = runtime, session, rules
        self.layers = [HeadsOfLayer(tap=tap, wanted=patterns) for tap in pattern_taps(runtime.of(session))]
        self.counted = [0] * len(KINDS)

    def bytes_of(self, length: int) -> int:
        """Return the bytes of reading a sequence: its masks, and the pattern of the layer with the most heads, alone
        and with one of the masks."""
        heads = max(layer.tap.heads or 1 for layer in self.layers)
        return length * length * (len(KINDS) + 2 * heads * self._runtime.forward.model.dtype.itemsize)

    def read(self, tokens: tuple[int, ...]) -> residence.Pieces:
        """Run a sequence in a pass of its own and add its heads' attention."""
        targets = targets_of(tokens)
        for layer in self.layers:
            layer.targets = targets
        yield from queries.run_line(self._runtime, self._session, tokens, rules=self._rules, observers=self.layers)
        for kind, mask_TK in enumerate(targets):
            self.counted[kind] += int(mask_TK.any(1).sum())

    def scores(self) -> Tensor:
        """Return the mean attention over all sequences, float64 [kinds, layers, H]."""
        means = [layer.means(self.counted) for layer in self.layers]
        return torch.stack([_padded([of_layer[kind] for of_layer in means]) for kind in range(len(KINDS))])

    def patterns(self) -> Tensor | None:
        """Return the patterns of the first sequence, fp32 [layers, H, P, P]; None unless wanted."""
        patterns = [layer.patterns for layer in self.layers if layer.patterns is not None]
        return _padded(patterns) if patterns else None


def _padded(each: Sequence[Tensor]) -> Tensor:
    """Return the layers' tensors as one; layers with fewer heads are padded with NaN."""
    most = max(len(one) for one in each)
    return torch.stack([torch.cat([one, one.new_full((most - len(one), *one.shape[1:]), torch.nan)]) for one in each])


def targets_of(tokens: Sequence[int]) -> tuple[Tensor, ...]:
    """Return a mask [T, K] for each of KINDS: the keys at which such a head looks from each position."""
    ids = torch.tensor(tokens)
    same = (ids[:, None] == ids[None, :]).tril(-1)
    previous = torch.ones_like(same).tril(-1) & ~torch.ones_like(same).tril(-2)
    behind = torch.zeros_like(same)
    behind[:, 1:] = same[:, :-1]
    return previous, same, behind.tril(-1)


def pooled(pattern_HTK: Tensor) -> Tensor:
    """Return [H, P, P], fp32 on the host: the largest weight of each block of positions."""
    block = block_of(pattern_HTK.shape[-1])
    found = pattern_HTK.detach().float()
    return (found if block == 1 else max_pool2d(found, block, ceil_mode=True)).to("cpu").clone()


def block_of(length: int) -> int:
    """Return the number of positions in a block of a pooled pattern."""
    return -(-length // SIDE)


# Answers ReadHeads: checks it, runs its sequences one after the other, and replies. Its session is empty: only its
# memory is used.


def handlers(parts: MethodParts) -> tuple[HeadRequests, HeadPageRequests]:
    """Return the handlers of this method's requests."""
    return HeadRequests(parts), HeadPageRequests(parts)


class HeadRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("heads")

    @handles(ReadHeads)
    def read_heads(self, request: ReadHeads, session: Session, holder: Holder) -> residence.Steps[HeadsRead]:
        sessions, model = self._parts.sessions, self._runtime.description
        require_empty(session, "read heads", "engine.head_scores")
        lines = prompts_of(sessions, model, request.lines, tokens_of=tokens_of)
        rules = under_rules_of(sessions, request.rules_of, session)
        heads = HeadReading(self._runtime, session, rules, patterns=request.patterns)
        return self._steps(session, lines, heads, self._parts.circumstances(session, rules))

    def _steps(
        self, session: Session, lines: Lines, heads: HeadReading, made: looks.Circumstances
    ) -> residence.Steps[HeadsRead]:
        with (
            device_memory_for("the attention patterns of a line", "Close sessions, or give shorter lines."),
            self._workspace.opened(session) as room,
        ):
            for index, tokens in enumerate(lines):
                run.publish_progress(self._runtime, session, "reading heads", index, len(lines), "lines")
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


def tokens_of(session: Session) -> tuple[int, ...]:
    """Return the tokens of a session, including those of a stopped pass."""
    if session.frame is not None and not reports.has_edits(session):
        return tuple(session.tokens[: session.frame.end])
    return fed_tokens(session)
