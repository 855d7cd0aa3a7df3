"""Every option of these verbs is heard: what comes back, the sessions or the recipe differ without it for some state,
or it is refused. An option that does nothing is in no table and fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.sampling import GivenSampling

LINE, OTHER = [9, 8, 7, 21], [9, 8, 7, 31]
METRIC, CALLED, GRID = "logit(17) - logit(42)", "a call is noted", "a sweep that was cut short"
DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 3}
Given = dict[str, Any]

# Verb: what it is given at least; then each option, with the value under trial and what else it needs to be heard.
RUN: Given = {"prompt": LINE, "max_new_tokens": 4}
OF_RUN: dict[str, tuple[Any, Given]] = {
    "prompt": (OTHER, {}),
    "max_new_tokens": (2, {}),
    "stop": ("w", {}),
    "extend": (True, {"prompt": [5]}),
    "chat": (True, {"prompt": "w9 w8"}),
    "free": (True, {"at": 1}),
    "samples": (2, DRAWN),
    "coefs": ([0.5, 2.0], {"rules": 1}),
    "rule": (2, {"rules": 2, "coefs": [0.5]}),
    "logits": ("all", {}),
    "mode": ("fast", {"prompt": [LINE, OTHER]}),
    "on_token": (CALLED, {}),
    "on_row": (CALLED, {"prompt": [LINE, OTHER]}),
    "temperature": (1.0, {"seed": 3}),
    "top_k": (1, DRAWN),
    "top_p": (0.01, DRAWN),
    "min_p": (1.0, DRAWN),
    "repetition_penalty": (9.0, {"max_new_tokens": 12}),
    "seed": (4, DRAWN),
}
OF_RESUME: dict[str, tuple[Any, Given]] = {
    "free": (True, {"at": "every pass"}),
    "on_token": (CALLED, {}),
    "samples": (2, DRAWN),
    "seed": (8, {**DRAWN, "samples": 2}),
    "mode": ("fast", {**DRAWN, "samples": 2}),
    "on_row": (CALLED, {**DRAWN, "samples": 2}),
}
OF_FORK: dict[str, tuple[Any, Given]] = {
    "name": ("other", {}),
    "edit": (dj.zero(), {"site": "v.1"}),
    "site": ("v.2", {"edit": dj.zero(), "site": "v.1"}),
    "positions": (1, {"edit": dj.zero(), "site": "v.1"}),
}
OF_STEER: dict[str, tuple[Any, Given]] = {
    "site": (2, {}),
    "edit": (dj.scale(2.0), {}),
    "positions": (0, {}),
    "when": ("norm > 1e9", {}),
    "on": ("new", {}),
}
PAIR: Given = {"clean": LINE, "corrupted": OTHER, "metric": METRIC}
LINES_OF_ALL: dict[str, tuple[Any, Given]] = {
    "clean": ([9, 8, 5, 21], {}),
    "corrupted": ([9, 8, 7, 51], {}),
    "metric": ("logit(5)", {}),
    "pairs": ([(LINE, OTHER)], {"clean": None, "corrupted": None}),
    "adapter": ("none of this name", {}),
}
CELLS: dict[str, tuple[Any, Given]] = {
    "site": ("mlp_out", {}),
    "over": ("layer", {}),
    "edit": (dj.zero(), {}),
    "positions": (-1, {}),
    "align": ([-1], {}),
    "window": (2, {}),
    "in_pairs": (True, {"over": "layer"}),
    "seed": (5, {"edit": "resample"}),
}
OF_SWEEP = {
    **LINES_OF_ALL,
    **CELLS,
    "coefs": ((0.5, 2.0), {"over": "coef", "site": "mlp_out.1", "edit": dj.scale(1.0)}),
    "noise": (dj.noise("1:2"), {"corrupted": None}),
    "samples": (2, {"noise": dj.noise("1:2"), "corrupted": None}),
    "mode": ("exact", {}),
    "so_far": (GRID, {"mode": "exact"}),
    "on_progress": (CALLED, {}),
}
OF_ATTRIBUTE = {
    **LINES_OF_ALL,
    **CELLS,
    "steps": (3, {}),
    "corrections": ("attention", {"site": "q", "over": "layer,head"}),
    "top": (1, {}),
}
OF_PATH = {
    **LINES_OF_ALL,
    "path": ("z.1 -> logits", {}),
    "over": ("layer", {}),
    "edit": (dj.zero(), {}),
    "mode": ("exact", {}),
    "seed": (5, {}),
    "so_far": (GRID, {"mode": "exact"}),
    "on_progress": (CALLED, {}),
}
OF_EDGES = {**LINES_OF_ALL, "steps": (3, {}), "method": ("exact", {}), "top": (2, {})}

ELSEWHERE = {
    ("run", "ignore_eos"): "tests/engine/test_endings.py: the model here has no token that ends a text",
    ("run", "model_defaults"): "tests/engine/session/test_sampling.py: the model here has no settings",
    ("run", "force"): "tests/client/test_ownership.py: rows of another notebook",
    ("resume", "force"): "tests/client/test_ownership.py: rows of another notebook",
    ("resume", "stop"): "tests/engine/session/test_seen_stop.py: a session that has moved on",
    ("fork", "stop"): "tests/engine/session/test_seen_stop.py: a session that has moved on",
    **{(verb, "beside"): "tests/client/test_spreading.py: other engines" for verb in ("sweep", "attribute", "path")},
}
TABLES: dict[str, tuple[Callable[..., Any], Given, dict[str, tuple[Any, Given]]]] = {
    "run": (RemoteSession.run, RUN, OF_RUN),
    "resume": (RemoteSession.resume, {}, OF_RESUME),
    "fork": (RemoteSession.fork, {"name": "fork"}, OF_FORK),
    "steer": (RemoteSession.steer, {"site": 1, "edit": dj.scale(0.5)}, OF_STEER),
    "sweep": (dj.sweep, {**PAIR, "site": "resid_post", "over": "layer,position"}, OF_SWEEP),
    "attribute": (dj.attribute, {**PAIR, "site": "resid_post", "over": "layer,position"}, OF_ATTRIBUTE),
    "path": (dj.path, {**PAIR, "path": "z -> logits"}, OF_PATH),
    "edges": (dj.edges, PAIR, OF_EDGES),
}


def options_of(verb: Callable[..., Any]) -> set[str]:
    named = {name for name, one in inspect.signature(verb).parameters.items() if one.kind is not one.VAR_KEYWORD}
    sampling = set(get_type_hints(GivenSampling)) if verb is RemoteSession.run else set()
    return (named | sampling) - {"self", "engine"}


@pytest.mark.parametrize("name", TABLES)
def test_each_option_is_in_a_table(name: str) -> None:
    verb, _, table = TABLES[name]
    assert options_of(verb) == set(table) | {option for of, option in ELSEWHERE if of == name}


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, (_, _, table) in TABLES.items() for option in table]
)
def test_an_option_is_heard(engine: RemoteEngine, name: str, option: str) -> None:
    _, base, table = TABLES[name]
    value, beside = table[option]
    plain = {**base, **beside}
    without = seen(engine, name, plain)
    assert without == seen(engine, name, plain), "the same call shows the same"
    assert seen(engine, name, {**plain, option: value}) != without


def seen(engine: RemoteEngine, name: str, given: Given) -> object:
    """Return all that a call shows: what it gives back, the sessions then, and the calls noted; or its refusal."""
    calls: list[object] = []
    given = {key: (lambda *told: calls.append(told)) if value is CALLED else value for key, value in given.items()}
    for session in engine.sessions():
        engine.session(session.name).close(force=True)
    session = engine.session("a")
    try:
        if hasattr(dj, name):
            return of_lines(engine, name, given), len(calls)
        return of_session(session, name, given), [state(one) for one in engine.sessions()], len(calls)
    except DjinnError as error:
        return str(error)


def of_lines(engine: RemoteEngine, name: str, given: Given) -> object:
    if given.get("so_far") is GRID:
        given = {**given, "so_far": cut_short(engine, name, given)}
    found = getattr(dj, name)(engine, **given)
    if isinstance(given.get("so_far"), dj.Grid):
        return found.replies[0].made.kept
    recipe = {key: str(value) for key, value in found.recipe.items() if key != "provenance"}
    exact = getattr(found, "confirmed", None) if name != "edges" else found.exact
    return found.values.tobytes(), found.values.shape, recipe, None if exact is None else exact.tobytes()


def cut_short(engine: RemoteEngine, name: str, given: Given) -> dj.Grid:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(dj.WorkInterrupted) as broken:
        getattr(dj, name)(engine, **{**given, "so_far": None, "mode": "exact", "on_progress": interrupt})
    assert isinstance(broken.value.kept, dj.Grid)
    return broken.value.kept


def of_session(session: RemoteSession, name: str, given: Given) -> object:
    at, rules = given.pop("at", None), given.pop("rules", 0)
    drawn = {key: given.pop(key) for key in DRAWN if key in given and name == "resume" and key == "temperature"}
    for number in range(rules):
        session.steer(number, dj.scale(1.0))
    if name in ("resume", "fork") or given.get("extend") is not None:
        session.breakpoint(1, once=at is None) if name == "resume" else None
        session.run(LINE, max_new_tokens=4, **drawn)
    elif at is not None:
        session.breakpoint(at)
    found = getattr(session, name)(**given)
    each = found if isinstance(found, list) else [found]
    return [outcome(one) for one in each]


def outcome(one: Any) -> object:
    if isinstance(one, RemoteSession):
        one = one.run(extend=True, max_new_tokens=2)
    fields = ("tokens", "text", "site", "step", "reason", "shared", "what", "limits")
    told = [getattr(getattr(one, "reply", one), field, None) for field in fields]
    logits = one.logits if isinstance(one, dj.Finished) else np.zeros(0)
    return type(one).__name__, told, logits.shape, logits.tobytes(), [rule.what for rule in getattr(one, "rules", ())]


def state(one: Any) -> object:
    return one.name, one.tokens, one.state, one.stopped_at, [rule.what for rule in one.rules]
