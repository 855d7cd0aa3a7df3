"""A name of TransformerLens's hooks means the same in whatever request: the point that has its value in this model, or
a refusal. Requests and their fields are those of the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from djinn_jupyter.errors import DjinnError, UnknownSite
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom, Scale
from tests.engine.cases import KINDS
from tests.engine.desk import Desk, desk_of, tokens
from tests.wire import values

NO_POINT, MEANT = "blocks.2.attn.hook_q", {"blocks.2.hook_mlp_out": "mlp_out_post.2"}
NAMED_SITES = {"site", "sites", "at", "halts", "receivers"}
FIELDS = [
    (kind, field.name)
    for kind in KINDS
    for field in msgspec.structs.fields(kind)
    if field.name in NAMED_SITES and kind is not ask.AddModule  # tests/engine/added/test_processed_weights.py
]


def stopped(family: str) -> Iterator[Desk]:
    desk = desk_of(family)
    desk.open("a")
    desk.stop_at("mlp_out_post.2" if family == "gemma2" else "resid_pre.2")
    desk.run(tokens(5))
    yield desk
    desk.close_all()


@pytest.fixture
def qwen() -> Iterator[Desk]:
    yield from stopped("qwen3")


@pytest.fixture
def gemma() -> Iterator[Desk]:
    yield from stopped("gemma2")


def refusals(desk: Desk, kind: type, given: dict[str, Any]) -> Iterator[str]:
    """Yield the errors of the ordinary requests of a kind with these fields, of a stopped and of an empty session."""
    for fields in values.requests(kind, "ordinary"):
        for session in ("a", desk.open("empty")):
            try:
                desk.ask(kind(**{**fields, "session": session, **given}))
            except DjinnError as error:
                yield str(error)


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda one: getattr(one, "__name__", one))
def test_whatever_names_a_site_refuses_a_hook_whose_value_no_point_has(qwen: Desk, kind: type, field: str) -> None:
    several = field in ("sites", "halts", "receivers")
    given: dict[str, Any] = {field: (NO_POINT,) if several else NO_POINT}
    if kind is ask.Fork:
        given |= {"edit": Scale(factor=2.0), "name": "twin"}
    assert any(f"{NO_POINT} of TransformerLens is before a norm" in one for one in refusals(qwen, kind, given))


def test_so_does_a_patch(qwen: Desk) -> None:
    with pytest.raises(UnknownSite, match=r"is before a norm of this model, and q\.2 is behind it"):
        qwen.edit(PatchFrom(session="a", site=NO_POINT))


@pytest.mark.parametrize("named", MEANT)
def test_a_name_is_the_point_that_has_its_value_in_this_model(gemma: Desk, named: str) -> None:
    meant = MEANT[named]
    assert torch.equal(gemma.value(named), gemma.value(meant))
    assert gemma.edit(site=f"{named}[3]").site == f"{meant}[3]"
    assert gemma.ask(ask.Watch(session="a", site=named)).watch.site == meant
    assert gemma.ask(ask.Unwatch(session="a", site=f" {named} ")).count == 1
    assert gemma.steer(f"{named} [1:3]").rule.site == f"{meant}[1,2]"
    assert gemma.ask(ask.ClearBreakpoints(session="a", sites=(named,))).count == 1
