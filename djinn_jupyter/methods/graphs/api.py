"""Attribution graphs: the influence of nodes and edges on the outputs, and the pruning of those with little influence
(Ameisen et al. 2025).

Shapes: N nodes, sources by column and targets by row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

import msgspec
import numpy as np

from djinn_jupyter.api import arguments, arrays, interrupts, likeness, result, tables
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.names import Names, labelled, names_in
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel
from djinn_jupyter.methods.circuits.api.edges import name_of
from djinn_jupyter.methods.common.api import line_source
from djinn_jupyter.methods.graphs.request import MOST_FEATURES, MOST_LOGITS, GraphMade, MakeGraph
from djinn_jupyter.units import power_above
from djinn_jupyter.wire.texts import few_of, in_quotes, shown

Values = np.ndarray[Any, Any]


def shares(effects_NN: Values) -> Values:
    """Return each edge's share of the magnitudes of its target's inputs."""
    sizes = np.abs(effects_NN)
    found: Values = sizes / np.maximum(sizes.sum(axis=1, keepdims=True), 1e-30)
    return found


def influence(shares_NN: Values, weights_N: Values) -> Values:
    """Return the influence of every node on the outputs over all paths, none of which meets a node twice."""
    passed, found = weights_N @ shares_NN, np.zeros_like(weights_N)
    for _ in weights_N:
        if not passed.any():
            break
        found += passed
        passed = passed @ shares_NN
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Pruning:
    """The remaining nodes [N] and edges [N, N], and the influence of each edge."""

    nodes: Values
    edges: Values
    influence: Values


def pruned(effects_NN: Values, weights_N: Values, always_N: Values, nodes: float, edges: float) -> Pruning:
    """Keep the nodes that together have this share of all influence, and the edges that have that share of theirs.
    Nodes that are `always` kept need no edge; each of the others leads somewhere. A node in between has a source."""
    by_node = influence(shares(effects_NN), weights_N)
    left = (by_node >= _threshold(by_node, nodes)) | always_N
    among = np.where(left[:, None] & left[None, :], effects_NN, 0.0)
    own = shares(among)
    by_edge = own * (influence(own, weights_N) + weights_N)[:, None]
    kept = (by_edge >= _threshold(by_edge.reshape(-1), edges)) & (by_edge > 0)
    reads = effects_NN.any(axis=1)
    while True:
        leads = kept.any(axis=0) & (kept.any(axis=1) | ~reads)
        still = left & (leads | always_N)
        if (still == left).all():
            return Pruning(left, kept, by_edge)
        left = still
        kept &= left[:, None] & left[None, :]


def _threshold(influences: Values, share: float) -> float:
    """Return the least influence among the largest ones that together have a share of all."""
    order = np.sort(influences)[::-1]
    total = order.sum()
    if total <= 0:
        return 0.0
    at = int(np.searchsorted(np.cumsum(order) / total, share))
    return float(order[min(at, len(order) - 1)])


# `dj.attribution_graph`: how the features of transcoders make the outputs of one prompt, as a graph of direct effects
# (Ameisen et al. 2025, "Circuit Tracing").

NodeKind = Literal["feature", "error", "embedding", "output", "group"]
WORK: Final = "The attribution graph"
NODES: Final = 0.8
EDGES: Final = 0.98
LONGEST: Final = 200  # characters of a group's name
NAME: Final = 30  # and of a feature's in a list


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """A node: a feature at a position, the transcoders' error of a layer's MLP there, the embedding of a position with
    the additions to it, an output, or a group of such nodes. `site` is where a breakpoint stops it; `value` is a
    feature's, `text` the token's, or the output's own. A group has its `members` by name, their mean layer, the sum of
    their influence, and no site; its position is -1 where theirs differ."""

    kind: NodeKind
    name: str
    site: str
    layer: int
    position: int
    text: str
    value: float | None
    influence: float
    members: tuple[str, ...] = ()


def spelled(node: GraphNode, names: Names) -> str:
    """Spell a node, a feature with its name: `tc.4[17] 'capitals' @3`."""
    return f"{labelled(node.site, names, NAME)} @{node.position}" if node.kind == "feature" else shown(node.name)


class AttributionGraph(result.Result):
    """`values` are float32 [targets, sources], in the order of `targets` and `sources`: the direct effect of each
    source on each target (for a feature: before its activation). `replacement` is the share of the influence that comes
    from embeddings and not from errors, over all paths. `completeness` is the share of each node's inputs that is not
    error, weighted by its influence. `difference` is the largest difference between a target's value and the sum of
    bias and effects of all sources. `active` counts the active features; those with the most influence are nodes.
    `groups` are nodes by the name of their group, which `group` makes; a file has them, and the names of features."""

    _view = "attribution_graph_view"
    ending = ".graph.djinn"
    named = "file of an attribution graph"
    reply: GraphMade
    engine: str | None = None
    groups: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    names_kept: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check()  # so that no number in a file asks for more nodes than its arrays have
        reply, made = self.reply, self.reply.made
        self.tokens = self._lines = () if made is None or isinstance(made.asked.line, str) else (made.asked.line,)
        self.values: np.ndarray[Any, Any] = arrays.to_numpy(reply.edges)
        self.notes, self.stop, self.active = reply.notes, reply.stop, reply.active
        self.reached, self.bias, self.summed = map(arrays.to_numpy, (reply.reached, reply.bias, reply.summed))
        self.difference = float(np.abs(self.summed - self.reached).max())
        self._effects, self._weights = self._square()
        self._influence = influence(shares(self._effects), self._weights)
        self.nodes = tuple(self._nodes())
        count = len(self.nodes) - len(reply.outputs)
        self.sources: tuple[GraphNode, ...] = self.nodes[:count]
        self.targets: tuple[GraphNode, ...] = (*self.nodes[count:], *self.nodes[: len(reply.sites)])
        self.replacement, self.completeness = self._scores()
        self._indices = {one.name: number for number, one in enumerate(self.nodes)}

    def check(self) -> None:
        """Raise ValueError where the effects do not match the nodes."""
        one = self.reply
        targets, features = len(one.outputs) + len(one.sites), len(one.sites)
        sources = features + (one.all_layers + 1) * len(one.texts)
        if one.edges.shape != (targets, sources) or one.edges.dtype != "float32":
            raise ValueError("its effects are not those of its nodes")
        sides = (one.reached, one.bias, one.summed)
        if any(side.shape != (targets,) or side.dtype != "float64" for side in sides):
            raise ValueError("its sums are not those of its targets")
        if not one.outputs or len(one.weights) != len(one.outputs):
            raise ValueError("its outputs have not one weight each")
        if {len(one.positions), len(one.values)} != {features} or not all(
            0 <= at < len(one.texts) for at in one.positions
        ):
            raise ValueError("its features have no positions of its line")
        if not (np.isfinite(one.weights).all() and np.isfinite(arrays.to_numpy(one.edges)).all()):
            raise ValueError("its effects are not finite")

    def _replied_again(self, channel: Channel, reply: GraphMade) -> GraphMade:
        """Return the same graph, computed again. UsageError where the transcoders here are others."""
        found: GraphMade = super()._replied_again(channel, reply)
        here = dict(() if found.made is None else found.made.modules)
        for site, digest in () if reply.made is None else reply.made.modules:
            if here.get(site) != digest:
                raise UsageError(f"{site} here is of other files than it was: add the transcoders of the graph again.")
        return found

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the target and the source of the effect at this index."""
        return {"target": self.targets[index[0]].name, "source": self.sources[index[1]].name}

    @property
    def metric(self) -> str:
        """The outputs."""
        return ", ".join(self.reply.outputs)

    @property
    def module(self) -> str:
        """The name of the transcoders."""
        made = self.reply.made
        return "transcoders" if made is None else made.asked.module

    @property
    def model(self) -> str | None:
        """The name of the model, None where the graph has no recipe."""
        return self.made[0].by.model if self.made else None

    @arguments.typed
    def pruned(self, nodes: float = NODES, edges: float = EDGES) -> PrunedGraph:
        """Return the nodes that together have this share of all influence, and the edges between them that have that
        share. Embeddings and outputs that lead nowhere are left out. UsageError."""
        if not (0 < nodes <= 1 and 0 < edges <= 1):
            raise UsageError("Nodes and edges are kept by their share of the influence, above 0 and up to 1.")
        always = np.array([one.kind in ("embedding", "output") for one in self.nodes])
        always[[at for name in self.groups for at in self._members(name)]] = True
        kept = pruned(self._effects, self._weights, always, nodes, edges)
        groups = {name: self._group(name) for name in self.groups}
        ends = {at: groups[name] for name in groups for at in self._members(name)}
        shared: dict[tuple[GraphNode, GraphNode], float] = {}
        for row, column in np.argwhere(kept.edges).tolist():
            ways = (ends.get(column, self.nodes[column]), ends.get(row, self.nodes[row]))
            shared[ways] = shared.get(ways, 0.0) + float(kept.influence[row, column])
        found = sorted(((one, other) for one, other in shared if one is not other), key=lambda ways: -shared[ways])
        tied = {end.name for ways in found for end in ways}
        every = dict.fromkeys(ends.get(at, node) for at, node in enumerate(self.nodes))
        return PrunedGraph(
            nodes=tuple(one for one in every if one.name in tied),
            edges=tuple((one, other, self.effect(one.name, other.name), shared[one, other]) for one, other in found),
            graph=self,
        )

    # --- names and groups of nodes ----------------------------------------------------------------------------------

    @arguments.typed
    def group(self, name: str, nodes: Iterable[str]) -> Self:
        """Return the same graph with a group of nodes (a supernode) by this name, or without it where `nodes` is empty.
        A node is given by its name, as "tc.4[17] @3"; a site stands for its nodes at all positions. The effect of a
        group on another node is the sum of its members' effects, and so is the effect of that node on the group. A node
        is in one group at most, and outputs are grouped with outputs alone. UsageError.

        >>> added = engine.add_transcoders("tc", clt_folder, "mlp_in")
        >>> graph = dj.attribution_graph(engine, "The capital of France is", "logit(' Paris') - logit(' Rome')")
        >>> graph = graph.group("country", ["embed @3", "error.0 @3"])
        >>> graph.effect("country", "error.0 @3") == graph.effect("embed @3", "error.0 @3")
        True
        """
        rest = {one: members for one, members in self.groups.items() if one != name}
        if not name.strip() or len(name) > LONGEST or name in self._indices:
            raise UsageError(f"A group has a name of 1 to {LONGEST} characters that no node has, not {shown(name)}.")
        found = sorted({at for one in nodes for at in self._nodes_called(one)})
        self._require_groupable(found, rest)
        own = {name: tuple(self.nodes[at].name for at in found)} if found else {}
        return msgspec.structs.replace(self, groups=rest | own)

    def _require_groupable(self, found: list[int], others: dict[str, tuple[str, ...]]) -> None:
        """Raise UsageError where nodes are in another group, or outputs beside other nodes."""
        for other, members in others.items():
            there = next((self.nodes[at].name for at in found if self.nodes[at].name in members), None)
            if there is not None:
                raise UsageError(
                    f"{there} is in the group {in_quotes(other)}: end that first by group({other!r}, []), or leave the "
                    "node out."
                )
        if len({self.nodes[at].kind == "output" for at in found}) > 1:
            raise UsageError("Outputs are grouped with outputs alone: nothing leads from them to other nodes.")

    def _nodes_called(self, name: str) -> list[int]:
        """Return the numbers of the node of that name, or of the nodes at that site. Raises UsageError."""
        if name in self._indices:
            return [self._indices[name]]
        found = [at for at, one in enumerate(self.nodes) if one.site == name and one.kind == "feature"]
        if not found:
            raise UsageError(f"The graph has no node {in_quotes(name)}; it has {few_of(self._indices, name)}.")
        return found

    def _members(self, name: str) -> list[int]:
        """Return the numbers of the node of that name, or of the members of a group. Raises UsageError."""
        if name not in self.groups:
            return self._nodes_called(name)
        return [self._indices[one] for one in self.groups[name] if one in self._indices]

    def _group(self, name: str) -> GraphNode:
        members = [self.nodes[at] for at in self._members(name)]
        positions = {one.position for one in members}
        return GraphNode(
            kind="group",
            name=name,
            site="",
            layer=round(sum(one.layer for one in members) / max(len(members), 1)),
            position=positions.pop() if len(positions) == 1 else -1,
            text=name,
            value=None,
            influence=sum(one.influence for one in members),
            members=tuple(one.name for one in members),
        )

    @arguments.typed
    def effect(self, source: str, target: str) -> float:
        """Return the direct effect of a node or group on another: the sum over their members. UsageError."""
        at = np.ix_(self._members(target), self._members(source))
        return float(self._effects[at].sum())

    @property
    def names(self) -> dict[str, str]:
        """The names of features by site: those of this machine, else those in the file."""
        made = self.reply.made
        return self.names_kept | ({} if made is None else names_in(lambda: dict(made.modules), self.reply.sites))

    def in_file(self) -> bytes:
        """Return the bytes of its file, with the names of its features."""
        return result.Result.in_file(msgspec.structs.replace(self, names_kept=self.names))

    @arguments.typed
    def top(self, count: int = result.STRONGEST, of: Literal["edges", "features"] = "edges") -> list[tuple[Any, ...]]:
        """Return (source, target, effect) of the edges with the most influence, which is the magnitude of an edge in a
        graph, among those that pruning keeps; or (site, position, token, influence) of the `features` with the most.
        UsageError."""
        if of == "edges":
            return list(self.pruned().top(count))
        features = (one for one in self.nodes if one.kind == "feature")
        return tables.strongest([(one.site, one.position, one.text, one.influence) for one in features], count)

    def columns(self) -> dict[str, list[Any]]:
        """Return all edges with an effect as lists by column: source, target and effect."""
        places = np.argwhere(self.values != 0).tolist()
        rows = [(self.sources[at].name, self.targets[row].name, float(self.values[row, at])) for row, at in places]
        return tables.in_columns(("source", "target", "effect"), rows)

    def __repr__(self) -> str:
        features = f"{len(self.reply.sites):,} of {self.active:,} active features"
        head = f"attribution graph of {self.metric}: {features}, {len(self.reply.texts)} positions"
        told = [
            f"replacement {self.replacement:.3f}, completeness {self.completeness:.3f}",
            f"bias and incoming effects sum to what a node has, within {power_above(self.difference)}",
        ]
        names = self.names
        edges = [
            f"{spelled(one, names)} -> {spelled(other, names)}: {effect:+.3f}"
            for one, other, effect, _ in self.pruned().edges[: result.STRONGEST]
        ]
        return "\n".join([head, *told, *edges])

    # --- nodes and influence ---------------------------------------------------------------------------------------

    def _square(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the effects [nodes, nodes], float64, and the weights of the outputs [nodes]."""
        outputs, sources = len(self.reply.outputs), self.values.shape[1]
        effects = np.zeros((sources + outputs,) * 2)
        effects[sources:, :sources] = self.values[:outputs]
        effects[: len(self.reply.sites), :sources] = self.values[outputs:]
        weights = np.zeros(sources + outputs)
        weights[sources:] = self.reply.weights
        return effects, weights

    def _nodes(self) -> list[GraphNode]:
        one, last = self.reply, self.reply.all_layers - 1
        made: list[tuple[NodeKind, str, str, int, int, str, float | None]] = []
        for site, at, value in zip(one.sites, one.positions, one.values, strict=True):
            layer = int(site.split(".")[1].split("[")[0])
            made.append(("feature", f"{site} @{at}", site, layer, at, one.texts[at], value))
        for layer in range(one.all_layers):
            for at, text in enumerate(one.texts):
                made.append(("error", f"error.{layer} @{at}", f"mlp_out.{layer}", layer, at, text, None))
        made += [("embedding", f"embed @{at}", "resid_pre.0", -1, at, text, None) for at, text in enumerate(one.texts)]
        end = (f"resid_post.{last}", last + 1, len(one.texts) - 1)
        made += [("output", text, *end, text, None) for text in one.outputs]
        return [
            GraphNode(
                kind=kind, name=name, site=site, layer=layer, position=at, text=text, value=value, influence=float(own)
            )
            for (kind, name, site, layer, at, text, value), own in zip(made, self._influence, strict=True)
        ]

    def _scores(self) -> tuple[float, float]:
        """Return the replacement score and the completeness."""
        kinds = np.array([one.kind for one in self.nodes])
        errors, embeddings = kinds == "error", kinds == "embedding"
        of_errors, of_embeddings = (float(self._influence[which].sum()) for which in (errors, embeddings))
        passed = self._influence + self._weights
        whole = 1 - shares(self._effects)[:, errors].sum(axis=1)
        total = of_errors + of_embeddings
        reads = self._effects.any(axis=1)
        complete = float((whole * passed)[reads].sum() / passed[reads].sum()) if passed[reads].sum() > 0 else 0.0
        return (of_embeddings / total if total > 0 else 0.0), complete


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedGraph(tables.Tabular, tables.Charted):
    """The nodes and edges with the most influence: (source, target, effect, influence), the most influential first. A
    group of `graph` is one node, whose effects are the sums of its members' effects."""

    _view = "pruned_graph_view"
    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[GraphNode, GraphNode, float, float], ...]
    graph: AttributionGraph = field(repr=False, compare=False)

    @arguments.typed
    def top(self, count: int = result.STRONGEST) -> list[tuple[str, str, float]]:
        """Return (source, target, effect) of the edges with the most influence."""
        return [(one.name, other.name, effect) for one, other, effect, _ in self.edges[: max(count, 0)]]

    def columns(self) -> dict[str, list[Any]]:
        """Return the edges as lists by column."""
        rows = [(one.name, other.name, effect, share) for one, other, effect, share in self.edges]
        return tables.in_columns(("source", "target", "effect", "influence"), rows)


