"""Names of journal files: a session's stem, then the number of the file, which increases."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

SUFFIX: Final = ".session"
_NAME: Final = re.compile(rf"(?P<stem>.+?)(\.(?P<number>[0-9]{{1,9}}))?{re.escape(SUFFIX)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalName:
    """Among the files of one `stem`, the one with the highest number that holds a whole image counts."""

    folder: Path
    stem: str
    number: int

    @property
    def path(self) -> Path:
        return self.folder / f"{self.stem}.{self.number}{SUFFIX}"

    def next(self) -> JournalName:
        return replace(self, number=self.number + 1)


def new_name(folder: Path) -> JournalName:
    """Return a name without a file yet: `next` gives the first."""
    return JournalName(folder=folder, stem=secrets.token_hex(8), number=-1)


def name_of(path: Path) -> JournalName:
    """Parse a file's name. A file without a number, which Djinn did not write, is the first of its stem."""
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return JournalName(folder=path.parent, stem=found["stem"], number=int(found["number"] or 0))


def by_session(paths: Iterable[Path]) -> list[list[Path]]:
    """Group the files by session, highest number first; sessions in the order in which they are met."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(name_of(path).stem, []).append(path)
    return [sorted(group, key=lambda path: -name_of(path).number) for group in groups.values()]
