"""Lines that run side by side in passes which stop for functions of the caller's, beside plain hooks on the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.likeness import open_temporarily
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.integrations.lines import HookedLines, Values
from tests.engine.desk import Desk, tokens

LINES = [list(tokens(7, seed)) for seed in (1, 2, 3)]


@pytest.fixture
def lines(engine: RemoteEngine) -> HookedLines:
    return HookedLines(engine.channel, lambda number: open_temporarily(engine.channel, "hooked"))


def plain(model: Any, given: list[list[int]], changes: dict[int, Callable[[Values], Values]]) -> tuple[Tensor, Tensor]:
    """Return the logits of each line alone, and the outputs of layer 2, where plain hooks change layers' outputs. The
    functions see all lines: each layer is computed for all of them before it goes on."""
    with torch.inference_mode():
        embedded = [model.model.embed_tokens(torch.tensor([line])) for line in given]
        hidden, seen = embedded, embedded
        position = torch.arange(len(given[0]))[None]
        rotary = model.model.rotary_emb(embedded[0], position)
        for number, layer in enumerate(model.model.layers):
            hidden = [layer(one, position_embeddings=rotary, position_ids=position) for one in hidden]
            if number in changes:
                values = changes[number](torch.cat(hidden).numpy().copy())
                hidden = list(torch.from_numpy(values).split(1))
            seen = hidden if number == 2 else seen
        logits = [model.lm_head(model.model.norm(one)) for one in hidden]
    return torch.cat(logits), torch.cat(seen)


def double_the_last(values: Values) -> Values:
    values[:, -1] *= 2
    return values


def swap_lines(values: Values) -> Values:
    return np.ascontiguousarray(np.roll(values, 1, axis=0))


CHANGES: list[dict[int, Callable[[Values], Values]]] = [
    {},
    {1: double_the_last},
    {0: swap_lines, 2: double_the_last, 3: double_the_last},
    {1: lambda values: values},
]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("changes", CHANGES)
def test_functions_change_a_pass_as_plain_hooks_do(
    lines: HookedLines, model: Any, changes: dict[int, Callable[[Values], Values]], count: int
) -> None:
    logits, seen = plain(model, LINES[:count], changes)
    for _ in range(2):  # the second time the lines stand at their first stop
        passed = lines.run(
            LINES[:count],
            changes={f"resid_post.{layer}": [change] for layer, change in changes.items()},
            read=["resid_post.2", "resid_pre.3", "logits"],
        )
        assert passed.logits is not None
        assert torch.equal(torch.from_numpy(passed.logits), logits)
        assert torch.equal(torch.from_numpy(passed.values["logits"]), logits)
        for site in ("resid_post.2", "resid_pre.3"):
            assert torch.equal(torch.from_numpy(passed.values[site]), seen), site
    lines.close()


def test_two_names_of_one_tensor_are_one_place_with_the_functions_of_both(lines: HookedLines, model: Any) -> None:
    logits, _ = plain(model, LINES, {1: lambda values: double_the_last(double_the_last(values))})
    passed = lines.run(LINES, changes={"resid_post.1": [double_the_last], "resid_pre.2": [double_the_last]})
    assert passed.logits is not None
    assert torch.equal(torch.from_numpy(passed.logits), logits)


def test_a_pass_ends_where_it_is_told(lines: HookedLines, desk: Desk) -> None:
    lines.run(LINES, changes={})
    layers = desk.engine.counters.layers_run
    passed = lines.run(
        LINES, changes={"mlp_out.0": [double_the_last]}, read=["resid_pre.1", "z.3"], until="resid_pre.1"
    )
    assert passed.logits is None
    assert passed.values.keys() == {"resid_pre.1"}
    assert desk.engine.counters.layers_run - layers <= 2 * len(LINES)


def test_a_function_that_raises_leaves_nothing_behind(lines: HookedLines, model: Any) -> None:
    def fail(values: Values) -> Values:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        lines.run(LINES, changes={"resid_post.0": [double_the_last], "resid_post.2": [fail]})
    passed = lines.run(LINES, changes={"resid_post.0": [double_the_last], "resid_post.2": [lambda values: values]})
    assert passed.logits is not None
    assert torch.equal(torch.from_numpy(passed.logits), plain(model, LINES, {0: double_the_last})[0])


def test_what_cannot_be_run_is_said(lines: HookedLines) -> None:
    with pytest.raises(UsageError, match="same number of tokens"):
        lines.run([[1, 2], [1]], changes={})
    with pytest.raises(UsageError, match="same number of tokens"):
        lines.run([], changes={})
    with pytest.raises(UnknownSite):
        lines.run(LINES, changes={"resid_post.99": [double_the_last]})
    with pytest.raises(UsageError, match="was replaced by one of shape"):
        lines.run(LINES, changes={"resid_post.1": [lambda values: values[:, :1]]})


def test_the_sessions_end_with_it(lines: HookedLines, engine: RemoteEngine) -> None:
    lines.run(LINES, changes={})
    assert len(engine.sessions()) == len(LINES)
    lines.close()
    assert engine.sessions() == ()
    assert lines.run(LINES[:1], changes={}).logits is not None
