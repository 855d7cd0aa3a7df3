"""The form in which a module takes or returns values: tuples, dicts and outputs around one tensor that an engine has.
Its other tensors stay in the engine's process, and raise an error when used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NoReturn

import torch
from nnsight.intervention.interleaver import Mediator
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from djinn_jupyter.errors import UsageError
from djinn_jupyter.integrations.lines import LOGITS, place_of
from djinn_jupyter.wire.nouns import ModelDescription

ONLY_THE_FIRST: Final = "of what a module takes or returns, the first tensor is changed, and no other part."
PLAIN: Final = (bool, int, float, str, torch.dtype, torch.device, type(None))
Trail = tuple[Any, ...]  # the keys and indices that lead to a part


class NotServed:
    """Replaces a part of a value that exists only in the engine's process. Every use of it is refused."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<not served: {self._name}>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"{self._name} stays in the engine's process: of what a module takes or returns, the first tensor is read."
        )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        given = [*args, *(kwargs or {}).values()]
        next(one for one in given if isinstance(one, NotServed))._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    __getitem__ = __call__ = __iter__ = __len__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueForm:
    """The form of the value at a location: `around` is all but the tensor at `trail`, which had this shape on the trial
    lines. Without a floating tensor there is no trail."""

    name: str
    around: Any
    trail: Trail | None
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32

    def filled(self, value: Tensor) -> Any:
        """Return a module's arguments or result, with this tensor in its place."""
        return value if self.trail is None or not self.trail else _put(self.around, self.trail, value)

    def tensor_in(self, left: Any) -> Tensor:
        """Return the tensor in the user's replacement. UsageError where its form or another part was changed."""
        _require_alike(self.name, self.around, left, self.trail or ())
        value = left
        for key in self.trail or ():
            value = value[key]
        if not isinstance(value, Tensor):
            raise UsageError(f"{self.name} holds a tensor; it was replaced by a {type(value).__name__}.")
        return value


def form_of(name: str, value: Any) -> ValueForm:
    """Return the form of a value; the engine has its first floating tensor."""
    found = next(_parts(value), None)
    trail, tensor = found if found is not None else (None, None)
    around = _mapped(value, (), lambda at, one: _left(name, at, one, trail))
    if tensor is None:
        return ValueForm(name=name, around=around, trail=None)
    return ValueForm(name=name, around=around, trail=trail, shape=tuple(tensor.shape), dtype=tensor.dtype)


def first_tensor(value: Any) -> Tensor | None:
    return next((one for _, one in _parts(value)), None)


def _left(name: str, at: Trail, one: Any, chosen: Trail | None) -> Any:
    if at == chosen or isinstance(one, PLAIN):
        return None if at == chosen else one
    return NotServed(name + "".join(f"[{key!r}]" for key in at))


def _parts(value: Any, at: Trail = ()) -> Iterator[tuple[Trail, Tensor]]:
    """Yield all floating tensors within."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield at, value
    elif isinstance(value, dict | list | tuple):
        for key, one in _entries(value):
            yield from _parts(one, (*at, key))


def _entries(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items() if isinstance(value, dict) else enumerate(value))


def _mapped(value: Any, at: Trail, change: Callable[[Trail, Any], Any]) -> Any:
    """Return a value of the same containers with changed leaves."""
    if not isinstance(value, dict | list | tuple):
        return change(at, value)
    return _rebuilt(value, {key: _mapped(one, (*at, key), change) for key, one in _entries(value)})


def _put(value: Any, trail: Trail, put: Any) -> Any:
    if not trail:
        return put
    parts = dict(_entries(value))
    return _rebuilt(value, parts | {trail[0]: _put(parts[trail[0]], trail[1:], put)})


def _rebuilt(value: Any, parts: dict[Any, Any]) -> Any:
    """Return a container of the same type: transformers' outputs are dicts that also have attributes."""
    if isinstance(value, dict):
        made = value.copy()
        for key, one in parts.items():
            made[key] = one
        return made
    if hasattr(value, "_fields"):
        return type(value)(*parts.values())
    return type(value)(parts.values())


def _require_alike(name: str, around: Any, left: Any, trail: Trail) -> None:
    if not trail and not isinstance(around, dict | list | tuple):
        return
    if not isinstance(around, dict | list | tuple):
        raise UsageError(f"{name}: {ONLY_THE_FIRST}")
    if type(left) is not type(around) or len(left) != len(around):
        raise UsageError(
            f"{name} is a {type(around).__name__} of {len(around)}; it was replaced by a {type(left).__name__}."
        )
    parts = dict(_entries(left))
    for key, one in _entries(around):
        if trail and key == trail[0]:
            _require_alike(name, one, parts[key], trail[1:])
        elif not _same(one, parts[key]):
            raise UsageError(f"{name}: {ONLY_THE_FIRST}")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict | list | tuple):
        if type(one) is not type(other) or len(one) != len(other):
            return False
        parts = dict(_entries(other))
        return all(key in parts and _same(part, parts[key]) for key, part in _entries(one))
    return one is other or (isinstance(one, PLAIN) and type(one) is type(other) and one == other)


# The locations of nnsight, in the order of a pass, and the site of each: modules by the paths that both tools use. One
# forward of the model without weights, in which no number is computed, finds them.

