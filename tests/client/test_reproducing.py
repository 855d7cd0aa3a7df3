"""`dj.reproduce`: a result, or its file, is computed again from its recipe alone, and what differs is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.engine.passes.wavefront import CallPlan, CallSize
from djinn_jupyter.errors import StorageFailed, UsageError
from djinn_jupyter.methods.datasets.api import scoring
from djinn_jupyter.methods.sweep.api.sweeping import compared_grids
from tests.client import crafted, tables
from tests.client.reached import reached
from tests.client.test_sweeping import CLEAN, CORRUPTED, METRIC, cut_short, swept, with_values
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.words import tokenizer
from tests.families import build

OTHER = (9, 8, 7, 41, 22)


@pytest.mark.parametrize(
    ("mode", "asked"),
    [
        ("fast", {}),
        ("fast", {"metric": [METRIC, "prob(17)"], "clean": [CLEAN, CLEAN], "corrupted": [CORRUPTED, OTHER]}),
        ("exact", {"clean": None, "edit": dj.add(np.linspace(-1, 1, 32), coef=0.5), "coefs": [0, 1],
                   "over": "layer,coef"}),
        ("fast", {"edit": "resample", "seed": 5, "window": 2}),
        ("exact", {"corrupted": None, "noise": dj.noise("0:2", scale=2.0), "samples": 2, "seed": 4}),
        ("fast", {"site": "z", "over": ("layer", "head"), "in_pairs": True}),
        ("exact", {"align": [(-2, -2), -1, "0"], "pairs": [(CLEAN, CORRUPTED), ((1, *CLEAN), (1, *OTHER))],
                   "clean": None, "corrupted": None}),
    ],
)  # fmt: skip
def test_a_file_of_any_sweep_is_computed_again_with_the_same_bits(
    engine: RemoteEngine, tmp_path: Path, mode: str, asked: dict[str, Any]
) -> None:
    grid = swept(engine, mode=mode, **asked)
    found = tables.made_again(engine, grid, tmp_path)
    assert found.before.replies == found.again.replies == grid.replies


@pytest.mark.parametrize("kind", ["sweep", "path"])
def test_the_rows_that_shared_a_call_share_one_again(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A call that had few rows where the machine was slow has as few here, and is said to have others where not."""

    def made() -> dj.Grid:
        if kind == "sweep":
            return swept(engine, mode="fast")
        return dj.path(engine, "z -> resid_post.2", clean=CLEAN, corrupted=CORRUPTED, metric=METRIC)

    def calls(grid: dj.Grid) -> Any:
        return [one.made.asked.calls for one in grid.replies if one.made is not None]

    with monkeypatch.context() as slow:
        slow.setattr(CallSize, "note", lambda size, *call: setattr(size, "rows", 5))
        grid = made()
    assert grid.mode == "fast"
    assert calls(made()) != calls(grid)
    found = dj.reproduce(engine, grid)
    assert calls(found.again) == calls(grid)
    assert found.same, found
    monkeypatch.setattr(CallPlan, "next", lambda plan, learned: learned)
    others = compared_grids(with_values(grid, grid.values + 1), dj.reproduce(engine, grid).again)
    assert others.notes[-1].startswith("Other cells shared a pass than then")


def test_attributions_and_paths_are_computed_again_too(engine: RemoteEngine, tmp_path: Path) -> None:
    lines: dict[str, Any] = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC}
    scores = dj.attribute(engine, site="z", over="layer,head", steps=2, **lines)
    path = dj.path(engine, "z -> q.2[0]", mode="exact", **lines)
    for number, grid in enumerate((scores, path)):
        (tmp_path / str(number)).mkdir()
        tables.made_again(engine, grid, tmp_path / str(number))


def test_a_line_of_a_session_is_in_the_recipe_by_its_tokens_and_its_attention(engine: RemoteEngine) -> None:
    session = engine.session("mine", attention="eager")
    session.steer("mlp_out.1", dj.scale(0.5))
    session.run(CORRUPTED, max_new_tokens=0)
    grid = swept(engine, corrupted=session, mode="exact")
    session.close()
    assert grid.recipe["lines"] == [{"corrupted": CORRUPTED, "clean": CLEAN}]
    assert grid.replies[0].made.attention == "eager"
    assert "rules and edits of session 'mine' are no part of the sweep" in grid.notes[0]
    found = dj.reproduce(engine, grid)
    assert found.same, found
    assert [one.name for one in engine.sessions()] == []


@pytest.mark.parametrize(
    ("site", "over", "said"),
    [
        ("q", "layer,head", "The grid has 3 x 4 cells, and computed again 2 x "),
        ("z.2", "position", r"^The grid is of .* \(Llama.*, and this engine .* \(GPT2.*, which cannot compute it: "),
    ],
)
def test_a_model_without_the_site_is_named(engine: RemoteEngine, site: str, over: str, said: str) -> None:
    grid = swept(engine, site=site, over=over)
    with reached(build_desk(build("gpt2", layers=2), tokenizer())) as [other], pytest.raises(UsageError, match=said):
        dj.reproduce(other, grid)


