"""The second step: the contract of every tiny family, in each dtype and attention: the bits are those of `generate`.

Each case is saved when it is decided, so that a step whose time is over continues where it was. On a GPU several
processes decide them: such small models leave it idle. Cases that a library cannot compute or the engine refuses are
counted as such and never as exact."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final, Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from djinn_evaluation.benchmarks.gpu.steps import Kept, Unfinished
from djinn_evaluation.benchmarks.harness import Figure, Result, Setting, Spread, at_least
from djinn_jupyter.errors import ModelRefused
from djinn_jupyter.wire import requests as ask
from tests.device import DEVICE
from tests.engine.desk import Desk, build_desk, engine_like, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.plain import generate
from tests.families import FAMILIES, MORE, build

DTYPES: Final = ("bfloat16", "float16", "float32")
BACKENDS: Final = ("flash_attention", "efficient_attention", "math")  # cuDNN's does not repeat its own bits
ATTENTIONS: Final = ("eager", *(f"sdpa, {backend}" for backend in BACKENDS))
SMALL: Final = (("llama", "mamba2"), DTYPES, ("eager", "sdpa, math"))
PROMPT, NEW, STEP = tokens(14), 5, 2
EACH = 20  # cases, after which the figures so far are written
RESERVE = 60  # seconds of a step for its start and its last case
LOST: Final = "CUDA error"  # after which every call fails until the process ends: the next cases need another one
_sound = True  # of this process: no case has ended CUDA's context
Outcome = Literal["exact", "differs", "refused", "not computed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    family: str
    dtype: str
    attention: str

    def __str__(self) -> str:
        return f"{self.family}, {self.dtype}, {self.attention}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`why` is the first deed whose result differed, the engine's reason, or the library's."""

    case: Case
    outcome: Outcome
    why: str | None = None


def run_exactness(setting: Setting) -> Result:
    deadline = monotonic() + setting.seconds - RESERVE
    wanted = list(cases(quick=setting.quick))
    kept = Kept.of("exactness", setting)

    def how_far() -> str:
        return f"{len(_decided(wanted, kept))} of {len(wanted)} cases"

    missing = [case for case in wanted if str(case) not in kept.found]
    with _deciders(setting) as decided:
        verdicts = decided(missing)
        for number, _ in enumerate(missing):
            if monotonic() > deadline:
                raise Unfinished(how_far())
            if number and number % EACH == 0:
                setting.so_far(result_of(_decided(wanted, kept)).figures, how_far())
            verdict = next(verdicts)
            if verdict is not None:
                kept.add(str(verdict.case), asdict(verdict))
            if verdict is None or LOST in (verdict.why or ""):
                raise Unfinished(f"{how_far()}, the last of which ended CUDA's context")
    return result_of(_decided(wanted, kept))


@contextmanager
def _deciders(setting: Setting) -> Iterator[Callable[[list[Case]], Iterator[Verdict | None]]]:
    """Yield what decides cases, as they come: this process, or on a GPU one for each core but two."""
    torch.set_num_threads(setting.threads)
    processes = (os.cpu_count() or 1) - 2
    if DEVICE.type != "cuda" or setting.quick or processes < 2:
        yield lambda some: map(decide, some)
        return
    start = multiprocessing.get_context("spawn")
    with start.Pool(processes, torch.set_num_threads, (setting.threads,)) as pool:  # ended with the block
        yield lambda some: pool.imap_unordered(_decide_while_sound, some)


def _decide_while_sound(case: Case) -> Verdict | None:
    """Decide a case in a process of the pool; return None where an earlier one ended this process's CUDA context."""
    global _sound
    if not _sound:
        return None
    verdict = decide(case)
    _sound = LOST not in (verdict.why or "")
    return verdict


def _decided(wanted: list[Case], kept: Kept) -> list[Verdict]:
    return [_verdict(kept.found[str(case)]) for case in wanted if str(case) in kept.found]


def _verdict(fields: dict[str, Any]) -> Verdict:
    return Verdict(**{**fields, "case": Case(**fields["case"])})


def cases(*, quick: bool) -> Iterator[Case]:
    """Yield the cases, those of the usual families first."""
    for families in (SMALL[0],) if quick else (FAMILIES, MORE):
        dtypes, attentions = SMALL[1:] if quick else (DTYPES, ATTENTIONS)
        for dtype, attention, family in product(dtypes, attentions, families):
            yield Case(family=family, dtype=dtype, attention=attention)


