"""An adapter is added where its matrices fit the model's modules; anything else is a sentence, and holds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.errors import IllegalMove, SlabFull, UsageError
from djinn_jupyter.wire import requests as ask
from tests import adapters
from tests.engine.adapters.adapting import add, drawn, let_go, use
from tests.engine.desk import Desk, build_desk, tokens
from tests.families import build

PROMPT = tokens(9)
PREFIX = "base_model.model."


@pytest.fixture
def desk(llama: Desk) -> Iterator[Desk]:
    yield llama
    llama.close_all()
    let_go(llama)


def held(desk: Desk) -> int:
    """Return the bytes that adapters hold of the budget, whose parts add up."""
    desk.engine.budget.check()
    return desk.engine.budget.held()["adapters"]


def test_what_was_added_is_listed_and_counted(desk: Desk, tmp_path: Path) -> None:
    tensors = adapters.drawn(desk.engine.model, ("q_proj", "v_proj"))
    folder = adapters.saved(tmp_path, tensors)
    made = add(desk, folder)
    size = sum(4 * one.numel() for one in tensors.values())
    assert (made.adapter.name, made.adapter.targets) == ("sql", ("q_proj", "v_proj"))
    assert made.adapter.modules == 2 * desk.layers
    assert made.adapter.bytes_held == held(desk) == size
    assert add(desk, folder).existed
    assert held(desk) == size
    use(desk, "tuned")
    (listed,) = desk.ask(ask.ListAdapters()).adapters
    assert (listed.sessions, desk.describe("tuned").adapter) == (("tuned",), "sql")
    with pytest.raises(UsageError, match=r"Session 'tuned' computes with the adapter sql; close it first\."):
        desk.ask(ask.RemoveAdapter(name="sql"))
    desk.close("tuned")
    assert desk.ask(ask.RemoveAdapter(name="sql")).count == 1
    assert held(desk) == 0


def test_another_adapter_does_not_take_the_place_of_one(desk: Desk, tmp_path: Path) -> None:
    add(desk, adapters.saved(tmp_path / "one", drawn(desk)))
    with pytest.raises(UsageError, match="There is another adapter sql already"):
        add(desk, adapters.saved(tmp_path / "two", drawn(desk, seed=1)))
    for name in ("off", "none", "a b"):
        with pytest.raises(UsageError, match="An adapter's name is of letters"):
            add(desk, tmp_path / "one", name)


def test_it_is_chosen_before_the_first_prompt(desk: Desk, tmp_path: Path) -> None:
    add(desk, adapters.saved(tmp_path, drawn(desk)))
    desk.open("a")
    with pytest.raises(UsageError, match="There is no adapter nosuch; there are sql"):
        desk.ask(ask.SetAdapter(session="a", adapter="nosuch"))
    desk.stop_at("resid_post.1")
    desk.ask(ask.SetAdapter(session="a", adapter="sql"))
    desk.ask(ask.SetAdapter(session="a", adapter=None))
    desk.run(PROMPT, 1)
    with pytest.raises(IllegalMove, match="has a line that was computed without an adapter"):
        desk.ask(ask.SetAdapter(session="a", adapter="sql"))
    assert desk.ask(ask.SetAdapter(session="a", adapter=None)).session.adapter is None
    use(desk, "a")
    desk.run(PROMPT, 1)
    with pytest.raises(IllegalMove, match="has a line that was computed with the adapter sql"):
        desk.ask(ask.SetAdapter(session="a", adapter=None))


def test_a_stop_says_what_it_is_computed_with(desk: Desk, tmp_path: Path) -> None:
    add(desk, adapters.saved(tmp_path, drawn(desk)))
    use(desk, "tuned")
    desk.stop_at("resid_post.1", name="tuned")
    assert desk.run(PROMPT, 1, "tuned").influences.adapter == "sql"


def test_an_adapter_of_another_model_is_refused(desk: Desk, tmp_path: Path) -> None:
    good = drawn(desk)
    other = build("gpt2", layers=2)
    wrong: dict[str, tuple[adapters.Tensors, str]] = {
        "another family": (
            adapters.drawn(other, ("c_attn",)),
            r"The adapter is of another model: it changes transformer\.h\.0\.attn\.c_attn, and this one has no such",
        ),
        "other widths": (
            {name: torch.cat([one, one], -1) if "lora_A" in name else one for name, one in good.items()},
            "The adapter is of another model: lora_A and lora_B of .* have shapes",
        ),
        "a turned B": ({name: one.T if "lora_B" in name else one for name, one in good.items()}, "have shapes"),
        "a NaN": ({name: one * torch.nan if "lora_B" in name else one for name, one in good.items()}, "has NaN"),
        "the head": (adapters.drawn(desk.engine.model, ("lm_head",)), "changes lm_head, which lies in no layer"),
        "a norm": (
            {
                f"{PREFIX}model.layers.0.input_layernorm.lora_{half}.weight": torch.ones(4, 4)
                for half in ("A", "B")
            },
            "a LlamaRMSNorm; those of linear modules are computed here",
        ),
    }  # fmt: skip
    for number, (kind, (tensors, sentence)) in enumerate(wrong.items()):
        with pytest.raises(UsageError, match=sentence):
            add(desk, adapters.saved(tmp_path / str(number), tensors))
        assert held(desk) == 0, kind
    assert desk.ask(ask.ListAdapters()).adapters == ()


def test_an_adapter_that_is_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    desk = build_desk(build("llama", layers=2), device_memory=2 << 20)
    rank = 16384
    tensors = adapters.drawn(desk.engine.model, ("q_proj",), rank=rank)
    with pytest.raises(SlabFull, match="Asked for"):
        add(desk, adapters.saved(tmp_path, tensors, r=rank))
    assert held(desk) == 0


def test_a_person_has_adapters_of_their_own(desk: Desk, tmp_path: Path) -> None:
    add(desk, adapters.saved(tmp_path, drawn(desk)))
    anna = Holder(name="kernel", user="anna", person="anna")
    desk.engine.ask(ask.Open(session="anna@main"), anna)
    assert desk.engine.ask(ask.ListAdapters(), anna).adapters == ()
    with pytest.raises(UsageError, match="There is no adapter sql; there are none"):
        desk.engine.ask(ask.SetAdapter(session="anna@main", adapter="sql"), anna)
    with pytest.raises(UsageError, match="There is no adapter sql; there are none"):
        desk.engine.ask(ask.RemoveAdapter(name="sql"), anna)
