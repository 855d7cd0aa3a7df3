"""The model as source text for an editor: one line per site, the layers as blocks. Also finds a site's enclosing
modules.

Works from the engine's description of its model; sends no request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.wire.nouns import ModelDescription, ModuleDescription, PointDescription, StopIdentity
from djinn_jupyter.wire.sites import LAYER_POINTS, Site, parse_site

REFERENCE = 1
INDENT = "    "
COLUMN = 44


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """A line of the source. `site` is the site of a breakpoint on it; None where a pass cannot stop."""

    text: str
    site: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosing:
    """A module that encloses a site, or the model. `entry` is the site of its input, None for the model."""

    name: str
    path: str | None
    line: int
    entry: str | None


class ModelTree:
    """The source of a model. Lines count from 1."""

    def __init__(self, model: ModelDescription, modules: Sequence[ModuleDescription]) -> None:
        self.model = model
        self.name = f"{model.name.rstrip('/').rpartition('/')[2]}.djinn"
        self.modules = {module.path: module for module in modules}
        self._points = {point.point: point for point in model.points}
        self._layers: dict[int, ModuleDescription] = {}
        for module in modules:
            if module.layer is not None:
                self._layers.setdefault(module.layer, module)
        self.rows = tuple(self._written())
        self._lines = {row.site: number for number, row in enumerate(self.rows, 1) if row.site is not None}
        self._headers = {path: line for line, row in enumerate(self.rows, 1) for path in [_header_of(row)] if path}

    @property
    def text(self) -> str:
        return "".join(f"{row.text}\n" for row in self.rows)

    @property
    def source(self) -> dict[str, object]:
        """The source in the protocol's form. The path is only a name: the text is found by the reference."""
        return {"name": self.name, "path": self.name, "sourceReference": REFERENCE, "origin": "the engine's model"}

    def means(self, name: str | None, path: str | None, reference: int | None) -> bool:
        """Return True if a client's source is this one; editors keep the name, not always the reference."""
        return reference == REFERENCE or self.name in (name, path, (path or "").rpartition("/")[2])

    def line_of(self, spelling: str) -> int:
        """Return the line of a site, or of its layer; 1 where it lies in none."""
        site = _parsed(spelling)
        if site is None:
            return 1
        found = self._lines.get(str(site.whole()))
        if found is not None:
            return found
        layer = self.layer_of(site)
        return 1 if layer is None else self._lines.get(f"resid_pre.{layer}", 1)

    def site_at(self, line: int) -> tuple[int, str]:
        """Return (line, site) of the first site at a line or below it; UsageError if there is none."""
        for number in range(max(line, 1), len(self.rows) + 1):
            site = self.rows[number - 1].site
            if site is not None:
                return number, site
        raise UsageError(f"There is no site at line {line} or below; the model has {len(self.rows)} lines.")

    def layer_of(self, site: Site) -> int | None:
        if site.path is None:
            return site.layer
        module = self.modules.get(site.path)
        return None if module is None else module.layer

    def enclosing(self, spelling: str) -> tuple[Enclosing, ...]:
        """Return the modules that enclose a site, from the innermost outwards, and the model itself."""
        site = _parsed(spelling)
        path = None if site is None else self._module_of(site)
        found = []
        while path:
            module = self.modules.get(path)
            if module is not None and module.called:
                entry = f"{path}.input"
                line = self._headers.get(path) or self.line_of(f"{path}.output")
                found.append(Enclosing(name=f"{path} ({module.kind})", path=path, line=line, entry=entry))
            path = path.rpartition(".")[0]
        model = Enclosing(name=f"{self.model.architecture} ({self.model.name})", path=None, line=1, entry=None)
        return (*found, model)

    def sites(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def _module_of(self, site: Site) -> str | None:
        if site.path is not None:
            return site.path
        point = self._points.get(site.point)
        below = None if point is None else point.module
        if site.layer is None:
            return below
        layer = self._layers.get(site.layer)
        if layer is None:
            return None
        return layer.path if below is None else f"{layer.path}.{below}"

    def _written(self) -> Iterator[SourceLine]:
        model = self.model
        size = f"{model.layers} layers, {model.hidden_size} features, {model.dtype} on {model.device}"
        yield SourceLine(text=f"{model.architecture}: {model.name}, {size}")
        yield from self._point("embed", None)
        for layer in range(model.layers):
            block = self._layers.get(layer)
            yield SourceLine(
                text=f"layer {layer}: {block.path} {block.kind}" if block is not None else f"layer {layer}:"
            )
            for point in LAYER_POINTS:
                yield from self._point(point, layer)
            for module in self.modules.values():
                if module.layer == layer and module is not block and module.called == 1:
                    yield SourceLine(
                        text=f"{INDENT + module.path:<{COLUMN}}{module.kind}",
                        site=str(Site(point="output", path=module.path)),
                    )
        for point in ("ln_final", "logits"):
            yield from self._point(point, None)

    def _point(self, name: str, layer: int | None) -> Iterator[SourceLine]:
        point = self._points.get(name)
        if point is None or (point.layers is not None and layer not in point.layers):
            return
        if point.layers is None and point.absent is not None:
            return
        site = str(Site(point=name, layer=layer))
        yield SourceLine(text=f"{(INDENT if layer is not None else '') + site:<{COLUMN}}{_shape(point)}", site=site)


def _shape(point: PointDescription) -> str:
    sizes = {"H": point.heads, "D": point.features}
    axes = " ".join(axis if sizes.get(axis) is None else f"{axis}={sizes[axis]}" for axis in point.shape.split())
    return axes if point.editable else f"{axes}, to look at"


def _header_of(row: SourceLine) -> str | None:
    head, colon, rest = row.text.partition(": ")
    return rest.partition(" ")[0] if row.site is None and colon and head.startswith("layer ") else None


def _parsed(spelling: str) -> Site | None:
    try:
        return parse_site(spelling)
    except UnknownSite:
        return None


_Frame = tuple[int, int, int]  # the thread, the stop's number, the place in the stack


class Frames:
    """Numbers of stack frames. Each is of one frame of one stop and never reused: a client that asks for a frame of an
    earlier stop is not answered with values of the present one."""

    def __init__(self, first: int = 1) -> None:
        self._next = first
        self._numbers: dict[_Frame, int] = {}
        self._frames: dict[int, _Frame] = {}

    def number(self, thread: int, stop: StopIdentity, index: int) -> int:
        """Return the number of a frame of a stop; it stays through edits of that stop."""
        frame = (thread, stop.number, index)
        if frame not in self._numbers:
            self._numbers[frame], self._frames[self._next] = self._next, frame
            self._next += 1
        return self._numbers[frame]

    def find(self, number: int) -> tuple[int, int, int]:
        """Return a frame's thread, stop number and place in the stack. UsageError for a frame of a past stop."""
        found = self._frames.get(number)
        if found is None:
            raise UsageError(f"The frame {number} is of a stop that is past; ask for the stack of the present one.")
        return found

    def forget(self, thread: int) -> None:
        """Drop the frames of a thread that has left its stop."""
        for frame in [frame for frame in self._numbers if frame[0] == thread]:
            del self._frames[self._numbers.pop(frame)]