def decide(case: Case) -> Verdict:
    with _attending(case.attention):
        try:
            expected = generate(_model(case).to(DEVICE), PROMPT, NEW)
        except Exception as error:  # noqa: BLE001  this version of the library cannot, or this kernel
            return Verdict(case=case, outcome="not computed", why=_short(error))
        try:
            desk = build_desk(_model(case))
        except ModelRefused as error:
            return Verdict(case=case, outcome="refused", why=_short(error))
        except Exception as error:  # noqa: BLE001  the other cases are still to be decided
            return Verdict(case=case, outcome="differs", why=f"the start: {type(error).__name__}: {_short(error)}")
        for what, act in DEEDS.items():
            try:
                if act(desk) != expected:
                    return Verdict(case=case, outcome="differs", why=what)
                desk.close_all()
            except Exception as error:  # noqa: BLE001  the other cases are still to be decided
                return Verdict(case=case, outcome="differs", why=f"{what}: {type(error).__name__}: {_short(error)}")
    return Verdict(case=case, outcome="exact")


def _model(case: Case) -> Any:
    return build(case.family, dtype=getattr(torch, case.dtype), attention=case.attention.partition(",")[0])


def _attending(attention: str) -> AbstractContextManager[Any]:
    """Allow only the named kernel of scaled_dot_product_attention; a pass that needs another raises."""
    _, _, backend = attention.partition(", ")
    return sdpa_kernel(getattr(SDPBackend, backend.upper())) if backend else nullcontext()


def _run(desk: Desk) -> Any:
    desk.open()
    return desk.outcome(desk.run(PROMPT, NEW))


def _stopped(desk: Desk) -> None:
    desk.open()
    desk.stop_at(f"resid_post.{desk.layers // 2}", f"step == {STEP}")
    desk.run(PROMPT, NEW)


def _resume(desk: Desk) -> Any:
    _stopped(desk)
    return desk.outcome(desk.resume())


def _fork(desk: Desk) -> Any:
    """Edit the fork and resume it first."""
    _stopped(desk)
    desk.fork("b")
    desk.edit(name="b")
    desk.resume("b")
    return desk.outcome(desk.resume())


def _edit(desk: Desk) -> Any:
    """Resume edited, and then unedited from the same stop."""
    _stopped(desk)
    desk.edit()
    desk.resume()
    desk.back()
    return desk.outcome(desk.resume())


def _swap(desk: Desk) -> Any:
    _stopped(desk)
    desk.swap_out()
    desk.swap_in()
    return desk.outcome(desk.resume())


def _checkpoint(desk: Desk) -> Any:
    """Save to a file and restore. Other processes decide other cases, with files in the same folder."""
    _stopped(desk)
    name = f"exactness-{os.getpid()}"
    desk.ask(ask.SaveCheckpoint(session="a", name=name, replace=True))
    desk.close("a")
    desk.ask(ask.RestoreCheckpoint(session="a", name=name))
    return desk.outcome(desk.resume())


def _killed(desk: Desk) -> Any:
    """Let an engine's process end at the stop, as if it was killed, and another find its session in the journal."""
    with TemporaryDirectory(prefix="djinn-journal-") as name:
        alive, dead = Path(name) / "alive", Path(name) / "dead"
        journal(desk, alive)
        _stopped(desk)
        written(desk)
        other = Desk(engine_like(desk, description=desk.engine.description))
        journal(other, crashed(alive, dead))
        other.ask(ask.Open(session="a"))
        found = other.outcome(other.resume())
        forget(other)
        forget(desk)
        return found


DEEDS: Final[dict[str, Callable[[Desk], Any]]] = {
    "an uninterrupted run": _run,
    "a resume": _resume,
    "a fork": _fork,
    "an edit taken back": _edit,
    "leaving the device and coming back": _swap,
    "a checkpoint restored": _checkpoint,
    "a session found in the journal of a killed engine": _killed,
}


def result_of(verdicts: list[Verdict]) -> Result:
    counted = Counter(verdict.outcome for verdict in verdicts)
    ways = dict.fromkeys((verdict.case.dtype, verdict.case.attention) for verdict in verdicts)
    figures = tuple(_figure(dtype, attention, verdicts) for dtype, attention in ways)
    settings = {
        "deeds": list(DEEDS),
        "new_tokens": NEW,
        "outcomes": dict(counted),
        "differ": [asdict(verdict) for verdict in verdicts if verdict.outcome == "differs"],
        "refused": [asdict(verdict) for verdict in verdicts if verdict.outcome == "refused"],
    }
    checks = {f"cases {outcome}": count for outcome, count in counted.items()}
    return Result(benchmark="exactness", settings=settings, figures=figures, checks=checks)


def _figure(dtype: str, attention: str, verdicts: list[Verdict]) -> Figure:
    """Return the share of exact cases among those that the library computes and the engine serves."""
    of_this = [v for v in verdicts if (v.case.dtype, v.case.attention) == (dtype, attention)]
    judged = [verdict.outcome == "exact" for verdict in of_this if verdict.outcome in ("exact", "differs")]
    why = next((verdict.why for verdict in of_this if verdict.outcome == "not computed"), "every family is refused")
    return Figure(
        name=f"families exact in {dtype} with {attention}",
        unit="of those served",
        value=Spread.of([sum(judged) / len(judged)]) if judged else None,
        bar=at_least(1.0),
        not_run=None if judged else why,
    )


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
