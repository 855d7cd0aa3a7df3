"""Tensors that clients add to an engine: modules and adapters, by person, and their bytes in the budget."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final
from weakref import WeakValueDictionary

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.model.discovery.model_map import Anatomy, check_selector, site_of, trained_at
from djinn_jupyter.engine.model.hooks.layout import Heads, PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.modules.engine.arithmetic import HeldAdapter, LowRank
from djinn_jupyter.modules.engine.feature_layout import FeatureLayout, HeldModule, ThroughLayout
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.modules import (
    TRANSCODERS,
    AdaptedModule,
    AdapterDescription,
    AdapterIdentity,
    AddedModuleDescription,
    ModuleIdentity,
)
from djinn_jupyter.wire.sites import HEAD_POINTS, LAYER_POINTS, POINTS, Site, parse_site
from djinn_jupyter.wire.texts import shown


class AddedTensors:
    """A part of the budget, by this name. It is never idle: additions stay until they are removed."""

    def __init__(self, budget: Budget, name: str) -> None:
        self._budget, self.bytes_held = budget, 0
        budget.join(self, Part(name=name, held=lambda: self.bytes_held, idle=lambda: 0, release=lambda: 0))

    def draw(self, size: int) -> None:
        """Reserve bytes for tensors to come. Raises SlabFull."""
        self._budget.take(size, by=self)
        self.bytes_held += size

    def give_back(self, size: int) -> None:
        self._budget.give_back(size)
        self.bytes_held -= size

    @contextmanager
    def given_back_on_error(self, size: int) -> Iterator[None]:
        """Give the reserved bytes back where this block raises."""
        try:
            yield
        except BaseException:
            self.give_back(size)
            raise


# The adapters that clients have added, by person and name, and their bytes in the budget. Only the person who added an
# adapter may use it, in their own sessions; None is the engine's own user.

MOST: Final = 256  # of one person
ADAPTER_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
NONE: Final = ("off", "none")  # the magic's word for no adapter


class AdapterTable(AddedTensors):
    """The adapters of an engine. Used on its thread."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget, "adapters")
        self._adapters: dict[tuple[str | None, str], HeldAdapter] = {}

    def of(self, person: str | None) -> list[HeldAdapter]:
        """Return a person's adapters by name."""
        return sorted((one for key, one in self._adapters.items() if key[0] == person), key=lambda one: one.name)

    def bytes_of(self, person: str | None) -> int:
        """Return the bytes of the tensors of a person's adapters."""
        return sum(one.bytes_held for one in self.of(person))

    def get(self, person: str | None, name: str) -> HeldAdapter | None:
        return self._adapters.get((person, name))

    def find(self, person: str | None, name: str) -> HeldAdapter:
        """Return the adapter of that name. Raises UsageError for an unknown one."""
        found = self.get(person, name)
        if found is None:
            named = ", ".join(one.name for one in self.of(person)) or "none"
            raise UsageError(f"There is no adapter {shown(name)}; there are {named}. Add one with engine.add_adapter.")
        return found

    def put(self, person: str | None, adapter: HeldAdapter) -> None:
        if self.get(person, adapter.name) is None and len(self.of(person)) >= MOST:
            raise UsageError(f"There are {MOST} adapters already, which is the limit: remove some.")
        self._adapters[person, adapter.name] = adapter

    def take_out(self, person: str | None, adapter: HeldAdapter) -> None:
        """Remove an adapter that no session uses, and free its tensors."""
        del self._adapters[person, adapter.name]
        self.give_back(adapter.bytes_held)
        adapter.let_go(f"The adapter {adapter.name} was removed.")

    def same(self, person: str | None, identity: AdapterIdentity) -> HeldAdapter | None:
        """Return the adapter of that name where it has the same files. UsageError where it is another."""
        there = self.get(person, identity.name)
        if there is not None and there.identity.digest != identity.digest:
            raise UsageError(
                f"There is another adapter {identity.name} already, of {there.identity.folder}: remove it first "
                f"(%djinn_remove_adapter {identity.name}), or choose another name."
            )
        return there


def require_name(name: str) -> None:
    """Raise UsageError for a name that an adapter cannot have."""
    if not ADAPTER_NAME.fullmatch(name) or name in NONE:
        raise UsageError(
            f"An adapter's name is of letters, digits, _, - and ., such as sql, and not {' or '.join(NONE)}; "
            f"{name!r} is not."
        )


