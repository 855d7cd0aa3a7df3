"""Every kind of reading that is a table, as a table of pandas itself. `make peers` installs it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from tests.client import tables
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.engine.words import tokenizer
from tests.families import build
from tests.threads import one_thread

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("pandas") is None, reason="no pandas here: make peers"),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[RemoteEngine]:
    with one_thread(), reached(build_desk(build("llama", layers=3), tokenizer())) as [engine]:
        yield engine


@pytest.mark.parametrize("kind", tables.TABLES, ids=lambda kind: kind.__name__)
def test_a_table_has_the_columns_and_the_rows(engine: RemoteEngine, tmp_path: Path, kind: type) -> None:
    reading = tables.TABLES[kind](engine, tmp_path)
    found, frame = reading.columns(), reading.to_pandas()
    assert type(frame).__module__.startswith("pandas")
    assert list(frame.columns) == list(found)
    assert len(frame) == len(next(iter(found.values()))) > 0
    for name, column in found.items():
        assert all(map(tables.the_same, frame[name].tolist(), column)), name
