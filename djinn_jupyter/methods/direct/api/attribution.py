"""A direct logit attribution: numbers by layer, head and neuron, a text table, and the same told again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from djinn_jupyter.client.arguments import typed
from djinn_jupyter.client.arrays import to_numpy
from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.fed_again import fed_recipe, stopped_again
from djinn_jupyter.client.likeness import require_modules
from djinn_jupyter.client.positions import Positions
from djinn_jupyter.client.result import STRONGEST, Result
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.direct.request import Attribute, Attributed, AttributionRecipe
from djinn_jupyter.wire.readings import Contribution

if TYPE_CHECKING:
    import numpy as np

TERM: Final = ("point", "layer", "head", "neuron", "value")
NEURONS: Final = "mlp_post"  # the column of all neurons of a layer
Term = tuple[str, int | None, int | None, int | None, float]


class Attribution(Result):
    """The contributions of module outputs to a logit, or to the difference of two. `logit` is the sum of all
    `contributions`, the `embedding`, the `constant` (biases of the final norm and the head) and the `rest` (edits,
    rules, rounding); of neurons `neurons` has the parts by layer, numpy float64. `values` are all of them, as
    `columns()` has them. They have a `recipe` where the tokens of the line alone come to the stop."""

    _view = "attribution_view"
    ending = ".direct.djinn"
    named = "file of a direct attribution"
    _words: ClassVar[Mapping[str, str]] = {"neurons": "neurons", "values": "parts"}
    _tabled = True
    reply: Attributed

    def __post_init__(self) -> None:
        import numpy as np

        reply = self.reply
        self.position, self.layer, self.tokens, self.logit = reply.position, reply.layer, reply.tokens, reply.logit
        self.embedding, self.constant, self.rest = reply.embedding, reply.constant, reply.rest
        self.contributions: tuple[Contribution, ...] = reply.contributions
        self.neurons: dict[int, np.ndarray[Any, Any]] = {one.layer: to_numpy(one.values) for one in reply.neurons}
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
        """Return (layer, values in the order of `headings`); a value is None where the layer lacks that module or
        head."""
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
        """A sentence that says by how much the parts do not sum to the logit, also as a fraction of the largest one."""
        largest = max((abs(value) for value in self.columns()["value"][:-1]), default=0.0)
        part = f", {abs(self.rest) / largest:.1e} of the largest part" if largest else ""
        return f"The parts miss the logit by {abs(self.rest):.1e}{part}."

    def columns(self) -> dict[str, list[Any]]:
        """Return all terms as lists by column: `point`, `layer` and `head` (None where a term is of none), `neuron`
        where they are told, `value`. The values sum to the logit; the last one is the rest."""
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
    def top(self, count: int = STRONGEST) -> list[tuple[str, float]]:
        """Return the largest parts of heads, neurons and modules, by size: the name of each, as z.5[3] or
        mlp_post.2[17], and its value."""
        table = self.columns()
        rows = zip(*(table.get(name, [None] * len(table["value"])) for name in TERM), strict=True)
        found = [(_name(*row[:-1]), row[-1]) for row in rows if row[1] is not None]
        return sorted(found, key=lambda part: -abs(part[1]))[: max(count, 0)]

    def check(self) -> None:
        """Raise ValueError where the parts of neurons are not float64."""
        if any(one.values.dtype != "float64" for one in self.reply.neurons):
            raise ValueError("its parts are not float64")

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the parts follow from: as of every measurement, the passes that the line was fed in, and the tokens
        whose logit it is, by their ids."""
        found, made = super().recipe, self.reply.made
        assert made is not None
        asked = {"tokens": [token.token for token in self.tokens], "layer": self.layer}
        return {**found, **fed_recipe(made.passes), **asked}

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
    difference of two; `heads` splits attention into its heads, `neurons` each MLP into its neurons, `ahead` adds
    the layers after the stop. A part is exact to 1e-6 of the largest one; in bfloat16 a head's to 2**-8, and `rest`
    has up to 2**-6 of rounding."""
    at = session.spelled(position)
    if at is None or len(at) != 1 or not 1 <= len(tokens) <= 2:
        raise UsageError("An attribution is of one token or of two, at one position; by default at the last.")
    request = Attribute(session=session.name, tokens=tokens, heads=heads, neurons=neurons, position=at[0], ahead=ahead)
    return Attribution(ask_for(session.channel, request))


def _told_again(channel: Channel, made: AttributionRecipe) -> Attributed:
    """Return the parts at the stop that a pass over the line comes to, of an engine that computes as that one did."""
    layers = channel.welcome.model.layers
    if made.layer > layers:
        raise UsageError(f"its parts are of layers 0 to {made.layer - 1}, and this model has {layers} layers.")
    require_modules(channel, made.made.modules)
    site = f"resid_post.{made.layer - 1}"
    with stopped_again(channel, "attribution", made.made, made.line, made.passes, site) as (name, _):
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
