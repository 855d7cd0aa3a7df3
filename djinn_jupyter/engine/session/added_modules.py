"""The modules that clients have added: by the person who added each, its name and its layer. Each is a point derived
from another: its tap is that of the point, which it reads and writes as features.

Who may see one is the person who added it, in sessions of theirs; None is the engine's own user.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakValueDictionary

from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.model.discovery.model_map import Anatomy, check_selector
from djinn_jupyter.engine.model.hooks.feature_layout import FeatureLayout, HeldModule
from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.session.adapters import AdapterTable
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.wire.module_form import AddedModuleDescription, ModuleIdentity
from djinn_jupyter.wire.sites import LAYER_POINTS, POINTS, Site, parse_site

MOST: Final = 256  # of one person
NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")
AXES: Final = "T F"  # positions, features: a lens reads none of these
AXES_OF_POINT: Final = "T D"
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

    @property
    def why_not_edited(self) -> str | None:
        """The reason why its values cannot be put back into the point; None where they can."""
        match self.identity.form.kind:
            case "sae":
                return None
            case "transcoder":
                return "a transcoder writes to another point than it reads"
        return f"a {self.identity.form.kind.replace('_', ' ')} has no decoder"

    def tap_at(self, point: Tap) -> Tap:
        """Return the tap of its site, made of the point's."""
        assert isinstance(point.layout, PositionLayout)  # refused otherwise when it was added
        reason = point.reason if not point.editable else self.why_not_edited
        return replace(
            point,
            site=self.site,
            layout=FeatureLayout(point=point.layout, module=self.held),
            axes=AXES_OF_POINT if self.identity.form.kind == "tuned_lens" else AXES,
            heads=None,
            width=self.identity.features,
            editable=reason is None,
            reason=reason,
        )

    def is_that(self, other: ModuleIdentity) -> bool:
        """True where both are the same files at the same point, edited in the same way."""
        return _of_files(self.identity) == _of_files(other)

    def describe(self) -> AddedModuleDescription:
        own, form = self.identity, self.identity.form
        return AddedModuleDescription(
            name=own.name,
            site=str(self.site),
            at=own.at,
            kind=form.kind,
            activation=form.activation if form.kind in ("sae", "transcoder") else "linear",
            inputs=own.inputs,
            features=own.features,
            folder=own.folder,
            digest=own.digest,
            bytes_held=0 if self.held.arithmetic is None else own.bytes_held,
            error_term=own.error_term,
            why_not_edited=self.why_not_edited,
            missing=self.held.missing,
            note=self._note(),
        )

    def _note(self) -> str | None:
        """Return what its files say of the place where it was trained, where that is another than it reads."""
        trained = self.identity.form.trained_at
        if trained is None or _place(trained) in (None, self.at):
            return None
        return f"its files say that it was trained at {trained}"


class ModuleTable:
    """The added modules of an engine, and the bytes of their tensors in its budget. Used on its thread."""

    def __init__(self, budget: Budget) -> None:
        self._modules: dict[Key, AddedModule] = {}
        self._let_go: WeakValueDictionary[tuple[str | None, FilesKey], HeldModule] = WeakValueDictionary()
        self._budget, self.bytes_held = budget, 0
        budget.join(self, Part(name="modules", held=lambda: self.bytes_held, idle=lambda: 0, release=lambda: 0))

    def draw(self, size: int) -> None:
        """Draw bytes for tensors that come. Raises SlabFull."""
        self._budget.take(size, by=self)
        self.bytes_held += size

    def give_back(self, size: int) -> None:
        self._budget.give_back(size)
        self.bytes_held -= size

    def of(self, person: str | None) -> list[AddedModule]:
        """Return a person's modules in order of their sites."""
        found = [(key, one) for key, one in self._modules.items() if key[0] == person]
        return [one for _, one in sorted(found, key=lambda pair: pair[0][1:])]

    def bytes_of(self, person: str | None) -> int:
        """Return the bytes of the tensors of a person's modules."""
        return sum(one.identity.bytes_held for one in self.of(person) if one.held.arithmetic is not None)

    def new(self, person: str | None, identity: ModuleIdentity) -> AddedModule:
        """Return a module to be added. One that was removed, and that stops still refer to, is there for them again."""
        held = self._let_go.get((person, _of_files(identity)))
        return AddedModule(HeldModule(identity=identity) if held is None else held)

    def find(self, person: str | None, name: str, layer: int) -> AddedModule | None:
        return self._modules.get((person, name, layer))

    def put(self, person: str | None, module: AddedModule) -> None:
        """Add a module, or put it in the place of one of its site."""
        key = (person, module.identity.name, module.layer)
        if key not in self._modules and len(self.of(person)) >= MOST:
            raise UsageError(f"There are {MOST} added modules already, which is the limit: remove some.")
        self._modules[key] = module

    def take_out(self, person: str | None, module: AddedModule) -> None:
        """Forget a module, and let its tensors go. Taps that stops still have say that it was removed."""
        del self._modules[person, module.identity.name, module.layer]
        if module.held.arithmetic is not None:
            self.give_back(module.identity.bytes_held)
        self._let_go[person, _of_files(module.identity)] = module.held
        module.held.let_go(f"The module {module.site} was removed; add it again from {module.identity.folder}.")


@dataclass(frozen=True, slots=True)
class SeenModules:
    """The modules that a person's sessions see, and the adapters that they may compute with."""

    table: ModuleTable
    adapters: AdapterTable
    person: str | None = None

    def tap(self, site: Site, anatomy: Anatomy) -> Tap | None:
        """Return the tap of an added module's site; None where the site is none. Raises UnknownSite for a feature that
        it does not have."""
        if site.path is not None or site.layer is None or site.point in POINTS:
            return None
        module = self.table.find(self.person, site.point, site.layer)
        if module is None:
            return None
        tap = module.tap_at(anatomy.resolve(module.at))
        check_selector(site, tap)
        return tap


def _of_files(identity: ModuleIdentity) -> FilesKey:
    return identity.name, identity.at, identity.digest, identity.error_term


def point_of(name: str, at: str, anatomy: Anatomy, inputs: int) -> Tap:
    """Return the tap of the point that a module reads. Raises UsageError where it cannot, and UnknownSite."""
    if not NAME.fullmatch(name):
        raise UsageError(f"A module's name is of small letters, digits and _, such as sae; {name!r} is not.")
    site = parse_site(at)
    if site.path is not None or site.point not in LAYER_POINTS or site.selector is not None:
        raise UsageError(f"A module reads a point of one layer, such as resid_post.4; {at!r} is none.")
    point = anatomy.resolve(site)
    if name in POINTS or parse_site(f"{name}.{site.layer}") != Site(point=name, layer=site.layer):
        raise UsageError(f"{name!r} is the name of a point: choose another for the module, such as sae.")
    if any(one.path == f"{name}.{site.layer}" for one in anatomy.modules):
        raise UsageError(f"{name}.{site.layer} is a module of this model: choose another name, such as sae.")
    if not isinstance(point.layout, PositionLayout) or point.width is None or point.axes not in ("T D", "T H D"):
        raise UsageError(f"{site} is {point.axes}, which no module reads: it has to be one vector at each position.")
    width = point.width * (point.heads or 1)
    if inputs != width:
        raise UsageError(
            f"The module reads {inputs} numbers at each position, and {site} has {width}: it is of another model, or "
            "of another point."
        )
    return point


def _place(spelling: str) -> Site | None:
    """Return the site that another tool's name spells; None where it is none that is known here."""
    try:
        return parse_site(spelling)
    except UnknownSite:
        return None
