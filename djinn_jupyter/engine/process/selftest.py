"""The load-time self-test: the engine checks on the loaded model that stopping, resuming and sharing change no bit.

It sends requests to the engine, like a client, and compares with the model's own `generate`. A failed check refuses the
model by name. Short prompts: about thirty passes of a dozen tokens; with CUDA graphs, steps after a long one too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

import msgspec
import torch
from torch import Tensor
from transformers import GenerationConfig

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.process.describe import position_limit
from djinn_jupyter.engine.process.engine import Engine
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import ModelRefused
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.nouns import CheckResult
from djinn_jupyter.wire.replies import BreakpointSet, Closed, Edited, Finished, Logits, Opened, Paused, Reply, ReplyBase

LENGTH: Final = 11
STEPS: Final = 3
MANY: Final = 32  # steps, so that attention is over as many lengths
LONG: Final = 512  # positions; over so many a GPU's attention is split among its blocks, over a dozen it is not
LEAST_POSITIONS: Final = LENGTH + STEPS - 1
ALIGNED: Final = 16  # bytes
_SEED: Final = 20260925
HOLDER: Final = Holder(name="self-test", user="self-test")
Expected = TypeVar("Expected", bound=ReplyBase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The checks made. `feeds_token_by_token`: two chunks of a prompt do not give the result of one shot, so extensions
    are fed token by token."""

    checks: tuple[CheckResult, ...]
    feeds_token_by_token: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    tokens: tuple[int, ...]
    logits: Tensor

    def same(self, other: Outcome) -> bool:
        return self.tokens == other.tokens and torch.equal(self.logits, other.logits)


def prove(engine: Engine) -> Proof:
    """Run all checks. Raises ModelRefused, which names the first that fails."""
    trial = _Trial(engine)
    try:
        checks = tuple(_checked(engine, name, check) for name, check in trial.checks())
        in_chunks = trial.chunks_match()
    finally:
        for name in [name for name in engine.sessions if name.startswith("self-test ")]:
            engine.ask(ask.Close(session=name), HOLDER)
    found = "match" if in_chunks else "do not match: this family is fed token by token"
    chunks = CheckResult(name="two chunks against one shot", passed=in_chunks, detail=found)
    return Proof(checks=(*checks, chunks), feeds_token_by_token=not in_chunks)


def _checked(engine: Engine, name: str, check: Callable[[], bool]) -> CheckResult:
    if not check():
        reason = f"the load-time self-test failed at {name!r}"
        raise ModelRefused.inexact(engine.description.architecture, reason, *_uneven_heads(engine), *_by_graphs(engine))
    return CheckResult(name=name, passed=True, detail="bitwise equal")


def _uneven_heads(engine: Engine) -> tuple[str, ...]:
    """Return the advice for heads of a width at which fused attention gives other bits at another place in memory, and
    none for others. On the CPU a Llama with two query heads a key head fails under sdpa and passes under eager with
    heads of 6, 10, 14, 18, 22, 34 and 66 float32 numbers."""
    layers = engine.forward.geometry.layers
    width = next((n.key_dim for n in layers if n.dtype and n.key_dim * n.dtype.itemsize % ALIGNED), None)
    if width is None or engine.description.attention != "sdpa":
        return ()
    return (
        f"Its heads are {width} numbers wide, no multiple of {ALIGNED} bytes, for which fused attention does not "
        "always give the same bits: load it with --attention eager, in Python attention='eager'.",
    )


def _by_graphs(engine: Engine) -> tuple[str, ...]:
    """Return the advice for a model that was tested with CUDA graphs."""
    return () if engine.forward.graphs is None else ("It ran by CUDA graphs: load it without --cuda-graphs.",)


@contextmanager
def _plain_settings(model: Any) -> Iterator[None]:
    """Replace the checkpoint's settings for `generate` (forced or forbidden tokens, penalties, beams, another cache),
    which are not part of the forward pass."""
    wished, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = wished


