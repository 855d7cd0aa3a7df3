"""An edit, a resume and a look in one request, and a value that a read pass would go on with: as by single requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import IllegalMove, InvalidEdit, UnknownSite
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Set
from djinn_jupyter.wire.replies import Finished, Reached
from tests.engine.desk import Desk, array, desk_of, tokens

PROMPT = tokens(13)
NEW = 3
STOPS = ("resid_pre.1", "mlp_in.3", "mlp_out.3", "resid_post.5")
ROWS = (2, -1)


@pytest.fixture(params=["llama", "jamba"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = desk_of(request.param)
    for name in ("a", "b"):
        desk.open(name)
        for site in STOPS:
            desk.stop_at(site, "step == 0", name)
        desk.run(PROMPT, NEW, name)
    yield desk
    desk.close_all()


def halved(desk: Desk) -> Tensor:
    return desk.value()[list(ROWS)] * 0.5


def test_it_is_an_edit_a_resume_and_a_look(desk: Desk) -> None:
    for stop, following in pairwise(STOPS):
        value = array(halved(desk))
        assert desk.ask(ask.ReadStop(session="a")).site == desk.ask(ask.ReadStop(session="b")).site == stop
        reached = desk.ask(ask.ResumeWith(session="a", value=value, positions=ROWS))
        desk.edit(Set(value=value), "b", positions=ROWS)
        desk.resume("b")
        assert isinstance(reached, Reached)
        assert reached.snapshot.site == following
        assert torch.equal(to_tensor(reached.snapshot.value), desk.value(name="b"))
    ended = desk.ask(ask.ResumeWith(session="a"))
    assert isinstance(ended, Finished)
    assert desk.outcome(ended) == desk.outcome(desk.resume("b"), "b")
    assert desk.back(2).edits == desk.back(2, name="b").edits


def test_it_says_where_the_session_stops_from_here_on(desk: Desk) -> None:
    desk.stop_at("embed", "step == 1", "a")
    reached = desk.ask(ask.ResumeWith(session="a", halts=("mlp_out.3", "logits")))
    assert (reached.snapshot.site, reached.step, reached.drawn) == ("mlp_out.3", 0, ())
    assert reached.positions == tuple(range(len(PROMPT)))
    armed = desk.ask(ask.Describe(session="a")).session.breakpoints
    assert sorted((one.site, one.when) for one in armed) == [("logits", None), ("mlp_out.3", None)]
    desk.ask(ask.ResumeWith(session="a"))
    stops = [desk.ask(ask.ResumeWith(session="a", halts=("logits",))) for _ in range(NEW - 1)]
    assert [(stop.snapshot.site, stop.step, len(stop.drawn)) for stop in stops] == [("logits", 1, 1), ("logits", 2, 2)]
    ended = desk.ask(ask.ResumeWith(session="a", halts=()))
    desk.clear("b")
    assert isinstance(ended, Finished)
    assert ended.tokens[: NEW - 1] == stops[-1].drawn
    assert desk.outcome(ended) == desk.outcome(desk.resume("b"), "b")


def test_a_halt_that_no_pass_meets_changes_nothing(desk: Desk) -> None:
    before = desk.ask(ask.Describe(session="a")).session.breakpoints
    here, value = desk.session("a").stop_identity, desk.value()
    with pytest.raises(UnknownSite, match="this model has layers"):
        desk.ask(ask.ResumeWith(session="a", value=array(halved(desk)), positions=ROWS, halts=("mlp_out.3", "z.99")))
    assert desk.ask(ask.Describe(session="a")).session.breakpoints == before
    assert desk.session("a").stop_identity == here
    assert torch.equal(desk.value(), value)


def test_a_pass_is_read_as_it_would_go_on_with_a_value(desk: Desk) -> None:
    value, before = array(halved(desk)), desk.session("a").stop_identity
    asked = {"sites": (STOPS[0], "embed", "mlp_out.6"), "ahead": True, "logits": True}
    plain = desk.ask(ask.ReadPass(session="a", **asked))
    tried = desk.ask(ask.ReadPass(session="a", value=value, positions=ROWS, **asked))
    assert (desk.session("a").stop_identity, desk.session("a").edits) == (before, [])
    desk.edit(Set(value=value), "b", positions=ROWS)
    edited = desk.ask(ask.ReadPass(session="b", **asked))
    assert tried.sites == edited.sites
    for one, other in zip((*tried.values, tried.logits), (*edited.values, edited.logits), strict=True):
        assert torch.equal(to_tensor(one), to_tensor(other))
    assert not torch.equal(to_tensor(tried.logits), to_tensor(plain.logits))
    again = desk.ask(ask.ReadPass(session="a", **asked))
    assert torch.equal(to_tensor(again.logits), to_tensor(plain.logits))


def test_a_refused_value_leaves_the_stop(desk: Desk) -> None:
    before, here = desk.session("a").stop_identity, desk.value()
    for value, positions in ((array(torch.full_like(here, torch.nan)), None), (array(here), (99,))):
        with pytest.raises(InvalidEdit):
            desk.ask(ask.ResumeWith(session="a", value=value, positions=positions))
        with pytest.raises(InvalidEdit):
            desk.ask(ask.ReadPass(session="a", ahead=True, value=value, positions=positions))
    assert desk.session("a").stop_identity == before
    assert torch.equal(desk.value(), here)
    desk.ask(ask.ResumeWith(session="a"))
    with pytest.raises(IllegalMove, match="moved on meanwhile"):
        desk.ask(ask.ResumeWith(session="a", stop=before))


def test_what_is_only_looked_at_takes_no_value() -> None:
    desk = desk_of("llama")
    desk.open()
    desk.stop_at("attn_scores.2", "step == 0")
    desk.run(PROMPT, NEW)
    for request in (ask.ResumeWith, ask.ReadPass):
        with pytest.raises(InvalidEdit, match="looked at, not changed"):
            desk.ask(request(session="a", value=array(desk.value())))
    desk.resume()
    with pytest.raises(IllegalMove, match="no forward pass is stopped"):
        desk.ask(ask.ResumeWith(session="a"))
    desk.close_all()
