"""What can be asked of a sweep: cells of several spots, positions by name, edits, several metrics; all else is refused
in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.errors import DjinnError, IllegalMove, InvalidCondition, InvalidEdit, UnknownSite, UsageError
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.methods.sweep.engine import sweep as sweeps
from djinn_jupyter.methods.sweep.engine.edits import elsewhere
from djinn_jupyter.methods.sweep.engine.places import SweptLine, aligned, chosen_positions
from djinn_jupyter.methods.sweep.request import Mean, Noise, Resample, Sweep
from djinn_jupyter.wire.edits import Add, PatchFrom, Scale, Zero
from tests.engine.desk import Desk, desk_of
from tests.engine.sweeps.test_sweeps import CLEAN, CORRUPTED, GRID, LAYERS, METRIC, A, B, swept, values

LENGTH = len(CORRUPTED)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


def test_pairs_of_heads_and_windows_inside_layers_have_in_one_pass_what_they_have_alone(desk: Desk) -> None:
    for asked in (
        {"site": "z.1", "over": ("head",), "in_pairs": True},
        {"site": "z", "over": ("layer", "head"), "in_pairs": True, "edit": Mean()},
        {"site": "mlp_out", "over": GRID, "windows": (("layer", 2),)},
    ):
        alone, together = (swept(desk, mode=mode, **asked) for mode in ("exact", "fast"))
        assert together.mode == "fast"
        assert (values(alone) - values(together)).abs().max() < 2e-5
        assert values(together).std() > 1e-4


def test_neurons_and_starred_sites_have_the_values_of_the_sites_they_name(desk: Desk) -> None:
    asked: dict[str, Any] = {"edit": Zero(), "clean": None, "mode": "exact"}
    neurons = swept(desk, site="mlp_post.1[*]", over=("neuron",), **asked)
    width = len(neurons.places[0])
    for neuron in (0, 5, width - 1):
        one = swept(desk, site=f"mlp_post.1[{neuron}]", over=("position",), windows=(("position", LENGTH),), **asked)
        assert float(values(neurons)[neuron]) == float(values(one)[0])
    heads = swept(desk, site="z.*[*]", over=("layer", "head"), **asked)
    assert torch.equal(values(heads), values(swept(desk, site="z", over=("layer", "head"), **asked)))
    points = swept(desk, site="*.1", over=("point", "position"), **asked)
    assert {"resid_pre", "z", "mlp_out", "resid_post"} <= set(points.places[0])
    for point in ("z", "mlp_post", "resid_post"):
        alone = swept(desk, site=f"{point}.1", over=("position",), **asked)
        assert torch.equal(values(points)[points.places[0].index(point)], values(alone))


def test_a_fast_sweep_of_points_has_what_each_has_alone(desk: Desk) -> None:
    asked = {"site": "*", "over": ("layer", "point"), "edit": Scale(factor=0.5)}
    alone, together = (swept(desk, mode=mode, **asked) for mode in ("exact", "fast"))
    assert together.mode == "fast"
    assert (values(alone) - values(together)).abs().max() < 2e-5


LONGER = (*CORRUPTED[:4], 99, 98, *CORRUPTED[6:], 97)  # two others in the middle, one more at the end


def named(desk: Desk, token: int) -> str:
    return desk.engine.runtime.tokenizer.text_of(token)


def test_without_an_axis_of_positions_the_named_ones_are_edited_together(desk: Desk) -> None:
    together = swept(desk, site="z.1", over=("head",), positions=(2, -1), edit=Zero(), clean=None, mode="exact")
    window = {"windows": (("position", 2),), "over": ("head", "position")}
    asked = {"site": "z.1", "positions": (2, -1), "edit": Zero(), "clean": None, "mode": "exact"}
    assert torch.equal(values(together), values(swept(desk, **asked, **window))[:, 0])


def test_positions_are_named_by_number_or_text(desk: Desk) -> None:
    everywhere = values(swept(desk, mode="exact"))
    text = named(desk, CORRUPTED[7])
    reply = swept(desk, positions=(-1, 2, text), mode="exact")
    assert reply.places[1] == (2, 7, 11)
    assert torch.equal(values(reply), everywhere[:, [2, 7, 11]])
    aligned = swept(desk, clean=LONGER, align=((text, text), (-1, -1)), edit=Resample(), mode="exact")
    assert aligned.places[1] == (7, 11)


class Counting:
    """A tokenizer that counts the texts that it is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def text_of(self, token: int) -> str:
        self.asked += 1
        return f" {token}"


