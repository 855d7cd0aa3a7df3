"""Requests that cannot be meant: each refused by its class of error, in a sentence, before anything was changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from djinn_jupyter import errors
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Clamp, Edit, NormMatch, PatchFrom, ProjectOut, Scale, Set, Zero
from djinn_jupyter.wire.replies import RuleRefused, Welcome
from djinn_jupyter.wire.running import ReadMetrics
from tests.engine.desk import Desk, array, build_desk, tokens
from tests.engine.plain import generate, plain_of
from tests.engine.session.test_states import reading, same
from tests.families import build

PROMPT = tokens(10)
NAN = torch.full((32,), float("nan"))
REFUSED: list[tuple[type[errors.DjinnError], str, ask.Request]] = [
    (errors.UsageError, "no tokens", ask.Run(session="a", tokens=())),
    (errors.UsageError, "no token 9223372036854775808", ask.Detokenize(tokens=(2**63,))),
    (errors.UsageError, "9223372036854775808, which is not in", ask.Run(session="a", tokens=(2**63,))),
    (errors.InvalidCondition, "more than 64 bits", ask.Evaluate(session="a", expression="9" * 26)),
    (errors.InvalidCondition, "surrogate pair", ask.Evaluate(session="a", expression=r"'\ud800'")),
    (errors.InvalidCondition, "surrogate pair", ask.Evaluate(session="a", expression=r"p('\ud800')")),
    (errors.InvalidCondition, "surrogate pair", ask.SetBreakpoint(session="a", site="1", when=r"p('\ud800') > 0")),
    (errors.InvalidCondition, "surrogate pair", ReadMetrics(session="a", metrics=(r"logit('\udfff')",))),
    (errors.InvalidCondition, "not an expression|evaluated", ask.Evaluate(session="a", expression="not " * 480 + "1")),
    (errors.InvalidCondition, "not an expression|evaluated", ask.Evaluate(session="a", expression="not " * 100 + "1")),
    (errors.UsageError, "no token 999", ask.Lens(session="a", tokens=("<999999999999999999999999>",))),
    (errors.UsageError, "no tokens", ask.Run(session="a")),
    (errors.UsageError, "128, which is not in the vocabulary.*0 to 127", ask.Run(session="a", tokens=(3, 128))),
    (errors.PromptTooLong, "513 tokens and the model 512", ask.Run(session="a", tokens=(5,) * 513)),
    (errors.NoTokenizer, "token ids", ask.Run(session="a", text="Paris")),
    (errors.UsageError, "not both", ask.Run(session="a", text="Paris", tokens=(1, 2))),
    (errors.NoTokenizer, "stop strings", ask.Run(session="a", tokens=PROMPT, stop=("x",))),
    (errors.UnknownSession, "'nobody'.*a", ask.Run(session="nobody", tokens=PROMPT)),
    (errors.UnknownSession, "'nobody'", ask.Close(session="nobody")),
    (errors.UsageError, "'a' already;", ask.Fork(session="a", name="a")),
    (errors.UsageError, "'rome' already .in full work/rome.ipynb.", ask.Fork(session="a", name="rome")),
    (errors.UsageError, "'rome' already .in full work/rome.ipynb.", ask.Open(session="rome")),
    (errors.UsageError, "'rome' already", ask.RestoreCheckpoint(session="rome", name="noon", replace=True)),
    (errors.UsageError, "obeyed and not shown", ask.Fork(session="a", name="red \x1b[31m")),
    (errors.UsageError, "obeyed and not shown", ask.Open(session="two\nlines")),
    (errors.UsageError, "obeyed and not shown", ask.Open(session="\u202egnihton.ipynb")),
    (errors.UsageError, "'a' already", ask.Fork(session="b", name="work/a.ipynb")),
    (errors.UnknownSite, "layers 0..7", ask.SetBreakpoint(session="a", site="resid_post.8")),
    (errors.UnknownSite, "needs a layer", ask.SetBreakpoint(session="a", site="z")),
    (errors.UnknownSite, "no module", ask.SetBreakpoint(session="a", site="model.layers.3.mpl")),
    (errors.UnknownSite, "4 heads: 0..3", ask.SetBreakpoint(session="a", site="z.3[4]")),
    (errors.UnknownSite, "what is added to the residual", ask.SetBreakpoint(session="a", site="attn_out_post.3")),
    (errors.InvalidCondition, "stp", ask.SetBreakpoint(session="a", site="3", when="stp > 1")),
    (errors.InvalidCondition, "not an expression", ask.SetBreakpoint(session="a", site="3", when="step >")),
    (errors.InvalidCondition, "not allowed", ask.SetBreakpoint(session="a", site="3", when="step.real")),
    (errors.InvalidCondition, "no function", ask.SetBreakpoint(session="a", site="3", when="open('x')")),
    (errors.InvalidCondition, "one token in quotes", ask.SetBreakpoint(session="a", site="3", when="p(step) > 0")),
    (errors.InvalidCondition, "another width", ask.SetBreakpoint(session="a", site="z.3", when="p('<5>') > 0")),
    (errors.NoTokenizer, "<17>", ask.SetBreakpoint(session="a", site="3", when="p(' Paris') > 0")),
    (errors.InvalidCondition, "128", ask.SetBreakpoint(session="a", site="3", when="p('<128>') > 0")),
    (errors.UnknownBreakpoint, "no breakpoint 99", ask.EnableBreakpoint(session="a", number=99, enabled=False)),
    (errors.UnknownBreakpoint, "resid_post.6", ask.ClearBreakpoints(session="a", sites=("6",))),
    (errors.UnknownRule, "no steering rule 99", ask.Unsteer(session="a", number=99)),
    (errors.InvalidEdit, "NaN", ask.Steer(session="a", site="3", edit=Add(vector=array(NAN)))),
    (errors.InvalidEdit, "31 entries.*32", ask.Steer(session="a", site="3", edit=Add(vector=array(torch.ones(31))))),
    (errors.InvalidEdit, "^norm_match:", ask.Steer(session="a", site="3", edit=NormMatch(vector=array(NAN)))),
    (errors.InvalidEdit, "many passes", ask.Steer(session="a", site="3", edit=PatchFrom(session="b"))),
    (errors.InvalidEdit, "low or a high", ask.Steer(session="a", site="3", edit=Clamp())),
    (errors.InvalidEdit, "looked at, not changed", ask.Steer(session="a", site="pattern.3", edit=Zero())),
    (errors.UnknownSite, "not watched", ask.ReadWatch(session="a", site="3")),
    (errors.UnknownSite, "not watched", ask.Unwatch(session="a", site="3")),
]
EDITS: list[tuple[str, Edit, dict[str, Any]]] = [
    ("NaN or infinity", Set(value=array(NAN)), {}),
    ("not finite", Scale(factor=float("inf")), {}),
    ("makes NaN or infinity", Scale(factor=3e38), {}),
    ("31 entries, the site has 32", Set(value=array(torch.ones(31))), {}),
    ("does not broadcast", Set(value=array(torch.ones(3, 32))), {}),
    ("does not broadcast", Add(vector=array(torch.ones(1, 10, 32))), {}),
    ("Position 10 is not in the stopped pass", Zero(), {"positions": (10,)}),
    ("Position -11 is not", Zero(), {"positions": (0, -11)}),
    ("only that value can be edited", Zero(), {"site": "resid_post.4"}),
    ("above high", Clamp(low=1.0, high=0.0), {}),
    ("direction is zero", ProjectOut(direction=array(torch.zeros(32))), {}),
    ("name as many positions", PatchFrom(session="b", positions=(0, 1)), {}),
]


@pytest.fixture
def stopped(llama: Desk) -> Desk:
    """`a` and `b` are stopped at resid_post.3 of their prompt."""
    for name in ("a", "b"):
        llama.open(name)
        llama.stop_at(3, "step == 0", name)
        llama.run(PROMPT, 4, name)
    llama.open("work/rome.ipynb")
    return llama


def test_a_notebooks_own_path_is_free_whatever_it_is_shown_by(stopped: Desk) -> None:
    """Two notebooks of one name in two folders can both be loaded."""
    assert stopped.ask(ask.Open(session="other/rome.ipynb")).created


def goes_on_as_ever(desk: Desk) -> None:
    assert desk.outcome(desk.resume()) == generate(plain_of("llama"), PROMPT, 4)


@pytest.mark.parametrize(("kind", "says", "request_"), REFUSED, ids=[f"{i}-{r[1]}" for i, r in enumerate(REFUSED)])
def test_a_request_is_refused_and_nothing_is_lost(
    stopped: Desk, kind: type[errors.DjinnError], says: str, request_: ask.Request
) -> None:
    before = reading(stopped.session())
    with pytest.raises(kind, match=says) as raised:
        stopped.ask(request_)
    assert type(raised.value) is kind
    assert str(raised.value).endswith((".", "?"))
    assert same(reading(stopped.session()), before)
    goes_on_as_ever(stopped)


@pytest.mark.parametrize(("says", "edit", "where"), EDITS, ids=[says for says, _, _ in EDITS])
def test_an_edit_that_does_not_fit_leaves_the_activation_as_it_was(
    stopped: Desk, says: str, edit: Edit, where: dict[str, Any]
) -> None:
    before = reading(stopped.session())
    with pytest.raises(errors.InvalidEdit, match=says):
        stopped.edit(edit, **where)
    assert same(reading(stopped.session()), before)
    goes_on_as_ever(stopped)


def test_a_session_that_another_kernel_holds_is_joined_on_purpose_only(stopped: Desk) -> None:
    other = Holder(name="another kernel", user="tester")
    with pytest.raises(errors.SessionHeld, match=r"add --join .%djinn_use a --join.*in Python join=True"):
        stopped.engine.ask(ask.Open(session="a"), other)
    joined = stopped.engine.ask(ask.Open(session="a", join=True), other)
    assert (joined.created, joined.session.state) == (False, "paused")
    stopped.ask(ask.Detach(session="a"))
    assert stopped.session().holder is None
    assert stopped.engine.ask(ask.Open(session="a"), other).session.holder == "another kernel"
    goes_on_as_ever(stopped)


def test_a_rule_that_does_not_fit_its_value_says_so_and_the_run_goes_on(llama: Desk) -> None:
    """The rule's vector fits the rows of one pass and not of the next: known only when that pass runs."""
    llama.open()
    llama.steer("resid_post.3", Add(vector=array(torch.ones(10, 32))))
    heard = len(llama.events)
    finished = llama.run(PROMPT, 4)
    (rule,) = finished.rules
    assert len(finished.tokens) == 4
    assert (rule.passes_met, rule.passes_changed, rule.passes_refused) == (4, 1, 3)
    assert "does not broadcast" in (rule.trouble or "")
    said = [event for event in llama.events[heard:] if isinstance(event, RuleRefused)]
    assert [(event.number, event.message) for event in said] == [(1, rule.trouble)]
    llama.settle()


def test_a_model_whose_configuration_says_more_than_numbers_hold_is_described_all_the_same() -> None:
    model = build("llama")
    model.config.max_position_embeddings = 10**30
    model.generation_config.eos_token_id = [2, 10**30, -1]
    model.generation_config.suppress_tokens = [10**30]
    told = build_desk(model).engine.description
    assert (told.context_length, told.eos_token_ids) == (None, (2,))
    assert codec.decode_reply(codec.encode(1, Welcome(version="0", model=told, attached=()))).body.model == told
