"""Every option of the verbs of a session, in every state that a session may be in: what the verb returns, the sessions
or their stops differ without it, or it is refused. Verbs and options are those of the signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire.nouns import StopIdentity
from tests.client.observed import plain
from tests.client.reached import reached
from tests.engine.desk import Desk

LINE, OTHER = [9, 8, 7, 21], [9, 8, 7, 31]
ALONG = np.ones(32, np.float32)
Given = dict[str, Any]


def stopped(session: RemoteSession) -> None:
    session.breakpoint(1)
    session.run(LINE, max_new_tokens=4)


def edited(session: RemoteSession) -> None:
    session.breakpoint(0)
    session.run(LINE, max_new_tokens=4)
    for _ in range(2):
        session.step(by="point")
    session.edit(dj.scale(0.5))


def ended(session: RemoteSession) -> None:
    session.run(LINE, max_new_tokens=4)


def ruled(session: RemoteSession) -> None:
    for layer in (0, 1):
        session.watch(layer)
        session.watch(layer, direction=ALONG, name="d")
        session.steer(layer, dj.scale(0.9))
    session.breakpoint("attn_out.2")
    session.run(LINE, max_new_tokens=4)


def forked(session: RemoteSession) -> RemoteSession:
    ruled(session)
    return session.fork("b")


def row(session: RemoteSession) -> RemoteSession:
    session.breakpoint(1)
    session.run([LINE, OTHER], max_new_tokens=4)
    return session.sibling("a/0")


# Each brings a session there, and returns the one that is asked where it is another.
STATES: dict[str, Callable[[RemoteSession], RemoteSession | None]] = {
    "new": lambda session: None,
    "ended": ended,
    "stopped": stopped,
    "edited": edited,
    "ruled": ruled,
    "of a person": ruled,
    "forked": forked,
    "row": row,
}
# Verb: the calls that each of its options is tried with. Those of `test_options_heard.py` are not here.
CALLS: dict[str, tuple[Given, ...]] = {
    "step": ({},),
    "back": ({},),
    "edit": ({"edit": dj.scale(0.5)},),
    "revert": ({},),
    "effect": ({},),
    "enable_edit": ({"number": 1},),
    "enable_rule": ({"number": 1},),
    "unsteer": ({},),
    "inspect": ({},),
    "lens": ({},),
    "text": ({}, {"site": "resid_post.1"}),
    "text_lens": ({},),
    "why": ({"head": "1.2", "key": 0},),
    "attribute": ({"*": (17,)},),
    "evaluate": ({"expression": "norm"},),
    "evaluated": ({"expression": "norm"},),
    "close": ({},),
    "checkpoint": ({"name": "new"}, {"name": "kept"}),
    "breakpoint": ({"site": 1},),
    "enable": ({"number": 1},),
    "swap_out": ({},),
    "loss": ({}, {"prompts": [OTHER]}, {"prompts": [LINE, OTHER], "mode": "fast"}),
    "values": ({"*": ("z.0",)}, {"*": ("mlp_out.2",)}),
    "watch": ({"site": 1}, {"site": 1, "direction": ALONG}),
    "watched": ({"site": 1},),
    "unwatch": ({}, {"site": 1}),
}
READS = {
    "effect",
    "inspect",
    "lens",
    "text",
    "text_lens",
    "why",
    "attribute",
    "evaluate",
    "evaluated",
    "loss",
    "values",
    "watched",
}
VALUES: dict[str, tuple[Any, ...]] = {
    "count": (2,),
    "by": ("token", "point"),
    "stop": (StopIdentity(session="a", number=10**9, edition=1),),
    "positions": (0,),
    "site": ("mlp_out.1", 0, "resid_post.1[3]"),
    "tokens": ([3],),
    "layers": ([0],),
    "prompt": ([9, 8, 7],),
    "metric": ("logit(3)",),
    "along": (ALONG,),
    "top": (2,),
    "enabled": (False,),
    "when": ("norm > 1e9",),
    "number": (2,),
    "k": (2,),
    "position": (0,),
    "tier": ("disk",),
    "prompts": ([[9, 8, 7]],),
    "mode": ("fast",),
    "seed": (3,),
    "byte_cap": (4096,),
    "direction": (ALONG,),
    "name": ("d",),
}
NEUTRAL = {
    ("close", "force"): "the session is this notebook's own",
    ("checkpoint", "replace"): "there is none of this name",
    ("inspect", "ahead"): "allows a site that the pass has not reached",
    ("values", "ahead"): "allows a site that the pass has not reached",
    ("watch", "fresh"): "nothing is recorded yet",
}
ELSEWHERE = {
    **{
        (verb, "stop"): "tests/engine/session/test_seen_stop.py: a session that has moved on"
        for verb in ("step", "back", "edit", "revert")
    },
    ("close", "force"): "tests/magics/test_switching.py: of another notebook",
    ("text", "by"): "tests/magics/test_text.py: names of its measures",
    ("why", "features"): "tests/engine/gradients/test_why.py: an added module",
}
VERBS_ELSEWHERE = {
    **dict.fromkeys(("run", "resume", "fork", "steer"), "tests/client/test_options_heard.py"),
    "move": "tests/client/test_moving.py: another engine",
    "restore": "tests/magics/test_switching.py: a session of another notebook",
    "share": "tests/engine/requests/test_sharing.py: other persons",
    "sibling": "asks nothing of the engine",
}


def options_of(verb: Callable[..., Any]) -> list[str]:
    return [name for name, one in inspect.signature(verb).parameters.items() if one.default is not one.empty]


def verbs_of(kind: type) -> dict[str, list[str]]:
    """Return the verbs that have options, with these."""
    each = inspect.getmembers(kind, inspect.isfunction)
    return {name: found for name, verb in each if not name.startswith("_") and (found := options_of(verb))}


def test_each_verb_is_in_a_table() -> None:
    assert verbs_of(RemoteSession).keys() == CALLS.keys() | VERBS_ELSEWHERE.keys()


@pytest.fixture
def engines(desk: Desk) -> Iterator[dict[str, RemoteEngine]]:
    """The engine as it is reached in each state: in one of them by the key of a person."""
    with reached(desk, "own", "keyed", persons={"keyed": "anna"}) as [own, keyed]:
        yield {**dict.fromkeys(STATES, own), "of a person": keyed}


@pytest.mark.parametrize("verb", CALLS)
def test_each_option_is_heard_or_refused_in_each_state(engines: dict[str, RemoteEngine], verb: str) -> None:
    options = verbs_of(RemoteSession)[verb]
    heard, neutral = set[str](), set[str]()
    for state in STATES:
        ask = asking(engines, state, verb)
        for call in CALLS[verb]:
            without = ask(call)
            for option in options:
                for value in VALUES.get(option, (True,)):
                    if option in call or isinstance(found := ask({**call, option: value}), str):
                        continue
                    (neutral if found == without else heard).add(option)
    elsewhere = {option for of, option in ELSEWHERE if of == verb}
    assert neutral == {option for of, option in NEUTRAL if of == verb}
    assert set(options) - heard == elsewhere


def asking(engines: dict[str, RemoteEngine], state: str, verb: str) -> Callable[[Given], object]:
    """Return what calls a verb in this state, which is made once for verbs that only read."""
    bring = partial(brought, engines, state, verb)
    if verb not in READS:
        return lambda given: seen(engines[state], bring(), verb, given)
    session = bring()
    return lambda given: seen(engines[state], session, verb, given)


def brought(engines: dict[str, RemoteEngine], state: str, verb: str) -> RemoteSession:
    """Return the one session of an engine, in this state, or the one that is asked beside it."""
    own, engine = engines["new"], engines[state]
    for one in own.sessions():
        own.reach(one.name).close(force=True)
    session = engine.session("a")
    for kept in engine.checkpoints():
        engine.drop_checkpoint(kept.name)
    if verb == "checkpoint":
        session.checkpoint("kept")
    return STATES[state](session) or session


def seen(engine: RemoteEngine, session: RemoteSession, verb: str, given: Given) -> object:
    """Return what a verb returns, and the sessions and stops then; or its refusal."""
    given = dict(given)
    places = given.pop("*", ())
    try:
        found = plain(getattr(session, verb)(*places, **given))
    except DjinnError as error:
        return str(error)
    told = list(engine.sessions())
    with suppress(DjinnError):
        return found, plain(told), plain(session.stop)
    return found, plain(told)
