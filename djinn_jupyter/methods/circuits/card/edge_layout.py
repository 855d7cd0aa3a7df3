"""The layout of a graph of edges: nodes in rows by layer, in each layer heads before its MLP, and the path of every
edge.

An edge over several rows has a slot of its own in each row between, so no edge crosses a node and no two slots meet
(Sugiyama et al. 1981: rows, ordered by the mean of their neighbours, then placed as near to these as the gaps allow).
Knows no scores and no colours.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

NODE, HEIGHT, GAP, SLOT, BETWEEN = 52, 26, 10, 9, 40
MARGIN: Final = 6
LEAST: Final = 420  # pixels across; unused ones at both sides are cropped
SWEEPS: Final = 8
LAST: Final = 10**9  # the depth of the logits
SHARED: Final = 10**6  # numbers from here on are heads of keys
PORTS: Final = {"q": -15, "k": 0, "v": 15}
_NAME: Final = re.compile(r"(?P<point>[a-z_]+)(?:\.(?P<layer>\d+))?(?:\[(?P<head>\d+)\])?")

Key = tuple[int, int]  # an order in the graph: the row, and the number in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A place on the upper side of a node where edges enter, and their site."""

    label: str  # empty where the node has no other
    site: str
    x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A box of the layout's width and of HEIGHT, whose middle is `x` and whose upper side `y`."""

    label: str
    site: str  # its output; for shared keys and values, their input
    x: float
    y: float
    ports: tuple[Port, ...] = ()
    when: str | None = None  # the condition of a breakpoint there
    kind: str = ""  # of a graph with several kinds of nodes
    title: str | None = None  # in full, for the pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePath:
    """The path of one edge, as the `d` of an SVG path."""

    writer: str
    reader: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLayout:
    nodes: tuple[Node, ...]
    ways: tuple[EdgePath, ...]
    box: int  # the width of a node
    width: int
    height: int


@dataclass(slots=True, eq=False)
class _Slot:
    """A place in a row: of a node, or of an edge that passes through."""

    row: int
    order: Key
    width: int
    x: float = 0.0
    before: list[_Slot] = field(default_factory=list)
    behind: list[_Slot] = field(default_factory=list)


def laid_out(edges: Sequence[tuple[str, str]], shared: Collection[int] = ()) -> EdgeLayout:
    """Return the layout of these edges (writer, reader). In the layers `shared` several heads read one head of keys and
    values, which is a node of its own."""
    names = {_node(name, shared): name for pair in edges for name in pair}
    return laid_out_by(edges, lambda name: _node(name, shared), lambda key, x, y: _drawn(names[key], key, x, y, shared))


def laid_out_by(
    edges: Sequence[tuple[str, str]],
    key_of: Callable[[str], Key],
    drawn: Callable[[Key, float, float], Node],
    *,
    box: int = NODE,
) -> EdgeLayout:
    """Return the layout of edges between nodes of any kind: `key_of` gives the row of a name and its order there, and
    `drawn` makes the node of a key at its middle and upper side; a node is a `box` wide."""
    ends = [(key_of(writer), key_of(reader)) for writer, reader in edges]
    keys = sorted({key for pair in ends for key in pair})
    rows = {depth: row for row, depth in enumerate(sorted({depth for depth, _ in keys}))}
    nodes = {key: _Slot(rows[key[0]], key, box) for key in keys}
    chains = [_chain(nodes[one], nodes[other]) for one, other in ends]
    slots = _rows(nodes.values(), chains, len(rows))
    _place(slots, max(LEAST, max((_wide(row) for row in slots), default=0) + 2 * MARGIN))
    width = _crop(slots)
    return EdgeLayout(
        nodes=tuple(drawn(key, round(slot.x, 1), _top(slot.row)) for key, slot in nodes.items()),
        ways=tuple(_ways(edges, chains)),
        box=box,
        width=width,
        height=round(_top(len(rows) - 1) + HEIGHT + MARGIN) if rows else 2 * MARGIN,
    )


def _node(name: str, shared: Collection[int]) -> Key:
    """Return the node of a writer or reader: the depth of its row, and its number there."""
    found = _NAME.fullmatch(name)
    if found is None or found["layer"] is None:
        return (0, 0) if name == "embed" else (LAST, 0)
    layer, point = int(found["layer"]), found["point"]
    if point.startswith("mlp"):
        return 2 + 2 * layer, 0
    return 1 + 2 * layer, int(found["head"]) + (SHARED if layer in shared and point in ("k", "v") else 0)


def _drawn(name: str, key: Key, x: float, y: float, shared: Collection[int]) -> Node:
    site = _site(name, key)
    ports = tuple(Port(label=label, site=read, x=round(x + at, 1)) for label, read, at in _read(site, shared))
    return Node(label=_label(name, key), site=site, x=x, y=y, ports=ports)


def _read(site: str, shared: Collection[int]) -> list[tuple[str, str, int]]:
    """Return the label and the site of each port of a node, and its distance from the middle."""
    found = _NAME.fullmatch(site)
    if found is None or found["layer"] is None:
        return []
    if found["head"] is None:
        return [("", f"mlp_in.{found['layer']}", 0)]
    own = ("q",) if found["point"] == "z" else ("k", "v")
    points = own if int(found["layer"]) in shared else PORTS
    return [(point, f"{point}.{found['layer']}[{found['head']}]", PORTS[point]) for point in points]


def _label(name: str, key: Key) -> str:
    found = _NAME.fullmatch(name)
    if found is None or found["layer"] is None:
        return name
    if found["head"] is None:
        return f"mlp {found['layer']}"
    return f"{'kv ' if key[1] >= SHARED else ''}{found['layer']}.{found['head']}"


