"""The measures of each token of a text, in one pass over it: of the logits behind each position, and of a site's value;
and its lens at many layers.

Shapes: T positions, V tokens of the vocabulary, n positions at a time, D features, k most probable tokens, C requested.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from msgspec import UNSET
from torch import Tensor

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.breakpoints import Rule, along, unit_of
from djinn_jupyter.engine.passes.conditions import Metrics
from djinn_jupyter.engine.passes.controller import Unmarked
from djinn_jupyter.engine.passes.forward import device_memory_for
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.requests import bounds
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.requests.inspection import metrics_in, token_id
from djinn_jupyter.engine.session import queries, reports, residence, run
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.text.request import Of, ReadText, ReadTextLens, TextLensRead, TextMeasured
from djinn_jupyter.wire import looks, nouns
from djinn_jupyter.wire.sites import Site

ROWS: Final = 64  # of logits that are fp32 at a time
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeText:
    """Tokens to be read in one pass, of which the model chose those in the `generated` spans, under these `rules`."""

    tokens: tuple[int, ...]
    generated: Spans = ()
    rules: tuple[Rule, ...] = ()


def text_of(session: Session) -> WholeText:
    """Return all tokens of a session. Raises UsageError where it has edits or no tokens."""
    bounds.require_unedited(session)
    if not session.tokens:
        raise UsageError("The session has no text yet; run a prompt in it.")
    fed = [(one.start, one.end) for one in session.pass_log.passes if one.decode]
    begins = len(session.tokens) if session.generation is None else session.generation.begins
    return WholeText(tokens=tuple(session.tokens), generated=_joined([*fed, (begins, len(session.tokens))]))


def _joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the spans without empty ones; those that meet are one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


def rules_in_one_pass(rules: Iterable[Rule], text: WholeText) -> tuple[Rule, ...]:
    """Return rules that do in one pass over the text as these did in a pass for each generated token. Raises UsageError
    where there are none."""
    return tuple(_in_one_pass(rule, text) for rule in rules) if text.generated else tuple(rules)


def _in_one_pass(rule: Rule, text: WholeText) -> Rule:
    by_pass = any(position < 0 for position in rule.positions or ())
    by_step = rule.guard is not None and "step" in rule.guard.condition.names
    if rule.on is None and not by_pass and not by_step:
        return rule
    [(begins, end), *others] = text.generated
    chosen = rule.positions is not None or rule.onward is not None
    if by_pass or by_step or chosen or others or end != len(text.tokens):
        raise UsageError(
            f"Rule {rule.number} ({rule.what}) chooses its positions pass by pass, and a text is read in one pass: "
            "turn the rule off, or give it positions from the beginning."
        )
    if rule.on == "new":
        return replace(rule, on=None, onward=begins).copy()
    return replace(rule, on=None, positions=tuple(range(begins))).copy()


@dataclass(slots=True, kw_only=True)
class SiteMeasure(Unmarked):
    """Measures a site's value at each position: along a unit vector [D], else its one number, or its norm."""

    site: Site
    tap: Tap
    unit_D: Tensor | None
    values_T: Tensor | None = None
    of: Of = "component"

    def observe(self, site_value: SiteValue) -> None:
        value = site_value.units(self.site.selector)
        if self.unit_D is not None:
            self.values_T = along(value, self.unit_D).to("cpu")
            return
        rows = value.detach().to(torch.float32).reshape(len(value), -1)
        self.of = "value" if rows.shape[1] == 1 else "norm"
        self.values_T = (rows[:, 0] if rows.shape[1] == 1 else rows.norm(dim=1)).to("cpu")


@dataclass(slots=True, kw_only=True)
class MeasuredLogits:
    """The measures of the logits behind each position, collected some positions at a time."""

    log_probabilities: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    metrics: list[float] = field(default_factory=list)
    rows: list[nouns.LensRow] = field(default_factory=list)


