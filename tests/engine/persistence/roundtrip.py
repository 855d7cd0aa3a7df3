"""Two engines of one model, and how a session gets from one to the other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.rows import take_rows
from djinn_jupyter.engine.session import reports
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, unnumbered
from tests.families import build

FAMILIES = (
    "llama",
    "gemma3_text",
    "mamba2",
    "jamba",
    "deepseek_v3",
    "gpt2",
    "gemma3n_text",
    "glm_moe_dsa:shared",
    "qwen4_exp_text",
    "deepseek_v4",
)


@functools.lru_cache(maxsize=4)
def pair_of(family: str, other_pages: int = 32) -> tuple[Desk, Desk]:
    """Two engines that share no object. The second has other pages."""
    return build_desk(build(family)), build_desk(build(family), page_positions=other_pages)


def carry(one: Desk, other: Desk, name: str = "a", file: str = "kept") -> None:
    """Save in one engine and restore in the other, under the same name."""
    saved = one.ask(ask.SaveCheckpoint(session=name, name=file, replace=True))
    assert Path(saved.path).stat().st_size == saved.checkpoint.bytes_stored
    other.ask(ask.RestoreCheckpoint(session=name, name=file, replace=name in other.engine.sessions))


Work = Callable[[Desk], Any]


def same(one: Any, other: Any) -> bool:
    """Return whether two things that desks say are equal to the last bit, wherever they were read."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(unnumbered(one) == unnumbered(other))


def reading(desk: Desk, name: str = "a") -> list[Any]:
    """All that can be seen of a session without moving it."""
    session = desk.session(name)
    seen: list[Any] = [session.state, list(session.tokens), desk.ask(ask.ReadHistory(session=name))]
    described = reports.describe(session)
    seen += [
        described.breakpoints,
        described.rules,
        described.watches,
        described.committed,
        described.stopped_at,
        described.step,
    ]
    for watch in described.watches:
        read = desk.ask(ask.ReadWatch(session=name, site=watch.site))
        seen += [read.values, read.runs]
    if session.state == "paused":
        seen += [desk.ask(ask.ReadStop(session=name)), desk.value(name=name)]
    return seen


def rows_of(cache: PagedCache) -> list[Any]:
    """The committed keys and values, which have to be on the device."""
    steps = take_rows(cache, cache.length)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return [list(rows.runs) for rows in done.value]


def future(desk: Desk, name: str = "a") -> list[Any]:
    """Return a session's outcomes from here: to the end, on from there, and back through all its stops."""
    said: list[Any] = []
    if desk.session(name).state == "paused":
        said.append(_end(desk, desk.resume(name, free=True), name))
    said.append(_end(desk, desk.run((), new=3, name=name, extend=True, free=True), name))
    while (listed := desk.ask(ask.ReadHistory(session=name))) and _earlier(listed):
        said += [desk.back(name=name), desk.value(name=name), desk.logits_ahead(name)]
    if listed.stops:
        said.append(_end(desk, desk.resume(name, free=True), name))
    return said


def _earlier(listed: told.History) -> bool:
    return listed.present != 0 and bool(listed.stops)


def _end(desk: Desk, reply: Any, name: str) -> list[Any]:
    outcome = desk.outcome(reply, name)
    return [outcome.tokens, outcome.logits]
