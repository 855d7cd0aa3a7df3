"""The names of features, on the client's side. The engine knows none.

A name belongs to a module's files: it is kept by their digest, in one file among this user's data. So all notebooks see
it, after a restart of the kernel or of the engine too, and no recipe or number depends on it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_data_dir

from djinn_jupyter.errors import DjinnError, UnknownSite
from djinn_jupyter.files import told_of_disk
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.wire import own
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.registry import FOLDER
from djinn_jupyter.wire.sites import POINTS, Site, parse_site
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
log = logging.getLogger(__name__)
Names = Mapping[str, str]
"""Names by the spelling of one feature: `sae.4[436]`."""
NAMELESS: Final[Names] = {}


def labelled(site: str, names: Names, longest: int = LABEL) -> str:
    """Return a site with the names of its features, as a list or a title shows it: `sae.4[436] 'capitals'`. A name is
    cut to the `longest` number of characters."""
    found = [names[one] for one in _each(site) if one in names]
    return site if not found else f"{site} {', '.join(in_quotes(cut(one, longest)) for one in found)}"


def cut(name: str, longest: int = LABEL) -> str:
    """Return a name that is shown beside others: on one line, and without its end where it is longer."""
    line = " ".join(name.split())
    return line if len(line) <= longest else f"{line[: longest - 1].rstrip()}\u2026"


def names_of(channel: Channel, sites: Iterable[str]) -> dict[str, str]:
    """Return the names of the features at these sites; empty, without asking the engine, where none is of an added
    module. A display goes without names where they cannot be read."""
    wanted = [site for site in sites if any(True for _ in _each(site))]
    if not wanted or not _path().exists():
        return {}
    try:
        there = ask_for(channel, ask.ListAddedModules()).modules
    except DjinnError as error:
        log.warning("names of features: %s", error)
        return {}
    return names_in({one.site: one.digest for one in there}, wanted)


def names_in(digests: Mapping[str, str], sites: Iterable[str]) -> dict[str, str]:
    """Return the names of the features at these sites, of modules with these digests by their sites; empty where they
    cannot be read."""
    features: dict[str, dict[int, str]] = {}
    for site in sites:
        for one in _each(site):
            whole, _, number = one.partition("[")
            features.setdefault(whole, {})[int(number[:-1])] = one
    found: dict[str, str] = {}
    try:
        for module in features.keys() & digests.keys() if _path().exists() else ():
            found |= {features[module][at]: name for at, name in read(digests[module], features[module]).items()}
    except DjinnError as error:
        log.warning("names of features: %s", error)
    return found


def may_be_added(site: Site) -> bool:
    """Return whether a site is spelled as one of an added module."""
    return site.point not in POINTS and site.path is None and site.layer is not None


def _each(site: str) -> Iterator[str]:
    """Yield the spelling of each feature that a site of an added module selects."""
    if "[" not in site:
        return
    try:
        found = parse_site(site)
    except UnknownSite:
        return
    if may_be_added(found):
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
