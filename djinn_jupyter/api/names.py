"""The names of features, on the client's side. The engine knows none.

A name belongs to a module's files: it is kept by their digest, in one file among this user's data. So all notebooks see
it, after a restart of the kernel or of the engine too, and no recipe or number depends on it.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_data_dir

from djinn_jupyter.errors import DjinnError, UnknownSite
from djinn_jupyter.files import told_of_disk
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.wire import own
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.modules import ModuleIdentity
from djinn_jupyter.wire.registry import FOLDER
from djinn_jupyter.wire.sites import POINTS, parse_site
from djinn_jupyter.wire.texts import in_quotes

FILE: Final = "feature_names.sqlite"
TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS names (digest TEXT, feature INTEGER, name TEXT, PRIMARY KEY (digest, feature)) "
    "WITHOUT ROWID"
)
SECONDS: Final = 10.0  # to wait for another notebook that writes
LARGEST: Final = 2**63  # a file may have a site with any number; SQLite has none from this on
AT_ONCE: Final = 500  # features of a query
LABEL: Final = 60  # characters of a name beside its feature
MOST: Final = 8  # names beside a site
log = logging.getLogger(__name__)
Names = Mapping[str, str]
"""Names by the spelling of one feature: `sae.4[436]`."""
Digests = Callable[[], Mapping[str, str]]
"""Reads the digests of added modules by their sites."""
# A feature's site where the engine spells one, also within the words of a rule or an edit; texts in quotes are skipped.
_SITES: Final = re.compile(r"\"[^\"]*\"|'[^']*'|(?<![\w.])(?P<site>[a-z_][a-z0-9_]*\.\d+\[[-\d:, ]+\])")


class _Known:
    """The names of features, each read once, when it is first shown."""

    def __init__(self, digests: Digests) -> None:
        self._digests = cache(digests)
        self._found: dict[str, str | None] = {}

    def names(self, features: Sequence[str]) -> Names:
        """Return the names of these features, given as sites."""
        missing = [one for one in features if one not in self._found]
        read = names_in(self._digests, missing)
        self._found |= {one: read.get(one) for one in missing}
        return {one: name for one in features if (name := self._found[one]) is not None}


_known: ContextVar[_Known | None] = ContextVar("names of features", default=None)


@contextmanager
def naming(digests: Digests | None) -> Iterator[None]:
    """Label features within the block with their names, those of modules with these digests; by None as outside."""
    token = None if digests is None else _known.set(_Known(digests))
    try:
        yield
    finally:
        if token is not None:
            _known.reset(token)


def _names(features: Sequence[str]) -> Names:
    """Return the names of these features, given as sites, in the present block."""
    known = _known.get()
    return {} if known is None else known.names(features)


def digests_of(channel: Channel) -> Digests:
    """Return what reads the digests of an engine's modules."""
    return lambda: {one.site: one.digest for one in ask_for(channel, ask.ListAddedModules()).modules}


def digests_in(modules: Sequence[ModuleIdentity]) -> Digests | None:
    """Return what reads the digests of the modules that a result was made with; None for none."""
    return (lambda: {f"{one.name}.{parse_site(one.at).layer}": one.digest for one in modules}) if modules else None


def labelled(text: str, names: Names | None = None, longest: int = LABEL) -> str:
    """Return a site, or the words of a rule or an edit, with the name of each feature behind it, as a list or a title
    shows it: `sae.4[436] 'capitals'`. A name is cut to the `longest` number of characters. The names are those of
    `naming` unless given."""
    sites = {one["site"]: list(_each(one["site"])) for one in _SITES.finditer(text) if one["site"]}
    if not sites:
        return text
    known = _names([*chain(*sites.values())]) if names is None else names
    return _SITES.sub(lambda one: f"{one[0]}{_named(sites.get(one['site'], ()), known, longest)}", text)


def _named(features: Iterable[str], names: Names, longest: int) -> str:
    """Spell the names of features as they stand behind their site; empty where none has a name."""
    found = [in_quotes(cut(names[one], longest)) for one in features if one in names]
    more = f" and {len(found) - MOST:,} more" if len(found) > MOST else ""
    return f" {', '.join(found[:MOST])}{more}" if found else ""


def labelled_numbers(module: str, features: Sequence[object], longest: int = LABEL) -> list[str]:
    """Return features of the module at a site by their numbers and names: `436 'capitals'`."""
    sites = [f"{module}[{feature}]" for feature in features]
    known = _names(sites)
    return [f"{feature}{_named([site], known, longest)}" for feature, site in zip(features, sites, strict=True)]


def cut(name: str, longest: int = LABEL) -> str:
    """Return a name that is shown beside others: on one line, and without its end where it is longer."""
    line = " ".join(name.split())
    return line if len(line) <= longest else f"{line[: longest - 1].rstrip()}\u2026"


def names_in(digests: Digests, sites: Iterable[str]) -> dict[str, str]:
    """Return the names of the features at these sites; empty, without reading the digests, where none is of an added
    module. A display goes without names where they cannot be read."""
    features: dict[str, dict[int, str]] = {}
    for site in sites if _path().exists() else ():
        for one in _each(site):
            whole, _, number = one.partition("[")
            features.setdefault(whole, {})[int(number[:-1])] = one
    found: dict[str, str] = {}
    try:
        there = digests() if features else {}
        for module in features.keys() & there.keys():
            found |= {features[module][at]: name for at, name in read(there[module], features[module]).items()}
    except DjinnError as error:
        log.warning("names of features: %s", error)
    return found


def _each(site: str) -> Iterator[str]:
    """Yield the spelling of each feature that a site of an added module selects."""
    if "[" not in site:
        return
    try:
        found = parse_site(site)
    except UnknownSite:
        return
    if found.point not in POINTS and found.path is None and found.layer is not None:
        yield from (f"{found.whole()}[{feature}]" for feature in found.selector or ())


# The file of all names. Several notebooks may read and write at once.


def _path() -> Path:
    return Path(jupyter_data_dir()) / FOLDER / FILE


@contextmanager
def _opened(what: str) -> Iterator[sqlite3.Connection]:
    """Yield the file, whose changes in this block are all kept, or none where it raises."""
    path = own.make_own_folder(_path().parent) / FILE
    with told_of_disk(f"{path} {what}", "No name was changed.", (OSError, sqlite3.Error)):
        with closing(sqlite3.connect(path, timeout=SECONDS)) as file, file:
            file.execute(TABLE)
            yield file


def write(digest: str, names: Mapping[int, str]) -> None:
    """Keep names of features; an empty one removes what a feature had."""
    with _opened("cannot be written") as file:
        file.executemany("DELETE FROM names WHERE digest = ? AND feature = ?", [(digest, one) for one in names])
        kept = [(digest, feature, name) for feature, name in names.items() if name]
        file.executemany("INSERT INTO names VALUES (?, ?, ?)", kept)


def read(digest: str, features: Iterable[int] | None = None) -> dict[int, str]:
    """Return the names of a module's features in order, of all or of some."""
    with _opened("cannot be read") as file:
        if features is None:
            return dict(file.execute("SELECT feature, name FROM names WHERE digest = ? ORDER BY feature", (digest,)))
        wanted = sorted(one for one in features if one < LARGEST)
        found: dict[int, str] = {}
        for start in range(0, len(wanted), AT_ONCE):
            some = wanted[start : start + AT_ONCE]
            marks = ",".join("?" * len(some))
            query = f"SELECT feature, name FROM names WHERE digest = ? AND feature IN ({marks})"
            found.update(file.execute(query, (digest, *some)))
        return found
