"""Files of results with another entry somewhere in their text: each is read, or refused in one sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from djinn_jupyter.api.likeness import passes_of
from djinn_jupyter.api.reproducing import kinds
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.looks import FedTokens
from tests.client import crafted
from tests.client.fixtures import write as before

FOLDER: Final = before.HERE / "79ba2cba"
FILES: Final = {path.name: path for path in sorted(FOLDER.glob("*.djinn"))}
OTHERS: Final[tuple[Any, ...]] = (None, [], {}, "x", -1, 0, 3, 2**62, 1e308, True, [[]], [-1], ["embed"])
TRIES: Final = 60  # of each file, drawn by a seed; all of its fields are among them by their last names


def places(told: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the entries of a text are."""
    if isinstance(told, dict | list):
        for at, one in told.items() if isinstance(told, dict) else enumerate(told):
            yield (*path, at)
            yield from places(one, (*path, at))


def changed(told: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Return the text with another entry at a place; without one where it is `...`."""
    made = json.loads(json.dumps(told))
    inner = made
    for at in path[:-1]:
        inner = inner[at]
    if other is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = other
    return made


def drawn(told: Any, name: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield changes of a text: each field by its name once, then places by a seed."""
    draw, each = random.Random(name), [*places(told)]
    by_name = {path[-1]: path for path in each if isinstance(path[-1], str)}
    for path in by_name.values():
        yield path, ...
        yield path, draw.choice(OTHERS)
    for _ in range(TRIES):
        yield draw.choice(each), draw.choice((..., *OTHERS))


def refusal(name: str, file: Path, head: dict[str, Any], body: bytes, told: Any) -> str | None:
    """Return what is said to a file with this text; None where it is read."""
    crafted.put_told(file, head, body, told)
    kind: Any = next(kind for ending, kind in kinds().items() if name.endswith(ending))
    try:
        kind.read(file)
    except UsageError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("field", "other"), [("each", 0), ("start", -1)])
def test_passes_that_come_to_no_end_are_refused(tmp_path: Path, field: str, other: int) -> None:
    head, body = crafted.parts(FILES["Watched.watched.djinn"])
    told = crafted.told(head)
    place = next(path for path in places(told) if path[-1] == field)
    said = refusal("a.watched.djinn", tmp_path / "a.watched.djinn", head, body, changed(told, place, other))
    assert said is not None
    assert f".{field}`" in said


def test_passes_beyond_their_line_are_refused_before_any_is_fed() -> None:
    with pytest.raises(UsageError, match="its passes go beyond its line"):
        next(passes_of((5, 6), (FedTokens(start=0, end=2, each=2), FedTokens(start=2, end=2**60, each=1))))


@pytest.mark.parametrize("name", FILES)
def test_a_crafted_result_is_read_or_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    head, body = crafted.parts(FILES[name])
    told = crafted.told(head)
    assert refusal(name, tmp_path / name, head, body, told) is None
    assert "engine" in str(refusal(name, tmp_path / name, head, body, {**told, "engine": "demo-1"}))
    each = [(place, refusal(name, tmp_path / name, head, body, changed(told, *place))) for place in drawn(told, name)]
    refused = [(place, said) for place, said in each if said is not None]
    assert [(place, said) for place, said in refused if not said.startswith(name) or "\n" in said] == []
    assert len(refused) > TRIES / 4