def described(adapter: HeldAdapter, sessions: tuple[str, ...]) -> AdapterDescription:
    """Return an adapter's description, with the sessions that use it."""
    own, paths = adapter.identity, [part.path for part in adapter.parts or ()]
    return AdapterDescription(
        name=own.name,
        folder=own.folder,
        digest=own.digest,
        modules=len(paths),
        targets=tuple(sorted({path.rpartition(".")[2] for path in paths})),
        bytes_held=adapter.bytes_held,
        sessions=sessions,
        missing=adapter.missing,
    )


# The modules that clients have added, by person, name and layer. Each is a point derived from another: its tap is that
# point's tap, which it reads and writes as features. Only the person who added a module sees it, in their own sessions;
# None is the engine's own user.

NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
AXES: Final = "T F"  # positions, features: a lens reads none of these
AXES_OF_POINT: Final = "T D"
READ_BY_TRANSCODERS: Final = ("mlp_in", "resid_mid")
Key = tuple[str | None, str, int]
FilesKey = tuple[str, str, str, bool]


@dataclass(frozen=True, slots=True)
class AddedModule:
    """A module that taps refer to, and the point that it reads."""

    held: HeldModule

    @property
    def identity(self) -> ModuleIdentity:
        return self.held.identity

    @property
    def at(self) -> Site:
        return parse_site(self.identity.at)

    @property
    def layer(self) -> int:
        return self.at.layer or 0

    @property
    def site(self) -> Site:
        return Site(point=self.identity.name, layer=self.layer)

    def written(self, anatomy: Anatomy) -> Tap | str:
        """Return the tap of the point to which its values are written back, or the reason why they are not."""
        match self.identity.form.kind:
            case "sae":
                point = anatomy.resolve(self.at)
                if (self.identity.form.trained_at or "").endswith(".hook_mlp_in"):
                    return "the MLP alone reads hook_mlp_in, and a change of the residual is one for all behind it"
                return point if point.editable else point.reason or "its point cannot be edited"
            case "transcoder" | "cross_layer_transcoder":
                return written_by_transcoder(self.identity, anatomy)
        return f"a {self.identity.form.kind.replace('_', ' ')} has no decoder"

    def tap_in(self, anatomy: Anatomy) -> Tap:
        """Return the tap of its site, derived from the point's; for a transcoder that writes back, the tap through its
        MLP."""
        point, written = anatomy.resolve(self.at), self.written(anatomy)
        assert isinstance(point.layout, PositionLayout)  # else refused when it was added
        through = self.identity.form.kind in TRANSCODERS and isinstance(written, Tap)
        heads = point.layout.heads
        if heads is not None and self.at.selector is not None:
            heads = Heads.of_index(heads.columns_HD()[list(self.at.selector)])
        tap, layout = point, FeatureLayout(point=replace(point.layout, heads=heads), module=self.held)
        if through and isinstance(written, Tap):
            own = {"inputs": self.identity.inputs, "outputs": written.width or 0}
            layout = ThroughLayout(point=point.layout, module=self.held, **own)
            tap = replace(through_layer(anatomy, self.at, written.site), later=tuple(self._handed_on(anatomy)))
        return replace(
            tap,
            site=self.site,
            layout=layout,
            axes=AXES_OF_POINT if self.identity.form.kind == "tuned_lens" else AXES,
            heads=None,
            width=self.identity.features,
            editable=isinstance(written, Tap),
            reason=None if isinstance(written, Tap) else written,
        )

    def _handed_on(self, anatomy: Anatomy) -> Iterator[Tap]:
        """Yield the taps of later layers to which an edit of the features adds its remaining part."""
        if self.identity.form.kind != "cross_layer_transcoder":
            return
        for layer in range(self.layer + 1, len(anatomy.layers)):
            to = write_site(self.identity, anatomy, layer)
            there = through_layer(anatomy, Site(point=self.at.point, layer=layer), to)
            yield replace(there, site=Site(point=f"{self.site} in {to.point}", layer=layer), handed_by=self.site)

    def is_that(self, other: ModuleIdentity) -> bool:
        """True where both have the same files at the same point, edited in the same way."""
        return _of_files(self.identity) == _of_files(other)

    def describe(self, anatomy: Anatomy) -> AddedModuleDescription:
        written = self.written(anatomy)
        own, form = self.identity, self.identity.form
        return AddedModuleDescription(
            name=own.name,
            site=str(self.site),
            at=own.at,
            kind=form.kind,
            activation=form.activation if form.kind in ("sae", *TRANSCODERS) else "linear",
            inputs=own.inputs,
            features=own.features,
            folder=own.folder,
            digest=own.digest,
            bytes_held=0 if self.held.arithmetic is None else own.bytes_held,
            error_term=own.error_term,
            writes=str(written.site) if isinstance(written, Tap) else None,
            why_not_edited=written if isinstance(written, str) else None,
            missing=self.held.missing,
            note=self._note(anatomy),
        )

    def _note(self, anatomy: Anatomy) -> str | None:
        """Return the place where its files say it was trained, if that is another than it reads."""
        trained = self.identity.form.trained_at
        if trained is None or _place(trained, anatomy) == self.at:
            return None
        return f"its files say that it was trained at {trained}"


