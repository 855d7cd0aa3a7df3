"""What each request is answered by, and on which terms it is asked and done: a table of its own, so that no right, rule
or need changes unseen where a class line does."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, Final

import pytest

from djinn_jupyter.wire import kinds
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Cleared
from tests.census.recorded import CONVERSATION, MESSAGES, read

TABLE: Final = Path(__file__).parent / "declared.txt"


def replies_to(kind: Any) -> list[str]:
    return [one.__name__ for one in typing.get_args(kind.answered_by) or (kind.answered_by,)]


def row(kind: Any) -> str:
    terms = f": {kind.terms}" if str(kind.terms) else ""
    return f"{kind.__name__} -> {', '.join(replies_to(kind))}{terms}"


def test_every_request_is_declared_as_the_table_says() -> None:
    assert sorted(map(row, kinds.known().requests)) == sorted(TABLE.read_text(encoding="utf-8").splitlines())


def test_every_recorded_reply_is_one_that_the_request_declares() -> None:
    named = {kind.__name__: kind for kind in kinds.known().requests}
    for one in (*read(MESSAGES), *read(CONVERSATION)):
        assert one.answered_by in {"Failed", "InPieces"} or one.answered_by in replies_to(named[one.kind]), one.kind


def test_what_is_answered_during_a_run_touches_no_rows_and_what_is_done_anew_changes_nothing() -> None:
    running = [kind.terms for kind in kinds.known().requests if kind.terms.while_running]
    assert all(terms.while_away and terms.without_rows for terms in running)
    assert not any(kind.terms.changes for kind in kinds.known().requests if kind.terms.resent == "anew")


def test_what_a_request_makes_or_saves_is_a_field_of_its_own() -> None:
    named = [
        (kind, field)
        for kind in kinds.known().requests
        for field in (kind.terms.makes, kind.terms.saves)
        if field is not None
    ]
    assert all(field in kind.__struct_fields__ for kind, field in named)
    assert ask.Fork(session="a", name="b").made == ask.Open(session="b").made == "b"


def test_terms_without_a_reply_are_refused() -> None:
    with pytest.raises(TypeError, match="Walk has terms and no reply"):

        class Walk(ask.Run, shared="read"): ...


def test_a_term_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="while_walking"):

        class Walk(ask.SessionRequest[Cleared], while_walking=True): ...  # type: ignore[call-arg]