def test_one_bit_another_number_of_threads_and_a_nan_are_seen(engine: RemoteEngine) -> None:
    grid = swept(engine, mode="exact")
    one = grid.values.copy()
    one[1, 2] = np.nextafter(one[1, 2], np.inf)
    found = compared_grids(grid, with_values(grid, one))
    assert (found.same, found.different, found.place) == (False, 1, {"layer": 1, "position": 2})
    assert 0 < found.largest_difference < 1e-12
    spoiled = np.where(np.arange(15).reshape(3, 5) == 4, np.nan, grid.values)
    found = compared_grids(grid, with_values(grid, spoiled))
    assert (found.different, found.largest_difference, found.place) == (1, np.inf, {"layer": 0, "position": 4})
    assert compared_grids(with_values(grid, spoiled), with_values(grid, spoiled)).same
    line = msgspec.structs.replace(grid.replies[0].measured[0], corrupted=0.5)
    other = dj.Grid([msgspec.structs.replace(grid.replies[0], measured=(line,))])
    assert "the metrics of the unedited lines are not" in repr(compared_grids(grid, other))
    grid = swept(engine, mode="exact")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        found = dj.reproduce(engine, grid)
    finally:
        torch.set_num_threads(before)
    assert found.origin == (("threads", str(before), str(before + 1)),)
    assert f"threads: {before} then, {before + 1} now" in repr(found)


def test_a_grid_that_was_cut_short_cannot_be_computed_again_until_it_is_finished(engine: RemoteEngine) -> None:
    cut = cut_short(engine, mode="exact")
    with pytest.raises(UsageError, match="is not whole, so it cannot be computed again as it was; finish it first"):
        dj.reproduce(engine, cut)
    whole = swept(engine, mode="exact", so_far=cut)
    assert whole.replies[0].made.kept == np.count_nonzero(~np.isnan(cut.values))
    assert dj.reproduce(engine, whole).same


def test_an_interrupted_reproduction_says_so_and_leaves_no_session(engine: RemoteEngine, desk: Desk) -> None:
    def interrupt(grid: dj.Grid, done: int, total: int) -> None:
        raise KeyboardInterrupt

    grid = swept(engine, mode="exact")
    with pytest.raises(dj.WorkInterrupted, match="The reproduction was interrupted"):
        dj.reproduce(engine, grid, on_progress=interrupt)
    assert not desk.engine.sessions


def test_other_programs_read_the_values_of_a_file(engine: RemoteEngine, tmp_path: Path) -> None:
    grid = swept(engine, clean=[CLEAN] * 2, corrupted=[CORRUPTED, OTHER], metric=[METRIC, "prob(17)"])
    tensors = load_file(grid.save(tmp_path / "a.grid.djinn"))
    assert np.array_equal(tensors["values"], grid.values)


def test_a_grid_is_computed_again_from_a_file_of_any_name(engine: RemoteEngine, tmp_path: Path) -> None:
    file = swept(engine).save(tmp_path / "a.grid.djinn").rename(tmp_path / "b.safetensors")
    assert dj.reproduce(engine, file).same


def test_a_grid_that_was_made_again_takes_the_place_of_its_file(engine: RemoteEngine, tmp_path: Path) -> None:
    """A notebook that is run again writes the same file again, though last bits of fast cells may be others."""
    file = tmp_path / "a.grid.djinn"
    grid = swept(engine, mode="fast")
    values = grid.values + 1e-7
    assert not np.array_equal(values, grid.values)
    with_values(grid, values).save(file)
    grid.save(file)
    assert dj.Grid.read(file).values.tobytes() == grid.values.tobytes()
    swept(engine, mode="exact").save(file, replace=True)
    with pytest.raises(UsageError, match="There is another"):
        grid.save(file)
    with pytest.raises(StorageFailed, match="could not be written: No such file or directory"):
        grid.save(tmp_path / "nowhere" / "a.grid.djinn")
    with pytest.raises(UsageError, match="could not be read: No such file or directory"):
        dj.Grid.read(tmp_path / "none.grid.djinn")


