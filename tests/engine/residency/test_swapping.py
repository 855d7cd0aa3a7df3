"""A session that has left the device goes on as if it had stayed: the same bits, for the steps after as well."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from djinn_jupyter.wire.nouns import Sampling
from djinn_jupyter.wire.replies import Paused, SessionSwapped
from tests.engine.desk import Desk
from tests.engine.residency.evicting import PROMPT, made, nothing_left

pytestmark = pytest.mark.drawn

FAMILIES = ["llama", "gemma3_text", "mamba2", "jamba", "glm_moe_dsa:shared", "deepseek_v4"]


@pytest.fixture(scope="module", params=FAMILIES)
def each(request: pytest.FixtureRequest) -> Desk:
    return made(request.param)


@pytest.fixture
def family(each: Desk) -> Iterator[Desk]:
    yield each
    each.close_all()


# --- bit for bit -----------------------------------------------------------------------------------------------------


WHERE, TIERS = ("resid_post.4", "attn_out.5", "resid_pre.0"), (("host",), ("disk",), ("host", "disk"))
# Each stop and each way of leaving is in the usual run, the other pairs of them in the slow one.
PAIRS = [
    pytest.param(where, tiers, marks=() if n == m else pytest.mark.slow)
    for (n, where), (m, tiers) in itertools.product(enumerate(WHERE), enumerate(TIERS))
]


@pytest.mark.parametrize(("where", "tiers"), PAIRS)
def test_stopped_swapped_resumed_is_as_never_left(family: Desk, where: str, tiers: tuple[str, ...]) -> None:
    """Of two equal sessions one leaves at every stop: in the prompt, in a decode step, edited, and when it is over."""
    if family.engine.description.architecture.startswith("Mamba2") and where == "attn_out.5":
        where = "mlp_out.5" if any(p.point == "mlp_out" and p.layers for p in family.engine.anatomy.points()) else "6"

    def leave() -> None:
        for tier in tiers:
            swapped = family.swap_out("x", tier)
            assert swapped.session.residency == tier
            assert swapped.session.device_bytes == 0
        family.engine.check_invariants()

    for name in "xy":
        family.open(name)
        family.stop_at(where, "step == 0 or step == 2", name)
        assert isinstance(family.run(PROMPT, 5, name, sampling=Sampling(temperature=1.0, seed=5)), Paused)
    leave()
    assert torch.equal(family.value(name="x"), family.value(name="y"))
    leave()
    for name in "xy":
        family.edit(name=name)
    leave()
    stops = [family.resume(name) for name in "xy"]
    assert stops[0].norms == stops[1].norms
    leave()
    ends = [family.outcome(family.resume(name), name) for name in "xy"]
    assert ends[0] == ends[1]
    leave()
    assert family.outcome(family.run((5, 6), 3, "x", extend=True, free=True), "x") == family.outcome(
        family.run((5, 6), 3, "y", extend=True, free=True), "y"
    )
    leave()
    for name in "xy":
        family.back(2, name=name)
    leave()
    ends = [family.outcome(family.resume(name, free=True), name) for name in "xy"]
    assert ends[0] == ends[1]
    leave()
    family.close("x", "y")
    assert nothing_left(family)


def test_forks_share_what_is_away_and_part_when_they_write(family: Desk) -> None:
    family.open("x")
    family.stop_at(4, "step == 1", "x")
    family.run(PROMPT, 4, "x")
    family.fork("y", "x")
    family.fork("z", "x")
    for name in "xy":
        family.swap_out(name)
    family.edit(name="y")
    edited = family.outcome(family.resume("y"), "y")
    plain = family.outcome(family.resume("z"), "z")
    family.swap_out("z", "disk")
    assert family.outcome(family.resume("x"), "x") == plain
    assert plain.tokens != edited.tokens or not torch.equal(plain.logits, edited.logits)
    family.close("x", "y", "z")
    assert nothing_left(family)


# --- what moves ------------------------------------------------------------------------------------------------------


def test_leaving_again_after_nothing_was_written_moves_nothing(desk: Desk) -> None:
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    first = desk.swap_out().transfer
    assert first.bytes_moved == desk.describe().host_bytes > 0
    assert desk.swap_in().transfer.bytes_moved == first.bytes_moved
    assert desk.swap_out().transfer.bytes_moved == 0


def test_leaving_after_a_resume_moves_only_what_it_wrote(desk: Desk) -> None:
    desk.run(PROMPT, 1)
    desk.swap_out()
    desk.run((7,), 2, extend=True)
    page = desk.engine.slabs[0].geometry.page_bytes
    logits = desk.session().logits_1V.untyped_storage().nbytes()
    assert len(desk.session().cache.groups[0].table) == 3
    assert desk.swap_out().transfer.bytes_moved == page + logits, "the last page alone, and what comes next"


def test_memory_goes_back_when_a_session_has_left(desk: Desk) -> None:
    desk.run(PROMPT, 1)
    assert desk.engine.slabs[0].segment_bytes > 0
    desk.swap_out()
    assert desk.engine.slabs[0].segment_bytes == 0
    assert desk.engine.slabs[0].budget.taken == 0


def test_moves_are_told(desk: Desk) -> None:
    desk.run(PROMPT, 1)
    out, back = desk.swap_out("a", "disk").transfer, desk.swap_in().transfer
    assert [event.transfer for event in desk.events if isinstance(event, SessionSwapped)] == [out, back]
    assert (out.direction, out.tier, out.cause) == ("out", "disk", "asked")
    assert (back.direction, back.tier, back.cause) == ("in", "disk", "asked")
    assert desk.swap_in().transfer is None
    disk = desk.engine.tiers.statistics()[1]
    assert (disk.tier, disk.bytes_out >= out.bytes_moved, disk.bytes_in >= back.bytes_moved) == ("disk", True, True)
