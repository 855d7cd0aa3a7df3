"""Who goes back too far is told how far it goes, and where the rest is."""

from __future__ import annotations

import pytest

from djinn_jupyter.engine.history import History
from djinn_jupyter.errors import UsageError
from tests.engine.desk import desk_of, tokens

GONE = "; 3 before are gone, for a session keeps its last 2 (--stops-kept)"


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (64, "There are 4 earlier stops to go back to."),
        (2, f"There is one earlier stop to go back to{GONE}."),
    ],
)
def test_how_far_it_goes(kept: int, said: str) -> None:
    desk = desk_of("llama")
    desk.open()
    desk.session().history = History(kept=kept)
    desk.stop_at(2)
    desk.run(tokens(5), 9)
    for _ in range(4):
        desk.resume()
    with pytest.raises(UsageError) as refused:
        desk.back(5)
    assert str(refused.value) == said
    assert desk.session().history.present == min(kept, 5) - 1