@interrupts.waits(WORK)
@arguments.typed
def attribution_graph(
    engine: RemoteEngine,
    line: object,
    metric: str | None = None,
    *,
    module: str = "tc",
    logits: int | None = None,
    probability: float | None = None,
    features: int = 1024,
) -> AttributionGraph:
    """Return the attribution graph of a prompt (a text, token ids or a session; Ameisen et al. 2025) through the added
    transcoders of one name: the direct effects between its active features, the embeddings, the transcoders' errors of
    each MLP, and the outputs. Attention patterns and the scales of norms are held fixed at their values on this prompt,
    so effects are exact in the resulting model: bias and effects sum to each node's value (up to `difference`).

    The output is `metric` at the last position; without one the logits of the most probable tokens, minus the mean of
    all: the fewest tokens that together have this `probability` (0.95), at most `logits` (10). The effects on the
    `features` with the most influence are computed; the others are not nodes. Layers without a transcoder are all
    error. A model that is not affine then, that streams its weights or is split among ranks or devices is refused with
    the reason. UsageError; UnknownSite; InvalidCondition; SlabFull; WorkInterrupted, whose `kept` is the graph of the
    finished features.

    >>> [one.site for one in engine.add_transcoders("tc", clt_folder, "mlp_in")][-1]
    'tc.7'
    >>> graph = dj.attribution_graph(engine, "The capital of France is", "logit(' Paris') - logit(' Rome')")
    >>> graph.difference < 1e-3, graph.pruned().nodes[-1].name
    (True, "logit(' Paris') - logit(' Rome')")
    """
    if metric is not None and (logits, probability) != (None, None):
        raise UsageError("logits and probability choose the outputs where there is no metric: leave them out.")
    logits, probability = 10 if logits is None else logits, 0.95 if probability is None else probability
    if not 1 <= features <= MOST_FEATURES or not 1 <= logits <= MOST_LOGITS or not 0 < probability <= 1:
        raise UsageError(
            f"A graph has 1 to {MOST_FEATURES:,} features, and 1 to {MOST_LOGITS} logits of a probability above 0 and "
            "up to 1."
        )
    asked = MakeGraph(
        session="graph",
        line=line_source(engine, line),
        module=module,
        metric=metric,
        logits=logits,
        probability=probability,
        features=features,
    )

    def graph_of(reply: GraphMade) -> AttributionGraph:
        return AttributionGraph(reply, engine=name_of(engine))

    with likeness.temporary_session(engine.channel, "graph") as name:
        request = msgspec.structs.replace(asked, session=name)
        return graph_of(interrupts.replied_in_parts(engine.channel, request, WORK, graph_of))