def test_each_token_is_spelled_once_however_many_names_there_are() -> None:
    texts: Any = Counting()
    line, other = (SweptLine(name=name, tokens=tuple(range(50)), tokenizer=texts) for name in ("one", "other"))
    found = aligned(line, other, [(str(at), str(at)) for at in range(50)] * 20)
    assert found.rows == found.others == tuple(range(50))
    assert chosen_positions(line, [f" {at}" for at in range(50)] * 20).rows == found.rows
    assert texts.asked == 2 * 50


NOISE = Noise(positions=(2, 3, -4), scale=2.0)


def test_another_vector_is_another_sweep(desk: Desk) -> None:
    asked: dict[str, Any] = {"site": "resid_post.1", "over": ("position",), "clean": None, "mode": "exact"}
    edits = [Add(vector=to_array(torch.full((32,), size))) for size in (0.5, 2.0)]
    assert len({swept(desk, edit=edit, **asked).recipe for edit in edits}) == 2


def test_another_position_is_never_the_same_and_every_one_is_drawn_once() -> None:
    drawn = elsewhere(9, seed=1)
    assert sorted(drawn) == list(range(9))
    assert all(other != position for position, other in enumerate(drawn))
    assert drawn == elsewhere(9, seed=1) != elsewhere(9, seed=2)


@pytest.mark.parametrize("edit", [Mean(), Resample()])
def test_such_edits_of_heads_have_in_one_pass_what_they_have_alone(desk: Desk, edit: Any) -> None:
    asked = {"site": "z.*", "over": ("layer", "head"), "edit": edit}
    alone, together = (swept(desk, mode=mode, **asked) for mode in ("exact", "fast"))
    assert together.mode == "fast"
    assert (values(alone) - values(together)).abs().max() < 2e-5
    assert values(together).std() > 1e-3


