"""Of a later pair the line that cells are patched from runs among them: it is that line, and faults of it are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.methods.sweep.engine import sweep
from djinn_jupyter.methods.sweep.engine.together import JoinedSource
from tests.engine.desk import Desk, desk_of
from tests.engine.sweeps.test_recheck import falls_back
from tests.engine.sweeps.test_sweeps import CLEAN, CORRUPTED, LAYERS, swept, values


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The lines that run alone. No joined source is drawn for that."""
    found, run = list[tuple[int, ...]](), LinesAlone.run
    monkeypatch.setattr(
        LinesAlone,
        "run",
        lambda self, tokens, *args, **kwargs: found.append(tokens) or run(self, tokens, *args, **kwargs),
    )
    monkeypatch.setattr(sweep, "SOURCES_RECHECKED", 0.0)
    return found


def known(family: str = "llama") -> Desk:
    """Return an engine whose family is tried."""
    desk = desk_of(family, layers=LAYERS)
    swept(desk)
    return desk


@pytest.mark.parametrize(("family", "site"), [("gpt2", "resid_pre"), ("mistral", "resid_post")])
def test_the_source_of_a_later_pair_joins_its_cells(family: str, site: str, runs: list[tuple[int, ...]]) -> None:
    desk = known(family)
    exact, alone = swept(desk, mode="exact", site=site), swept(desk, site=site)
    runs.clear()
    joined = swept(desk, site=site, pair=1)
    assert runs == [CORRUPTED]
    assert (joined.mode, joined.computed) == ("fast", alone.computed)
    assert joined.measured[0].largest_difference is not None
    assert (values(joined) - values(exact)).abs().max() < 2e-5
    assert abs(joined.measured[0].clean - exact.measured[0].clean) < 2e-5
    assert torch.equal(values(joined)[:, :5], values(exact)[:, :5])  # rows that both lines have
    desk.close_all()


@pytest.mark.parametrize(
    "asked",
    [{"site": "z", "over": ("layer", "head")}, {"windows": (("layer", 2),)}, {"positions": (6, 8), "in_pairs": True}],
    ids=["heads", "windows", "pairs of cells"],
)
def test_a_source_whose_cells_are_not_single_rows_runs_alone(
    asked: dict[str, Any], runs: list[tuple[int, ...]]
) -> None:
    desk = known()
    runs.clear()
    assert swept(desk, pair=1, **asked).mode == "fast"
    assert runs == [CLEAN, CORRUPTED]
    desk.close_all()


def test_a_source_runs_alone_where_layers_are_given_its_tokens_too(runs: list[tuple[int, ...]]) -> None:
    desk = known("gemma4_text")
    alone = swept(desk)
    runs.clear()
    reply = swept(desk, pair=1)
    assert reply.mode == "fast"
    assert runs == [CORRUPTED, CLEAN]
    assert torch.equal(values(reply), values(alone))
    desk.close_all()


def test_rows_of_the_source_that_are_wrong_are_found_where_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, keep = known(), JoinedSource._keep
    exact = swept(desk, mode="exact")

    def kept_wrongly(self: Any, boundary: int, rows_nD: Tensor) -> Tensor:
        keep(self, boundary, rows_nD * 1.5)
        return rows_nD * 1.5

    monkeypatch.setattr(JoinedSource, "_keep", kept_wrongly)
    monkeypatch.setattr(sweep, "SOURCES_RECHECKED", 1.0)
    reply = swept(desk, pair=1)
    falls_back(reply, values(exact))
    assert reply.measured[0].clean == exact.measured[0].clean
    desk.close_all()


def test_cells_that_get_another_row_are_found_by_any_recheck(
    runs: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = known()
    exact = swept(desk, mode="exact")
    patched = JoinedSource._patched
    monkeypatch.setattr(
        JoinedSource, "_patched", lambda self, boundary, rows_nD: patched(self, boundary, rows_nD) * 1.5
    )
    runs.clear()
    reply = swept(desk, pair=1)
    falls_back(reply, values(exact))
    assert runs == [CORRUPTED, CLEAN]  # the source alone, for the cells alone
    assert reply.measured[0].clean == exact.measured[0].clean
    desk.close_all()


def test_a_joined_source_is_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, taken, sizes = known(), list[int](), list[tuple[int, int]]()
    take, line = Reservation.take, JoinedSource.line

    def noted(self: JoinedSource, *args: Any) -> Any:
        found = line(self, *args)
        sizes.append((sum(one.nbytes for one in (*self._rows.values(), *found.raw.values())), self.nbytes))
        return found

    monkeypatch.setattr(Reservation, "take", lambda room, size: taken.append(size) or take(room, size))
    monkeypatch.setattr(JoinedSource, "line", noted)
    assert swept(desk, pair=1).mode == "fast"
    ((held, expected),) = sizes
    assert held <= expected
    assert expected in taken
    desk.close_all()


def test_a_source_that_has_no_room_among_its_cells_runs_alone(
    runs: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = known()
    alone = swept(desk)
    sizes, size, take = list[int](), JoinedSource.nbytes.fget, Reservation.take
    assert size is not None

    def noted(self: JoinedSource) -> int:
        sizes.append(size(self))
        return sizes[-1]

    def taken(room: Reservation, asked: int) -> Any:
        if asked in sizes:
            raise SlabFull("no room")
        return take(room, asked)

    monkeypatch.setattr(JoinedSource, "nbytes", property(noted))
    monkeypatch.setattr(Reservation, "take", taken)
    runs.clear()
    reply = swept(desk, pair=1)
    assert runs == [CORRUPTED, CLEAN]
    assert torch.equal(values(reply), values(alone))
    desk.close_all()
