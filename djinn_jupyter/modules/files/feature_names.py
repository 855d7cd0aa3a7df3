"""Names of features in a file: Neuronpedia's export of explanations, or an index and a name in each row.

Forms: lines of JSON objects, a JSON list of them (also inside an object), a JSON object of index to name, a table
(.csv, .tsv); each also compressed by gzip. A folder has Neuronpedia's batches, such as `batch-0.jsonl.gz`. Lines are
read one by one. A file has at most MOST_BYTES of text, and MOST_WHOLE in a line or where JSON is read as a whole.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec

from djinn_jupyter.errors import UsageError
from djinn_jupyter.files import open_plain
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.texts import in_quotes, natural_order, sendable

MOST_BYTES: Final = 2**30  # decompressed
MOST_WHOLE: Final = 2**28
LONGEST: Final = 500  # characters of a name; a longer one is cut
INDEX: Final = ("index", "feature", "feature_id")
NAME: Final = ("description", "name", "label", "explanation")
GZIP: Final = b"\x1f\x8b"
TABLES: Final = {".csv": ",", ".tsv": "\t"}  # the mark between two cells, by the ending of a name
Row = tuple[str, Mapping[str, Any]]  # its place in the file, and its fields


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesRead:
    """The names of a file by feature, the models that its rows mention, and how many names were cut."""

    names: dict[int, str]
    models: tuple[str, ...]
    cut: int


def read_names(path: Path, features: int, layer: int) -> NamesRead:
    """Return the names in a file, or in a folder's files, for a module with so many features in that layer. Of several
    names of a feature the first counts; rows without a name are left out. UsageError, with the place in the file."""
    names: dict[int, str] = {}
    models: dict[str, None] = {}
    cut = 0
    for where, row in _rows_of(path):
        index, name = _index(where, row, features), _name(where, row)
        _require_layer(where, row, layer)
        if isinstance(row.get("modelId"), str):
            models[row["modelId"]] = None
        if name and index not in names:
            names[index] = shortened(name)
            cut += len(name) > LONGEST
    if not names:
        raise UsageError(f"{path} has no name of a feature: {EXPECTED}.")
    return NamesRead(names=names, models=tuple(models), cut=cut)


EXPECTED: Final = (
    'each line is an object such as {"index": 436, "description": "capitals"} (Neuronpedia\'s export of explanations), '
    "or the file is a list of these, an object of index to name, or a .csv of index and name"
)


def shortened(name: str) -> str:
    """Return a name as it is kept."""
    whole = sendable(name.strip(), len(name) + 1)
    return whole if len(whole) <= LONGEST else f"{whole[: LONGEST - 1]}\u2026"


def _rows_of(path: Path) -> Iterator[Row]:
    if path.is_dir():
        batches = sorted(
            (one for one in path.iterdir() if ".jsonl" in one.suffixes), key=lambda one: natural_order(one.name)
        )
        if not batches:
            raise UsageError(f"{path} has no file of names, such as batch-0.jsonl.gz of Neuronpedia.")
        return chain.from_iterable(map(_rows_in, batches))
    return _rows_in(path)


def _rows_in(path: Path) -> Iterator[Row]:
    try:
        with open_plain(path) as file:
            packed = file.read(len(GZIP)) == GZIP
            file.seek(0)
            lines = _lines(path, cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file)
            mark = TABLES.get(Path(path.name.removesuffix(".gz")).suffix)
            yield from _of_json(path, lines) if mark is None else _of_table(path, lines, mark)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not blank."""
    read = number = 0
    while line := file.readline(MOST_WHOLE + 1):
        read, number = read + len(line), number + 1
        if len(line) > MOST_WHOLE:
            raise UsageError(f"{path}, line {number}: it has more than {spell_bytes(MOST_WHOLE)}.")
        if read > MOST_BYTES:
            raise UsageError(f"{path} has more than {spell_bytes(MOST_BYTES)} of text: it is no file of names.")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"{path}, line {number}: it is not UTF-8.") from None
        if text.strip():
            yield number, text


