"""The methods that plug into the core: ours, each a folder of `methods/`, and those of other installed distributions,
found by their entry points. A module of a method is imported at its first use.

A stranger's method that cannot be imported, or that clashes with another, is left out, and `troubles` says why. In a
clash with one of ours, ours stays; of two strangers' methods that clash, neither is used.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType, ModuleType
from typing import Final, Literal

from djinn_jupyter._version import __version__

HERE: Final = "djinn_jupyter.methods"  # our package
DISTRIBUTION: Final = f"djinn-jupyter {__version__}"
METHODS: Final = "djinn_jupyter.methods"  # entry points, a method's name and its package
MAGICS: Final = "djinn_jupyter.magics"  # entry points, a magic's name and its module
NAME: Final = r"^[A-Za-z_][A-Za-z0-9_]*\Z"  # of a method
MOST_CHARACTERS: Final = 64  # of that module
MOST_SAID: Final = 300  # characters of an error in a sentence
Part = Literal["request", "engine", "engine.handlers", "api", "magic", "card"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A package with modules `request`, `engine`, `api`, `magic` and `card`, any of which may be absent. `distribution`
    is the name and version of the distribution that installed it."""

    name: str
    package: str
    distribution: str = DISTRIBUTION

    @property
    def is_ours(self) -> bool:
        return self.distribution == DISTRIBUTION

    def has(self, module: str) -> bool:
        """Return whether a module of this name is the method's package, or inside it."""
        return f"{module}.".startswith(f"{self.package}.")

    def __str__(self) -> str:
        return f"{self.name} ({self.package} of {self.distribution})"


def methods() -> tuple[Method, ...]:
    """Return the usable methods: ours by name, then strangers' by name."""
    return tuple(method for method in installed() if method not in _left_out())


def troubles() -> Mapping[Method, str]:
    """Return the methods that are left out, each with the reason and the remedy in a sentence."""
    installed()
    return MappingProxyType(_left_out())


def leave_out(method: Method, why: str) -> None:
    """Leave out a stranger's method. `why` continues the sentence `The method ... is left out, because`."""
    _left_out().setdefault(method, f"The method {method} is left out, because {why}, and begin the process anew.")


def ours() -> tuple[str, ...]:
    """Return the names of our methods: the folders beside `common`, which they share."""
    folder = str(Path(__file__).with_name("methods"))
    return tuple(one.name for one in iter_modules([folder]) if one.name != "common")


@cache
def installed() -> tuple[Method, ...]:
    """Return all methods, including those that are left out."""
    strangers = tuple(_method_of(point) for point in _points(METHODS))
    for method in strangers:
        if re.match(NAME, method.name) is None or len(method.name) > MOST_CHARACTERS:
            leave_out(method, f"its name is no identifier of at most {MOST_CHARACTERS} ASCII characters: uninstall it")
    found = (*(Method(name=name, package=f"{HERE}.{name}") for name in ours()), *strangers)
    claims = dict[str, list[Method]]()
    for method in found:
        claims.setdefault(method.name, []).append(method)
    refuse_clashes("name", claims)
    within = {method.package: [other for other in found if other.has(method.package)] for method in strangers}
    refuse_clashes("package", within, [package for package in within if package.split(".")[0] == "djinn_jupyter"])
    return found


@cache
def part(method: Method, name: Part) -> ModuleType | None:
    """Import a module of a method. Return None where the package has no such module, or where the import fails; a
    stranger's method is then left out."""
    try:
        spec = find_spec(f"{method.package}.{name}")
        return None if spec is None else import_module(spec.name)
    except BaseException as error:  # a stranger's module may raise anything
        if method.is_ours or isinstance(error, KeyboardInterrupt):
            raise
        leave_out(method, f"its {name!r} cannot be imported ({in_short(error)}): mend or uninstall it")
        return None


def magics(taken: Collection[str]) -> dict[str, str]:
    """Return the magics of strangers, each with its module, which is not imported. Methods whose magics are `taken` by
    ours, or claimed by two, are left out."""
    claims = dict[str, dict[Method, str]]()
    for point in _points(MAGICS):
        owner = next((one for one in installed() if one.has(point.value) and not one.is_ours), _method_of(point))
        claims.setdefault(point.name, {})[owner] = point.value
    refuse_clashes("magic", claims, taken)
    return {name: module for name, by in claims.items() for owner, module in by.items() if owner not in _left_out()}


def refuse_clashes(what: str, claims: Mapping[str, Collection[Method]], taken: Collection[str] = ()) -> None:
    """Leave out the strangers' methods that claim the same name, or one that is `taken` by the core or by ours."""
    for name, claiming in claims.items():
        core = [DISTRIBUTION] if name in taken else []
        for method in claiming:
            others = [*core, *(str(other) for other in claiming if other != method)]
            if others and not method.is_ours:
                leave_out(method, f"its {what} {name!r} is also that of {' and '.join(others)}: uninstall one of them")


@cache
def _left_out() -> dict[Method, str]:
    """Return the methods that are left out in this process so far."""
    return {}


def _points(group: str) -> list[EntryPoint]:
    return sorted((one for one in _all_points() if one.group == group), key=lambda point: (point.name, point.value))


@cache
def _all_points() -> tuple[EntryPoint, ...]:
    """Return our entry points of all distributions; reading them takes 8 ms."""
    found = entry_points()
    return (*found.select(group=METHODS), *found.select(group=MAGICS))


def _method_of(point: EntryPoint) -> Method:
    distribution = "an unnamed distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return Method(name=point.name, package=point.value, distribution=distribution)


def in_short(error: BaseException) -> str:
    """Return kind and first line of an error, shortened."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:MOST_SAID]}" if said else type(error).__name__
