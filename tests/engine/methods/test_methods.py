"""Each method is held to plain hooks on the plain model, in families of twelve kinds, some in bfloat16 too.

A sweep, an edit, a rule, a collection and a loss that are computed alone have the bits of hooks; what shares a pass is
as near as it says. Paths have their own: `tests/engine/sweeps/test_paths.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.methods.datasets.request import Collect, Score
from djinn_jupyter.methods.sweep.request import Sweep, Swept
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Edit, PatchFrom, Scale, Set, Zero
from djinn_jupyter.wire.nouns import Sampling
from tests.engine.collecting import plain_collection
from tests.engine.desk import array, tokens
from tests.engine.methods.kinds import KINDS, Subject, model_of
from tests.engine.methods.plain_hooks import Hook, PlainHooks, at, put
from tests.engine.methods.plain_patterns import pattern_changed
from tests.engine.methods.rule_hooks import EDITS, LAYER, LENGTH, LIMITS, NEW, PROMPT, ROWS, V, doubled_where, fed, norm
from tests.engine.methods.sweep_cells import CLEAN, CORRUPTED, GRID, METHODS, METRICS, A, B, Cell
from tests.engine.session.test_sharing import run_at_once

pytestmark = pytest.mark.drawn

SOURCE = tokens(LENGTH, seed=5)
PROMPTS = tuple(tokens(length, seed=length) for length in (22, 5, 24, 22))
HERE = f"resid_post.{LAYER}"


# --- sweeps ----------------------------------------------------------------------------------------------------------


def swept(subject: Subject, **fields: Any) -> Swept:
    subject.desk.open("a")
    asked = {"corrupted": CORRUPTED, "clean": CLEAN, "site": "resid_post", "over": GRID, "metrics": METRICS}
    reply = subject.desk.ask(Sweep(session="a", **{**asked, **fields}))
    assert isinstance(reply, Swept), reply
    return reply


def read(row: Tensor) -> list[float]:
    """Return the metrics of logits [V], as METRICS has them."""
    return [float(row[A]) - float(row[B]), float(torch.softmax(row, -1)[A]), 1 + int((row > row[B]).sum())]


def values(reply: Swept, cells: list[Cell]) -> Tensor:
    """Return [cells, metrics]."""
    grids = [to_tensor(measured.values) for measured in reply.measured]
    return torch.stack([torch.stack([grid[cell.index] for grid in grids]) for cell in cells])


@pytest.mark.parametrize("name", METHODS)
def test_a_sweep_is_that_of_hooks(subject: Subject, name: str) -> None:
    method, plain = METHODS[name], subject.plain
    if name == "neurons" and plain.names.down is None:
        pytest.skip("its MLP has no neurons that a site could name")
    line, cells = method.asked.get("corrupted", CORRUPTED), list(method.cells(plain))
    expected = torch.tensor([read(plain.logits(line, cell.hooks)) for cell in cells], dtype=torch.float64)
    chosen = method.chosen(cells, subject.layers)
    exact, fast = (swept(subject, mode=mode, chosen=chosen, **method.asked) for mode in ("exact", "fast"))
    assert torch.equal(values(exact, cells), expected)
    assert len({tuple(row) for row in expected.tolist()}) > 1  # the edit does something
    assert (fast.mode, fast.notes) == ("fast", ())
    for number, measured in enumerate(fast.measured[:2]):
        most = (2e-5, 1e-6)[number] if subject.dtype is torch.float32 else measured.tolerance
        assert (values(fast, cells)[:, number] - expected[:, number]).abs().max() <= most, measured.metric


# --- rules -----------------------------------------------------------------------------------------------------------


def is_ruled_by(subject: Subject, site: str, edit: Edit, hooks: Any, **limits: Any) -> None:
    """A run under the rule is that of the plain model under the hooks, and not that without."""
    subject.desk.open()
    subject.desk.steer(site, edit, **limits)
    finished = subject.desk.run(PROMPT, NEW)
    assert finished.rules[0].passes_refused == 0
    ruled = subject.desk.outcome(finished)
    assert ruled == subject.plain.run(PROMPT, NEW, hooks)
    assert not torch.equal(ruled.logits, subject.plain.run(PROMPT, NEW).logits)


@pytest.mark.parametrize(("edit", "change"), EDITS, ids=[type(edit).__name__ for edit, _ in EDITS])
def test_a_rule_is_a_hook_in_every_pass(subject: Subject, edit: Edit, change: Hook) -> None:
    is_ruled_by(subject, HERE, edit, {("resid_post", LAYER): [change]})


@pytest.mark.parametrize("name", LIMITS)
def test_a_rule_with_a_limit_is_a_hook_with_an_if(subject: Subject, name: str) -> None:
    limits, holds = LIMITS[name]
    is_ruled_by(subject, HERE, Scale(factor=2.0), {("resid_post", LAYER): [doubled_where(holds)]}, **limits)


def test_a_condition_is_asked_of_the_value_at_each_position(subject: Subject) -> None:
    (value,) = subject.plain.value(PROMPT, ("resid_post", LAYER))
    middle = sorted(map(norm, value))[LENGTH // 2]
    asked: list[bool] = []

    def holds(position: int, row: Tensor) -> bool:
        asked.append(norm(row) > middle)
        return asked[-1]

    hooks = {("resid_post", LAYER): [doubled_where(holds)]}
    is_ruled_by(subject, HERE, Scale(factor=2.0), hooks, when=f"norm > {middle!r}")
    assert {True, False} <= set(asked)


def test_a_rule_of_every_layer_is_a_hook_on_each(subject: Subject) -> None:
    vector = 0.1 * V
    hooks = {("resid_post", layer): [lambda h: h + vector.to(h)] for layer in range(subject.layers)}
    is_ruled_by(subject, "resid_post.*", Add(vector=array(vector)), hooks)


def test_a_rule_of_one_head_of_every_layer_is_a_hook_on_each(subject: Subject) -> None:
    hooks = {("z", layer): [subject.plain.of_heads([2], torch.zeros_like)] for layer in range(subject.layers)}
    is_ruled_by(subject, "z.*[2]", Zero(), hooks)


def test_an_array_with_a_row_for_each_position_gives_each_its_own(subject: Subject) -> None:
    row_of = {LENGTH: ROWS[0], 4: ROWS[1]}

    def change(raw: Tensor, positions: range) -> Tensor:
        changed = raw.clone()
        for row, position in enumerate(positions):
            changed[0, row] = row_of.get(position, raw[0, row])
        return changed

    is_ruled_by(subject, HERE, Set(value=array(ROWS)), {("resid_post", LAYER): [fed(change)]}, positions=(LENGTH, 4))


# --- values of another session ---------------------------------------------------------------------------------------


def stopped_in_the_source(subject: Subject, site: str, *, eager: bool = False) -> None:
    """Stop the session `source` at the site, on the line SOURCE."""
    desk = subject.desk
    for name in ("a", "source"):
        desk.open(name)
        if eager:
            desk.ask(ask.SetAttention(session=name, attention="eager"))
    desk.stop_at(site, name="source")
    desk.run(SOURCE, NEW, "source")


@pytest.mark.parametrize("point", ["resid_post", "z"])
def test_an_edit_takes_a_value_from_another_stop(subject: Subject, point: str) -> None:
    desk, plain, rows = subject.desk, subject.plain, (3, 9, LENGTH - 1)
    stopped_in_the_source(subject, f"{point}.{LAYER}")
    desk.stop_at(f"{point}.{LAYER}", "step == 0")
    desk.run(PROMPT, NEW)
    desk.edit(PatchFrom(session="source"), positions=rows)
    hook, passes = at(rows, put(plain.value(SOURCE, (point, LAYER)))), iter(range(NEW))
    expected = plain.run(PROMPT, NEW, {(point, LAYER): [lambda raw: raw if next(passes) else hook(raw)]})
    assert desk.outcome(desk.resume()) == expected
    assert not torch.equal(expected.logits, plain.run(PROMPT, NEW).logits)


def test_z_of_another_session_is_frozen_by_a_rule_of_the_prompts_positions(subject: Subject) -> None:
    site = f"z.{LAYER}"
    stopped_in_the_source(subject, site)
    there = subject.plain.value(SOURCE, ("z", LAYER))
    frozen = Set(value=to_array(subject.desk.value(site, "source")))
    hooks = {("z", LAYER): [lambda raw: there if raw.shape == there.shape else raw]}
    is_ruled_by(subject, site, frozen, hooks, positions=tuple(range(LENGTH)))


def test_a_pattern_of_another_session_is_frozen_by_a_rule_of_the_prompts_positions(subject: Subject) -> None:
    """In sessions of eager attention, whose bits are those of the plain model loaded with it."""
    desk, head, site = subject.desk, 1, f"pattern.{LAYER}[1]"
    stopped_in_the_source(subject, site, eager=True)
    desk.steer(site, Set(value=to_array(desk.value(site, "source"))), positions=tuple(range(LENGTH)))
    plain = PlainHooks(model_of(subject.kind, subject.dtype, "eager"), KINDS[subject.kind])
    attention = plain.layers[LAYER].get_submodule(plain.names.attention)
    seen: list[Tensor] = []
    with pattern_changed(attention, lambda pattern: seen.append(pattern) or pattern):
        plain.logits(SOURCE)

    def frozen(pattern: Tensor) -> Tensor:
        changed = pattern.clone()
        if pattern.shape[2] == LENGTH:
            changed[:, head] = seen[0][:, head]
        return changed

    with pattern_changed(attention, frozen):
        expected = plain.run(PROMPT, NEW)
    assert desk.outcome(desk.run(PROMPT, NEW)) == expected
    assert not torch.equal(expected.logits, plain.run(PROMPT, NEW).logits)


# --- many prompts ----------------------------------------------------------------------------------------------------


def test_a_collection_has_the_values_of_hooks(subject: Subject, tmp_path: Path) -> None:
    places = [("resid_post", 0), ("z", LAYER), ("resid_post", subject.layers - 1)]
    sites = tuple(f"{point}.{layer}" for point, layer in places)
    found = []
    for mode in ("exact", "fast"):
        subject.desk.open("a")
        asked = {"folder": str(tmp_path / mode), "shard": 0, "first": 0, "last": True, "positions": None}
        reply = subject.desk.ask(Collect(session="a", prompts=PROMPTS, sites=sites, mode=mode, **asked))
        assert (reply.mode, reply.notes) == (mode, ())
        found.append(plain_collection.read(Path(reply.path))[0])
    most = 1e-4 if subject.dtype is torch.float32 else 0.25
    for place, site in zip(places, sites, strict=True):
        expected = torch.cat([subject.plain.value(prompt, place)[0] for prompt in PROMPTS])
        exact, fast = (shard[site].flatten(1) for shard in found)
        assert torch.equal(exact, expected)
        assert (fast.float() - expected.float()).abs().max() < most


def test_a_loss_is_that_of_the_plain_model(subject: Subject) -> None:
    logits = [subject.plain.all_logits(prompt) for prompt in PROMPTS]
    losses = [
        cross_entropy(rows[:-1], torch.tensor(prompt[1:]), reduction="none")
        for rows, prompt in zip(logits, PROMPTS, strict=True)
    ]
    for mode in ("exact", "fast"):
        subject.desk.open("a")
        reply = subject.desk.ask(Score(session="a", prompts=PROMPTS, mode=mode))
        difference = (to_tensor(reply.values) - torch.cat(losses)).abs().max()
        assert (reply.mode, reply.notes) == (mode, ())
        assert difference == 0 if mode == "exact" else difference < (1e-4 if subject.dtype is torch.float32 else 0.1)


def test_prompts_that_run_at_once_are_what_each_is_alone(subject: Subject) -> None:
    prompts, single = (PROMPTS[0], PROMPT[:21], PROMPTS[2]), subject.dtype is torch.float32
    for mode, new in (("exact", NEW), ("fast", NEW if single else 1)):  # of a rounding in 16 bits comes another token
        rows = run_at_once(subject.desk, mode=mode, prompts=list(prompts), new=new)
        assert [(row.shared, row.note) for row in rows] == [(0 if mode == "exact" else new, None)] * len(prompts)
        for prompt, row in zip(prompts, rows, strict=True):
            made, expected = subject.desk.outcome(row, row.session), subject.plain.run(prompt, new)
            if mode == "exact":
                assert made == expected
            else:
                assert made.tokens == expected.tokens or not single
                assert (made.logits - expected.logits).abs().max() < (1e-4 if single else 0.1)


def test_a_sample_is_what_its_seed_alone_draws(subject: Subject) -> None:
    if subject.dtype is not torch.float32:
        pytest.skip("of a rounding in 16 bits another token may be drawn")
    desk, found = subject.desk, {}
    for mode in ("exact", "fast"):
        replies: list[Any] = []
        for seed in range(3):
            drawn = Sampling(temperature=1.0, seed=seed)
            asked = {"max_new_tokens": 2, "sampling": drawn, "ignore_eos": True, "mode": mode}
            desk.post(ask.Run(session=desk.open(f"s{seed}"), tokens=PROMPT, **asked), replies)
        while len(replies) < 3:
            desk.engine.tick()
        assert [(row.shared, row.note) for row in replies] == [(0 if mode == "exact" else 2, None)] * 3
        found[mode] = {row.session: row.tokens for row in replies}
    assert found["fast"] == found["exact"]
    assert len(set(found["fast"].values())) > 1
