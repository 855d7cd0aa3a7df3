"""A pass that stopped at the output of a module goes on without computing it again, with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
import torch

from djinn_jupyter.engine.model.hooks.taps import OnValue, Tap
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests.engine.desk import Desk, desk_of, tokens

PROMPT, LAYER = tokens(11), 3
ATTENTION = ("self_attn", "attn")


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return desk_of(request.param, layers=8)


@pytest.fixture(autouse=True)
def nothing_left(desk: Desk) -> Iterator[None]:
    desk.open()
    yield
    desk.close_all()


@pytest.fixture
def computed(desk: Desk) -> Iterator[list[str]]:
    """The linear maps of the layer, by name, in the order in which they are computed."""
    found: list[str] = []
    layer = desk.engine.forward.anatomy.layers[LAYER]
    maps = [(name, one) for name, one in layer.named_modules() if not list(one.children()) and list(one.parameters())]
    hooks = [one.register_forward_hook(lambda *_, name=name: found.append(name)) for name, one in maps]
    yield found
    for hook in hooks:
        hook.remove()


def test_the_module_of_the_stop_is_computed_once(desk: Desk, computed: list[str]) -> None:
    alone = desk.outcome(desk.run(PROMPT, 3))
    of_a_pass = computed[: len(computed) // 3]
    mlp = {name for name in of_a_pass if name.startswith("mlp")}
    assert mlp < set(of_a_pass)
    assert mlp
    desk.open()
    desk.stop_at(f"mlp_out.{LAYER}", "step == 0")
    desk.run(PROMPT, 3)
    computed.clear()
    assert desk.outcome(desk.resume()) == alone
    again = computed[: len(computed) - 2 * len(of_a_pass)]
    assert again == [name for name in of_a_pass if name not in mlp and not name.startswith(ATTENTION)]


def test_an_edit_of_it_goes_on_as_the_same_rule_does(desk: Desk) -> None:
    desk.steer(f"mlp_out.{LAYER}", Scale(factor=0.5))
    ruled = desk.outcome(desk.run(PROMPT, 1))
    desk.open()
    desk.stop_at(f"mlp_out.{LAYER}", "step == 0")
    desk.run(PROMPT, 1)
    desk.ask(ask.ApplyEdit(session="a", edit=Scale(factor=0.5)))
    assert desk.outcome(desk.resume()) == ruled
    desk.back()
    desk.ask(ask.RevertEdits(session="a"))
    desk.clear()
    alone = desk.outcome(desk.resume())
    desk.open()
    assert desk.outcome(desk.run(PROMPT, 1)) == alone != ruled


def test_maps_before_the_cache_run_again(desk: Desk, computed: list[str]) -> None:
    alone = desk.outcome(desk.run(PROMPT, 3))
    of_a_pass = computed[: len(computed) // 3]
    before_cache = {name for name in of_a_pass if name.rpartition(".")[2] in ("q_proj", "k_proj", "v_proj", "c_attn")}
    assert before_cache
    desk.open()
    desk.stop_at(f"attn_out.{LAYER}", "step == 0")
    desk.run(PROMPT, 3)
    computed.clear()
    assert desk.outcome(desk.resume()) == alone
    assert before_cache < set(computed[: len(computed) - 2 * len(of_a_pass)])


def test_nothing_of_it_is_left_on_the_module(desk: Desk) -> None:
    layer = desk.engine.forward.anatomy.layers[LAYER]
    before = [dict(vars(one)) for one in layer.modules()]
    desk.stop_at(f"mlp_out.{LAYER}", "step == 0")
    desk.run(PROMPT, 2)
    desk.resume()
    with torch.inference_mode():
        assert [dict(vars(one)).keys() for one in layer.modules()] == [one.keys() for one in before]


@pytest.mark.parametrize("site", ["mlp_in", "mlp_out"])
def test_attention_before_a_stop_is_computed_once(desk: Desk, computed: list[str], site: str) -> None:
    """Also where its values were edited on the way, and where a fork and a step back enter the stop again."""
    desk.steer(f"q.{LAYER}", Scale(factor=0.5), on="prompt")
    alone = desk.outcome(desk.run(PROMPT, 3))
    of_a_pass = computed[: len(computed) // 3]
    attention = {name for name in of_a_pass if name.startswith(ATTENTION)}
    assert attention
    desk.open()
    desk.stop_at(f"q.{LAYER}", "step == 0")
    desk.stop_at(f"{site}.{LAYER}", "step == 0")
    desk.run(PROMPT, 3)
    desk.ask(ask.ApplyEdit(session="a", edit=Scale(factor=0.5)))
    desk.resume()
    desk.fork("b")
    for name in ("a", "a", "b"):
        computed.clear()
        assert desk.outcome(desk.resume(name), name) == alone
        again = computed[: len(computed) - 2 * len(of_a_pass)]
        assert again
        assert not attention.intersection(again)
        desk.back(name=name)


def test_a_stop_that_left_has_the_attention_before_it(desk: Desk, computed: list[str]) -> None:
    alone = desk.outcome(desk.run(PROMPT, 3))
    of_a_pass = computed[: len(computed) // 3]
    desk.open()
    desk.stop_at(f"mlp_out.{LAYER}", "step == 0")
    desk.run(PROMPT, 3)
    desk.swap_out()
    computed.clear()
    assert desk.outcome(desk.resume()) == alone
    assert not [name for name in computed[: len(computed) - 2 * len(of_a_pass)] if name.startswith(ATTENTION)]


def test_no_tap_is_caught_in_layers_that_do_not_run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, caught = desk.engine.forward, list[list[int]]()
    catches = forward._catch

    def counted(taps: list[Tap], meet: OnValue) -> AbstractContextManager[None]:
        caught.append([tap.stage for tap in taps])
        return catches(taps, meet)

    monkeypatch.setattr(forward, "_catch", counted)
    for layer in range(8):
        desk.stop_at(f"mlp_out.{layer}", "step == 0")
    desk.run(PROMPT, 1)
    for _ in range(8):
        desk.resume()
    assert caught[:9] == [list(range(8)), *(list(range(layer, 8)) for layer in range(8))]
