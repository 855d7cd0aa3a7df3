"""A session that sweeps, collects or reads says what it does and how far it is, until that ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.methods.datasets.request import Collect, Score
from djinn_jupyter.methods.heads.request import ReadHeads
from djinn_jupyter.methods.sweep.request import Sweep
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Progress
from tests.engine.desk import ME, Desk, desk_of, tokens

LAYERS = 2
PROMPTS = tuple(tokens(length, seed=length) for length in (7, 3, 12))
SWEEP = Sweep(
    session="a",
    corrupted=tokens(5),
    clean=tokens(5, seed=2),
    site="resid_post",
    over=("layer", "position"),
    metrics=("logit(17) - logit(42)",),
    mode="exact",
)
SCORE = Score(session="a", prompts=PROMPTS, first=4)
HEADS = ReadHeads(session="a", lines=PROMPTS)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    desk.ask(ask.Open(session="a", temporary=True))
    yield desk
    desk.close_all()


def progress(desk: Desk) -> Progress | None:
    """Return the progress that others read in the published state."""
    desk.engine.state_publisher.publish()
    return next(one.progress for one in desk.engine.reading.sessions if one.name == "a")


def told_while(desk: Desk, request: ask.Request) -> list[Progress]:
    """Return what is published of the session while the request is carried out, each once."""
    replies: list[Any] = []
    desk.post(request, replies)
    found: list[Progress] = []
    while not replies:
        desk.engine.tick()
        now = progress(desk)
        found += [now] if now is not None and now not in found else []
    assert not isinstance(replies[0], told.Failed), replies[0]
    return found


def test_a_sweep_counts_its_cells_and_is_over_afterwards(desk: Desk) -> None:
    assert progress(desk) is None
    found = told_while(desk, SWEEP)
    assert found == [Progress(doing="sweeping", done=done, total=10, counted="cells") for done in range(1, 11)]
    assert str(found[3]) == "sweeping, 4 of 10 cells"
    assert progress(desk) is None
    assert desk.describe().doing == "idle"


def test_a_collection_counts_the_prompts_of_all_its_shards(desk: Desk, tmp_path: Path) -> None:
    asked = Collect(
        session="a",
        folder=str(tmp_path),
        shard=1,
        first=4,
        last=True,
        prompts=PROMPTS,
        sites=("resid_post.1",),
        mode="exact",
    )
    found = told_while(desk, asked)
    assert found[-3:] == [Progress(doing="collecting", done=done, total=7) for done in range(5, 8)]
    (tmp_path / "shard-00001.safetensors").unlink()
    assert str(told_while(desk, replace(asked, last=False))[-1]) == "collecting, 7 prompts so far"
    assert progress(desk) is None


@pytest.mark.parametrize(
    ("request_", "said"), [(SCORE, "computing losses, 6 prompts so far"), (HEADS, "reading heads, 2 of 3 lines")]
)
def test_scores_and_heads_count_their_lines(desk: Desk, request_: ask.Request, said: str) -> None:
    assert str(told_while(desk, request_)[-1]) == said
    assert progress(desk) is None


def begun(desk: Desk) -> list[Any]:
    replies: list[Any] = []
    desk.post(SWEEP, replies)
    while desk.describe().progress is None or desk.describe().progress.done < 2:
        desk.engine.tick()
    return replies


def test_nothing_is_left_of_it_where_its_session_is_closed_and_opened_again(desk: Desk) -> None:
    replies = begun(desk)
    desk.close("a")
    assert replies[0].message == "Session 'a' was closed."
    desk.open("a")
    assert progress(desk) is None


def test_nothing_is_left_of_it_where_its_holder_goes(desk: Desk) -> None:
    replies = begun(desk)
    desk.engine.lose_holder(ME)
    while not replies:
        desk.engine.tick()
    assert desk.engine.reading.sessions == ()


def test_nothing_is_left_of_it_where_it_fails(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    replies = begun(desk)
    monkeypatch.setattr(LinesAlone, "logits", broken)
    while not replies:
        desk.engine.tick()
    assert isinstance(replies[0], told.Failed)
    assert progress(desk) is None
    assert desk.describe().doing == "idle"
