"""A journal and a checkpoint keep a session's adapter by path and digest, and go on with it bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.errors import CheckpointRefused, UsageError
from djinn_jupyter.wire import requests as ask
from tests import adapters
from tests.engine.adapters.adapting import add, drawn, let_go, request, use
from tests.engine.desk import Desk, tokens
from tests.engine.persistence.crashes import crashed, died, journal, pair_with_journal, written
from tests.engine.persistence.roundtrip import carry, future, reading, same

PROMPT = tokens(12)
Pair = tuple[Desk, Desk]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_with_journal(tmp_path, let_go) as pair:
        yield pair


def begin(desk: Desk, folder: Path) -> None:
    """Stop inside a pass of a session that computes with the adapter."""
    add(desk, folder)
    use(desk, "a")
    desk.stop_at("resid_post.2")
    desk.run(PROMPT, 3)
    desk.resume()
    desk.edit()


def test_an_engine_that_died_comes_back_with_the_adapter(pair: Pair, tmp_path: Path) -> None:
    one, other = pair
    begin(one, adapters.saved(tmp_path / "sql", drawn(one)))
    died(one, other, tmp_path)
    (kept,) = other.ask(ask.ListAdapters()).adapters
    assert (kept.name, kept.missing, kept.sessions) == ("sql", None, ("a",))
    assert same(reading(one), reading(other))
    assert same(future(one), future(other))


LOSSES: dict[str, Any] = {
    "is gone": lambda folder, desk: shutil.rmtree(folder),
    "is another": lambda folder, desk: adapters.saved(folder, drawn(desk, seed=9)),
    "is cut short": lambda folder, desk: (folder / "adapter_model.safetensors").write_bytes(b"short"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_session_says_that_its_adapter_is_missing_and_goes_on_with_it(pair: Pair, tmp_path: Path, loss: str) -> None:
    one, other = pair
    folder = adapters.saved(tmp_path / "sql", drawn(one))
    begin(one, folder)
    shutil.copytree(folder, tmp_path / "copy")
    LOSSES[loss](folder, one)
    died(one, other, tmp_path)
    (kept,) = other.ask(ask.ListAdapters()).adapters
    assert kept.missing is not None
    assert f"Add it again (%djinn_add_adapter sql {folder})." in kept.missing
    before = other.describe()
    for verb in (other.resume, other.step, lambda: other.run(PROMPT, 1)):
        with pytest.raises(UsageError, match="The adapter sql, which this session was kept with, is not there"):
            verb()
    assert other.describe().stopped_at == before.stopped_at == "resid_post.2"
    assert not add(other, tmp_path / "copy").existed
    assert same(reading(one), reading(other))
    assert same(future(one), future(other))


def test_a_persons_folder_is_not_read_by_the_engine(pair: Pair, tmp_path: Path) -> None:
    one, other = pair
    anna = Holder(name="kernel", user="anna", person="anna")
    folder = adapters.saved(tmp_path / "sql", drawn(one))
    for desk in (one, other):
        desk.engine.ask(ask.Open(session="anna@main"), anna)
    one.engine.ask(request(folder, session="anna@main"), anna)
    one.engine.ask(ask.SetAdapter(session="anna@main", adapter="sql"), anna)
    other.close_all()
    written(one)
    journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))
    (kept,) = other.engine.ask(ask.ListAdapters(), anna).adapters
    assert "Its folder lies on the machine of its person." in (kept.missing or "")
    for desk in (one, other):
        desk.close("anna@main")
        desk.engine.ask(ask.RemoveAdapter(name="sql"), anna)


def test_a_checkpoint_finds_its_adapter_where_it_is_restored(pair: Pair, tmp_path: Path) -> None:
    one, other = pair
    begin(one, adapters.saved(tmp_path / "sql", drawn(one)))
    other.open()
    carry(one, other)
    assert other.describe().adapter == "sql"
    assert same(future(one), future(other))
    other.close_all()
    let_go(other)
    add(other, adapters.saved(tmp_path / "another", drawn(one, seed=3)))
    with pytest.raises(CheckpointRefused, match="There is another adapter sql already"):
        carry(one, other)
    assert "a" not in other.engine.sessions