OF_LAYERS: Final = {"input": "resid_pre", "output": "resid_post", "attention_probabilities": "pattern"}
LINES, POSITIONS = 3, 11  # of the trial lines: a tensor with this in front has a row for each
LN_FINAL: Final = "ln_final"
PROBABILITIES: Final = "attention_probabilities"  # of a layer: a location of nnterp's, between modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A module's input or output, at its `number` in the order of a pass. Where others may hold the tensor too
    (`shared`), an in-place change would reach more of them here than there. In a generating pass the head gets only the
    last position. With `heads_first` the model has heads before positions."""

    name: str
    number: int
    site: str
    form: ValueForm
    shared: bool = False
    of_head: bool = False
    heads_first: bool = False


class Locations:
    """All locations of a model, by name. `head` is the path of the module that returns the logits; None where the model
    computes them from its output."""

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
        """Record that the engine has no such site."""
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
    """Return the arguments and results of each module, in the order of a forward on the meta device."""
    met: list[tuple[str, Any]] = []
    shapes = ShapeEnv(assume_static_by_default=True)  # as in nnsight's own `scan`
    experts = whole.get_experts_implementation()  # only one of them has shapes that no number decides
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
    """Return the path of the module whose output is the logits, the same tensor that the model returns."""
    logits = dict(met)[f"{root}.output"].logits
    outputs = [name for name, value in met if isinstance(value, Tensor) and value is logits]
    return outputs[-1].removesuffix(".output") if outputs else None


def _final(norm: str, met: Sequence[tuple[str, Any]]) -> set[str]:
    """Return the outputs that equal the last norm's: the modules around it return the same tensor."""
    outputs = {name: first_tensor(value) for name, value in met if name.endswith(".output")}
    return {name for name, value in outputs.items() if value is not None and value is outputs.get(norm)}


def _not_met(name: str) -> str:
    if ".source." in name:
        return f"{name} is not served: what a module does within is the engine's; its `input` and `output` are read."
    return f"{name} is not served: no such module runs in a pass of this model."


# The names of nnterp's StandardizedTransformer, the same for every family: `model.layers_output[5]`.

OF_LAYER_NAMES: Final = {"layers_input": "input", "layers_output": "output", "attention_probabilities": PROBABILITIES}
OF_MODULES: Final = {
    "attentions_input": "attn_in",
    "attentions_output": "attn_out",
    "mlps_input": "mlp_in",
    "mlps_output": "mlp_out",
}


@dataclass(frozen=True, slots=True)
class NamedValues:
    """The values of the running trace, as bare tensors, by the names of their locations."""

    locations: Locations
    description: ModelDescription

    def read(self, name: str) -> Tensor:
        return self.locations.named(name).form.tensor_in(Mediator.value(name))

    def assign(self, name: str, value: Tensor) -> None:
        Mediator.swap(name, self.locations.named(name).form.filled(value))

    def module_of(self, point: str) -> str:
        """Return the path of the module whose input or output a point is, below its layer or in the model. UsageError
        where there is no such module."""
        there = next(one for one in self.description.points if one.point == point)
        if there.module is None:
            why = there.absent or "its layers have it at different modules"
            raise UsageError(f"This model has no one {point}: {why}.")
        return there.module


@dataclass(frozen=True, slots=True)
class ByLayer:
    """A value that every layer has: in a trace it is read and assigned by the layer's number."""

    values: NamedValues
    names: tuple[str, ...]

    def __getitem__(self, layer: int) -> Tensor:
        return self.values.read(self.names[layer])

    def __setitem__(self, layer: int, value: Tensor) -> None:
        self.values.assign(self.names[layer], value)

    def __len__(self) -> int:
        return len(self.names)


class OfLayers:
    """An attribute of the model that is read by layer."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, model: Any, owner: type) -> Any:
        if model is None:
            return self
        values: NamedValues = model.named_values
        if self._name in OF_LAYER_NAMES:
            below = OF_LAYER_NAMES[self._name]
        else:
            below = f"{values.module_of(OF_MODULES[self._name])}.{self._name.rpartition('_')[2]}"
        return ByLayer(values, tuple(f"{path}.{below}" for path in values.locations.layers))


class NnterpNames:
    """The attributes of nnterp's models that nnsight's lack."""

    layers_input, layers_output = OfLayers(), OfLayers()
    attentions_input, attentions_output = OfLayers(), OfLayers()
    mlps_input, mlps_output = OfLayers(), OfLayers()
    attention_probabilities = OfLayers()
    named_values: NamedValues

    @property
    def num_layers(self) -> int:
        return len(self.named_values.locations.layers)

    @property
    def token_embeddings(self) -> Tensor:
        """The output of the embedding, in a trace."""
        return self.named_values.read(self._embedding)

    @token_embeddings.setter
    def token_embeddings(self, value: Tensor) -> None:
        self.named_values.assign(self._embedding, value)

    @property
    def logits(self) -> Tensor:
        """The logits that the model returns, in a trace."""
        return self.named_values.read(f"{self.named_values.locations.root}.output")

    @logits.setter
    def logits(self, value: Tensor) -> None:
        self.named_values.assign(f"{self.named_values.locations.root}.output", value)

    @property
    def _embedding(self) -> str:
        values = self.named_values
        return f"{values.locations.root}.{values.module_of('embed')}.output"
