"""Rows of many lines are multiplied by oneDNN where that is faster, a line alone never is, and its faults are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from djinn_jupyter.engine.passes import epilogue
from djinn_jupyter.engine.passes.epilogue import LEAST_ROWS, LEAST_WORK, ManyRows
from djinn_jupyter.engine.session import shared_prompts
from tests.engine.desk import build_desk, desk_of, tokens
from tests.engine.session.test_sharing import NEW, run_at_once
from tests.engine.sweeps.test_recheck import falls_back
from tests.engine.sweeps.test_sweeps import LAYERS, swept, values
from tests.families import build

OTHERS_OF = ("gemma3_text", "bloom", "phi", "gpt_oss", "opt", "falcon")
FAMILIES = ["gpt2", "mixtral", *(pytest.param(family, marks=pytest.mark.slow) for family in OTHERS_OF)]
WIDE, LONG = 256, 512
ROWS = int(LEAST_WORK) // (WIDE * LONG) + 1

Made = list[tuple[int, ...]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Return the shapes of the rows that oneDNN multiplied."""
    found: Made = []
    multiply = epilogue._multiply

    def noted(rows: Tensor, *others: Any) -> Tensor:
        found.append(tuple(rows.shape))
        return multiply(rows, *others)

    monkeypatch.setattr(epilogue, "_multiply", noted)
    monkeypatch.setattr(epilogue, "is_faster", lambda threads: True)
    return found


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the products of small models worth a call."""
    monkeypatch.setattr(epilogue, "LEAST_ROWS", 1)
    monkeypatch.setattr(epilogue, "LEAST_WORK", 0)


def multiplied(work: Callable[[], Tensor], rows: int = ROWS) -> Tensor:
    with torch.inference_mode(), ManyRows(nn.Linear(LONG, WIDE)).multiplied(rows):
        return work()


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize(
    ("rows", "bias"),
    [(drawn(ROWS, LONG), drawn(WIDE)), (drawn(2, ROWS, LONG), None), (drawn(LONG, ROWS).t(), drawn(WIDE))],
    ids=["rows", "lines", "columns"],
)
def test_a_linear_map_has_the_products_of_float64_but_for_rounding(
    made: Made, rows: Tensor, bias: Tensor | None
) -> None:
    weight = drawn(WIDE, LONG)
    found = multiplied(lambda: nn.functional.linear(rows, weight, bias))
    exact = nn.functional.linear(rows.double(), weight.double(), None if bias is None else bias.double())
    assert made == [tuple(rows.shape)]
    assert (found - exact).abs().max() < 1e-5 * exact.norm(dim=-1).max()


def test_a_matrix_that_lies_as_gpt2_keeps_it_has_them_too(made: Made) -> None:
    rows, weight, bias = drawn(ROWS, LONG), drawn(LONG, WIDE), drawn(WIDE)
    found = multiplied(lambda: torch.addmm(bias, rows, weight))
    exact = torch.addmm(bias.double(), rows.double(), weight.double())
    assert made == [tuple(rows.shape)]
    assert (found - exact).abs().max() < 1e-5 * exact.norm(dim=-1).max()


STRANGE = {
    "expanded": lambda: drawn(1).expand(WIDE),
    "every other": lambda: drawn(2 * WIDE)[::2],
    "of no axes": lambda: drawn(1)[0],
    "of one value": lambda: drawn(1),
    "a row": lambda: drawn(1, WIDE),
}


@pytest.mark.parametrize("bias", STRANGE)
def test_a_bias_that_onednn_would_misread_is_pytorchs(made: Made, bias: str) -> None:
    rows, weight, added = drawn(ROWS, LONG), drawn(WIDE, LONG), STRANGE[bias]()
    expected = rows @ weight.t() + added
    for work in (
        lambda: nn.functional.linear(rows, weight, added),
        lambda: torch.addmm(added, rows, weight.t().contiguous()),
    ):
        assert torch.allclose(multiplied(work), expected, rtol=0, atol=1e-3)
    assert made == []


@pytest.mark.parametrize(
    ("bias", "rows", "matrix"),
    [
        (drawn(WIDE), drawn(2, ROWS, LONG), drawn(LONG, WIDE)),
        (drawn(WIDE), drawn(ROWS, LONG), drawn(1, LONG, WIDE)),
        (drawn(WIDE + 1), drawn(ROWS, LONG), drawn(LONG, WIDE)),
        (drawn(WIDE).double(), drawn(ROWS, LONG), drawn(LONG, WIDE)),
        (drawn(WIDE).to("meta"), drawn(ROWS, LONG), drawn(LONG, WIDE)),
    ],
    ids=["rows of lines", "several matrices", "a long bias", "a bias of float64", "a bias that is elsewhere"],
)
def test_what_pytorch_refuses_it_refuses_here_with_the_same_words(
    made: Made, bias: Tensor, rows: Tensor, matrix: Tensor
) -> None:
    with pytest.raises(RuntimeError) as plain:
        torch.addmm(bias, rows, matrix)
    with pytest.raises(RuntimeError) as ours:
        multiplied(lambda: torch.addmm(bias, rows, matrix))
    assert (str(ours.value), made) == (str(plain.value), [])


class Other(Tensor):
    """Weights of a class of their own, as quantized ones are."""


def of_another_class(weight: Tensor) -> Tensor:
    return weight.as_subclass(Other)


OTHERS: dict[str, Callable[[], Tensor]] = {
    "few rows": lambda: nn.functional.linear(drawn(LEAST_ROWS - 1, LONG), drawn(4 * WIDE, LONG)),
    "a small product": lambda: nn.functional.linear(drawn(ROWS, 8), drawn(WIDE, 8)),
    "bf16": lambda: nn.functional.linear(drawn(ROWS, LONG).bfloat16(), drawn(WIDE, LONG).bfloat16()),
    "float64": lambda: nn.functional.linear(drawn(ROWS, LONG).double(), drawn(WIDE, LONG).double()),
    "one vector": lambda: nn.functional.linear(drawn(4 * ROWS, LONG), drawn(LONG)),
    "a class of its own": lambda: nn.functional.linear(drawn(ROWS, LONG), of_another_class(drawn(WIDE, LONG))),
    "half of a bias": lambda: torch.addmm(drawn(WIDE), drawn(ROWS, LONG), drawn(LONG, WIDE), beta=0.5),
    "a matrix added": lambda: torch.addmm(drawn(ROWS, WIDE), drawn(ROWS, LONG), drawn(LONG, WIDE)),
    "no matrix of a model": lambda: drawn(ROWS, LONG) @ drawn(LONG, WIDE),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_no_product_of_many_rows_with_a_plain_matrix_stays_pytorchs(made: Made, case: str) -> None:
    with torch.inference_mode():
        assert torch.equal(multiplied(OTHERS[case]), OTHERS[case]())
    assert made == []


def test_a_product_that_may_be_gone_back_through_has_its_gradient(made: Made) -> None:
    weight = drawn(WIDE, LONG).requires_grad_()
    with ManyRows(nn.Linear(LONG, WIDE)).multiplied(ROWS):
        nn.functional.linear(drawn(ROWS, LONG), weight).sum().backward()
    assert weight.grad is not None
    assert made == []


def test_few_rows_and_models_of_other_dtypes_are_multiplied_as_ever(made: Made) -> None:
    rows, weight = drawn(ROWS, LONG), drawn(WIDE, LONG)
    multiplied(lambda: nn.functional.linear(rows, weight), rows=LEAST_ROWS - 1)
    with torch.inference_mode(), ManyRows(nn.Linear(LONG, WIDE, dtype=torch.bfloat16)).multiplied(ROWS):
        nn.functional.linear(rows, weight)
    assert made == []


def test_a_pytorch_without_the_operator_or_with_a_wrong_or_slow_one_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*args: Any) -> Tensor:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    def wrong(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return 1.001 * nn.functional.linear(rows, weight, bias)

    def slow(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return sum((nn.functional.linear(rows, weight, bias) for _ in range(3)), torch.zeros(())) / 3

    for fault in (missing, wrong, slow):
        monkeypatch.setattr(epilogue, "_multiply", fault)
        epilogue.is_faster.cache_clear()
        assert not epilogue.is_faster(torch.get_num_threads())
    epilogue.is_faster.cache_clear()


@pytest.mark.parametrize("family", FAMILIES)
def test_lines_that_share_passes_are_what_they_are_alone_but_for_rounding(
    family: str, made: Made, any_size: None
) -> None:
    desk = desk_of(family)
    prompts = [tokens(length, seed=length) for length in (3, 14, 8)]
    rows = run_at_once(desk, mode="fast", prompts=prompts)
    logits = [desk.logits(row.session) for row in rows]
    assert [row.note for row in rows] == [None] * len(rows)
    assert made
    made.clear()
    for number, row in enumerate(rows):
        desk.open("alone")
        assert row.tokens == desk.run(prompts[number], NEW, "alone").tokens
        assert torch.allclose(logits[number], desk.logits("alone"), rtol=0, atol=1e-4)
    assert made == [], "a line alone has the bits of plain PyTorch"
    desk.close_all()


@pytest.mark.parametrize("family", FAMILIES)
def test_cells_that_share_calls_are_what_they_are_alone_but_for_rounding(
    family: str, made: Made, any_size: None
) -> None:
    desk = desk_of(family, layers=LAYERS)
    exact = values(swept(desk, mode="exact"))
    assert made == [], "a cell alone has the bits of plain PyTorch"
    fast = swept(desk)
    assert (fast.mode, bool(made)) == ("fast", True)
    assert (values(fast) - exact).abs().max() < 5e-5
    desk.close_all()


def test_products_that_are_wrong_are_found_when_a_cell_is_computed_again_alone(
    made: Made, any_size: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of("llama", layers=LAYERS)
    expected = values(swept(desk, mode="exact"))
    swept(desk)  # the family is known to share passes: what breaks from here on the first test cannot see
    monkeypatch.setattr(epilogue, "_multiply", lambda *given: 1.01 * nn.functional.linear(*given))
    falls_back(swept(desk), expected)
    desk.close_all()


def test_products_that_are_wrong_are_found_when_a_prompt_is_computed_again_alone(
    made: Made, any_size: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = build_desk(build("llama"))
    prompts = [tokens(length, seed=length) for length in (5, 9, 9)]
    run_at_once(desk, mode="fast", prompts=prompts, new=1)
    monkeypatch.setattr(epilogue, "_multiply", lambda *given: 1.01 * nn.functional.linear(*given))
    desk.engine.runtime.sharing.prompts._unchecked = shared_prompts.CHECKED_OF
    rows = run_at_once(desk, mode="fast", prompts=prompts, new=1)
    for number, row in enumerate(rows):
        desk.open("alone")
        assert "Prompts were computed alone" in row.note
        assert row.tokens == desk.run(prompts[number], 1, "alone").tokens
    desk.close_all()
