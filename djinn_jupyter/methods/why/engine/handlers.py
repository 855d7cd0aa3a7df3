"""Answers ExplainScore: one pass over the sequence with observers of what each module adds at two positions, and the
attention of one layer once more by itself.

Shapes: S positions, D features of the residual, H heads, K keys, A active features of an SAE at a time, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.model.loading import quantized
from djinn_jupyter.engine.passes.epilogue import on_host
from djinn_jupyter.engine.passes.forward import device_memory_for
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.passes.weight_reader import WeightReader
from djinn_jupyter.engine.requests import bounds
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.session import queries, residence, run
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.attribution.engine.attributing import why_no_line
from djinn_jupyter.methods.attribution.engine.line import LayerArguments
from djinn_jupyter.methods.common.engine.lines import Recorded
from djinn_jupyter.methods.direct.engine.handlers import RowObserver, require_whole, watched
from djinn_jupyter.methods.graphs.engine.frozen_line import FrozenNorm
from djinn_jupyter.methods.heads.engine.handlers import tokens_of
from djinn_jupyter.methods.heads.engine.page import require_head
from djinn_jupyter.methods.why.engine.scores import POINTS, HeldLayer, ScoreDirection, ScoreForm, ScoreOf, rounding
from djinn_jupyter.methods.why.request import ExplainScore, ScoreExplained
from djinn_jupyter.modules.engine.arithmetic import Dictionary
from djinn_jupyter.modules.engine.feature_layout import FeatureLayout
from djinn_jupyter.wire import looks
from djinn_jupyter.wire.readings import ScorePart, ScoreSide
from djinn_jupyter.wire.sites import Site
from djinn_jupyter.wire.weights import WeightName

ALONE: Final = 1 << 22  # numbers of features, each alone in a row, that are held at a time
GRAPHS: Final = 6  # tensors as large as the scores of all heads that a way back keeps


@dataclass(slots=True, kw_only=True)
class NormedHeads(RowObserver):
    """Divides what a norm adds to the residual among the `heads` before it, with its scale held: [H, D], and `bias`."""

    heads: RowObserver

    def observe(self, site_value: SiteValue) -> None:
        made_D = site_value.value[self.row].detach()
        assert self.tap.module is not None and self.heads.bias is not None
        given_D = sum(self.heads.values, self.heads.bias)
        norm = FrozenNorm.at(self.tap.module, given_D[None, None], made_D[None, None])
        if norm is None:
            self.values, self.by_head = [made_D.clone()], False
            return
        shift_D = norm.of(torch.zeros_like(given_D)[None, None])[0, 0]
        self.values = [norm.of(value[None, None])[0, 0] - shift_D for value in self.heads.values]
        self.bias = norm.of(self.heads.bias[None, None])[0, 0]


@dataclass(slots=True, kw_only=True)
class LayerRow:
    """The input of a layer at one position, and the values that sum to it: the residual `before` the outputs, and the
    outputs `added` by modules. `normed` are the heads before a norm, observed for the parts behind it."""

    row: int
    entered: RowObserver
    before: RowObserver
    added: list[RowObserver]
    normed: list[RowObserver] = field(default_factory=list)

    @property
    def observers(self) -> list[RowObserver]:
        return [self.entered, self.before, *self.normed, *self.added]


def handlers(parts: MethodParts) -> tuple[WhyRequests, ...]:
    """Return the handlers of this method's requests."""
    return (WhyRequests(parts),)


class WhyRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("why")

    @handles(ExplainScore)
    def explain_score(self, request: ExplainScore, session: Session, holder: Holder) -> residence.Steps[ScoreExplained]:
        bounds.require_empty(session, "explain a score", "session.why")
        sessions, model = self._parts.sessions, self._runtime.description
        tokens = request.line
        if isinstance(tokens, str):
            tokens = tokens_of(sessions.find(tokens))
        bounds.require_fit(model, tokens, "The line")
        rules = bounds.under_rules_of(sessions, request.rules_of, session)
        runtime = self._runtime.of(session)
        why = why_no_line(runtime.forward) or quantized.why_no_gradients(runtime.forward.model)
        if why is not None:
            raise UnknownSite(f"A score is explained by the way back through its layer, and there is none here: {why}.")
        explaining = Explaining(runtime, session, request, tokens)
        taps = [] if explaining.features is None else [explaining.features]
        return self._steps(explaining, rules, self._parts.circumstances(session, rules, taps))

    def _steps(
        self, explaining: Explaining, rules: Sequence[Any], made: looks.Circumstances
    ) -> residence.Steps[ScoreExplained]:
        session, runtime = explaining.session, explaining.runtime
        with (
            device_memory_for("the scores of this line", "Close sessions, or give a shorter line."),
            self._workspace.opened(session) as room,
        ):
            run.publish_progress(runtime, session, "explaining", 0, 2, "passes")
            yield from room.take(explaining.nbytes)
            yield from queries.run_line(
                runtime, session, explaining.tokens, rules=rules, observers=explaining.observers
            )
            run.publish_progress(runtime, session, "explaining", 1, 2, "passes")
            yield None
            return explaining.reply(made, ruled=bool(rules))