class ModuleTable(AddedTensors):
    """The added modules of an engine, and the bytes of their tensors in its budget. Used on its thread."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget, "modules")
        self._modules: dict[Key, AddedModule] = {}
        self._let_go: WeakValueDictionary[tuple[str | None, FilesKey], HeldModule] = WeakValueDictionary()

    def of(self, person: str | None) -> list[AddedModule]:
        """Return a person's modules in order of their sites."""
        found = [(key, one) for key, one in self._modules.items() if key[0] == person]
        return [one for _, one in sorted(found, key=lambda pair: pair[0][1:])]

    def bytes_of(self, person: str | None) -> int:
        """Return the bytes of the tensors of a person's modules."""
        return sum(one.identity.bytes_held for one in self.of(person) if one.held.arithmetic is not None)

    def new(self, person: str | None, identity: ModuleIdentity) -> AddedModule:
        """Return a module to be added. A removed one that stops still refer to returns to them."""
        held = self._let_go.get((person, _of_files(identity)))
        return AddedModule(HeldModule(identity=identity) if held is None else held)

    def find(self, person: str | None, name: str, layer: int) -> AddedModule | None:
        return self._modules.get((person, name, layer))

    def put(self, person: str | None, module: AddedModule) -> None:
        """Add a module, or replace the one at its site."""
        key = (person, module.identity.name, module.layer)
        if key not in self._modules and len(self.of(person)) >= MOST:
            raise UsageError(f"There are {MOST} added modules already, which is the limit: remove some.")
        self._modules[key] = module

    def take_out(self, person: str | None, module: AddedModule) -> None:
        """Remove a module, and free its tensors. Taps in existing stops report the removal."""
        del self._modules[person, module.identity.name, module.layer]
        if module.held.arithmetic is not None:
            self.give_back(module.identity.bytes_held)
        self._let_go[person, _of_files(module.identity)] = module.held
        module.held.let_go(f"The module {module.site} was removed; add it again from {module.identity.folder}.")


@dataclass(frozen=True, slots=True)
class SeenModules:
    """The modules that a person's sessions see, and the adapters that they may use."""

    table: ModuleTable
    adapters: AdapterTable
    person: str | None = None

    def tap(self, site: Site, anatomy: Anatomy) -> Tap | None:
        """Return the tap of an added module's site; None for any other site. Raises UnknownSite for an unknown
        feature."""
        if site.path is not None or site.layer is None or site.point in POINTS:
            return None
        module = self.table.find(self.person, site.point, site.layer)
        if module is None:
            return None
        tap = module.tap_in(anatomy)
        check_selector(site, tap)
        return tap


def _of_files(identity: ModuleIdentity) -> FilesKey:
    return identity.name, identity.at, identity.digest, identity.error_term


