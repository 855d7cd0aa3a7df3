"""Faults of stopping and going on, planted in the engine: `whitebox` and `resume-latency` do not pass with them."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from transformers.models.llama import modeling_llama

import djinn_jupyter as dj
from djinn_evaluation.commands.experiment import UNDECIDED
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Paused
from djinn_jupyter.engine.memory.offload.swappable import Item
from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.passes.breakpoints import Breakpoint
from djinn_jupyter.engine.passes.controller import PassController, make_plan
from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.residency.swapping import Swapping
from djinn_jupyter.engine.session import run as runs
from djinn_jupyter.engine.session.history import History
from tests.engine.counting import LayerCount
from tests.engine.desk import build_desk
from tests.engine.plain import generate, plain_of
from tests.engine.test_exact import NEW, PROMPT, stop_edit_and_go_back
from tests.families import build
from tests.faults.inside import OURS_ALONE, Inside

Patch = pytest.MonkeyPatch
NOT_STEERED = ("experiment.activation_steering.enabled=false", "validation.require_steering_effect=false")
OURS = ("skip_recompute=true", "skip_offload=true")
ONLY_TRIALS = (
    "experiment.concurrent_demo.enabled=false",
    "validation.require_concurrent_success=false",
    "experiment.breakpoints.layers=[2]",
    *NOT_STEERED,
)
NO_TRIALS = ("experiment.breakpoints.enabled=false", "validation.require_output_equivalence=false", *NOT_STEERED)


def whitebox(inside: Inside, *settings: str) -> str:
    """The report of a run, with its verdict."""
    ran = inside.run("whitebox", *settings, flags=OURS_ALONE)
    assert ran.said.strip().endswith("FAIL" if ran.status else "PASS")
    return ran.report


def test_without_a_fault_it_passes(inside: Inside) -> None:
    assert whitebox(inside).startswith("# whitebox: PASS")


def test_an_activation_that_is_another_at_the_stop(inside: Inside, monkeypatch: Patch) -> None:
    """The run is right and one number of what the stop shows is not: a plain hook at that layer tells."""
    value = Paused.hidden.fget

    def shown(stop: Paused) -> Any:
        hidden = value(stop).copy()
        hidden[0, 0] += 1
        return hidden

    monkeypatch.setattr(Paused, "hidden", property(shown))
    assert "A hidden state at a stop is not the one that a plain hook sees." in whitebox(inside, *ONLY_TRIALS)


def test_a_pause_that_runs_all_layers(inside: Inside, monkeypatch: Patch) -> None:
    """Everything is computed and only the answer is held back: the bits are right, the layers tell."""
    leave, arrive, run = PassController._leave, PassController.receive, Forward.enter

    def remember(self: Any, *where: Any) -> None:
        try:
            leave(self, *where)
        except Leave:
            held.append(self.left)

    held: list[Any] = []

    def enter(self: Any, frame: Any, plan: Any, cache: Any, saved_states: Any, admit: Any, **how: Any) -> Any:
        held.clear()
        done = run(self, frame, plan, cache, saved_states, admit, **how)
        if not held:
            return done
        cache.rewind(frame.committed)
        return replace(held[0], layers_run=done.layers_run)

    def on(self: Any, boundary: int, hidden: Any, kwargs: Any) -> Any:
        return hidden if held else arrive(self, boundary, hidden, kwargs)

    monkeypatch.setattr(PassController, "_leave", remember)
    monkeypatch.setattr(PassController, "receive", on)
    monkeypatch.setattr(Forward, "enter", enter)
    assert "A stop ran other layers than those before it" in whitebox(inside, *ONLY_TRIALS)


def test_a_resume_without_the_final_norm(inside: Inside, monkeypatch: Patch) -> None:
    call = Forward._call

    def without_norm(self: Any, frame: Any, *others: Any) -> Any:
        if frame.hidden is None:
            return call(self, frame, *others)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.model.model.norm, "forward", lambda hidden: hidden)
            return call(self, frame, *others)

    monkeypatch.setattr(Forward, "_call", without_norm)
    assert "A resumed run is not bitwise equal" in whitebox(inside, *ONLY_TRIALS)


def test_attention_that_turns_bidirectional_on_resume(tmp_path: Path, monkeypatch: Patch) -> None:
    """Under eager attention without a mask every position sees those after it."""
    inside, call = Inside(tmp_path, attention="eager"), Forward._call
    assert "PASS" in whitebox(inside, *ONLY_TRIALS)

    def without_mask(self: Any, frame: Any, *others: Any) -> Any:
        if frame.hidden is None:
            return call(self, frame, *others)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(modeling_llama, "create_causal_mask", lambda *args, **kwargs: None)
            return call(self, frame, *others)

    monkeypatch.setattr(Forward, "_call", without_mask)
    assert "A resumed run is not bitwise equal" in whitebox(inside, *ONLY_TRIALS)


def test_a_resume_that_silently_runs_everything_again(inside: Inside, monkeypatch: Patch) -> None:
    """An error on the way, caught, and the whole pass once more: the right bits, and too many layers."""
    enter = Forward.enter

    def again(self: Any, frame: Any, plan: Any, cache: Any, saved_states: Any, admit: Any, **how: Any) -> Any:
        if frame.hidden is None:
            return enter(self, frame, plan, cache, saved_states, admit, **how)
        later = {n: places for n, places in plan.boundaries.items() if n > frame.boundary}
        return enter(self, frame.at_start(), replace(plan, boundaries=later), cache, saved_states, admit, **how)

    monkeypatch.setattr(Forward, "enter", again)
    said = whitebox(inside, *ONLY_TRIALS)
    assert said.count("FAIL") == 1
    assert "or a resume other than those after it" in said
    assert "bitwise_equal: no" not in said


def test_hooks_that_other_sessions_trip(inside: Inside, monkeypatch: Patch) -> None:
    """A breakpoint that one session has armed stops every session."""
    inside.desk()  # before the fault, which its self-test would find
    armed: dict[int, Breakpoint] = {}

    def shared(*, halts: Any = (), **others: Any) -> Any:
        armed.update({id(one): one for one in halts if isinstance(one, Breakpoint)})
        targets = [one for one in halts if not isinstance(one, Breakpoint)]
        return make_plan(halts=(*armed.values(), *targets), **others)

    monkeypatch.setattr(runs, "make_plan", shared)
    ran = inside.run("whitebox", *NO_TRIALS, flags=OURS_ALONE)
    assert ran.status == 1
    assert "A run was to end and did not: Paused at resid_post" in ran.report


def test_edits_that_reach_other_sessions(inside: Inside, monkeypatch: Patch) -> None:
    """B ends while A is stopped, and gets A's edits: B's bits are compared too."""
    inside.desk()
    enter = Forward.enter

    def reached(self: Any, frame: Any, plan: Any, cache: Any, saved_states: Any, admit: Any, **how: Any) -> Any:
        standing = [s for s in inside.desk().engine.sessions.values() if s.state == "paused"]
        if standing and frame.hidden is None:
            with pytest.MonkeyPatch.context() as patch:
                run = self.model.model.layers[2].mlp.forward
                patch.setattr(self.model.model.layers[2].mlp, "forward", lambda hidden: 0.5 * run(hidden))
                return enter(self, frame, plan, cache, saved_states, admit, **how)
        return enter(self, frame, plan, cache, saved_states, admit, **how)

    monkeypatch.setattr(Forward, "enter", reached)
    ran = inside.run("whitebox", *NO_TRIALS, flags=OURS_ALONE)
    assert "Request B is not what it would have been without A." in ran.report


def test_one_resume_for_a_stop(inside: Inside, monkeypatch: Patch) -> None:
    """A stop that is used up by its first resume; and one that the first resume writes to."""
    assert inside.run("resume-latency").status != 1
    with monkeypatch.context() as patch:
        leave = History.leave

        def used_up(self: History, left_as: Any) -> None:
            leave(self, left_as)
            self.stops.clear()

        patch.setattr(History, "leave", used_up)
        ran = inside.run("resume-latency")
        assert (ran.status, "There is no earlier stop to go back to" in ran.said) == (1, True)
    enter = Forward.enter

    def writes(self: Any, frame: Any, *others: Any, **how: Any) -> Any:
        done = enter(self, frame, *others, **how)
        if frame.hidden is not None:
            frame.hidden.mul_(-1)
        return done

    monkeypatch.setattr(Forward, "enter", writes)
    ran = inside.run("resume-latency", *OURS)
    assert "resumes disagree on the next token at layer 3" in ran.report
    assert ran.file("djinn_resume_latency.json")["status"] == "failed"


def test_no_stop_while_generating(inside: Inside, monkeypatch: Patch) -> None:
    meets = Breakpoint.meets
    monkeypatch.setattr(Breakpoint, "meets", lambda self, m: None if m.step else meets(self, m))
    assert "A breakpoint at the first new token did not stop its pass." in whitebox(inside, *ONLY_TRIALS)


def test_no_stop_beside_a_neighbour(inside: Inside, monkeypatch: Patch) -> None:
    """A runs through, and its cost to B would be reported as the cost of a stop."""
    assert inside.run("checkpoint-cost", "repeat=1").status == UNDECIDED  # one turn tells nothing
    monkeypatch.setattr(Breakpoint, "meets", lambda self, m: None)
    ran = inside.run("checkpoint-cost", "repeat=1")
    assert (ran.status, "A run was to stop and did not" in ran.said) == (1, True)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("checkpoint-cost", ("repeat=6",), "a move costs the neighbour more than a stop and 4 of its tokens"),
        ("resume-latency", (*OURS, "repeat=6"), "a resume at layer 3 (KV host) takes longer than"),
    ],
)
def test_a_move_that_blocks_the_engine(
    inside: Inside, monkeypatch: Patch, name: str, settings: tuple[str, ...], said: str
) -> None:
    """A machine so loaded that a token takes as long as the block leaves it undecided; none passes."""
    assert inside.run(name, *settings, "repeat=2").status != 1
    swap_in = Swapping.swap_in

    def blocks(self: Swapping, *moved: Any, **how: Any) -> Any:
        time.sleep(0.25)
        return swap_in(self, *moved, **how)

    monkeypatch.setattr(Swapping, "swap_in", blocks)
    ran = inside.run(name, *settings)
    assert ran.status in (1, UNDECIDED)
    assert said[1:] in ran.report


def test_bytes_that_stay_are_not_timed_as_coming_back(inside: Inside, monkeypatch: Patch) -> None:
    monkeypatch.setattr(RemoteSession, "swap_out", lambda self, tier="host": None)
    ran = inside.run("resume-latency", *OURS)
    assert (ran.status, "was to be host for its resume and is resident" in ran.said) == (1, True)


def test_an_edit_that_does_not_repeat(inside: Inside, monkeypatch: Patch) -> None:
    scale, factors = dj.scale, cycle((0.5, 0.6))
    monkeypatch.setattr(dj, "scale", lambda factor: scale(next(factors)))
    said = whitebox(inside)
    assert "The same edit at the same stop gave two results." in said
    assert "activation_steering.steering_successful: no" in said


def test_stale_bytes_over_newer_ones(inside: Inside, monkeypatch: Patch) -> None:
    """A page that has left once is taken for clean for ever: at the second stop its first copy comes back."""
    monkeypatch.setattr(Item, "wrote", lambda self: None)
    said = whitebox(inside)
    assert "A resumed run is not bitwise equal" in said


def test_layers_that_run_and_are_not_counted(monkeypatch: Patch) -> None:
    """The experiments read the engine's own count; our tests count by hooks of their own, and find the difference."""
    model = build("llama")
    desk = build_desk(model)
    count, plain = LayerCount(model, desk.engine.anatomy.layers), generate(plain_of("llama"), PROMPT, NEW)
    stop_edit_and_go_back(desk, count, plain, boundary=3, step=1)
    desk.close_all()
    leave = PassController._leave

    def runs_on(self: Any, boundary: int, hidden: Any, *others: Any) -> None:
        for run in desk.engine.forward.gates._before[boundary:]:
            run(hidden, **self._kwargs)
        leave(self, boundary, hidden, *others)

    monkeypatch.setattr(PassController, "_leave", runs_on)
    with pytest.raises(AssertionError):
        stop_edit_and_go_back(desk, count, plain, boundary=3, step=1)
