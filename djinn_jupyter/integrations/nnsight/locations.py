"""The locations of nnsight, in the order of a pass, and the site of each: modules by the paths that both tools have.
Found by one forward of the model without weights, in which no number is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from djinn_jupyter.errors import UsageError
from djinn_jupyter.integrations.hooked_lines import LOGITS, place_of
from djinn_jupyter.integrations.nnsight.forms import ValueForm, first_tensor, form_of
from djinn_jupyter.wire.nouns import ModelDescription

OF_LAYERS: Final = {"input": "resid_pre", "output": "resid_post", "attention_probabilities": "pattern"}
LINES, POSITIONS = 3, 11  # of the lines that are tried: where a tensor has these in front, it has a row for each
LN_FINAL: Final = "ln_final"
PROBABILITIES: Final = "attention_probabilities"  # of a layer: a location of nnterp's, between modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A module's input or output, at its `number` in the order of a pass. Where others may hold the tensor too
    (`shared`), a change in place would reach more of them here than there. The head is given the last position alone
    in a pass that generates. With `heads_first` the model has heads before positions."""

    name: str
    number: int
    site: str
    form: ValueForm
    shared: bool = False
    of_head: bool = False
    heads_first: bool = False


class Locations:
    """All locations of a model, by name. `head` is the path of the module that returns the logits; None where the
    model makes them of what it returns."""

    def __init__(self, root: str, met: Sequence[tuple[str, Any]], description: ModelDescription) -> None:
        self.root = root
        points = {point.point: point for point in description.points}
        self._forms = {name: form_of(name, value) for name, value in met}
        self.layers = _layers(tuple(self._forms), description.layers)
        self.head = _head(root, met)
        _require_same_shape(self._forms[f"{root}.output"], self._forms[f"{self.layers[0]}.output"], description)
        self._final = _final(f"{root}.{points[LN_FINAL].module}.output", met) | {f"{self.head}.input"}
        self.order = tuple(self._with_probabilities(points["z"].module))
        self._numbers = {name: number for number, name in enumerate(self.order)}
        self._refused: dict[str, str] = {}
        self._at_site: dict[str, list[str]] = {}

    def number(self, name: str) -> int:
        return self._numbers[name]

    def refuse(self, site: str, why: str) -> None:
        """Note that the engine has no such site."""
        self._refused[site] = why

    def why_not(self, name: str) -> str | None:
        """Return the reason why the value at a location is not served; None where it is."""
        if name not in self._numbers:
            return _not_met(name)
        form, site = self._forms[name], self._site(name)
        if name in self.of_logits():
            return None
        if form.trail is None:
            return f"{name} is not served: it holds no tensor of activations."
        if site in self._refused:
            return f"{name} is not served: {self._refused[site]}"
        if form.shape[:2] != (LINES, POSITIONS):
            return (
                f"{name} is not served: its tensor does not begin with lines and positions, but has the shape "
                f"{form.shape} on {LINES} lines of {POSITIONS}."
            )
        return None

    def named(self, name: str) -> Location:
        """Return the location of this name, which is served."""
        path, _, side = name.rpartition(".")
        return Location(
            name=name,
            number=self._numbers[name],
            site=self._site(name),
            form=self._forms[name],
            shared=side == "input" and path not in {*self.layers, self.head},
            of_head=name == f"{self.head}.input",
            heads_first=side == PROBABILITIES,
        )

    def at(self, site: str) -> list[Location]:
        """Return the locations at a site that are served, in order."""
        if not self._at_site:
            for name in self.order:
                self._at_site.setdefault(self._site(name), []).append(name)
        return [self.named(name) for name in self._at_site.get(site, ()) if self.why_not(name) is None]

    def of_logits(self) -> tuple[str, ...]:
        """Return the names of the locations of the logits, in order."""
        return tuple(f"{path}.output" for path in (self.head, self.root) if path is not None)

    def _with_probabilities(self, mixing: str | None) -> Iterator[str]:
        """Yield all locations, those of nnterp's before the module that mixes the heads (`mixing`, below a layer)."""
        before = {f"{path}.{mixing}.input": f"{path}.{PROBABILITIES}" for path in self.layers}
        for name in tuple(self._forms):
            if name in before:
                own = before[name]
                self._forms[own] = ValueForm(name=own, around=None, trail=(), shape=(LINES, POSITIONS))
                yield own
            yield name

    def _site(self, name: str) -> str:
        path, _, side = name.rpartition(".")
        if name in self.of_logits():
            return LOGITS
        if path in self.layers:
            return place_of(f"{OF_LAYERS[side]}.{self.layers.index(path)}")
        return LN_FINAL if name in self._final else place_of(f"{path.removeprefix(f'{self.root}.')}.{side}")