def measured(
    runtime: Runtime, logits_TV: Tensor, tokens: Sequence[int], metrics: Metrics | None, top: int
) -> Generator[None, None, MeasuredLogits]:
    """Return the measures of these logits, with the model's own bits. Other jobs may run between some positions and the
    next."""
    found = MeasuredLogits()
    for start in range(0, len(tokens), ROWS):
        logits_nV = logits_TV[start : start + ROWS].float()
        logs_nV = torch.log_softmax(logits_nV, -1)
        after = torch.tensor(tokens[start + 1 : start + 1 + len(logits_nV)], dtype=torch.long, device=logs_nV.device)
        found.log_probabilities.append(logs_nV[: len(after)].gather(1, after[:, None])[:, 0].to("cpu"))
        found.entropies.append(torch.special.entr(logs_nV.exp()).sum(-1).to("cpu"))
        places = list(range(start, start + len(logits_nV)))
        found.rows += reports.lens_rows(runtime, logits_nV, places, [tokens[at] for at in places], top, ())
        if metrics is not None:
            found.metrics += [metrics.of(logits_V)[0] for logits_V in logits_nV]
        yield None
    return found


@dataclass(slots=True, kw_only=True)
class LensValues(Unmarked):
    """Keeps a site's value [T, D] on the host."""

    site: Site
    tap: Tap
    value_TD: Tensor | None = None

    def observe(self, site_value: SiteValue) -> None:
        self.value_TD = site_value.value.detach().to("cpu", copy=True)


def lens_of(
    lens: Callable[[Tensor], Tensor], taken: LensValues, tokens: Sequence[int], top: int, chosen: Sequence[int]
) -> Generator[None, None, list[Tensor]]:
    """Return the lens of a site's values, on the host: the most probable tokens [T, k] and their probabilities, the
    entropies [T], and the probabilities of the next tokens [T - 1] and of the `chosen` [T, C]. Other jobs may run
    between some positions and the next. UsageError."""
    parts: list[tuple[Tensor, ...]] = []
    value_TD, taken.value_TD = _met(taken.site, taken.value_TD), None
    for start in range(0, len(tokens), ROWS):
        logits_nV = lens(value_TD[start : start + ROWS]).float()
        chances_nV = torch.softmax(logits_nV, -1)
        best_nk = logits_nV.topk(min(top, logits_nV.shape[-1])).indices
        after = torch.tensor(tokens[start + 1 : start + 1 + len(logits_nV)], dtype=torch.long, device=best_nk.device)
        own_n = chances_nV[: len(after)].gather(1, after[:, None])[:, 0]
        each = (best_nk.int(), chances_nV.gather(1, best_nk), torch.special.entr(chances_nV).sum(-1), own_n)
        parts.append(tuple(one.to("cpu") for one in (*each, chances_nV[:, list(chosen)])))
        yield None
    return [torch.cat(each) for each in zip(*parts, strict=True)]


def handlers(parts: MethodParts) -> tuple[TextRequests]:
    """Return the handlers of this method's requests."""
    return (TextRequests(parts),)


class TextRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("texts")

    @handles(ReadText)
    def read_text(self, request: ReadText, session: Session, holder: Holder) -> residence.Steps[TextMeasured]:
        bounds.require_empty(session, "read a text", "session.text")
        text = self._text(request.line, request.rules_of, session)
        bounds.require_few_tokens(len(text.tokens), request.top)
        metrics = None if request.metric is UNSET else metrics_in(self._runtime, (request.metric,))
        site = self._site(request, session)
        taps = [] if site is None else [site.tap]
        return self._steps(request, session, text, metrics, site, self._parts.circumstances(session, text.rules, taps))

    @handles(ReadTextLens)
    def read_lens(self, request: ReadTextLens, session: Session, holder: Holder) -> residence.Steps[TextLensRead]:
        bounds.require_empty(session, "read a text", "session.text_lens")
        text = self._text(request.line, request.rules_of, session)
        chosen = [token_id(self._runtime, token) for token in request.tokens]
        bounds.require_few_tokens(len(text.tokens) * len(request.sites), request.top + len(chosen))
        taken = [self._lens_site(session, spelling) for spelling in request.sites]
        made = self._parts.circumstances(session, text.rules, [one.tap for one in taken])
        return self._lens_steps(request.top, session, text, chosen, taken, made)

    def _lens_site(self, session: Session, spelling: str) -> LensValues:
        """Return a site of the residual stream's width. Raises UnknownSite for another."""
        site, runtime = self._runtime.site(spelling), self._runtime.of(session)
        tap = runtime.resolve(site)
        if site.selector is not None or runtime.forward.lens_at(tap) is None:
            raise UnknownSite(
                f"The lens of a text reads whole values of the residual stream's width, such as resid_post.4 or those "
                f"of a tuned lens; {site} is {tap.axes} with {tap.width}."
            )
        return LensValues(site=site, tap=tap)

    def _lens_steps(
        self,
        top: int,
        session: Session,
        text: WholeText,
        chosen: Sequence[int],
        taken: Sequence[LensValues],
        made: looks.Circumstances,
    ) -> residence.Steps[TextLensRead]:
        forward, length = self._runtime.of(session).forward, len(text.tokens)
        size = length * len(taken) * forward.anatomy.hidden_size * forward.model.dtype.itemsize
        bounds.Room().take(size)
        found: list[list[Tensor]] = []
        with (
            device_memory_for("the lens of a text", "Close sessions, or read fewer layers."),
            self._workspace.opened(session) as room,
        ):
            if forward.device.type == "cpu":  # where these values share their memory with sessions
                yield from room.take(size)
            yield from queries.run_line(self._runtime, session, text.tokens, rules=text.rules, observers=taken)
            for done, one in enumerate(taken):
                run.publish_progress(self._runtime, session, "reading the lens", done, len(taken), "sites")
                found.append((yield from lens_of(forward.lens, one, text.tokens, top, chosen)))
        best, chances, entropies, own, asked = (torch.stack(each) for each in zip(*found, strict=True))
        named = dict.fromkeys([*best.flatten().tolist(), *chosen])
        return TextLensRead(
            tokens=text.tokens,
            texts=tuple(self._runtime.tokenizer.text_of(token) for token in text.tokens),
            generated=text.generated,
            sites=tuple(str(one.site) for one in taken),
            top_tokens=to_array(best),
            top_probabilities=to_array(chances),
            entropies=to_array(entropies),
            next_probabilities=to_array(own),
            chosen=to_array(asked),
            chosen_tokens=tuple(chosen),
            spelled=tuple((token, self._runtime.tokenizer.text_of(token)) for token in named),
            made=made,
        )

    def _text(self, line: tuple[int, ...] | str, rules_of: str | None, session: Session) -> WholeText:
        """Return the text, checked, with the rules under which it is read."""
        sessions, model = self._parts.sessions, self._runtime.description
        text = WholeText(tokens=line) if isinstance(line, tuple) else text_of(sessions.find(line))
        bounds.require_fit(model, text.tokens, "The text")
        rules = bounds.under_rules_of(sessions, rules_of, session)
        return replace(text, rules=rules_in_one_pass(rules, text))

    def _site(self, request: ReadText, session: Session) -> SiteMeasure | None:
        if request.site is UNSET:
            if request.direction is not UNSET:
                raise UsageError("A direction is of the value at a site: name the site too.")
            return None
        site = self._runtime.site(request.site)
        tap = self._runtime.of(session).resolve(site)
        unit_D = None if request.direction is UNSET else unit_of(request.direction, site, tap)
        return SiteMeasure(site=site, tap=tap, unit_D=unit_D)

    def _steps(
        self,
        request: ReadText,
        session: Session,
        text: WholeText,
        metrics: Metrics | None,
        site: SiteMeasure | None,
        made: looks.Circumstances,
    ) -> residence.Steps[TextMeasured]:
        run.publish_progress(self._runtime, session, "measuring", 0, len(text.tokens), "tokens")
        observers = () if site is None else (site,)
        with (
            device_memory_for("the logits of all tokens of a text", "Close sessions, or read a shorter text."),
            self._workspace.opened(session) as room,
        ):
            if self._runtime.forward.device.type == "cpu":  # where tokens share their memory with sessions
                yield from room.take(len(text.tokens) * request.top * bounds.TOKEN_BYTES)
            outcome = yield from queries.run_line(
                self._runtime, session, text.tokens, rules=text.rules, observers=observers, all_logits=True
            )
            behind = yield from measured(self._runtime, outcome.logits_1TV[0], text.tokens, metrics, request.top)
        return TextMeasured(
            tokens=text.tokens,
            texts=tuple(self._runtime.tokenizer.text_of(token) for token in text.tokens),
            generated=text.generated,
            log_probabilities=to_array(torch.cat(behind.log_probabilities)),
            entropies=to_array(torch.cat(behind.entropies)),
            rows=tuple(behind.rows),
            made=made,
            metrics=to_array(torch.tensor(behind.metrics, dtype=torch.float64)) if metrics else None,
            site_values=None if site is None else to_array(_met(site.site, site.values_T)),
            of=None if site is None else site.of,
        )


def _met(site: Site, values: Tensor | None) -> Tensor:
    """Return the values that a pass over a text had at a site. Raises UsageError where it had none."""
    if values is None:
        raise UsageError(f"{site} was not met in a pass over the text.")
    return values
