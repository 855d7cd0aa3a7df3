"""The measures of each token of a text: probabilities, entropies, a logit difference, the value of a site; its lens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final, Self

import msgspec
import numpy as np
from msgspec import UNSET

from djinn_jupyter.api import arguments, arrays, likeness, result, runs, tables
from djinn_jupyter.api.names import labelled
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel, SocketChannel, ask_for
from djinn_jupyter.methods.text.request import ReadText, ReadTextLens, TextLensRead, TextMeasured
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import TopToken
from djinn_jupyter.wire.texts import in_quotes

WORK: Final = "The reading of a text"
PROBABILITY, ENTROPY = "probability", "entropy"
ALONG: Final = "along the direction"
EVERY_LAYER: Final = "resid_post.*"


class TextResult(result.Result):
    """Numbers of a text that was read in a pass of its own. `texts` are its tokens; those in the `generated` spans
    [start, end) were chosen by the model."""

    _tabled = True
    reply: Any
    request: Any

    def __post_init__(self) -> None:
        self.tokens = self._lines = (self.reply.tokens,)
        self.texts, self.generated = self.reply.texts, self.reply.generated

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the numbers follow from: the circumstances of the pass, and the request."""
        given = msgspec.structs.asdict(self.request).items()
        asked = {name: one for name, one in given if name not in ("session", "line", "rules_of") and one is not UNSET}
        return {**super().recipe, **asked}

    def _request_of(self, reply: Any) -> Any:
        return msgspec.structs.replace(self.request, line=reply.tokens)


