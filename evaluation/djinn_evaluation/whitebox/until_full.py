"""Sessions stopped one after the other until an imposed memory holds no more, on Djinn's side and on eager's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from djinn_evaluation.baselines.asking import Baseline
from djinn_evaluation.course import Course, Unmeasured
from djinn_evaluation.memory import options_for_limit
from djinn_evaluation.outcomes import digest_of, finished, paused
from djinn_evaluation.serving import engine_for
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import MemoryShortage
from djinn_jupyter.units import GIB, spell_bytes

FULL_FIELDS = """sessions_until_full sessions_until_full_limit_gb sessions_until_full_reached
    sessions_until_full_refusal""".split()
NO_LIMIT = Unmeasured(reason="concurrent_demo.until_full_gb is not set")
NOT_FULL = Unmeasured(reason="it was not full: so many were asked for")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """The request to both sides: prompts, each to be stopped after `layer`, in `limit` bytes of weights and stops;
    `new` tokens where a stopped one goes on."""

    limit: int
    layer: int
    prompts: tuple[list[int], ...]
    new: int

    def fields(self, standing: int, refusal: str | None) -> dict[str, Any]:
        return {
            "sessions_until_full": standing,
            "sessions_until_full_limit_gb": self.limit / GIB,
            "sessions_until_full_reached": refusal is not None,
            "sessions_until_full_refusal": NOT_FULL if refusal is None else refusal,
        }


def filled_by_djinn(course: Course, model: str, device: str, wanted: Filling, **options: Any) -> dict[str, Any]:
    """Return the fields of Djinn's side, on an engine with so much memory. Without a GPU sessions leave for the disk,
    for in host memory they would be where they were."""
    course.check_time()
    tiers = {} if device.startswith("cuda") else {"host_memory": 0}
    others = {name: value for name, value in options.items() if name not in ("card_memory", "device_memory")}
    imposed = {**others, **options_for_limit(wanted.limit), **tiers}
    with engine_for(course, model, **imposed) as engine:
        expected = _alone(engine, wanted)
        sessions, refusal = _stopped(course, engine, wanted)
        standing, resident = _standing(engine, sessions)
        course.tell(f"{standing} sessions stand in {spell_bytes(wanted.limit)}, {resident} of them on the device")
        return {
            **wanted.fields(standing, refusal),
            "sessions_until_full_on_device": resident,
            "sessions_until_full_bitwise_equal": _is_alike(sessions, expected),
        }


def _alone(engine: RemoteEngine, wanted: Filling) -> tuple[tuple[int, ...], str]:
    """Run the first prompt without a stop; return tokens and digest."""
    session = engine.session("alone", fresh=True)
    done = finished(session.run(wanted.prompts[0], max_new_tokens=wanted.new, ignore_eos=True))
    session.close()
    return done.tokens, digest_of(done)


def _stopped(course: Course, engine: RemoteEngine, wanted: Filling) -> tuple[list[RemoteSession], str | None]:
    """Stop prompt after prompt; return the sessions, and the refusal where one found no memory."""
    sessions: list[RemoteSession] = []
    for number, prompt in enumerate(wanted.prompts):
        course.check_time()
        session = engine.session(f"standing {number + 1}", fresh=True)
        session.breakpoint(f"resid_post.{wanted.layer}", when="step == 0")
        try:
            paused(session.run(prompt, max_new_tokens=wanted.new, ignore_eos=True))
        except MemoryShortage as error:
            return sessions, str(error)
        sessions.append(session)
    return sessions, None


def _standing(engine: RemoteEngine, sessions: Sequence[RemoteSession]) -> tuple[int, int]:
    """Return how many of the sessions are stopped, and how many of those are on the device."""
    names = {session.name for session in sessions}
    there = [found for found in engine.sessions() if found.name in names and found.state == "paused"]
    return len(there), sum(found.residency == "resident" for found in there)


def _is_alike(sessions: Sequence[RemoteSession], expected: tuple[tuple[int, ...], str]) -> bool | Unmeasured:
    """Return whether the first session goes on as it does alone, where the memory that is full has room for it."""
    if not sessions:
        return False
    try:
        return _gone_on(sessions[0]) == expected
    except MemoryShortage as error:
        return Unmeasured(reason=f"the first session found no memory to go on: {error}")


def _gone_on(session: RemoteSession) -> tuple[tuple[int, ...], str]:
    """Resume a session to its end; return tokens and digest."""
    session.clear()
    done = finished(session.resume())
    return done.tokens, digest_of(done)


def filled_by_eager(eager: Baseline, wanted: Filling) -> dict[str, Any]:
    """Return the fields of eager's side, whose stops keep their tensors."""
    found = eager.ask("fill", prompts=list(wanted.prompts), layer=wanted.layer, limit=wanted.limit)
    return wanted.fields(found["standing"], found["refusal"])