def point_of(name: str, at: str, anatomy: Anatomy, inputs: int) -> Tap:
    """Return the tap of the point that a module reads. Raises UsageError where it cannot, and UnknownSite."""
    if not NAME.fullmatch(name):
        raise UsageError(f"A module's name is of small letters, digits and _, such as sae; {name!r} is not.")
    site = trained_at(at, anatomy)
    one_head = site.point in HEAD_POINTS and len(site.selector or ()) == 1
    if site.path is not None or site.point not in LAYER_POINTS or not (site.selector is None or one_head):
        raise UsageError(
            f"A module reads a point of one layer, such as resid_post.4, or a head of one, z.4[2]; {at!r} is neither."
        )
    point = anatomy.resolve(site)
    if name in POINTS or parse_site(f"{name}.{site.layer}") != Site(point=name, layer=site.layer):
        raise UsageError(f"{name!r} is the name of a point: choose another for the module, such as sae.")
    if any(one.path == f"{name}.{site.layer}" for one in anatomy.modules):
        raise UsageError(f"{name}.{site.layer} is a module of this model: choose another name, such as sae.")
    if not isinstance(point.layout, PositionLayout) or point.width is None or point.axes not in ("T D", "T H D"):
        raise UsageError(f"{site} is {point.axes}, which no module reads: it has to be one vector at each position.")
    width = point.width * (1 if one_head else point.heads or 1)
    if inputs != width:
        raise UsageError(
            f"The module reads {inputs} numbers at each position, and {site} has {width}: it is of another model, or "
            "of another point."
        )
    return point


def require_centering(anatomy: Anatomy) -> None:
    """Raise UsageError where the values of the model, minus their means, differ from those that TransformerLens
    makes by `center_writing_weights`: it centers what is written, which only a LayerNorm within or after the layers
    ignores."""
    if sum(one.kind == "LayerNorm" and one.layer is None for one in anatomy.modules) != 1:
        raise UsageError(
            "The module's files have center_writing_weights, which is computed here for models whose one norm outside "
            "the layers is a LayerNorm behind them; this model has none, or another one before them."
        )


def written_by_transcoder(own: ModuleIdentity, anatomy: Anatomy) -> Tap | str:
    """Return the tap of what a transcoder computes in place of an MLP, or the reason why it is not written back."""
    at = parse_site(own.at)
    if at.point not in READ_BY_TRANSCODERS:
        return (
            f"a transcoder is put back where it reads {' or '.join(f'{one}.{at.layer}' for one in READ_BY_TRANSCODERS)}"
        )
    first = at.layer or 0
    named = own.form.written_at
    last = len(anatomy.layers) if own.form.kind == "cross_layer_transcoder" else first + 1
    try:
        site = write_site(own, anatomy, first)
        if named is not None and _place(named, anatomy) not in (None, site, Site(point="mlp_out", layer=first)):
            return f"its files say that it writes to {named}, and {own.at} is read for {site}"
        for layer in range(first, last):
            through_layer(anatomy, Site(point=at.point, layer=layer), write_site(own, anatomy, layer))
    except UnknownSite as error:
        return str(error)
    return anatomy.resolve(site)


def write_site(own: ModuleIdentity, anatomy: Anatomy, layer: int) -> Site:
    """Return where a transcoder writes in a layer: at the MLP's output. With a norm between that and the residual,
    `hook_mlp_out` of TransformerLens is the norm's output."""
    behind = (own.form.written_at or "").endswith(".hook_mlp_out")
    return site_of(f"blocks.{layer}.hook_mlp_out" if behind else f"mlp_out.{layer}", anatomy)


def through_layer(anatomy: Anatomy, at: Site, to: Site) -> Tap:
    """Return the tap of a layer's value at a point beside its MLP's later output. Raises UnknownSite where these are
    not the input and output of one layer's modules, or have unlike shapes."""
    point, written = anatomy.resolve(at), anatomy.resolve(to)
    kinds = (point.kind, written.kind) == ("module_input", "module_output")
    if not kinds or point.within is not written.within:
        raise UnknownSite(f"{at} and {to} are not what modules of one layer are given and make")
    if not _alike(point, written) or written.in_place or not written.editable:
        raise UnknownSite(written.reason or f"{at} and {to} have different shapes")
    same = point.module is written.module
    return replace(
        written,
        kind="module_through",
        key=point.key if same else None,
        key_out=written.key,
        given=None if same else point,
    )


def written_width(own: ModuleIdentity, anatomy: Anatomy) -> int | None:
    """Return the width of a transcoder's output, None where it is not written back."""
    written = written_by_transcoder(own, anatomy) if own.form.kind in TRANSCODERS else ""
    return written.width if isinstance(written, Tap) else None


def _alike(one: Tap, other: Tap) -> bool:
    """Return whether two taps have their positions along the same axes, and only features besides."""
    shapes = [
        (tap.layout.position, tap.layout.batch) if isinstance(tap.layout, PositionLayout) else None
        for tap in (one, other)
        if tap.axes == "T D" and tap.heads is None
    ]
    return len(shapes) == 2 and shapes[0] == shapes[1] is not None