def _site(name: str, key: Key) -> str:
    found = _NAME.fullmatch(name)
    if found is None or found["layer"] is None or key[1] >= SHARED:
        return name
    return f"mlp_out.{found['layer']}" if found["head"] is None else f"z.{found['layer']}[{found['head']}]"


def _chain(one: _Slot, other: _Slot) -> list[_Slot]:
    """Return the slots of an edge, its ends first and last, connected."""
    through = [_Slot(row, one.order, SLOT) for row in range(one.row + 1, other.row)]
    chain = [one, *through, other]
    for above, below in itertools.pairwise(chain):
        above.behind.append(below)
        below.before.append(above)
    return chain


def _rows(nodes: Iterable[_Slot], chains: Sequence[Sequence[_Slot]], count: int) -> list[list[_Slot]]:
    """Return the slots of each row, in the order found by sweeps down and up."""
    found: dict[int, dict[int, _Slot]] = defaultdict(dict)
    for slot in [*nodes, *(slot for chain in chains for slot in chain)]:
        found[slot.row][id(slot)] = slot
    rows = [sorted(found[row].values(), key=lambda slot: slot.order) for row in range(count)]
    for row in rows:
        _number(row)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            row.sort(key=lambda slot: _mean(slot.before if down else slot.behind, slot.x))
            _number(row)
    return rows


def _number(row: Sequence[_Slot]) -> None:
    for number, slot in enumerate(row):
        slot.x = (number + 0.5) / len(row)


def _mean(slots: Sequence[_Slot], own: float) -> float:
    return sum(slot.x for slot in slots) / len(slots) if slots else own


def _wide(row: Sequence[_Slot]) -> int:
    return sum(slot.width for slot in row) + GAP * (len(row) - 1)


def _place(rows: Sequence[Sequence[_Slot]], width: int) -> None:
    """Give every slot its x: as near to the mean of its neighbours as the gaps allow."""
    for row in rows:
        for slot in row:
            slot.x *= width
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wished = [_mean([*slot.before, *slot.behind], slot.x) for slot in row]
            for slot, x in zip(row, _spread(row, wished, width), strict=True):
                slot.x = x


def _spread(row: Sequence[_Slot], wished: Sequence[float], width: int) -> list[float]:
    """Return places in order, with at least their gaps between, and the least squared distance from their wishes
    (pooled neighbours), within the width."""
    offsets = [0.0]
    for one, other in itertools.pairwise(row):
        offsets.append(offsets[-1] + (one.width + other.width) / 2 + GAP)
    pools: list[tuple[float, int]] = []
    for wish, offset in zip(wished, offsets, strict=True):
        pools.append((wish - offset, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, n), (b, m) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    low = MARGIN + row[0].width / 2
    high = width - MARGIN - row[-1].width / 2 - offsets[-1]
    bases = [min(max(base, low), high) for base, count in pools for _ in range(count)]
    return [base + offset for base, offset in zip(bases, offsets, strict=True)]


def _crop(rows: Sequence[Sequence[_Slot]]) -> int:
    """Move everything to the left, as far as the margin allows; return the used width."""
    left = min((row[0].x - row[0].width / 2 for row in rows), default=0.0) - MARGIN
    for slot in (slot for row in rows for slot in row):
        slot.x -= left
    return round(max((row[-1].x + row[-1].width / 2 for row in rows), default=0.0) + MARGIN)


def _top(row: int) -> float:
    return MARGIN + row * (HEIGHT + BETWEEN)


def _ways(edges: Sequence[tuple[str, str]], chains: Sequence[Sequence[_Slot]]) -> list[EdgePath]:
    starts = _ports(edges, chains, leaving=True)
    lands = _ports(edges, chains, leaving=False)
    return [
        EdgePath(writer=writer, reader=reader, path=_path(chain, start, land))
        for (writer, reader), chain, start, land in zip(edges, chains, starts, lands, strict=True)
    ]


def _ports(edges: Sequence[tuple[str, str]], chains: Sequence[Sequence[_Slot]], *, leaving: bool) -> list[float]:
    """Return the x at which each edge leaves its writer or enters its reader: side by side, in order; queries, keys and
    values of a head have a third each."""
    found = [0.0] * len(chains)
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, ((_, reader), chain) in enumerate(zip(edges, chains, strict=True)):
        port = "" if leaving else reader.split(".")[0]
        groups[id(chain[0] if leaving else chain[-1]), port if port in PORTS else ""].append(number)
    for (_, port), numbers in groups.items():
        numbers.sort(key=lambda number: chains[number][1 if leaving else -2].x)
        room = 12 if port else chains[numbers[0]][0 if leaving else -1].width - 16
        step = min(8.0, room / max(1, len(numbers) - 1))
        for place, number in enumerate(numbers):
            end = chains[number][0 if leaving else -1]
            found[number] = end.x + PORTS.get(port, 0) + (place - (len(numbers) - 1) / 2) * step
    return found


def _path(chain: Sequence[_Slot], start: float, land: float) -> str:
    x, y = start, _top(chain[0].row) + HEIGHT
    path = f"M{x:.1f},{y:.1f}"
    for slot in chain[1:]:
        to, top = land if slot is chain[-1] else slot.x, _top(slot.row)
        path += f"C{x:.1f},{y + BETWEEN / 2:.1f} {to:.1f},{top - BETWEEN / 2:.1f} {to:.1f},{top:.1f}"
        x, y = to, top
        if slot is not chain[-1]:
            y = top + HEIGHT
            path += f"V{y:.1f}"
    return path
