"""Modules of the model by path: the input and output of each as sites, or the reason for their absence."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

from torch import nn

from djinn_jupyter.engine.model.discovery.make_taps import NO_POSITIONS, Probes, border_tap, boundary_tap
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.wire.nouns import ModuleDescription
from djinn_jupyter.wire.sites import POINTS, Site


class ModelModules:
    """The modules of one model, with their calls in the probes."""

    def __init__(self, model: nn.Module, probes: Probes, boundaries: tuple[Tap, ...], fixed: str | None) -> None:
        self.probes, self.boundaries, self.fixed = probes, boundaries, fixed
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._numbers = {path: index for index, path in enumerate(probes.stack.paths)}
        self._list = probes.stack.paths[0].rpartition(".")[0] + "."
        self._layers = {layer: index for index, layer in enumerate(probes.stack.layers)}
        self.described = tuple(self._describe(path) for path in self._modules if path)

    def path_of(self, module: nn.Module) -> str:
        return str(next(path for path, one in self._modules.items() if one is module))

    def below_layer(self, module: nn.Module) -> str:
        """Return the module's path below the layer that contains it; outside the layers its path in the model."""
        path = self.path_of(module)
        layer = self.layer_of(path)
        return path if layer is None else path.removeprefix(self.probes.stack.paths[layer]).removeprefix(".")

    def layer_of(self, path: str) -> int | None:
        if not path.startswith(self._list):
            return None
        return self._numbers.get(self._list + path.removeprefix(self._list).split(".")[0])

    def _describe(self, path: str) -> ModuleDescription:
        module, layer = self._modules[path], self.layer_of(path)
        called = len(self.probes.calls(module, layer))
        return ModuleDescription(path=path, kind=type(module).__name__, layer=layer, called=called)

    def tap(self, site: Site) -> Tap:
        path = site.path or ""
        module = self._modules.get(path)
        if module is None or not path:
            raise UnknownSite(f"This model has no module or point {path!r}{self._near(path)}")
        if module in self._layers:
            boundary = self._layers[module] + (site.point == "output")
            return boundary_tap(site, self.boundaries[boundary], self._layers[module])
        layer = self.layer_of(path)
        calls = self.probes.calls(module, layer)
        if len(calls) != 1:
            times = f"runs {len(calls)} times" if calls else "is not run"
            raise UnknownSite(f"{path} {times} in one pass; a site must be met exactly once.")
        seen = calls[0].inputs if site.point == "input" else calls[0].outputs
        reasons = []
        for key, tensor in seen.items():
            tap = border_tap(self.probes, site, module, layer, site.point, key) if tensor.floating else NO_POSITIONS
            if isinstance(tap, Tap):
                return self._guarded(tap)
            reasons.append(tap)
        raise UnknownSite(f"{site.whole()} cannot be a site: {reasons[0] if reasons else NO_POSITIONS}.")

    def _guarded(self, tap: Tap) -> Tap:
        """Return the tap, read-only where a resumed pass would lose an edit: before the layers only the hidden state
        may change, because the rest is recomputed at a resume."""
        hidden = self.boundaries[0].width
        if tap.stage >= 0 or (self.fixed is None and tap.width == hidden and tap.axes == "T D"):
            return tap
        return replace(tap, editable=False, reason=self.fixed or "a resumed pass computes it anew, without the edit")

    def _near(self, path: str) -> str:
        word, _, layer = path.rpartition(".")
        points = [f"{point}.{layer}" for point in _points_near(word)] if layer.isdigit() else []
        near = points or get_close_matches(path, [*self._modules, *POINTS], n=1)
        return f"; did you mean {' or '.join(map(repr, near))}?" if near else "."


def _points_near(word: str) -> list[str]:
    """Return the points that a word may abbreviate, outputs before inputs; else the one with the closest spelling."""
    ends = ("post", "out", "pre", "in")
    short_for = [point for point in POINTS for first, _, end in [point.partition("_")] if first == word and end in ends]
    return sorted(short_for, key=lambda point: ends.index(point.partition("_")[2]))[:2] or get_close_matches(
        word, POINTS, n=1
    )