class _Trial:
    """A prompt, the plain model's outcome for it, and sessions for the checks."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.layers = engine.forward.layers
        generator = torch.Generator().manual_seed(_SEED)
        size = engine.description.vocab_size
        self.prompt = tuple(torch.randint(size, (LENGTH,), generator=generator).tolist())
        self.other = tuple(torch.randint(size, (LENGTH - 4,), generator=generator).tolist())
        self.plain = self._plain()

    def checks(self) -> Iterator[tuple[str, Callable[[], bool]]]:
        yield "forward is deterministic", lambda: self._plain().same(self.plain)
        index = isinstance(self.engine.anatomy.keep_last.get("logits_to_keep"), Tensor)
        over = " over all positions" if index else ""  # otherwise the model drops all but the last
        yield f"uninterrupted run equals generate{over}", lambda: self.run("a").same(self.plain)
        for layer in sorted({min(1, self.layers - 1), self.layers // 2, self.layers - 1}):
            yield (
                f"stop before layer {layer}, edited branch, then unedited",
                partial(self.stopped, f"resid_pre.{layer}"),
            )
        inside = self._inside_site()
        if inside is not None:
            yield f"stop inside a layer at {inside}", partial(self.stopped, inside)
        yield "stop in a decode step", partial(self.stopped, f"resid_post.{self.layers // 2}", step=1)
        yield "fork of a stopped prefill", self.forked
        yield "two interleaved sessions", self.interleaved
        if _uneven_heads(self.engine):
            steps = min(MANY, self._positions() - 1)
            yield f"{steps} steps equal generate", partial(self.after_many_steps, steps)
        if self.engine.forward.graphs is not None:
            length = self._long_length()
            yield f"steps by CUDA graphs after {length} positions", partial(self.after_a_long_prompt, length)

    def _drawn(self, length: int) -> tuple[int, ...]:
        size, generator = self.engine.description.vocab_size, torch.Generator().manual_seed(_SEED + length)
        return tuple(torch.randint(size, (length,), generator=generator).tolist())

    def _long_length(self) -> int:
        """Return the length of a long prompt, limited by the model's positions and a quarter of the pages."""
        groups, room = self.engine.description.cache_groups, LONG
        if groups:
            pages = min(slab.budget.limit for slab in self.engine.slabs) // sum(group.page_bytes for group in groups)
            room = pages * min(group.page_positions for group in groups) // 4
        return max(LENGTH, min(LONG, room, self._positions()) - STEPS)

    def _positions(self) -> int:
        return position_limit(cast(Any, self.engine.model).config.get_text_config()) or LONG

    def _plain(self, prompt: tuple[int, ...] | None = None, steps: int = STEPS) -> Outcome:
        """Return the tokens and last logits of the model's own greedy `generate`, cache in use."""
        model: Any = self.engine.model
        prompt = prompt or self.prompt
        try:
            with _plain_settings(model):
                made = self._generated(model, prompt, steps)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = f"its own generate fails on a text ({error})"
            raise ModelRefused.inexact(type(model).__name__, reason) from error
        return Outcome(
            tokens=tuple(made.sequences[0, len(prompt) :].tolist()), logits=made.logits[-1][0].to("cpu", torch.float32)
        )

    def _generated(self, model: Any, prompt: tuple[int, ...], steps: int) -> Any:
        return model.generate(
            torch.tensor([prompt], device=self.engine.forward.device),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.long, device=self.engine.forward.device),
            max_new_tokens=steps,
            use_cache=True,  # MPT's own configuration leaves it out, and recomputing all rows is another arithmetic
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
            **self.engine.anatomy.keep_last,
        )

    def _inside_site(self) -> str | None:
        """Return a site within the middle layer that this architecture has."""
        middle = self.layers // 2
        for point in ("mlp_in", "z", "attn_out", "mlp_out"):
            found = next(p for p in self.engine.anatomy.points() if p.point == point)
            if found.editable and found.layers and middle in found.layers:
                return f"{point}.{middle}"
        return None

    def run(self, name: str) -> Outcome:
        self.open(name)
        return self.outcome(name, self.say(self.run_request(name), Finished))

    def stopped(self, site: str, step: int = 0) -> bool:
        """Stop, continue edited; go back, continue unedited. The second must equal the plain run, three tokens long."""
        self.open("a")
        self.say(ask.SetBreakpoint(session="a", site=site, when=f"step == {step}"), BreakpointSet)
        self.say(self.run_request("a"), Paused)
        self.say(ask.ApplyEdit(session="a", edit=Scale(factor=0.5)), Edited)
        self.say(ask.Resume(session="a"), Finished)
        self.say(ask.Back(session="a"), Paused)
        return self.outcome("a", self.say(ask.Resume(session="a"), Finished)).same(self.plain)

    def forked(self) -> bool:
        """Run an edited fork first, then its parent unedited."""
        self.open("a")
        self.say(ask.SetBreakpoint(session="a", site=f"resid_post.{self.layers // 2}", when="step == 0"), BreakpointSet)
        self.say(self.run_request("a"), Paused)
        self.say(ask.Fork(session="a", name=self.name("b")), Opened)
        self.say(ask.ApplyEdit(session="b", edit=Scale(factor=0.5)), Edited)
        self.say(ask.Resume(session="b"), Finished)
        return self.outcome("a", self.say(ask.Resume(session="a"), Finished)).same(self.plain)

    def interleaved(self) -> bool:
        """Run two prompts at once; each must equal its run alone."""
        self.open("a")
        self.open("b")
        alone = self.outcome("b", self.say(self.run_request("b", self.other), Finished))
        replies: dict[str, Reply] = {}
        for name, prompt in (("a", self.prompt), ("b", self.other)):
            request = self.renamed(self.run_request(name, prompt))
            self.engine.submit(request, HOLDER, partial(replies.__setitem__, name))
        while len(replies) < 2 and self.engine.tick():
            pass
        first, second = (self.outcome(name, cast(Finished, replies[name])) for name in ("a", "b"))
        return first.same(self.plain) and second.same(alone)

    def after_many_steps(self, steps: int) -> bool:
        """Run over many lengths: with heads of 6, MKL below AVX2 gives other bits at 5 positions, not at 11 to 13."""
        prompt = self.prompt[:2]
        self.open("a")
        finished = self.say(self.run_request("a", prompt, steps), Finished)
        return self.outcome("a", finished).same(self._plain(prompt, steps))

    def after_a_long_prompt(self, length: int) -> bool:
        """Run the same layers that short prompts recorded over many more rows."""
        prompt = self._drawn(length)
        self.open("a")
        return self.outcome("a", self.say(self.run_request("a", prompt), Finished)).same(self._plain(prompt))

    def chunks_match(self) -> bool:
        """True where two chunks give the logits of one shot, within the effect of other matrix shapes."""
        self.open("a")
        whole = self.outcome("a", self.say(self.run_request("a", steps=0), Finished)).logits
        self.say(self.run_request("a", self.prompt[:-4], steps=0), Finished)
        rest = ask.Run(session="a", tokens=self.prompt[-4:], max_new_tokens=0, extend=True)
        parts = self.outcome("a", self.say(rest, Finished)).logits
        tolerance = 1e-3 if self.engine.model.dtype == torch.float32 else 5e-2
        return bool((parts - whole).norm() <= tolerance * whole.norm())

    def name(self, name: str) -> str:
        return f"self-test {name}"

    def renamed(self, request: ask.SessionRequest[Any]) -> ask.Request:
        return msgspec.structs.replace(request, session=self.name(request.session))

    def open(self, name: str) -> None:
        if self.name("b") in self.engine.sessions and name == "a":
            self.say(ask.Close(session="b"), Closed)
        self.say(ask.Open(session=name, fresh=True), Opened)

    def run_request(self, name: str, prompt: tuple[int, ...] | None = None, steps: int = STEPS) -> ask.Run:
        return ask.Run(session=name, tokens=prompt or self.prompt, max_new_tokens=steps, ignore_eos=True)

    def say(self, request: ask.SessionRequest[Any], expected: type[Expected]) -> Expected:
        reply = self.engine.ask(self.renamed(request), HOLDER)
        if not isinstance(reply, expected):
            said = f"{type(reply).__name__} where {expected.__name__} is due"
            raise ModelRefused.inexact(
                self.engine.description.architecture, f"a request of the self-test was answered {said}"
            )
        return reply

    def outcome(self, name: str, finished: Finished) -> Outcome:
        logits = self.say(ask.ReadLogits(session=name), Logits).logits
        return Outcome(tokens=finished.tokens, logits=to_tensor(logits))
