"""A new kind of result says what its numbers are and of which request: its file, table, recipe, display and the same
computed again are those of every result."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

import djinn_jupyter as dj
from djinn_jupyter.api import reproducing
from djinn_jupyter.api.arrays import to_numpy
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.likeness import temporary_session
from djinn_jupyter.api.result import Result
from djinn_jupyter.link.channel import ask_for
from djinn_jupyter.methods.heads.request import HeadsRead, ReadHeads

LINE = (9, 8, 7, 21, 9)


class Seen(Result):
    """The scores of all heads, as any method might read them."""

    ending = ".seen.djinn"
    named = "file of what was seen"
    reply: HeadsRead
    request: ReadHeads

    def __post_init__(self) -> None:
        self.values = to_numpy(self.reply.scores)


def seen(engine: RemoteEngine) -> Seen:
    with temporary_session(engine.channel, "seen") as name:
        request = ReadHeads(session=name, lines=(LINE,))
        return Seen(ask_for(engine.channel, request), request)


def test_it_is_kept_and_computed_again(engine: RemoteEngine, tmp_path: Path) -> None:
    found = seen(engine)
    file = found.save(tmp_path / "a.seen.djinn")
    read = Seen.read(file)
    assert read.values.tobytes() == found.values.tobytes() == load_file(file)["scores"].tobytes()
    assert (read.recipe, read.recipe["by"]["model"]) == (found.recipe, "tiny")
    again = dj.reproduce(engine, read)
    assert (again.same, repr(again)) == (True, f"The same bits: {found.values.size} values of Seen.")
    read.values[1, 0, 2] += 1
    assert dj.reproduce(engine, read).place == {"axis 0": 1, "axis 1": 0, "axis 2": 2}
    assert engine.sessions() == ()


def test_its_ending_may_be_a_word_and_is_not_taken_by_a_shorter_one(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = seen(engine).save(tmp_path / "a.seen.djinn")
    monkeypatch.setattr(reproducing, "kinds", lambda: {".djinn": dj.HeadScores, ".seen.djinn": Seen})
    assert dj.reproduce(engine, file).same
    # IndexError before.
    monkeypatch.setattr(Seen, "ending", "seen")
    assert dj.reproduce(engine, seen(engine)).same


def test_it_is_a_table_and_shows_itself(engine: RemoteEngine) -> None:
    found = seen(engine)
    table = found.columns()
    assert list(table) == ["axis 0", "axis 1", "axis 2", "value"]
    assert table["value"] == found.values.reshape(-1).tolist()
    *place, largest = found.top(1)[0]
    assert found.values[tuple(place)] == largest == found.values.max()
    shown = found._repr_mimebundle_()
    assert shown["text/plain"] == repr(found)
    assert shown["text/html"].count("axis 0") == 1  # the table, and not its text besides