def recorded(modules: Sequence[tuple[str, Any]], whole: Any) -> list[tuple[str, Any]]:
    """Return what each module is given and returns, in the order of a forward on the meta device."""
    met: list[tuple[str, Any]] = []
    shapes = ShapeEnv(assume_static_by_default=True)  # as nnsight's own `scan` has it
    experts = whole.get_experts_implementation()  # of which one alone has shapes that no number decides
    whole.set_experts_implementation("batched_mm")
    handles = [handle for path, module in modules for handle in _watched(path, module, met)]
    try:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes):
            whole(input_ids=torch.zeros((LINES, POSITIONS), dtype=torch.long, device="meta"))
    except Exception as error:
        raise UsageError(
            f"The modules are found by a forward without weights, and this model's failed: {error}"
        ) from error
    finally:
        whole.set_experts_implementation(experts)
        for handle in handles:
            handle.remove()
    return met


def _watched(path: str, module: torch.nn.Module, met: list[tuple[str, Any]]) -> tuple[Any, Any]:
    def given(module: Any, args: Any, kwargs: Any) -> None:
        met.append((f"{path}.input", (args, kwargs)))

    def returned(module: Any, args: Any, output: Any) -> None:
        met.append((f"{path}.output", output))

    return module.register_forward_pre_hook(given, with_kwargs=True), module.register_forward_hook(returned)


def _layers(order: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the paths of the decoder layers: of the outermost list of so many modules that run."""
    paths = [name.removesuffix(".input") for name in order if name.endswith(".input")]
    numbered = [path for path in paths if path.rpartition(".")[2].isdigit()]
    for _, there in groupby(sorted(numbered, key=_depth_and_list), key=_depth_and_list):
        layers = tuple(there)
        if len(layers) == count:
            return tuple(sorted(layers, key=paths.index))
    raise UsageError(f"The engine's model has {count} layers, and no list of this model's modules has as many.")


def _require_same_shape(logits: ValueForm, layer: ValueForm, description: ModelDescription) -> None:
    sizes = (layer.shape[-1], logits.shape[-1])
    if sizes != (description.hidden_size, description.vocab_size):
        raise UsageError(
            f"The engine's model has {description.hidden_size} features and {description.vocab_size} tokens, and this "
            f"one {sizes[0]} and {sizes[1]}: name the same model."
        )


def _depth_and_list(path: str) -> tuple[int, str]:
    return path.count("."), path.rpartition(".")[0]


def _head(root: str, met: Sequence[tuple[str, Any]]) -> str | None:
    """Return the path of the module whose output is the logits, the very tensor that the model returns."""
    logits = dict(met)[f"{root}.output"].logits
    outputs = [name for name, value in met if isinstance(value, Tensor) and value is logits]
    return outputs[-1].removesuffix(".output") if outputs else None


def _final(norm: str, met: Sequence[tuple[str, Any]]) -> set[str]:
    """Return the outputs that are the last norm's: the modules around it hand the very tensor on."""
    outputs = {name: first_tensor(value) for name, value in met if name.endswith(".output")}
    return {name for name, value in outputs.items() if value is not None and value is outputs.get(norm)}


def _not_met(name: str) -> str:
    if ".source." in name:
        return f"{name} is not served: what a module does within is the engine's; its `input` and `output` are read."
    return f"{name} is not served: no such module runs in a pass of this model."