class TokenMeasures(TextResult):
    """The measures of each token of a text: `values` [measures, positions + 1], float64, with a row for each of
    `measures`: the `probability` of the token given those before it and the `entropy`, in nats, of the distribution
    that it was chosen from; the metric of its logits; the value of a site at the token; and the probability of the most
    probable tokens in its place, `top 1` and so on. The last column is the next token, not chosen yet. NaN where there
    is none: nothing is before the first token.

    `texts` are the tokens; those in the `generated` spans [start, end) were chosen by the model. `by` is the measure
    that colours them, and `engine` the engine, the session and the site of the breakpoints that clicks on them set."""

    _view = "text_view"
    ending = ".text.djinn"
    named = "file of a text"
    reply: TextMeasured
    request: ReadText
    by: str
    engine: tuple[str, str, str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = {name: row for name, row in self._rows() if row is not None}
        self.measures = tuple(numbers)
        self.values = np.stack(list(numbers.values()))

    def _rows(self) -> list[tuple[str, np.ndarray[Any, Any] | None]]:
        reply, (site, metric) = self.reply, self._names
        top = np.array([[one.probability for one in row.top] for row in reply.rows])
        return [
            (PROBABILITY, _placed(np.exp(_float(reply.log_probabilities)), 1, len(self.texts))),
            (ENTROPY, _placed(_float(reply.entropies), 1, len(self.texts))),
            (metric, None if reply.metrics is None else _placed(_float(reply.metrics), 1, len(self.texts))),
            (site, None if reply.site_values is None else _placed(_float(reply.site_values), 0, len(self.texts))),
            *((f"top {rank}", _placed(top[:, rank - 1], 1, len(self.texts))) for rank in range(1, top.shape[1] + 1)),
        ]

    @property
    def _names(self) -> tuple[str, str]:
        """Return the names of the site's measure and of the metric."""
        return site_name(self.request), self.request.metric or ""

    def check(self) -> None:
        """Raise ValueError where the measures are not those of the tokens."""
        read, length = self.reply, len(self.reply.tokens)
        each = (read.entropies, *(one for one in (read.metrics, read.site_values) if one is not None))
        if read.log_probabilities.shape != (length - 1,) or any(one.shape != (length,) for one in each):
            raise ValueError("its measures are not those of its tokens")
        if len(read.texts) != length or len(read.rows) != length or len({len(one.top) for one in read.rows}) != 1:
            raise ValueError("its predictions are not those of its tokens")
        if any(not 0 <= start < end <= length for start, end in read.generated):
            raise ValueError("its generated tokens are not in its text")

    def coloured(self, by: str) -> Self:
        """Return the same measures, shown by another one. UsageError.

        >>> done = session.run("The capital of France is", max_new_tokens=2, free=True)
        >>> session.text().coloured("entropy").by
        'entropy'
        """
        return msgspec.structs.replace(self, by=_known(by, self.measures, "text was measured by"))

    def of(self, measure: str) -> np.ndarray[Any, Any]:
        """Return a measure of each token, float64 [positions + 1]. UsageError."""
        row: np.ndarray[Any, Any] = self.values[
            self.measures.index(_known(measure, self.measures, "text was measured by"))
        ]
        return row

    def predicted(self, position: int) -> tuple[TopToken, ...]:
        """Return the most probable tokens in the place of the token at `position`, given those before it; none for the
        first. The position behind the last token has those that may come next."""
        return self.reply.rows[position - 1].top if 0 < position <= len(self.texts) else ()

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the measure and the position of the value at this index."""
        measure, position = index
        return {"measure": self.measures[measure], "position": position}

    def columns(self) -> dict[str, list[Any]]:
        """Return the tokens as lists by column: the position, the id and the text of the token, whether it was
        generated, each measure, and the texts of the most probable tokens in its place. The last row is the next token,
        not chosen yet."""
        new = {at for start, end in self.generated for at in range(start, end)}
        places = [(at, token, self.texts[at], at in new) for at, token in enumerate(self.tokens[0])]
        found = tables.in_columns(
            ("position", "token", "text", "generated"), [*places, (len(places), None, None, True)]
        )
        measures = {name: row.tolist() for name, row in zip(self.measures, self.values, strict=True)}
        told = [[one.text for one in self.predicted(at)] for at in range(len(places) + 1)]
        width = len(told[-1])
        texts = tables.in_columns(
            [f"top {n} text" for n in range(1, width + 1)], [row or [None] * width for row in told]
        )
        return found | measures | texts

    @arguments.typed
    def top(self, count: int = result.STRONGEST, measure: str | None = None) -> list[tuple[int, str, float]]:
        """Return the position, the text and the value of the `count` tokens that stand out by a measure, by default the
        one that colours them: the least probable, else those of largest magnitude. UsageError.

        >>> session.run("The capital of France is", max_new_tokens=1, free=True).text
        ' Paris'
        >>> [text for position, text, probability in session.text().top(1)]
        [' France']
        """
        name = self.by if measure is None else measure
        of_tokens = self.of(name)[: len(self.texts)]
        found = arrays.largest(np.log(of_tokens) if name == PROBABILITY else of_tokens, count)
        return [(at, self.texts[at], float(of_tokens[at])) for (at,), _ in found]

    def __repr__(self) -> str:
        chosen = sum(end - start for start, end in self.generated)
        logs = _float(self.reply.log_probabilities)
        mean = f", loss {-logs.mean():.4f} a token" if len(logs) else ""
        return f"Text of {len(self.texts)} tokens, {chosen} of them generated{mean}; coloured by {labelled(self.by)}"


def _known(measure: object, measures: Sequence[str], of: str) -> str:
    """Return the name of a measure. Raises UsageError for any other value."""
    if not isinstance(measure, str) or measure not in measures:
        raise UsageError(f"The {of} {', '.join(measures)}; {in_quotes(str(measure))} is not there.")
    return measure


def _float(array: Any) -> np.ndarray[Any, Any]:
    return arrays.to_numpy(array).astype(np.float64)


def _placed(values: np.ndarray[Any, Any], first: int, length: int) -> np.ndarray[Any, Any]:
    """Return one value for each token of a text, and for the next; the values begin at the `first` position."""
    row = np.full(length + 1, np.nan)
    row[first : first + len(values)] = values
    return row


def site_name(request: ReadText) -> str:
    """Return the name of the measure of a site."""
    site = request.site or ""
    return site if request.direction is UNSET else f"{site} {ALONG}"


@arguments.typed
def text(
    session: RemoteSession,
    /,
    prompt: object = None,
    *,
    by: str | None = None,
    metric: str | None = None,
    site: str | None = None,
    along: object = None,
    top: int = 5,
) -> TokenMeasures:
    """Measure each token of the session's text, prompt and generated, or of another `prompt` (a text or token ids), in
    one pass under its steering rules. The text is coloured `by` "probability" (by default), "entropy", or what is
    measured besides: a `metric` of the logits that chose the token, such as "logit(' Mary') - logit(' John')"; or the
    value at a `site`, such as a feature "sae.4[17]" or a probe, `along` a direction (a vector) if one is given. `top`
    most probable tokens are read in the place of each. UsageError where edits were made at its stops, because the pass
    would not include them; UnknownSite; InvalidCondition.

    >>> done = session.run("The capital of France is", max_new_tokens=2, free=True)
    >>> read = session.text(metric="logit(' Paris') - logit(' Rome')")
    >>> read.texts[-2:], read.generated, read.by
    ((' Paris', '.'), ((5, 7),), "logit(' Paris') - logit(' Rome')")
    >>> read.of("probability").shape  # of each token, and of the next
    (8,)
    """
    line = session.name if prompt is None else next(runs.tokenized(session.channel, [prompt]))
    direction = None if along is None else arrays.from_any(along)
    given = (("metric", metric), ("site", site), ("direction", direction))
    asked: dict[str, Any] = {name: one for name, one in given if one is not None}
    request = ReadText(session="text", line=line, rules_of=session.name, top=top, **asked)
    reply = likeness.answered(session.channel, "text", request, WORK)
    kept = msgspec.structs.replace(request, line=reply.tokens, rules_of=None)
    found = TokenMeasures(reply, kept, by=site_name(kept) or metric or PROBABILITY, engine=_place(session, site))
    return found if by is None else found.coloured(by)


def _place(session: RemoteSession, site: str | None) -> tuple[str, str, str] | None:
    """Return the place of breakpoints at the tokens; None without an engine's process. The default is the end of the
    last layer."""
    channel = session.channel
    if not isinstance(channel, SocketChannel):
        return None
    return channel.entry.id, session.name, site or f"resid_post.{channel.welcome.model.layers - 1}"


# The lens over a whole text: layers by tokens.

LENS_WORK: Final = "The lens of the text"
NEXT: Final = "next"


class TextLens(TextResult):
    """The lens of `sites` over a text: for each site and position the most probable next tokens. `values` [measures,
    sites, positions], float64, has a row for each of `measures`: the probability of the text's own `next` token (NaN
    behind the last), the `entropy` in nats, the probability of the most probable tokens, `top 1` and so on, and of the
    requested tokens, by their texts. `texts` are the tokens; those in the `generated` spans [start, end) were chosen by
    the model; `spelled` has the texts of predicted tokens by their ids."""

    _view = "lens_view"
    ending = ".textlens.djinn"
    named = "file of a lens over a text"
    reply: TextLensRead
    request: ReadTextLens

    def __post_init__(self) -> None:
        super().__post_init__()
        reply = self.reply
        self.sites = reply.sites
        top, chosen = _float(reply.top_probabilities), _float(reply.chosen)
        own = np.full((len(self.sites), len(self.texts)), np.nan)
        own[:, :-1] = _float(reply.next_probabilities)
        self.spelled = dict(reply.spelled)
        asked = self._named_by_text(reply.chosen_tokens)
        self.measures = (NEXT, ENTROPY, *(f"top {rank + 1}" for rank in range(top.shape[2])), *asked)
        self.values = np.stack([own, _float(reply.entropies), *np.moveaxis(top, 2, 0), *np.moveaxis(chosen, 2, 0)])

    def _named_by_text(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return the texts of tokens, with their ids where several have one text."""
        texts = [repr(self.spelled.get(token, "")) for token in tokens]
        named = zip(texts, tokens, strict=True)
        return tuple(text if texts.count(text) == 1 else f"{text} {token}" for text, token in named)

    def check(self) -> None:
        """Raise ValueError where the lens is not that of the tokens."""
        read, sites, length = self.reply, len(self.reply.sites), len(self.reply.tokens)
        count, chosen = read.top_tokens.shape[-1], len(read.chosen_tokens)
        shapes = {
            (read.top_tokens.shape, (sites, length, count)),
            (read.top_probabilities.shape, (sites, length, count)),
            (read.entropies.shape, (sites, length)),
            (read.next_probabilities.shape, (sites, length - 1)),
            (read.chosen.shape, (sites, length, chosen)),
        }
        named = {*self._ids.reshape(-1).tolist(), *read.chosen_tokens}
        alike = all(shape == wanted for shape, wanted in shapes) and len(read.texts) == length
        if not alike or not named <= {*self.spelled}:
            raise ValueError("its lens is not that of its tokens")

    def of(self, measure: str) -> np.ndarray[Any, Any]:
        """Return a measure, float64 [sites, positions]. UsageError."""
        row: np.ndarray[Any, Any] = self.values[self.measures.index(_known(measure, self.measures, "lens has"))]
        return row

    def predicted(self, site: int, position: int) -> tuple[TopToken, ...]:
        """Return the most probable next tokens at a position, by the lens of the site with this number."""
        chances = self.values[2 : 2 + self._ids.shape[2], site, position].tolist()
        ids = self._ids[site, position].tolist()
        return tuple(
            TopToken(token=token, text=self.spelled[token], probability=chance, logit=float("nan"))
            for token, chance in zip(ids, chances, strict=True)
        )

    @cached_property
    def _ids(self) -> np.ndarray[Any, Any]:
        return arrays.to_numpy(self.reply.top_tokens)

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the measure, the site and the position of the value at this index."""
        measure, site, position = index
        return {"measure": self.measures[measure], "site": self.sites[site], "position": position}

    def columns(self) -> dict[str, list[Any]]:
        """Return the lens as lists by column, a row for each site and position: the token there, each measure, and the
        text of the most probable next token."""
        places = [(site, at) for site in range(len(self.sites)) for at in range(len(self.texts))]
        rows = [(self.sites[site], at, self.texts[at], self._best(site, at)) for site, at in places]
        measures = {name: row.reshape(-1).tolist() for name, row in zip(self.measures, self.values, strict=True)}
        return tables.in_columns(("site", "position", "token", "top 1 text"), rows) | measures

    @arguments.typed
    def top(self, count: int = result.STRONGEST) -> list[tuple[str, int, str, float]]:
        """Return the site, the position, the text and the probability of the `count` most probable next tokens, the
        most probable first. UsageError."""
        found = arrays.largest(self.of("top 1"), count)
        return [(self.sites[site], at, self._best(site, at), chance) for (site, at), chance in found]

    def _best(self, site: int, position: int) -> str:
        """Return the text of the most probable next token."""
        return self.spelled[int(self._ids[site, position, 0])]

    def __repr__(self) -> str:
        first, *others = self.sites
        names = f"{len(self.sites)} sites, {first} to {others[-1]}" if others else first
        return f"Lens of {names}, over {len(self.texts)} tokens"


@arguments.typed
def text_lens(
    session: RemoteSession,
    /,
    k: int = 5,
    site: str = EVERY_LAYER,
    *,
    tokens: Iterable[str | int] = (),
    layers: Sequence[int] | None = None,
) -> TextLens:
    """Return the lens over the session's text, prompt and generated: the `k` most probable next tokens by layer and
    position, and the requested `tokens` (each the text of exactly one token, or its number). `site` is a point of every
    layer, or of some `layers`: "resid_post.*", another point of the residual stream, or an added tuned lens, such as
    "tuned.*". The text is read in one pass under the steering rules. UsageError where edits were made at its stops;
    UnknownSite.

    >>> done = session.run("The capital of France is", max_new_tokens=2, free=True)
    >>> read = session.text_lens(3, layers=[0, 7])
    >>> read.sites, read.values.shape  # measures, sites, positions
    (('resid_post.0', 'resid_post.7'), (5, 2, 7))
    """
    asked = ReadTextLens(
        session="lens",
        line=session.name,
        rules_of=session.name,
        sites=_sites(session.channel, site, layers),
        top=k,
        tokens=arguments.chosen_tokens(tokens),
    )
    reply = likeness.answered(session.channel, "lens", asked, LENS_WORK)
    kept = msgspec.structs.replace(asked, line=reply.tokens, rules_of=None, tokens=reply.chosen_tokens)
    return TextLens(reply, kept)


def _sites(channel: Channel, site: str, layers: Sequence[int] | None) -> tuple[str, ...]:
    """Return the sites of a lens: `resid_post.*` is that of every layer, `tuned.*` every added tuned lens of that name.
    Raises UsageError."""
    point, star, _ = str(site).partition(".*")
    if not star:
        if layers is not None:
            raise UsageError(f"layers choose among the sites of a point of every layer, such as {EVERY_LAYER}.")
        return (site,)
    added = [one.site for one in ask_for(channel, ask.ListAddedModules()).modules if one.name == point]
    every = added or [f"{point}.{layer}" for layer in range(channel.welcome.model.layers)]
    found = [one for one in every if layers is None or int(one.rpartition(".")[2]) in layers]
    if not found:
        there = ", ".join(one.rpartition(".")[2] for one in every)
        raise UsageError(f"No layer of {site} is among those given; it has {there}.")
    return tuple(found)
