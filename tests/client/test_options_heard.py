"""Every option of these verbs is heard: what comes back, the sessions or the recipe differ without it for some state,
or it is refused. An option that does nothing is in no table and fails."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.edits import KINDS
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError, UsageError
from tests.client.observed import plain
from tests.client.reached import reached
from tests.engine.desk import Desk

pytestmark = pytest.mark.drawn

OF_AN_ENGINE = ("loss", "collect", "head_scores", "weight")
OF_EDGES_FOUND = ("direct", "circuit", "circuit_curve", "acdc")
LINE, OTHER = [9, 8, 7, 21], [9, 8, 7, 31]
METRIC, CALLED, GRID = "logit(17) - logit(42)", "a call is noted", "a sweep that was cut short"
EDGES, FOLDER = "edges that were scored", "a new folder"
DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 3}
Given = dict[str, Any]

OF_DRAWING: dict[str, tuple[Any, Given]] = {
    "temperature": (1.0, {"seed": 3}),
    "top_k": (1, DRAWN),
    "top_p": (0.01, DRAWN),
    "min_p": (1.0, DRAWN),
    "repetition_penalty": (0.05, {}),
    "seed": (4, DRAWN),
}

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
    **OF_DRAWING,
}
OF_RESUME: dict[str, tuple[Any, Given]] = {
    "free": (True, {"at": "every pass"}),
    "on_token": (CALLED, {}),
    "samples": (2, DRAWN),
    **OF_DRAWING,
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
ADAPTER: dict[str, tuple[Any, Given]] = {"adapter": ("none of this name", {})}
OF_LOSS = {"prompts": ([LINE], {}), "mode": ("fast", {}), "seed": (3, {"mode": "fast"}), **ADAPTER}
OF_COLLECT = {
    "prompts": ([LINE], {}),
    "sites": ("z.1", {}),
    "to": (LINE, {}),
    "positions": (-1, {}),
    "dtype": ("float16", {}),
    "shard_prompts": (1, {}),
    "mode": ("exact", {}),
    "seed": (3, {}),
    "on_progress": (CALLED, {}),
    **ADAPTER,
}
OF_HEADS = {"prompts": ([LINE], {}), "length": (4, {}), "samples": (2, {}), "seed": (3, {}), **ADAPTER}
OF_WEIGHT: dict[str, tuple[Any, Given]] = {
    "name": ("W_O.1", {}),
    "rows": (1, {}),
    "columns": (1, {}),
    "fold_norm": (True, {}),
}
OF_DIRECT = {"line": (OTHER, {}), "metric": ("logit(5)", {}), "over": ("layer", {}), **ADAPTER}
DRAWN_INTERVAL: dict[str, tuple[Any, Given]] = {"confidence": (0.5, {}), "resamples": (9, {}), "seed": (4, {})}
OF_CIRCUIT = {
    "found": (LINE, {}),
    "edges": (4, {}),
    "threshold": (0.1, {"edges": None}),
    "faithfulness": (0.5, {"edges": None}),
    "absolute": (False, {"edges": 40}),
    **DRAWN_INTERVAL,
}
OF_CURVE = {"found": (LINE, {}), "sizes": ((0.5, 1.0), {}), "absolute": (False, {}), **DRAWN_INTERVAL}
OF_ACDC = {"found": (LINE, {}), "threshold": (2.0, {}), "first": (9, {}), "on_progress": (CALLED, {}), **DRAWN_INTERVAL}

ELSEWHERE = {
    ("collect", "beside"): "tests/client/test_spreading.py: other engines",
    ("run", "ignore_eos"): "tests/engine/test_endings.py: the model here has no token that ends a text",
    ("run", "model_defaults"): "tests/engine/session/test_sampling.py: the model here has no settings",
    ("run", "force"): "tests/client/test_batches.py: rows of another notebook",
    ("resume", "force"): "tests/client/test_batches.py: rows of another notebook",
    ("resume", "stop"): "tests/engine/session/test_seen_stop.py: a session that has moved on",
    ("fork", "stop"): "tests/engine/session/test_seen_stop.py: a session that has moved on",
    **{("fork", setting): "tests/engine/session/test_sampling.py: a fork of a stop" for setting in OF_DRAWING},
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
    "loss": (RemoteEngine.loss, {"prompts": [LINE, OTHER]}, OF_LOSS),
    "collect": (RemoteEngine.collect, {"prompts": [LINE, OTHER], "sites": "z.0", "to": FOLDER}, OF_COLLECT),
    "head_scores": (RemoteEngine.head_scores, {}, OF_HEADS),
    "weight": (RemoteEngine.weight, {"name": "W_Q.1"}, OF_WEIGHT),
    "direct": (dj.direct, {"line": LINE, "metric": METRIC}, OF_DIRECT),
    "circuit": (dj.circuit, {"found": EDGES, "edges": 3}, OF_CIRCUIT),
    "circuit_curve": (dj.circuit_curve, {"found": EDGES, "sizes": (0.1, 1.0)}, OF_CURVE),
    "acdc": (dj.acdc, {"found": EDGES, "threshold": 1.0, "first": 5}, OF_ACDC),
}
VERBS_ELSEWHERE = {
    "session": "tests/magics/test_switching.py, tests/client/test_adapting.py, tests/engine/session/test_attention.py",
    "restore": "tests/magics/test_switching.py",
    "tokenize": "tests/engine/scheduling/test_tokenizing.py: the model here has no chat template",
    "copies": "tests/engine/memory/weights/test_ring.py: layers that stream",
    "memory_trace": "tests/magics/test_vram.py: times",
    "stop": "tests/process: the end of an engine",
    "close": "tests/client/test_closing.py",
    "noise": "the sweep above",
    "reproduce": "tests/client/test_reproducing_collections.py",
    "attribution_graph": "tests/client/test_graphs.py",
    "feature": "tests/client/test_feature_pages.py",
    "head": "tests/engine/collecting/test_head_page.py",
    **dict.fromkeys(("add_module", "add_transcoders"), "tests/client/test_adding.py"),
    **dict.fromkeys(("load", "connect", "beside"), "tests/client/test_loading.py"),
    **dict.fromkeys(
        ("train_sae", "train_transcoder", "train_probe", "train_tuned_lens", "steering_vector"),
        "tests/client/test_training.py",
    ),
}


def options_of(verb: Callable[..., Any]) -> set[str]:
    return inspect.signature(verb).parameters.keys() - {"self", "engine"}


def test_each_verb_is_in_a_table() -> None:
    edits = {kind.make.__name__ for kind in KINDS.values()}
    functions = {name for name in dj.__all__ if inspect.isfunction(made := getattr(dj, name)) and with_options(made)}
    verbs = {name for name, verb in inspect.getmembers(RemoteEngine, inspect.isfunction) if with_options(verb)}
    found = {name for name in functions | verbs if not name.startswith("_")} - edits
    of_sessions = {name for name, (verb, _, _) in TABLES.items() if verb is getattr(RemoteSession, name, None)}
    assert found == (TABLES.keys() - of_sessions) | VERBS_ELSEWHERE.keys()


def with_options(verb: Callable[..., Any]) -> bool:
    return any(one.default is not one.empty for one in inspect.signature(verb).parameters.values())


@pytest.mark.parametrize("name", TABLES)
def test_each_option_is_in_a_table(name: str) -> None:
    verb, _, table = TABLES[name]
    assert options_of(verb) == set(table) | {option for of, option in ELSEWHERE if of == name}


@pytest.fixture(scope="module")
def shown() -> dict[str, object]:
    """What each call without its option showed, twice: many options are tried beside the same call."""
    return {}


@pytest.fixture(params=["of the engine's user", "by a person's key"])
def asked(desk: Desk, request: pytest.FixtureRequest) -> Iterator[tuple[str, RemoteEngine]]:
    """The engine as its own user or a person reaches it."""
    with reached(desk, "one", persons={"one": "anna"} if "key" in request.param else {}) as [engine]:
        yield request.param, engine


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, (_, _, table) in TABLES.items() for option in table]
)
def test_an_option_is_heard(asked: tuple[str, RemoteEngine], shown: dict[str, object], name: str, option: str) -> None:
    (who, engine), (_, base, table) = asked, TABLES[name]
    value, beside = table[option]
    plain = {**base, **beside}
    call = f"{who} {name} {plain}"
    if call not in shown:
        shown[call] = seen(engine, name, plain)
        assert shown[call] == seen(engine, name, plain), "the same call shows the same"
    assert seen(engine, name, {**plain, option: value}) != shown[call]


def seen(engine: RemoteEngine, name: str, given: Given) -> object:
    """Return all that a call shows: what it gives back, the sessions then, and the calls noted; or its refusal."""
    calls: list[object] = []
    given = {key: (lambda *told: calls.append(told)) if value is CALLED else value for key, value in given.items()}
    for session in engine.sessions():
        engine.session(session.name).close(force=True)
    session = engine.session("a")
    try:
        if given.get("found") is EDGES:
            given = {**given, "found": dj.edges(engine, **PAIR)}
        if given.get("to") is FOLDER:
            given = {**given, "to": tempfile.mkdtemp()}
        if name in OF_AN_ENGINE:
            return plain(getattr(engine, name)(**given)), len(calls)
        if name in OF_EDGES_FOUND:
            return plain(getattr(dj, name)(engine, **given)), len(calls)
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
    for number in range(rules):
        session.steer(number, dj.scale(1.0))
    if name in ("resume", "fork") or given.get("extend") is not None:
        session.breakpoint(1, once=at is None) if name == "resume" else None
        session.run(LINE, max_new_tokens=4)
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


def test_sampling_is_refused_with_the_reason_where_a_run_goes_on(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.breakpoint(1)
    session.run(LINE, max_new_tokens=4)
    for verb in (lambda **given: session.fork("b", **given), session.resume):
        with pytest.raises(UsageError, match="model_defaults is of the sampling: a run keeps it to its end"):
            verb(model_defaults=True)
    assert [one.name for one in engine.sessions()] == ["a"]
    session.clear()
    greedy, _ = (session.run(LINE, max_new_tokens=2, temperature=t, top_k=3, seed=1) for t in (0.0, 1.0))
    assert greedy.tokens == session.run(LINE, max_new_tokens=2, seed=4).tokens


@pytest.mark.parametrize("given", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}, {"samples": 2}])
def test_what_chooses_a_draw_is_refused_where_nothing_is_drawn(engine: RemoteEngine, given: Given) -> None:
    session, drawn = engine.session("a"), {"temperature": 1.0}
    for greedy in ({}, {"model_defaults": True}, *([{"temperature": 0.0}] if "samples" in given else [])):
        with pytest.raises(UsageError, match=f"^{next(iter(given))} is of a run that draws its tokens"):
            session.run(LINE, max_new_tokens=2, **given, **greedy)
    assert session.describe().tokens == 0
    session.run(LINE, max_new_tokens=2, **given, **drawn)


def test_what_belongs_to_something_that_is_not_given_is_refused(engine: RemoteEngine) -> None:
    session = engine.session("a")
    refused: dict[str, Callable[[], object]] = {
        "chat puts a text": lambda: session.run(LINE, chat=True),
        "name is what a direction is called": lambda: session.watch(1, name="d"),
        "name is that of a direction": lambda: session.unwatch(name="d"),
        "fast and a seed are for several prompts": lambda: session.loss(seed=3),
        "length, samples and seed are of random tokens": lambda: engine.head_scores([LINE], samples=2),
        "absolute says how scores choose edges": lambda: dj.circuit(
            engine, found, [("embed", "logits")], absolute=False
        ),
        "logits and probability choose the outputs": lambda: dj.attribution_graph(engine, LINE, METRIC, logits=3),
        "collection is what a module was trained on": lambda: dj.reproduce(engine, found, collection="acts"),
    }
    found = dj.edges(engine, **PAIR)
    for reason, call in refused.items():
        with pytest.raises(UsageError, match=reason):
            call()


def test_one_line_is_spread_over_no_engines(desk: Desk) -> None:
    with reached(desk, "one", "two") as engines:
        for verb in (dj.sweep, dj.attribute):
            with pytest.raises(UsageError, match="beside spreads pairs over engines, and here is one line"):
                verb(engines[0], **PAIR, site="resid_post", over="layer", beside=engines[1:])
