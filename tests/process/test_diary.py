"""The diary of the kills tells a loss from a run that was never answered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from djinn_jupyter.api.stops import Finished
from djinn_jupyter.wire.nouns import SessionDescription
from tests.process.diary import Diary
from tests.widgets.samples import session

FOUND = session("drawn", tokens=13)


class Engine:
    """An engine that has the one session as it was found."""

    def __init__(self, found: SessionDescription) -> None:
        self.found = found

    def sessions(self) -> tuple[SessionDescription, ...]:
        return (self.found,)

    def session(self, name: str) -> Engine:
        return self

    def describe(self) -> SessionDescription:
        return self.found

    def breakpoints(self) -> tuple[()]:
        return ()


def test_a_prompt_whose_run_was_not_answered_is_no_loss_and_may_not_be_lost_later() -> None:
    """The engine is killed in a run's first pass, then again before any other answer."""
    finished: Any = Finished.__new__(Finished)
    finished.prompt_tokens, finished.tokens = (1,) * 12, (2,) * 40
    diary, engine = Diary("drawn", last=finished, under_way=("move", "")), Engine(FOUND)
    diary.check(engine)
    diary.begin_anew(engine)
    diary.under_way = ("close", "drawn 182")
    diary.check(engine)
    with pytest.raises(AssertionError):
        diary.check(Engine(msgspec.structs.replace(FOUND, tokens=0)))
