"""Direct logit attribution: numbers by layer, head and neuron, a text table, and how it is reproduced."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from djinn_jupyter.api import arrays, interrupts, likeness, result, tables
from djinn_jupyter.api.arguments import shown, typed
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.patches import Positions
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.methods.direct.request import Attribute, Attributed, AttributionRecipe
from djinn_jupyter.wire.readings import Contribution

TERM: Final = ("point", "layer", "head", "neuron", "value")
NEURONS: Final = "mlp_post"  # the column of all neurons of a layer
Term = tuple[str, int | None, int | None, int | None, float]


class Attribution(result.Result):
    """The contributions of module outputs to a logit, or to the difference of two. `logit` is the sum of all
    `contributions`, the `embedding`, the `constant` (biases of the final norm and the head) and the `rest` (edits,
    rules, rounding); `neurons` has the parts of neurons by layer, numpy float64. `values` are all of them, in the order
    of `columns()`. They have a `recipe` where the tokens alone lead to the stop."""

    _view = "attribution_view"
    ending = ".direct.djinn"
    named = "file of a direct attribution"
    _words: ClassVar[Mapping[str, str]] = {"neurons": "neurons", "values": "parts"}
    _tabled = True
    reply: Attributed

    def __post_init__(self) -> None:
        reply = self.reply
        self.position, self.layer, self.tokens, self.logit = reply.position, reply.layer, reply.tokens, reply.logit
        self.embedding, self.constant, self.rest = reply.embedding, reply.constant, reply.rest
        self.contributions: tuple[Contribution, ...] = reply.contributions
        self.neurons: dict[int, np.ndarray[Any, Any]] = {
            one.layer: arrays.to_numpy(one.values) for one in reply.neurons
        }
        self.notes = reply.notes
        self.values = np.array(self.columns()["value"], dtype=np.float64)
        self._lines = () if reply.made is None else (reply.made.line,)
        self._unmade = reply.unmade

    @property
    def of(self) -> str:
        """The explained quantity in words: `logit of ' Paris'`, or of ` Paris` minus ` Rome`."""
        return "logit of " + " minus ".join(repr(token.text) for token in self.tokens)

    @property
    def headings(self) -> tuple[str, ...]:
        """The names of the columns of `rows`: heads by number, all neurons together, then modules."""
        heads = sorted({one.head for one in self.contributions if one.head is not None})
        points = dict.fromkeys(one.point for one in self.contributions if one.head is None)
        return (*(f"head {head}" for head in heads), *([NEURONS] if self.neurons else []), *points)

    def rows(self) -> list[tuple[int, list[float | None]]]:
        """Return (layer, values in the order of `headings`); None where the layer lacks that module or head."""
        found = {(one.layer, _column(one)): one.value for one in self.contributions}
        found |= {(layer, NEURONS): float(values.sum()) for layer, values in self.neurons.items()}
        return [(layer, [found.get((layer, name)) for name in self.headings]) for layer in range(self.layer)]

    def ends(self) -> list[tuple[str, float]]:
        """Return the terms that belong to no layer, and the sum of all terms."""
        return [
            ("embedding", self.embedding),
            ("biases of norm and head", self.constant),
            ("rest: edits, rules, rounding", self.rest),
            ("sum", self.logit),
        ]

    @property
    def remainder(self) -> str:
        """A sentence with the difference between the sum of the parts and the logit, also as a share of the largest
        one."""
        largest = max((abs(value) for value in self.columns()["value"][:-1]), default=0.0)
        part = f", {abs(self.rest) / largest:.1e} of the largest part" if largest else ""
        return f"The parts miss the logit by {abs(self.rest):.1e}{part}."

    def columns(self) -> dict[str, list[Any]]:
        """Return all terms as lists by column: `point`, `layer` and `head` (None where not applicable), `neuron` where
        included, `value`. The values sum to the logit; the last one is the rest."""
        ends = [("embedding", self.embedding), ("constant", self.constant)]
        terms: list[Term] = [(name, None, None, None, value) for name, value in ends]
        terms += [(one.point, one.layer, one.head, None, one.value) for one in self.contributions]
        terms += [
            ("mlp_post", layer, None, neuron, value)
            for layer, values in self.neurons.items()
            for neuron, value in enumerate(values.tolist())
        ]
        terms.append(("rest", None, None, None, self.rest))
        columns = dict(zip(TERM, map(list, zip(*terms, strict=True)), strict=True))
        return {name: of for name, of in columns.items() if name != "neuron" or self.neurons}

    @typed
    def top(self, count: int = result.STRONGEST) -> list[tuple[str, float]]:
        """Return the parts of heads, neurons and modules of largest magnitude: the name of each, as z.5[3] or
        mlp_post.2[17], and its value."""
        table = self.columns()
        rows = zip(*(table.get(name, [None] * len(table["value"])) for name in TERM), strict=True)
        found = [(_name(*row[:-1]), row[-1]) for row in rows if row[1] is not None]
        return tables.strongest(found, count)

    def check(self) -> None:
        """Raise ValueError where the parts of neurons are not float64."""
        if any(one.values.dtype != "float64" for one in self.reply.neurons):
            raise ValueError("its parts are not float64")

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the parts follow from: the circumstances of every measurement, the passes of the tokens, and the ids
        of the tokens whose logit it is."""
        found, made = super().recipe, self.reply.made
        assert made is not None
        asked = {"tokens": [token.token for token in self.tokens], "layer": self.layer}
        return {**found, **likeness.fed_recipe(made.passes), **asked}

    def _replied_again(self, channel: Channel, reply: Attributed) -> Attributed:
        assert reply.made is not None
        return _told_again(channel, reply.made)

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the point, the layer and the head or neuron of the part at this index."""
        found = {name: column[index[0]] for name, column in self.columns().items() if name != "value"}
        return {name: place for name, place in found.items() if place is not None}

    def __repr__(self) -> str:
        lines = [
            f"{layer:>5}  " + "  ".join("-" if v is None else f"{v:+.3f}" for v in values)
            for layer, values in self.rows()
        ]
        ends = [f"{name}: {value:+.3f}" for name, value in self.ends()]
        head = f"Attribution of the {self.of} at position {self.position}, layers 0 to {self.layer - 1}"
        strongest = [f"{name}: {value:+.3f}" for name, value in self.top()] if self.neurons else []
        said = ["largest parts:", *strongest] if strongest else []
        table = [f"layer  {'  '.join(self.headings)}", *lines, *ends]
        return "\n".join([head, *table, *said, self.remainder, *self.notes])


def attribute(
    session: RemoteSession,
    /,
    *tokens: str | int,
    heads: bool = False,
    neurons: bool = False,
    position: Positions = -1,
    ahead: bool = False,
) -> Attribution:
    """Direct logit attribution: the contribution of each module that has run to the logit of one token, or to the
    difference of two; `heads` splits attention into its heads, `neurons` each MLP into its neurons, `ahead` adds the
    layers after the stop. A part is exact to 1e-6 of the largest one; in bfloat16 a head's part to 2**-8, and `rest`
    has up to 2**-6 of rounding."""
    at = session.spelled(position)
    if at is None or len(at) != 1 or not 1 <= len(tokens) <= 2:
        raise UsageError("An attribution is of one token or of two, at one position; by default at the last.")
    request = Attribute(session=session.name, tokens=tokens, heads=heads, neurons=neurons, position=at[0], ahead=ahead)
    return Attribution(ask_for(session.channel, request))


def _told_again(channel: Channel, made: AttributionRecipe) -> Attributed:
    """Return the parts at the stop of a pass over the tokens, in an engine with the same settings."""
    layers = channel.welcome.model.layers
    if made.layer > layers:
        raise UsageError(f"its parts are of layers 0 to {made.layer - 1}, and this model has {layers} layers.")
    likeness.require_modules(channel, made.made.modules)
    site = f"resid_post.{made.layer - 1}"
    with likeness.stopped_again(channel, "attribution", made.made, made.line, made.passes, site) as (name, _):
        asked = Attribute(
            session=name,
            tokens=(made.tokens[0], *made.tokens[1:]),
            heads=made.heads,
            neurons=made.neurons,
            position=made.position,
            ahead=made.ahead,
        )
        return ask_for(channel, asked)


def _column(one: Contribution) -> str:
    return one.point if one.head is None else f"head {one.head}"


def _name(point: str, layer: int | None, head: int | None, neuron: int | None) -> str:
    unit = neuron if head is None else head
    return f"{point}.{layer}" + ("" if unit is None else f"[{unit}]")


# `dj.direct`: the parts of a logit at the end of a prompt, by layer, head and neuron, from one pass.

UNITS: Final = ("head", "neuron")


@interrupts.waits("The attribution")
@typed
def direct(
    engine: RemoteEngine,
    line: object,
    *,
    metric: str,
    over: str | Sequence[str] = ("layer", "head"),
    adapter: str | None = None,
) -> Attribution:
    """Return direct logit attribution at the last position of a prompt (a text, or token ids): the parts that the
    embedding, the attention of each layer (over "head": each of its heads, and the output map's bias) and each MLP
    (over "neuron": each input of its last map, and that map's bias) add to `metric`, which is "logit(A)" or "logit(A) -
    logit(B)". `parts.top(20)` names the largest.

    The final norm is treated as a linear map with its actual scale held fixed. The parts and `rest` sum to the metric;
    the attribution prints the size of the rest. A model whose logits or residuals are not such a sum is refused with
    the reason. `parts.save("fact.direct.djinn")` saves them with their recipe, for `dj.reproduce`. `adapter` names an
    adapter to use. UsageError; UnknownSite; SlabFull.

    >>> parts = dj.direct(engine, "The capital of France is", metric="logit(' Paris') - logit(' Rome')")
    >>> len(parts.columns()["value"]), abs(parts.rest) < 1e-4
    (51, True)
    """
    units, tokens = _units(over), _tokens_of(metric)
    with likeness.temporary_session(engine.channel, "attribution", adapter) as name:
        session = RemoteSession(engine.channel, name)
        session.breakpoint(f"resid_post.{engine.description.layers - 1}")
        session.run(line, max_new_tokens=1)
        return attribute(session, *tokens, heads="head" in units, neurons="neuron" in units)


def _units(over: str | Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in (over.split(",") if isinstance(over, str) else over))
    if names[:1] != ("layer",) or len(set(names)) < len(names) or not set(names[1:]) <= set(UNITS):
        raise UsageError(
            f"Direct attribution goes over layer, and over head, neuron or both; not over {', '.join(names)}."
        )
    return names[1:]


def _tokens_of(metric: str) -> tuple[str | int, ...]:
    """Return the tokens of logit(A), or of logit(A) - logit(B). Raises UsageError for another metric."""
    try:
        found = ast.parse(metric.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _no_sum(metric) from None
    is_difference = isinstance(found, ast.BinOp) and isinstance(found.op, ast.Sub)
    parts = [found.left, found.right] if is_difference else [found]  # type: ignore[attr-defined]
    return tuple(_token_of(part, metric) for part in parts)


def _token_of(part: ast.expr, metric: str) -> str | int:
    match part:
        case ast.Call(func=ast.Name(id="logit"), args=[ast.Constant(value=token)], keywords=[]):
            if isinstance(token, str) or type(token) is int:
                return token
    raise _no_sum(metric)


def _no_sum(metric: str) -> UsageError:
    return UsageError(
        "Parts are told of logit(' Mary'), or of logit(' Mary') - logit(' John'): others are no sum of them, as "
        f"{shown(metric)}."
    )