def test_a_file_that_is_no_grid_of_ours_is_one_sentence(engine: RemoteEngine, tmp_path: Path) -> None:
    file = swept(engine).save(tmp_path / "a.grid.djinn")
    head, body = crafted.parts(file)
    told = crafted.told(head)

    def with_head(**changes: Any) -> bytes:
        crafted.put(file, {**head, **changes}, body)
        return file.read_bytes()

    def with_text(**changes: Any) -> bytes:
        return with_head(__metadata__={**head["__metadata__"], "djinn": json.dumps({**told, **changes})})

    def made(head: dict[str, Any] = head, **changes: Any) -> bytes:
        crafted.put_told(file, head, body, {**told, "replies": [{**told["replies"][0], **changes}]})
        return file.read_bytes()

    file.write_bytes(made())
    dj.Grid.read(file)
    deep = b'{"a":' + b"[" * 100_000
    for spoiled, said in [
        (len(deep).to_bytes(8, "little") + deep, "is no grid"),
        (with_text(site="mlp_out"), "is damaged"),
        (with_text(format=2, version="9.9"), "has format 2, .* written by another version, '9.9'"),
        (with_head(values=7), "is no grid"),
        (with_head(__metadata__=[]), "is no grid"),
        (made(texts=["a"]), "is no grid of a sweep that .*: its positions have no tokens"),
        (made(places=[[0], [1]]), "is no grid of a sweep that .*: its values and its axes do not fit"),
        (made(measured=[]), "is no grid of a sweep that .*: it has no values"),
        (
            made({**head, "values": {**head["values"], "dtype": "I64"}}),
            "is no grid of a sweep .*: .* not float64",
        ),
        (
            made({**head, "values": {**head["values"], "data_offsets": [8, 16]}}),
            "is no grid of a sweep that .* needs 120 bytes",
        ),
    ]:
        file.write_bytes(spoiled)
        with pytest.raises(UsageError, match=rf"^a\.grid\.djinn {said}.*\.$"):
            dj.Grid.read(file)


LINE, DIFFERENCE = tokens(9), "logit(17) - logit(42)"


def test_an_attribution_at_a_plain_stop_has_a_recipe_and_others_say_why_not(
    engine: RemoteEngine, tmp_path: Path
) -> None:
    session = engine.session("mine", attention="eager")
    session.breakpoint("mlp_out.1")
    session.run(LINE, max_new_tokens=3)
    inside = session.attribute(17, heads=True, position=4)
    assert inside.recipe["attention"] == "eager"
    assert dj.reproduce(engine, inside).same
    assert dj.reproduce(engine, session.attribute(17, ahead=True)).same
    session.edit(dj.scale(0.5))
    edited = session.attribute(17)
    session.resume()
    later = session.attribute(17)
    session.clear()
    session.steer("resid_post.0", dj.scale(0.5))
    session.breakpoint("resid_post.1")
    session.run(LINE, max_new_tokens=1)
    ruled = session.attribute(17)
    for one, why in (
        (edited, "the value of its stop is edited"),
        (later, "an earlier pass of its line was edited at a stop, or stopped under steering rules"),
        (ruled, "the pass was edited at an earlier stop, or stopped under steering rules"),
    ):
        for verb in (lambda one=one: one.save(tmp_path / "a.direct.djinn"), lambda one=one: dj.reproduce(engine, one)):
            with pytest.raises(UsageError, match=rf"^No recipe makes this Attribution again: {why}\. Its numbers stay"):
                verb()
    assert not list(tmp_path.iterdir())


PROMPTS = [[1, 2, 3, 4, 5], [6, 7, 8], [9, 8, 7, 41, 22, 3], [1, 2, 4]]


def ruled(engine: RemoteEngine) -> Any:
    session = engine.session("mine", attention="eager")
    session.steer("mlp_out.1", dj.scale(0.5))
    session.steer("resid_post.*", dj.add(np.linspace(-1, 1, 32), coef=0.5), positions="2:")
    session.steer("resid_pre.0", dj.zero())
    session.rules()[2].off()
    return session


def test_losses_of_several_requests_are_measured_in_the_same_ones(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as few:
        few.setattr(scoring, "ASKED_TOKENS", 8)
        losses = engine.loss(PROMPTS, mode="fast")
    assert len(losses.replies) == 3
    again = tables.made_again(engine, losses, tmp_path).again
    assert [reply.tokens for reply in again.replies] == [reply.tokens for reply in losses.replies]


def test_the_rules_and_the_attention_of_a_session_are_in_the_recipe(engine: RemoteEngine, tmp_path: Path) -> None:
    session = ruled(engine)
    losses = session.loss(PROMPTS)
    session.unsteer()
    assert not np.array_equal(losses.values, session.loss(PROMPTS).values)
    session.close()
    assert [rule.site for rule in losses.recipe["rules"]] == ["mlp_out.1", "resid_post.*"]
    assert losses.recipe["attention"] == "eager"
    tables.made_again(engine, losses, tmp_path)


def test_prompts_that_shared_passes_are_said_to_where_bits_differ(engine: RemoteEngine) -> None:
    losses = engine.loss(PROMPTS, mode="fast")
    losses.values = losses.values + 1
    found = dj.reproduce(engine, losses)
    assert found.notes == (
        "Prompts that shared passes may have other last bits where other ones shared them; "
        'those of mode="exact" have not.',
    )


def test_what_is_no_such_result_is_one_sentence(engine: RemoteEngine, tmp_path: Path) -> None:
    scores = engine.head_scores(PROMPTS).save(tmp_path / "a.heads.djinn")
    with pytest.raises(UsageError, match="The file has head scores, and no patterns"):
        dj.HeadPatterns.read(scores)
    with pytest.raises(UsageError, match=r"^Grids, losses, .* are computed again; 5 is none of these"):
        dj.reproduce(engine, 5)
    with pytest.raises(UsageError, match=r"^collection is .*Activations or a text or .*, not 5\.$"):
        dj.reproduce(engine, engine.loss(PROMPTS), collection=5)