def _of_table(path: Path, lines: Iterable[tuple[int, str]], mark: str) -> Iterator[Row]:
    """Yield the rows of a table, whose first row may name the columns; by default index and name."""
    read = csv.reader((text for _, text in lines), delimiter=mark)
    columns: tuple[str, ...] = (INDEX[0], NAME[0])
    try:
        for number, cells in enumerate(read, 1):
            if number == 1 and not cells[0].strip().isdecimal():
                columns = tuple(one.strip() for one in cells)
            else:
                yield f"{path}, row {number}", dict(zip(columns, cells, strict=False))
    except csv.Error as error:
        raise UsageError(f"{path} is no table of names: {error}.") from None


def _of_json(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
    """Yield the rows of JSON, by line or as a whole."""
    number, first = next(lines, (0, ""))
    if not number:
        return
    if ".jsonl" not in path.suffixes and not _is_row(first):
        yield from _of_whole(path, _joined(path, first, lines))
        return
    for at, text in chain([(number, first)], lines):
        try:
            row = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(f"{path}, line {at}: it is no JSON ({error}).") from None
        yield _row(f"{path}, line {at}", row)


def _joined(path: Path, first: str, lines: Iterator[tuple[int, str]]) -> str:
    parts, length = [first], len(first)
    for _, text in lines:
        parts.append(text)
        length += len(text)
        if length > MOST_WHOLE:
            raise UsageError(f"{path} has more than {spell_bytes(MOST_WHOLE)} of JSON: write one object in each line.")
    return "".join(parts)


def _is_row(text: str) -> bool:
    """True where a line is an object with an index."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(found, dict) and any(one in found for one in INDEX)


def _of_whole(path: Path, text: str) -> Iterator[Row]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no file of names ({error}): {EXPECTED}.") from None
    if isinstance(found, dict):
        inside = next((found[one] for one in ("explanations", "names") if isinstance(found.get(one), list)), None)
        if inside is None:
            yield from ((f"{path}, {in_quotes(key)}", {"index": key, "name": name}) for key, name in found.items())
            return
        found = inside
    if not isinstance(found, list):
        raise UsageError(f"{path} is no file of names: {EXPECTED}.")
    yield from (_row(f"{path}, entry {number}", one) for number, one in enumerate(found, 1))


def _row(where: str, found: Any) -> Row:
    if not isinstance(found, dict):
        raise UsageError(f"{where}: it is no object with an index and a name.")
    return where, found


def _index(where: str, row: Mapping[str, Any], features: int) -> int:
    given = next((row[one] for one in INDEX if one in row), None)
    index = int(given) if isinstance(given, str) and re.fullmatch(r"\s*\d{1,18}\s*", given, re.ASCII) else given
    if not isinstance(index, int) or isinstance(index, bool):
        raise UsageError(f"{where}: it has no index of a feature; {EXPECTED}.")
    if not 0 <= index < features:
        raise UsageError(f"{where}: the module has {features:,} features, from 0, and no feature {index}.")
    return index


def _name(where: str, row: Mapping[str, Any]) -> str:
    """Return the name in a row; empty for none."""
    given = next((row[one] for one in NAME if one in row), None)
    if given is None and not any(one in row for one in NAME):
        raise UsageError(f"{where}: it has no {', '.join(NAME[:-1])} or {NAME[-1]}.")
    if not isinstance(given, str | None):
        raise UsageError(f"{where}: the name is no text.")
    return (given or "").strip()


def _require_layer(where: str, row: Mapping[str, Any], layer: int) -> None:
    """Raise UsageError where a row says that it is of another layer, as `4-res-jb` of Neuronpedia does."""
    said = re.match(r"\d+", str(row.get("layer", "")), re.ASCII)
    if said is not None and int(said[0][:9]) != layer:
        raise UsageError(
            f"{where}: it is of layer {in_quotes(str(row['layer']))}, and the module is in layer {layer}. If the "
            "features are the same, leave `layer` out of the file."
        )
