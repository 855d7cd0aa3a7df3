"""The refusal to go back too far says how many earlier stops there are, and where the rest are."""

from __future__ import annotations

import pytest

from djinn_jupyter.engine.session.history import History
from djinn_jupyter.errors import UsageError
from tests.engine.desk import desk_of, tokens

OFF = "This engine has no disk tier; start it with --disk-memory to allow one."
GONE = "; 3 before are gone: a session keeps its last 2 in memory (--stops-kept) and older ones on the disk. " + OFF


@pytest.mark.parametrize(
    ("kept", "disk", "said"),
    [
        (64, True, "There are 4 earlier stops to go back to."),
        (2, True, "There are 4 earlier stops to go back to."),
        (2, False, f"There is one earlier stop to go back to{GONE}"),
    ],
)
def test_how_far_it_goes(kept: int, disk: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama")
    if not disk:
        monkeypatch.setattr(desk.engine.tiers, "disk", None)
    desk.open()
    desk.session().history = History(kept=kept)
    desk.stop_at(2)
    desk.run(tokens(5), 9)
    for _ in range(4):
        desk.resume()
    with pytest.raises(UsageError) as refused:
        desk.back(5)
    assert str(refused.value) == said
    assert desk.session().history.present == (4 if disk else 1)
    desk.close_all()