class Explaining:
    """One score of one sequence: what is observed in a pass over it, and then its parts."""

    def __init__(self, runtime: Runtime, session: Session, request: ExplainScore, tokens: tuple[int, ...]) -> None:
        self.runtime, self.session, self.tokens, self.layer = runtime, session, tokens, request.layer
        self._weights = WeightReader(runtime.forward)
        if request.layer >= runtime.forward.layers:
            raise UnknownSite(f"There is no layer {request.layer}: layers 0 to {runtime.forward.layers - 1} are here.")
        self._taps = {point: self._tap(point) for point in (*POINTS, "pattern")}
        require_head(self._taps["q_rot"], request.head)
        self.of = ScoreOf(
            head=request.head,
            query=_position(request.query, tokens, "query"),
            key=_position(request.key, tokens, "key"),
        )
        self.features = None if request.features is None else self._features(request.features)
        self._entry = Recorded(tap=self._tap("resid_pre"))
        self._rows = {row: self._row(row) for row in sorted({self.of.query, self.of.key})}
        at = {"q_rot": self.of.query, "k_rot": self.of.key, "attn_scores": self.of.query, "pattern": self.of.query}
        self._seen = {point: RowObserver(tap=tap, row=at[point], point=point) for point, tap in self._taps.items()}

    @property
    def _dtype(self) -> torch.dtype:
        return self.runtime.forward.model.dtype

    @property
    def observers(self) -> list[Any]:
        return [self._entry, *self._seen.values(), *(one for row in self._rows.values() for one in row.observers)]

    @property
    def nbytes(self) -> int:
        """The bytes of the layer's scores on the way back, and of what is kept of the pass."""
        heads, length = self._taps["q_rot"].heads or 1, len(self.tokens)
        hidden = self.runtime.forward.anatomy.hidden_size
        return 4 * (GRAPHS * heads * length * length + 16 * length * hidden + 2 * self.layer * (heads + 2) * hidden)

    def _tap(self, point: str) -> Tap:
        return self.runtime.resolve(Site(point=point, layer=self.layer))

    def _features(self, spelling: str) -> Tap:
        """Return the tap of an SAE of the residual stream before the layer. Raises UnknownSite for another."""
        site = self.runtime.site(spelling)
        tap = self.runtime.resolve(site)
        whole, layout = site.selector is None, tap.layout
        is_sae = whole and isinstance(layout, FeatureLayout) and isinstance(layout.module.present, Dictionary)
        if not is_sae or tap.boundary is None or tap.boundary > self.layer or not tap.editable:
            raise UnknownSite(
                f"The features of a score are those of an SAE of the residual stream up to resid_pre.{self.layer}, "
                f"such as one at resid_post.{max(0, self.layer - 1)}; {spelling} is none."
            )
        return tap

    def _row(self, row: int) -> LayerRow:
        first = 0 if self.features is None else self.features.boundary or 0
        added: list[RowObserver] = []
        normed: list[RowObserver] = []
        for layer in range(first, self.layer):
            for one in watched_by_head(self.runtime, layer, row):
                (normed if one.point == "normed" else added).append(one)
        tap = self.runtime.resolve(Site(point="resid_pre", layer=first))
        before = RowObserver(tap=tap, row=row, point="embed")
        entered = RowObserver(tap=self._entry.tap, row=row, point="resid_pre")
        return LayerRow(row=row, entered=entered, before=before, added=added, normed=normed)

    # --- after the pass --------------------------------------------------------------------------------------------

    def reply(self, made: looks.Circumstances, *, ruled: bool) -> ScoreExplained:
        """Return the parts of the score. Raises UsageError where the query does not see the key, UnknownSite where the
        score is no sum of them."""
        given = float(self._seen["attn_scores"].values[0][self.of.head, self.of.key])
        if given <= torch.finfo(self._dtype).min / 2:
            raise UsageError(f"Position {self.of.query} does not see position {self.of.key} in layer {self.layer}.")
        if not ruled:
            for row in self._rows.values():
                require_whole(row.entered.values[0], [row.before, *row.added], "no score")
        form, score = self._form()
        return ScoreExplained(
            tokens=self.tokens,
            texts=tuple(self.runtime.tokenizer.text_of(token) for token in self.tokens),
            query=self.of.query,
            key=self.of.key,
            score=score,
            scale=form.scale,
            given=given,
            weight=float(self._seen["pattern"].values[0][self.of.head, self.of.key]),
            by_key=self._side(form.by_key, self._rows[self.of.key], score),
            by_query=self._side(form.by_query, self._rows[self.of.query], score),
            made=made,
            notes=self._notes(form, given, score),
        )

    def _form(self) -> tuple[ScoreForm, float]:
        """Return the form of the score, and the score itself: of the query and the key in the pass."""
        forward = self.runtime.forward
        arguments = LayerArguments.of(forward, self.tokens)
        assert self._entry.raw is not None
        entry_1SD = forward.anatomy.by_line(self._entry.raw)
        taps = {point: self._taps[point] for point in POINTS}
        form = HeldLayer(forward, arguments, self.layer, entry_1SD, taps).form(self.of)
        query_d = on_host(self._seen["q_rot"].values[0][self.of.head])
        key_d = on_host(self._seen["k_rot"].values[0][form.group])
        score = form.scale * float(query_d @ key_d)
        self._require_same(form, score, abs(form.scale) * float(query_d.norm() * key_d.norm()))
        return form, score

    def _require_same(self, form: ScoreForm, score: float, size: float) -> None:
        """Raise UnknownSite where the layer, run by itself, makes another score than in the pass."""
        x_D = self._rows[self.of.key].entered.values[0]
        allowed = rounding(self._dtype) * size
        if abs(form.by_key.of(x_D) + form.by_key.constant - score) > allowed:
            raise UnknownSite(
                f"Layer {self.layer} makes another score by itself than in its pass: a steering rule within it changes "
                "queries or keys, or it gets more than the residual. Turn such a rule off."
            )

    def _side(self, direction: ScoreDirection, row: LayerRow, score: float) -> ScoreSide:
        parts = tuple(self._parts(direction, row))
        rest = score - direction.constant - sum(one.value for one in parts)
        return ScoreSide(parts=parts, constant=direction.constant, rest=rest)

    def _parts(self, direction: ScoreDirection, row: LayerRow) -> Iterator[ScorePart]:
        x_D = row.before.values[0]
        yield from self._embedded(direction, row.row, x_D) if self.features is None else self._written(direction, x_D)
        for one in row.added:
            for unit, value in enumerate(one.values):
                yield _part(one.point, direction.of(value), one.tap.stage, unit if one.by_head else None)
            if one.bias is not None:
                yield _part("bias", direction.of(one.bias), one.tap.stage)

    def _embedded(self, direction: ScoreDirection, row: int, x_D: Tensor) -> Iterator[ScorePart]:
        """Yield the parts of the token, and of its position where a table of positions is added."""
        positions = self.runtime.forward.anatomy.positions
        whole = direction.of(x_D)
        if isinstance(positions, str):
            yield _part("embed", whole)
            return
        of_position = direction.of(self._weights.read(WeightName(name="W_pos"), (row,), None, fold_norm=False)[0])
        yield _part("embed", whole - of_position)
        yield _part("W_pos", of_position)

    def _written(self, direction: ScoreDirection, x_D: Tensor) -> Iterator[ScorePart]:
        """Yield the parts of the active features of the SAE, of its bias, and of what it leaves unexplained."""
        assert self.features is not None and isinstance(self.features.layout, FeatureLayout)
        module, site = self.features.layout.module.present, self.features.site
        assert isinstance(module, Dictionary)
        features_1F = module.read(x_D[None])
        bias_D = module.decode(x_D[None], torch.zeros_like(features_1F))[0]
        left_D = on_host(x_D) - on_host(bias_D)
        for units in features_1F[0].nonzero()[:, 0].split(max(1, ALONE // features_1F.shape[1])):
            alone_AF = features_1F.new_zeros((len(units), features_1F.shape[1]))
            alone_AF[torch.arange(len(units)), units] = features_1F[0, units]
            writes_AD = module.difference(x_D.expand(len(units), -1), torch.zeros_like(alone_AF), alone_AF)
            for unit, write_D in zip(units.tolist(), on_host(writes_AD), strict=True):
                yield _part(site.point, direction.of(write_D), site.layer, unit)
            left_D = left_D - on_host(writes_AD).sum(0)
        yield _part(f"{site.point} bias", direction.of(bias_D), site.layer)
        yield _part(f"{site.point} error", direction.of(left_D), site.layer)

    def _notes(self, form: ScoreForm, given: float, score: float) -> tuple[str, ...]:
        allowed = rounding(self._dtype) * max(1.0, abs(score))
        if abs(given - score - form.bias) > allowed:
            return (f"The softmax gets {given:+.4f}: the model changes the score before it, as by a soft-cap.",)
        if abs(form.bias) > allowed:
            return (f"A bias of {form.bias:+.4f}, whatever the query is, is added to the score.",)
        return ()


def watched_by_head(runtime: Runtime, layer: int, row: int) -> Iterator[RowObserver]:
    """Yield observers of a layer's additions to the residual, of each head where they can be told apart: also before a
    norm, whose observer has the parts and that of the heads the point `normed`."""
    try:
        yield from list(watched(runtime, layer, row, heads=True, neurons=False))
        return
    except UnknownSite:
        whole = list(watched(runtime, layer, row, heads=False, neurons=False))
    post, z = (runtime.forward.anatomy.taps[point, layer] for point in ("attn_out_post", "z"))
    for one in whole:
        divides = isinstance(post, Tap) and one.tap is post and post.module is not None
        if divides and isinstance(z, Tap) and z.heads is not None and z.module is not None:
            heads = RowObserver(tap=z, row=row, point="normed", by_head=True)
            yield heads
            yield NormedHeads(tap=one.tap, row=row, point="z", by_head=True, heads=heads)
        else:
            yield one


def _part(point: str, value: float, layer: int | None = None, unit: int | None = None) -> ScorePart:
    return ScorePart(point=point, layer=layer, unit=unit, value=value)


def _position(position: int, tokens: Sequence[int], what: str) -> int:
    """Return the position counted from the beginning. Raises UsageError for one beyond the line."""
    if not -len(tokens) <= position < len(tokens):
        raise UsageError(f"The {what} {position} is beyond the line, which has positions 0 to {len(tokens) - 1}.")
    return position % len(tokens)