def _place(spelling: str, anatomy: Anatomy) -> Site | None:
    """Return the site that another tool's name spells; None for a name unknown here."""
    try:
        return trained_at(spelling, anatomy)
    except UnknownSite:
        return None


# From the matrices of an adapter's files to products beside a model's modules. Paths, shapes and numbers are checked
# first.

FLOATING: Final = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A module that an adapter changes, found in the model; its product is computed in `dtype` on `home`."""

    given: AdaptedModule
    module: nn.Module
    home: torch.device
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of its two matrices on the device."""
        return sum(math.prod(one.shape) for one in (self.given.down, self.given.up)) * self.dtype.itemsize

    def on_device(self) -> LowRank:
        """Return the product with its matrices on the device. Raises UsageError where numbers are not finite."""
        down, up = (self._moved(name, one) for name, one in (("A", self.given.down), ("B", self.given.up)))
        return LowRank(path=self.given.path, module=self.module, down_RI=down, up_OR=up, factor=self.given.factor)

    def _moved(self, name: str, array: Array) -> torch.Tensor:
        with torch.inference_mode(False):  # autograd may meet it later
            tensor = to_tensor(array).to(device=self.home, dtype=self.dtype)
        if not bool(torch.isfinite(tensor).all()):
            raise UsageError(f"lora_{name} of {self.given.path} has NaN or infinity, so the adapter computes nothing.")
        return tensor


def fitted(forward: Forward, modules: Sequence[AdaptedModule]) -> list[Fitted]:
    """Return the place of each part of an adapter. Raises UsageError where the adapter does not fit the model."""
    found = list(_found(forward, modules))
    twice = next((one for one in found if sum(other.module is one.module for other in found) > 1), None)
    if twice is not None:
        raise UsageError(f"The adapter changes {twice.given.path} twice.")
    return found


def _found(forward: Forward, modules: Sequence[AdaptedModule]) -> Iterator[Fitted]:
    described = {one.path: one for one in forward.anatomy.modules}
    for given in modules:
        there = described.get(given.path)
        if there is None:
            near = get_close_matches(given.path, described, n=1)
            raise UsageError(
                f"The adapter is of another model: it changes {given.path}, and this one has no such module"
                f"{f' (the nearest is {near[0]})' if near else ''}."
            )
        if there.layer is None:
            raise UsageError(
                f"The adapter changes {given.path}, which lies in no layer; adapters of layers are computed here."
            )
        if not there.called:
            raise UsageError(f"The adapter changes {given.path}, which this model does not call by itself.")
        module = forward.model.get_submodule(given.path)
        yield _fitted(given, module, forward.home_at(there.layer))


def _fitted(given: AdaptedModule, module: nn.Module, home: torch.device) -> Fitted:
    if not isinstance(module, nn.Linear | Conv1D):
        raise UsageError(
            f"The adapter changes {given.path}, a {type(module).__name__}; those of linear modules are computed here."
        )
    weight, by_bitsandbytes = module.weight, type(module).__module__.startswith("bitsandbytes.")
    if not by_bitsandbytes and (not weight.dtype.is_floating_point or weight.dtype.itemsize == 1):
        raise UsageError(
            f"The adapter changes {given.path}, whose weights are {str(weight.dtype).removeprefix('torch.')}; those of "
            "weights in 16 bits or more are computed here."
        )
    inputs, outputs = weight.shape if isinstance(module, Conv1D) else (module.in_features, module.out_features)
    _require_shapes(given, inputs, outputs)
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return Fitted(given=given, module=module, home=home, dtype=dtype)


def _require_shapes(given: AdaptedModule, inputs: int, outputs: int) -> None:
    down, up = given.down.shape, given.up.shape
    rank = down[0] if down else 0
    for name, array, wanted in (("A", given.down, (rank, inputs)), ("B", given.up, (outputs, rank))):
        if array.dtype not in FLOATING:
            raise UsageError(f"lora_{name} of {given.path} is of dtype {array.dtype}; it has to be a floating one.")
        if array.shape != wanted or not rank:
            raise UsageError(
                f"The adapter is of another model: lora_A and lora_B of {given.path} have shapes {list(down)} and "
                f"{list(up)}, and the module takes {inputs} numbers and makes {outputs}."
            )
    if not math.isfinite(given.factor):
        raise UsageError(f"The factor of {given.path} is {given.factor}; it has to be a finite number.")
