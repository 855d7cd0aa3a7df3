"""The page of a feature: what it writes to the vocabulary, features like it, and where it is active in a collection."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET

from djinn_jupyter.api import arguments, interrupts, likeness, result, tables
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.names import labelled
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.methods.features.api.examples import (
    FeatureExample,
    FeatureValues,
    digest_of,
    over_collection,
    require_same,
)
from djinn_jupyter.methods.features.request import FeatureRead, ReadFeature

WORK: Final = "The reading of the feature"
KIND: Final = "feature"
COLUMNS: Final = ("part", "prompt", "position", "feature", "text", "value")
EXAMPLE: Final = "example"
EXAMPLES, MOST_EXAMPLES = 10, 100
Row = tuple[str, int | None, int | None, int | None, str | None, float | None]


class FeaturePage(result.Result):
    """The page of a feature. `promoted` and `suppressed` are the tokens to whose logits a unit of it adds most and
    least by way of the residual (`reply.folded`: with the final norm's weight), `like` the features whose decoder rows
    have the largest cosines with its own, and `over` its values in a collection, None without one: how often it is
    active, a histogram, and examples. `values` are all numbers, in the order of `columns()`."""

    _view = "page_view"
    ending = ".feature.djinn"
    named = "file of a feature's page"
    _tabled = True
    reply: FeatureRead
    request: ReadFeature
    over: FeatureValues | None = None

    def __post_init__(self) -> None:
        reply = self.reply
        self.site, self.like = reply.site, reply.like
        self.promoted, self.suppressed = reply.promoted, reply.suppressed
        self.values = np.array(self.columns()["value"], dtype=np.float64)

    @property
    def examples(self) -> tuple[FeatureExample, ...]:
        """The positions of the collection with the largest values, the largest first."""
        return tuple(one for one in self._examples if one.interval is None)

    @property
    def _examples(self) -> tuple[FeatureExample, ...]:
        return () if self.over is None else self.over.examples

    def check(self) -> None:
        """Raise ValueError where its parts do not fit each other."""
        if self.over is not None:
            self.over.require_fit(len(self.like))
        if self.request.site != self.reply.site:
            raise ValueError("its numbers are not those of its request")
        if len(self.reply.made.modules) != 1:
            raise ValueError("it is not of one module")

    def _rows(self) -> Iterator[Row]:
        for part, tokens in (("promoted", self.promoted), ("suppressed", self.suppressed)):
            yield from ((part, None, None, None, one.text, one.logit) for one in tokens)
        yield from (("like it", None, None, one.feature, None, one.cosine) for one in self.like)
        if self.over is None:
            return
        of = self.over
        correlated = zip(self.like, of.correlations, strict=True)
        yield from (("correlation", None, None, one.feature, None, found) for one, found in correlated)
        measures = {"positions": of.positions, "active": of.active, "mean": of.mean, "largest": of.largest}
        yield from (("measure", None, None, None, name, float(value)) for name, value in measures.items())
        bins = zip(pairwise(of.edges), of.counts, strict=True)
        yield from (("histogram", None, None, None, f"{low:.4g} to {high:.4g}", float(n)) for (low, high), n in bins)
        for one in of.examples:
            part = EXAMPLE if one.interval is None else f"interval {one.interval}"
            yield (part, one.prompt, one.position, None, one.text, one.value)

    def columns(self) -> dict[str, list[Any]]:
        """Return all numbers as lists by column: `part` ("promoted", "suppressed", "like it", "correlation", "measure",
        "histogram", "example", "interval 0" and so on), the `prompt` and the `position` of an example, the `feature`,
        the `text` of a token, a measure or a bin, and the `value`."""
        return tables.in_columns(COLUMNS, list(self._rows()))

    @arguments.typed
    def top(self, count: int = result.STRONGEST) -> list[tuple[Any, ...]]:
        """Return (prompt, position, text, value) of the `count` largest examples, the largest first; without a
        collection (text, logit) of the tokens that it promotes or suppresses most. UsageError."""
        if self.over is not None:
            return [(one.prompt, one.position, one.text, one.value) for one in self.examples[: max(count, 0)]]
        return tables.strongest([(one.text, one.logit) for one in (*self.promoted, *self.suppressed)], count)

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the part of the page and the place in it of the value at this index."""
        found = {name: column[index[0]] for name, column in self.columns().items() if name != "value"}
        return {name: place for name, place in found.items() if place is not None}

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the numbers follow from: the model, the module's files, the request, and the collection."""
        modules = {f"{one.name} at {one.at}": one.digest for one in self.reply.made.modules}
        over = None if self.over is None else {"folder": self.over.folder, "digest": self.over.digest}
        return {**super().recipe, "site": self.site, "layer": self.reply.layer, "modules": modules, "over": over}

    def again(self, channel: Channel) -> FeaturePage:
        """Return the same page, read again. UsageError where its module is not added here as before, or its collection
        is not in its folder as it was."""
        likeness.require_modules(channel, self.reply.made.modules)
        acts = None if self.over is None else _as_it_was(self.over)
        return _page(channel, self.request, acts, len(self.examples), of_any_model=True)

    def __repr__(self) -> str:
        of = self.over
        if of is None:
            return f"Feature {labelled(self.site)}, read without a collection"
        share = f"{of.active:,} of {of.positions:,} positions ({100 * of.density:.3g} %)"
        return f"Feature {labelled(self.site)}: active at {share}, at most {of.largest:.4g}"


def _as_it_was(over: FeatureValues) -> Activations:
    acts = Activations(over.folder)
    if digest_of(acts) != over.digest:
        raise UsageError(f"The collection in {over.folder} is another one than the page was read over: read it anew.")
    return acts


@arguments.typed
def feature(
    engine: RemoteEngine,
    /,
    site: str,
    over: Activations | str | Path | None = None,
    *,
    layer: int | None = None,
    examples: int | None = None,
    top: int = 10,
) -> FeaturePage:
    """Return the page of a feature of an added SAE or transcoder, such as "sae.4[17]": the `top` tokens that it
    promotes and suppresses most by way of the residual, and as many features like it, by the cosine of decoder rows.
    `over` is a collection, or its folder, of the module (as "sae.4" or "sae.4[17]") or of the point that the module
    reads: the page then has how often the feature is active there, a histogram of its values, `examples` where it is
    largest (10 by default, at most two of a prompt), and others of five intervals of values. `layer` is the layer that
    a feature of a cross-layer transcoder is written to, by default its own. UsageError for what is no
    such feature, and for a collection of another model or module; UnknownSite; WorkInterrupted, whose `kept` has the
    page without a collection.

    >>> engine.add_module("sae", sae_folder, at="resid_post.4").site
    'sae.4'
    >>> acts = engine.collect(["The capital of France is", "The capital of Italy is"], "sae.4", to=folder)
    >>> page = engine.feature("sae.4[17]", over=acts)
    >>> len(page.promoted), len(page.like), page.over.positions
    (10, 10, 10)
    """
    if examples is not None and over is None:
        raise UsageError("Examples are of a collection: name one (over), or leave examples out.")
    examples = EXAMPLES if examples is None else examples
    if not 0 <= examples <= MOST_EXAMPLES:
        raise UsageError(f"A page has 0 to {MOST_EXAMPLES} examples of the largest values, not {examples}.")
    acts = over if over is None or isinstance(over, Activations) else Activations(over)
    request = ReadFeature(session=KIND, site=site, layer=UNSET if layer is None else layer, top=top)
    return _page(engine.channel, request, acts, examples)


def _page(
    channel: Channel, request: ReadFeature, acts: Activations | None, examples: int, *, of_any_model: bool = False
) -> FeaturePage:
    read: list[FeaturePage] = []

    def kept() -> tuple[str, FeaturePage | None]:
        return ("`kept` of this error has the page without its collection.", read[0]) if read else ("", None)

    with interrupts.interruptible(WORK, kept), likeness.temporary_session(channel, KIND) as name:
        asked = msgspec.structs.replace(request, session=name)
        reply = interrupts.replied_in_parts(channel, asked, WORK, lambda reply: None)
        read.append(FeaturePage(reply, msgspec.structs.replace(request, site=reply.site)))
        if acts is None:
            return read[0]
        if not of_any_model:
            require_same(acts, reply)
        found = over_collection(channel, name, acts, reply, examples)
        return msgspec.structs.replace(read[0], over=found)
