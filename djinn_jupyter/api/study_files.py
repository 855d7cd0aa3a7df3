"""The zip file of a study.

    study.json             its name and versions; of each item the title, kind, note, text, model, and digests
    index.html             everything as a page that loads nothing
    items/001.grid.djinn   a result, in its own kind of file
    items/001.html         its card

No part is compressed, so no part is larger than the file, and equal studies have equal bytes. The zip file's comment,
its last 64 bytes, is the digest of all bytes before. Knows no kind of item.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import zipfile
from collections.abc import Mapping
from io import BytesIO
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from djinn_jupyter._version import __version__
from djinn_jupyter.api import arguments
from djinn_jupyter.api.result_files import FAULTS
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.texts import require_showable

FORMAT: Final = 1
MANIFEST, PAGE, ITEMS = "study.json", "index.html", "items"
CARD: Final = "html"
LONGEST: Final = 200  # characters of a name or a title
LONGEST_NOTE: Final = 100_000
DIGEST: Final = 64  # characters
ZIP_FAULTS: Final = (*FAULTS, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError)
LIVE: Final = re.compile(  # what no card of ours has, and no policy of the page keeps from leading elsewhere
    rb"<\s*(?:(?:base|embed|form|frame|iframe|link|object|script)\b"
    rb"|meta\b(?! (?:charset|name)=\"[\w-]*\"(?: content=\"[\w =-]*\")?>"
    rb"| http-equiv=\"Content-Security-Policy\" content=\"[^\"<>]*\">))",
    re.IGNORECASE,
)

Title = Annotated[str, Meta(min_length=1, max_length=LONGEST)]
Digest = Annotated[str, Meta(pattern=rf"^[0-9a-f]{{{DIGEST}}}\Z")]
Part = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*\Z", max_length=100)]
"""The name of a part of an item without its number: `html`, or the ending of a result's file."""


class DescribedItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item as study.json has it. `unmade` says why nothing computes it again."""

    title: Title
    kind: Title
    note: Annotated[str, Meta(max_length=LONGEST_NOTE)] = ""
    text: Annotated[str, Meta(max_length=LONGEST_NOTE)] = ""
    by: Provenance | None = None
    unmade: str = ""
    parts: dict[Part, Digest] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int = FORMAT
    version: Title = __version__
    name: Title
    page: Digest
    items: tuple[DescribedItem, ...]


def showable(text: str, what: str) -> str:
    """Return a name. Raises UsageError for an empty or long one, and for characters that are obeyed, not shown."""
    require_showable(text, what)
    if not text.strip() or len(text) > LONGEST:
        raise UsageError(f"{what} has 1 to {LONGEST} characters, not {len(text):,}.")
    return text


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def member_of(number: int, part: str) -> str:
    """Return the name of a part of an item in the file."""
    return f"{ITEMS}/{number:03}.{part}"


def zipped(members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a zip file with these members: the same bytes for the same members."""
    into = BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as file:
        for name, data in members.items():
            one = zipfile.ZipInfo(name)  # of 1980
            one.create_system, one.external_attr = 3, 0o644 << 16
            file.writestr(one, data)
        file.comment = bytes(DIGEST)
    data = into.getvalue()[:-DIGEST]
    return data + sha(data).encode()


def opened(data: bytes, name: str) -> tuple[Manifest, dict[str, bytes]]:
    """Return study.json and the members of a file. Raises UsageError, with the reason, where it is no study."""
    if data[-DIGEST:] != sha(data[:-DIGEST]).encode():
        raise UsageError(f"{name} is no study as Djinn wrote it: it is damaged, truncated or another file.")
    try:
        members = _unzipped(data)
        number = json.loads(members[MANIFEST])["format"]
        if number != FORMAT:
            newer = f"Djinn {__version__} reads format {FORMAT}: upgrade Djinn to read it."
            raise UsageError(f"{name} has format {arguments.shown(number)}, and {newer}")
        return _required(members), members
    except ZIP_FAULTS as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{name} is no study that Djinn {__version__} wrote: {said.rstrip('.')}.") from None


def _unzipped(data: bytes) -> dict[str, bytes]:
    """Return the members. Raises ValueError where some are compressed or links, share bytes or names, and the
    library's errors."""
    with zipfile.ZipFile(BytesIO(data)) as file:
        each = file.infolist()
        if any(one.compress_type != zipfile.ZIP_STORED for one in each):
            raise ValueError("it has compressed parts")
        if any(stat.S_IFMT(one.external_attr >> 16) not in (0, stat.S_IFREG) for one in each):
            raise ValueError("it has parts that are no files")
        if sum(one.file_size for one in each) > len(data) or len({one.filename for one in each}) < len(each):
            raise ValueError("its parts share bytes or names")
        return {one.filename: file.read(one) for one in each}


def _required(members: Mapping[str, bytes]) -> Manifest:
    """Return study.json. Raises ValueError where its items are not the members."""
    told = msgspec.json.decode(members[MANIFEST], type=Manifest)
    digests = {member_of(number, part): sha for number, one in enumerate(told.items) for part, sha in one.parts.items()}
    digests[PAGE] = told.page
    if digests.keys() | {MANIFEST} != members.keys():
        raise ValueError("its parts are not those of its items")
    wrong = next((name for name, digest in digests.items() if sha(members[name]) != digest), None)
    if wrong is not None:
        raise ValueError(f"{wrong} is not what was written")
    live = next((name for name in digests if name.endswith(f".{CARD}") and LIVE.search(members[name])), None)
    if live is not None:
        raise ValueError(f"{live} has live elements")
    titles = [one.title for one in told.items]
    if len(set(titles)) < len(titles):
        raise ValueError("two items have one title")
    for text in (told.name, *titles, *(one.kind for one in told.items)):
        try:
            showable(text, "a name")
        except UsageError as error:
            raise ValueError(str(error)) from None
    return told