def test_a_line_in_noise_is_edited_inside_its_layers(desk: Desk) -> None:
    asked = {"site": "mlp_out", "corrupted": CLEAN, "clean": CLEAN, "noise": NOISE}
    alone, together = (swept(desk, mode=mode, **asked) for mode in ("exact", "fast"))
    assert together.mode == "fast"
    assert (values(alone) - values(together)).abs().max() < 2e-5
    assert values(swept(desk, seed=1, **asked)).sub(values(together)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"metrics": ("norm",)}, InvalidCondition, "A metric reads logits"),
        ({"metrics": ("logit(5) > 2",)}, InvalidCondition, "a metric has to be a number"),
        ({"metrics": ("1 + 2",)}, InvalidCondition, "reads no logit"),
        ({"metrics": ("logit(5",)}, InvalidCondition, r"not an expression such as `logit\(' Rome'\)"),
        ({"metrics": ("loss",)}, InvalidCondition, "A metric knows no 'loss'"),
        ({"metrics": ("mean(logit(5))",)}, InvalidCondition, "A metric knows no function 'mean'"),
        ({"metrics": ("logit(5) ** 2",)}, InvalidCondition, "not allowed in a metric"),
        ({"metrics": ("logit(5) / 0",)}, InvalidCondition, "The metric .* could not be evaluated: float division"),
        (
            {"metrics": ("1 if logit(5) else 2",)},
            InvalidCondition,
            "is a number, and what `if`.* has to be true",
        ),
        ({"metrics": ("logit(99999)",)}, InvalidCondition, "no token 99999"),
        ({"metrics": (f"max(logit(5), 1{'0' * 400})",)}, InvalidCondition, "too large for a number"),
        ({"metrics": ("logit(5, 6)",)}, InvalidCondition, "logit takes one token"),
        ({"site": "resid_past"}, UnknownSite, "'resid_past' is none. Did you mean 'resid_post'?"),
        ({"site": "logits"}, UnknownSite, "'logits' is none"),
        ({"site": "resid_post.2"}, UsageError, "leave the layer out"),
        ({"site": "resid_post", "over": ("position",)}, UsageError, "name one, as in resid_post.4"),
        ({"site": "resid_post", "over": ("layer", "head")}, UsageError, "needs a site that has heads"),
        ({"over": ("layer", "layer")}, UsageError, "names one twice"),
        ({"clean": CLEAN[:-1]}, UsageError, "11 tokens and the corrupted one 12"),
        ({"clean": CLEAN[:1]}, UsageError, "1 token and the corrupted one 12"),
        ({"clean": None}, UsageError, "needs a clean line"),
        ({"clean": (*CLEAN[:-1], 128)}, UsageError, "not in the vocabulary: its ids are 0 to 127"),
        ({"clean": "nobody"}, UsageError, "no session 'nobody'"),
        ({"clean": "a"}, UsageError, "has no tokens yet"),
        ({"edit": PatchFrom(session="b")}, InvalidEdit, "patches from its clean line"),
        ({"edit": Scale(factor=float("nan"))}, InvalidEdit, "not finite"),
        ({"edit": Scale(factor=1.0), "over": ("layer", "coef"), "coefs": (0, float("nan"))}, UsageError, "nan is none"),
        (
            {"windows": (("head", 2),), "site": "z", "over": ("layer", "head")},
            DjinnError,
            "A window is of layers or positions",
        ),
        ({"windows": (("position", 2),), "over": ("layer",)}, DjinnError, "position is none of them"),
        ({"in_pairs": True, "windows": (("layer", 2),)}, DjinnError, "leave one of them out"),
        ({"in_pairs": True, "site": "*.1", "over": ("point",)}, DjinnError, "leave coef and point out"),
        ({"site": "z.1[*]", "over": ("position",)}, DjinnError, r"\[\*\] is an axis of the sweep: add head"),
        ({"site": "*.1", "over": ("position",)}, DjinnError, "add point to the axes"),
        ({"site": "z.1", "over": ("point",)}, DjinnError, r"write \* for it"),
        ({"site": "*.1[3]", "over": ("point",)}, DjinnError, "leave the selector"),
        ({"site": "z", "over": ("layer", "neuron")}, DjinnError, "features without heads, as mlp_post has; z not"),
        ({"site": "mlp_post.1[2]", "over": ("neuron",)}, DjinnError, "features without heads"),
        ({"site": "z.1", "over": ("head", "neuron")}, DjinnError, "sweep over one of them"),
        ({"positions": (12,)}, DjinnError, "Position 12 is not in the corrupted line, which has 12 tokens"),
        ({"positions": ("nowhere",)}, DjinnError, "No token of the corrupted line reads 'nowhere'. Its tokens are: "),
        ({"clean": LONGER}, DjinnError, "The clean line has 13 tokens and the corrupted one 12, .*, with align"),
        ({"clean": LONGER, "align": ((0, 13),)}, DjinnError, "Position 13 is not in the clean line"),
        (
            {"clean": LONGER, "align": ((0, 0), (0, 1))},
            DjinnError,
            "Position 0 of the corrupted line is aligned with 0 and with 1",
        ),
        ({"align": ((0, 0),), "positions": (1,)}, DjinnError, "leave positions and noise out"),
        ({"align": ((0, 0),), "noise": Noise(positions=(1,))}, DjinnError, "leave positions and noise out"),
        ({"align": ((0, 0),), "clean": None, "edit": Zero()}, DjinnError, "of a clean and a corrupted line"),
        ({"clean": LONGER, "align": ((0, 0),), "over": GRID, "site": "pattern"}, DjinnError, "cannot be|edited"),
        ({"noise": NOISE, "clean": None, "edit": Zero()}, UsageError, "needs the clean line"),
        ({"noise": Noise(positions=(12,))}, UsageError, "Position 12 is not in the line, which has 12 tokens"),
        ({"over": ("layer", "coef"), "edit": Scale(factor=1.0)}, UsageError, "needs the coefficients"),
        ({"coefs": (1.0,), "edit": Scale(factor=1.0)}, UsageError, "no other sweep does"),
        ({"over": ("layer", "coef"), "coefs": (1.0,), "edit": Zero()}, UsageError, "zero has none"),
        ({"over": ("layer", "coef"), "coefs": (1.0,)}, UsageError, "patching has none"),
        ({"edit": Mean(), "clean": CLEAN[:-1]}, UsageError, "11 tokens and the corrupted one 12"),
        ({"site": "resid_post.*", "over": ("position",)}, UsageError, "name one, as in resid_post.4"),
        ({"noise": Noise(positions=(1,), scale=float("inf"))}, UsageError, "inf is none"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_a_sentence(
    desk: Desk, fields: dict[str, Any], error: type[DjinnError], said: str
) -> None:
    with pytest.raises(error, match=said):
        swept(desk, **fields)


def test_a_session_with_a_line_of_its_own_is_not_swept_in(desk: Desk) -> None:
    desk.open("a")
    desk.run(CORRUPTED, 0)
    with pytest.raises(IllegalMove, match="sweep in an empty one"):
        desk.ask(Sweep(session="a", corrupted=CORRUPTED, clean=CLEAN, site="z", over=("layer",), metrics=(METRIC,)))


THREE = (METRIC, f"prob({A})", f"rank({B}) - rank({A})")


def by_metric(reply: Any) -> list[Tensor]:
    return [to_tensor(measured.values) for measured in reply.measured]


def test_each_has_what_a_sweep_of_its_own_has(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = [values(swept(desk, metrics=(text,), mode="exact")) for text in THREE]
    ran: list[int] = []
    logits = LinesAlone.logits
    monkeypatch.setattr(LinesAlone, "logits", lambda *asked: ran.append(1) or logits(*asked))
    for mode in ("exact", "fast"):
        ran.clear()
        reply = swept(desk, metrics=THREE, mode=mode)
        assert [measured.metric for measured in reply.measured] == list(THREE)
        for own, others in zip(by_metric(reply), apart, strict=True):
            assert torch.equal(own, others) if mode == "exact" else (own - others).abs().max() < 2e-5
        assert len(ran) == (reply.computed if mode == "exact" else len(reply.rechecked))  # a pass a cell, for all three
    assert reply.measured[1].corrupted == float(values(swept(desk, metrics=THREE[1:2]))[0, 0])


def test_the_head_computes_the_columns_of_all_of_them_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(desk)
    asked: list[Any] = []
    lens = Forward.shared_lens
    monkeypatch.setattr(Forward, "shared_lens", lambda self, *given: asked.append(given[1:]) or lens(self, *given))
    swept(desk, metrics=(METRIC, f"logit({A})", "logit(7)"))
    assert {frozenset(tokens) for (tokens,) in asked} == {frozenset((A, B, 7))}


def test_one_wrong_metric_has_every_cell_computed_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_metric(swept(desk, metrics=THREE, mode="exact"))
    values_of = sweeps.values_of

    def spoiled(*args: Any) -> Any:
        found = yield from values_of(*args)
        return {number: (first, second + 0.5, third) for number, (first, second, third) in found.items()}

    monkeypatch.setattr(sweeps, "values_of", spoiled)
    reply = swept(desk, metrics=THREE)
    assert (reply.mode, reply.rechecked) == ("exact", ())
    assert "differed from the same computed alone by up to 0.5" in reply.notes[-1]
    assert all(map(torch.equal, by_metric(reply), expected))
