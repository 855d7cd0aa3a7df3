"""Every argument of public calls, given values of every kind: one sentence, or it works; and what is spelled in several
ways means the same."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import djinn_jupyter as dj
from djinn_jupyter.api import edits
from djinn_jupyter.api.edits import KINDS, as_edit, parse_edit
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.memory_trace import MemoryTrace
from djinn_jupyter.api.patches import spell_positions
from djinn_jupyter.errors import DjinnError, InvalidEdit, UsageError
from djinn_jupyter.wire import kinds
from djinn_jupyter.wire.edits import Edit

LINE, OTHER = (9, 8, 7, 21), (9, 8, 7, 31)
VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2**70, 1.5, math.nan, -math.inf, "", "2", "x.y", b"x", (), [None], ["x", 1], [[1], [2, 3]],
    [-1], [2**70], {}, {"a": 1}, {1}, object(), lambda *_: None, slice(None), slice("a", 2), np.arange(3),
    np.float32(2), np.array("x"), Path("nowhere"), dj.zero(), range(3), 3j, "~no user of this name", "a\0b",
    "\ud800", "a" * 5000, "\n", np.arange(32.0),
)  # fmt: skip
METRIC = {"metric": "logit(17)"}
SWEEP: dict[str, Any] = {"site": "resid_post", "over": "layer", **METRIC}
Verb = Callable[..., Any]


def verbs(engine: RemoteEngine, folder: Path) -> dict[str, tuple[Verb, dict[str, Any]]]:
    """The verbs, each with arguments that it takes."""
    session = engine.session("s")
    session.run(LINE, max_new_tokens=1)
    return {
        "sweep": (dj.sweep, {"engine": engine, "clean": LINE, "corrupted": OTHER, **SWEEP}),
        "sweep in noise": (dj.sweep, {"engine": engine, "clean": LINE, "noise": dj.noise(1), "samples": 2, **SWEEP}),
        "noise": (dj.noise, {"positions": 1}),
        "collect": (engine.collect, {"prompts": [LINE], "sites": "z.0", "to": folder / "acts"}),
        "loss": (engine.loss, {"prompts": [LINE]}),
        "session.loss": (session.loss, {"prompts": [LINE]}),
        "run": (session.run, {"prompt": LINE, "max_new_tokens": 1}),
        "run samples": (session.run, {"prompt": LINE, "max_new_tokens": 1, "samples": 2, "temperature": 1.0}),
        "path": (dj.path, {"engine": engine, "path": "z -> q.2[0]", "clean": LINE, "corrupted": OTHER, **METRIC}),
        "head_scores": (engine.head_scores, {"prompts": None, "length": 4, "samples": 1}),
        "session": (engine.session, {"name": "another", "fresh": True}),
        "fork": (session.fork, {"name": "fork", "edit": dj.zero(), "site": "v.1", "positions": 1}),
        "steer": (session.steer, {"site": "resid_post.1", "edit": dj.zero()}),
    }


NAMES = (
    "sweep", "sweep in noise", "noise", "collect", "loss", "session.loss", "run", "run samples", "path", "head_scores",
    "session", "fork", "steer",
)  # fmt: skip


ONLY = {"sweep in noise": ("clean", "noise", "samples", "seed"), "run samples": ("samples", "seed", "on_row", "logits")}


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_is_one_sentence(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, takes = verbs(engine, tmp_path)[name]
    verb(**takes)
    names = [one for one in inspect.signature(verb).parameters if one in ONLY.get(name, (one,)) and one != "engine"]
    wrong = []
    for parameter, (number, value) in itertools.product(names, enumerate(VALUES)):
        place = f"{parameter} {number}"
        apart = {"collect": {"to": tmp_path / place}, "fork": {"name": place}}.get(name, {})
        wrong += no_sentence(lambda: verb(**{**takes, **apart, parameter: value}), parameter, value)  # noqa: B023
    assert wrong == []


def no_sentence(call: Callable[[], object], parameter: str, value: object) -> list[tuple[str, object, Exception]]:
    """Return the error of a call with the value that was wrong, where it is no sentence of ours."""
    try:
        call()
    except DjinnError as error:
        return [] if str(error).strip() and "\n" not in str(error) else [(parameter, value, error)]
    except Exception as error:  # noqa: BLE001
        return [(parameter, value, error)]
    return []


def test_a_refusal_names_the_argument_and_what_it_takes(engine: RemoteEngine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^coefs is a list of numbers, not 1\.$"):
        dj.sweep(engine, clean=LINE, corrupted=OTHER, **SWEEP, coefs=1)
    with pytest.raises(UsageError, match=r"^samples is a whole number, not '2'\.$"):
        dj.sweep(engine, clean=LINE, noise=dj.noise(1), samples="2", **SWEEP)
    with pytest.raises(UsageError, match=r"^A sweep in noise draws 1 to 10,000 samples, not -1"):
        dj.sweep(engine, clean=LINE, noise=dj.noise(1), samples=-1, **SWEEP)
    with pytest.raises(UsageError, match=r"^sites is a text or a list of texts, not None\.$"):
        engine.collect([LINE], None, to=tmp_path)
    with pytest.raises(UsageError, match=r"^'' names no folder\.$"):
        engine.collect([LINE], "z.0", to="")
    with pytest.raises(UsageError, match=r"^path takes no argument 'window'; its arguments are engine, path, clean, "):
        dj.path(engine, "z -> logits", clean=LINE, edit=dj.zero(), metric="logit(1)", window=3)
    with pytest.raises(
        UsageError, match=r"^collect cannot be called so \(missing .*'sites'\); its arguments are prompts"
    ):
        engine.collect([LINE], to=tmp_path)
    said = r"^Prompt 1 \(counted from 0\): A prompt is text or one list of token ids"
    with pytest.raises(UsageError, match=said) as refused:
        engine.loss([LINE, 1.5])
    assert refused.type is UsageError  # and not InvalidEdit
    with pytest.raises(UsageError, match=r"^Prompt 1 \(counted from 0\): tokens: expected array of length <= 1048576"):
        engine.session("s").run([LINE, np.zeros(2**20 + 1, dtype=int)])
    with pytest.raises(UsageError, match=r"^Heads are scored on 1 to 4,096 lines"):
        engine.head_scores(samples=2**70)
    with pytest.raises(UsageError, match=r"^attention is 'eager' or 'sdpa', not 'flash'"):
        engine.session("s", attention="flash")
    with pytest.raises(UsageError, match=r"^Prompt 1 \(counted from 0\) has 1,048,577 tokens, .* most is 1,048,576"):
        engine.collect([LINE, np.zeros(2**20 + 1, dtype=int)], "z.0", to=tmp_path)


@pytest.mark.parametrize("seed", [-1, 2**63])
@pytest.mark.parametrize("name", ["sweep", "sweep in noise", "collect", "loss", "session.loss", "path"])
def test_a_seed_that_no_request_can_have_is_named(engine: RemoteEngine, tmp_path: Path, name: str, seed: int) -> None:
    verb, takes = verbs(engine, tmp_path)[name]
    with pytest.raises(UsageError, match=rf"^seed is a whole number from 0 to 2\*\*63 - 1, not {seed}\.$"):
        verb(**takes, seed=seed)


def test_the_seeds_that_follow_for_samples_are_checked_before_the_first_is_swept(engine: RemoteEngine) -> None:
    told: list[object] = []
    asked: dict[str, Any] = {"noise": dj.noise(1), "samples": 2, "seed": 2**63 - 1, **SWEEP}
    with pytest.raises(UsageError, match=rf"^seed is a whole number from 0 to 2\*\*63 - 1, not {2**63}\.$"):
        dj.sweep(engine, clean=LINE, on_progress=lambda *event: told.append(event), **asked)
    assert told == []


def test_numbers_of_numpy_are_numbers(engine: RemoteEngine) -> None:
    coefs = np.linspace(0, 1, 3, dtype=np.float32)
    asked = {**SWEEP, "site": "resid_post.1", "over": np.array(["coef"]), "coefs": coefs, "seed": np.int64(7)}
    grid = dj.sweep(engine, corrupted=LINE, edit=dj.scale(1.0), **asked)
    assert (grid.values.shape, grid.seed) == ((3,), 7)


LOGIT = "logit(17)"


@pytest.fixture
def session(engine: RemoteEngine) -> dj.RemoteSession:
    """A session that stands at a stop."""
    session = engine.session("stopped", fresh=True)
    session.breakpoint("resid_post.1")
    session.run(LINE, max_new_tokens=1)
    return session


def wrong_of(verb: Verb, takes: dict[str, Any], *parameters: str) -> list[tuple[str, object, Exception]]:
    found = []
    for parameter, value in itertools.product(parameters, VALUES):
        found += no_sentence(lambda: verb(**{**takes, parameter: value}), parameter, value)  # noqa: B023
    return found


def test_readings_of_a_stop(session: dj.RemoteSession) -> None:
    assert wrong_of(session.lens, {}, "k", "site", "positions", "tokens") == []
    assert wrong_of(session.effect, {}, "top", "tokens") == []
    assert wrong_of(session.inspect, {}, "site", "positions") == []
    assert wrong_of(session.watched, {"site": "resid_post.1"}, "site", "name") == []
    with pytest.raises(UsageError, match=r"^to is an AttachedEngine, not 'x'\.$"):
        session.move("x")
    with pytest.raises(UsageError, match=r"^tokens is a list of texts or whole numbers, not ' Paris'\.$"):
        session.lens(tokens=" Paris")
    assert len(session.lens(tokens=np.array([3, 4])).rows[0].chosen) == 2


def test_readings_of_texts_heads_and_features(engine: RemoteEngine) -> None:
    session = engine.session("read", fresh=True)
    session.run(LINE, max_new_tokens=1)
    assert wrong_of(session.text, {}, "prompt", "by", "metric", "site", "along", "top") == []
    assert wrong_of(session.text_lens, {}, "k", "site", "tokens", "layers") == []
    assert wrong_of(session.why, {"head": "0.0", "key": 0}, "head", "key", "query", "features") == []
    assert (
        wrong_of(lambda name="0.0", **others: engine.head(name, **others), {}, "name", "over", "top", "examples") == []
    )
    assert wrong_of(engine.feature, {"site": "sae.1[0]"}, "site", "over", "layer", "examples", "top") == []
    text, lens = session.text(), session.text_lens(layers=[0])
    assert wrong_of(text.of, {}, "measure") + wrong_of(text.coloured, {}, "by") + wrong_of(lens.of, {}, "measure") == []
    assert wrong_of(session.why("0.0", key=0).side, {}, "at") == []
    layers = (layer for layer in (0, 1))
    assert session.text_lens(np.int64(1), layers=layers).sites == ("resid_post.0", "resid_post.1")


def test_edits() -> None:
    direction = {"direction": [1.0]}
    assert wrong_of(dj.scale, {}, "factor") == []
    assert wrong_of(dj.add, {"vector": [1.0]}, "vector", "coef") == []
    assert wrong_of(dj.clamp, {}, "low", "high") == []
    assert wrong_of(dj.norm_match, {"vector": [1.0]}, "coef") == []
    assert wrong_of(dj.orthogonal, direction, "coef") == []
    assert wrong_of(dj.projection_cap, direction, "low", "high") == []
    assert wrong_of(dj.patch_from, {"session": "a"}, "site", "positions") == []
    with pytest.raises(InvalidEdit, match=r"^factor is a number, not 'much'\.$"):
        dj.scale("much")
    with pytest.raises(InvalidEdit, match=r"^In Python an edit is dj\.scale.*, not 'scale 0\.9'\.$"):
        as_edit("scale 0.9")


def test_files_and_names(engine: RemoteEngine, tmp_path: Path) -> None:
    found = dj.edges(engine, clean=LINE, corrupted=OTHER, metric=LOGIT)
    engine.collect([LINE], "z.0", to=tmp_path / "acts")
    assert wrong_of(dj.auroc, {"found": found, "known": [("embed", "logits")]}, "found", "known") == []
    assert wrong_of(dj.reproduce, {"engine": engine, "result": found}, "result", "collection") == []
    assert wrong_of(dj.Activations, {}, "folder") == []
    assert wrong_of(dj.train_probe, {"labels": [0, 1], "to": tmp_path, "collection": 0}, "collection") == []
    trained = {"labels": [0], "to": "", "collection": tmp_path / "acts"}
    assert wrong_of(dj.train_probe, trained, "to") == []
    for add in (engine.add_adapter, engine.add_module, engine.add_transcoders):
        assert wrong_of(add, {"name": "a", "folder": tmp_path / "none"}, "folder") == []
    for remove in (engine.remove_adapter, engine.remove_module):
        assert wrong_of(remove, {"name": "none"}, "name") == []
    with pytest.raises(UsageError, match=r"^'a{59}\.\.\. names no folder here: file name too long\.$"):
        engine.add_adapter("a", "a" * 5000)


def test_the_place_of_an_engine(engine: RemoteEngine) -> None:
    texts = [value for value in VALUES if isinstance(value, str)]  # those that name a machine are looked up
    others = [value for value in VALUES if not isinstance(value, str)]
    for value in (*others, "a" * 5000):
        assert no_sentence(lambda: dj.connect(value), "address", value) == []  # noqa: B023
        assert no_sentence(lambda: dj.beside(engine, value), "where", value) == []  # noqa: B023
    assert len(texts) > 3


def test_a_trace_of_memory(engine: RemoteEngine) -> None:
    for name, value in itertools.product(("hertz", "seconds"), VALUES):
        made: list[MemoryTrace] = []
        asked = {"hertz": 100.0, "seconds": 0.0, name: value}
        assert no_sentence(lambda: made.append(engine.memory_trace(**asked)), name, value) == []  # noqa: B023
        for trace in made:
            trace.stop()
            assert trace.error is None
    for hertz in (0, -1.0, float("nan"), 1e9):
        with pytest.raises(UsageError, match=r"^hertz is above 0 and at most 1000 readings a second"):
            engine.memory_trace(hertz=hertz)


def test_a_trace_whose_listener_fails_ends_in_order(engine: RemoteEngine) -> None:
    def heard(trace: MemoryTrace) -> None:
        raise ValueError("not drawn")

    with engine.memory_trace(hertz=100.0, heard=heard) as trace:
        deadline = time.monotonic() + 30.0
        while trace.running and time.monotonic() < deadline:
            pass
    assert str(trace.error) == "The trace has ended, because heard raised ValueError: not drawn."


PACKAGE: Final = Path(dj.__file__).parent
OF_A_PERSON: Final = [
    *PACKAGE.glob("api/**/*.py"),
    *PACKAGE.glob("methods/*/api.py"),
    *PACKAGE.glob("methods/*/api/*.py"),
]
REQUESTS: Final = {kind.__name__: kind for kind in kinds.known().requests}


def _defaults(function: ast.FunctionDef) -> dict[str, ast.expr]:
    given, named = function.args, zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    found = dict(zip([one.arg for one in given.args][::-1], given.defaults[::-1], strict=False))
    return found | {one.arg: default for one, default in named if default is not None}


def _value(said: ast.expr) -> Any:
    """Return a default; None, which leaves it to the function, for one that is computed too."""
    return said.value if isinstance(said, ast.Constant) else None


def _passed_on(path: Path) -> Iterator[tuple[str, Any, Any]]:
    """Yield where a default is said, what it is, and the request's own."""
    functions = (one for one in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(one, ast.FunctionDef))
    for function in functions:
        said = _defaults(function)
        for call in (one for one in ast.walk(function) if isinstance(one, ast.Call)):
            kind = REQUESTS.get(ast.unparse(call.func).rpartition(".")[2])
            due = {} if kind is None else {field.name: field.default for field in msgspec.structs.fields(kind)}
            for one in call.keywords:
                if (
                    one.arg in said
                    and ast.unparse(one.value) == one.arg
                    and due.get(one.arg, msgspec.NODEFAULT) is not msgspec.NODEFAULT
                ):
                    yield f"{path.stem}.{function.name}({one.arg}=)", _value(said[one.arg]), due[one.arg]


def test_a_default_that_is_said_twice_is_the_same() -> None:
    found = [one for path in OF_A_PERSON for one in _passed_on(path)]
    assert len(found) > 40
    assert [name for name, said, due in found if said not in (None, due)] == []


def _never() -> tuple[int, int]:
    raise AssertionError("the ends need not be known for this")


def test_positions_mean_what_is_written_or_select_nothing() -> None:
    for written, meant in [
        (None, None),
        (5, (5,)),
        (-1, (-1,)),
        (np.int64(3), (3,)),
        ([1, 4], (1, 4)),
        (np.array([2, 3]), (2, 3)),
        (range(3), (0, 1, 2)),
        ("5", (5,)),
        ("2:5", (2, 3, 4)),
        ("0, 2:4,-1", (0, 2, 3, -1)),
        ("-3:-1", (-3, -2)),
        (slice(2, 8, 3), (2, 5)),
    ]:
        assert spell_positions(written, _never) == meant
    for written in ["", "a", "1:2:3:4", "5:2", [], 1.5, [1.5], slice(1, 5, -1), "0:999999999"]:
        with pytest.raises(InvalidEdit):
            spell_positions(written, lambda: (0, 5))


@settings(deadline=None)
@given(length=st.integers(1, 30), start=st.none() | st.integers(-30, 30), stop=st.none() | st.integers(-30, 30))
def test_a_slice_means_what_it_means_in_python_where_that_is_inside(
    length: int, start: int | None, stop: int | None
) -> None:
    inside = all(bound is None or -length <= bound <= length for bound in (start, stop))
    expected = tuple(range(length)[start:stop])
    if not inside or not expected:
        return
    chosen = spell_positions(slice(start, stop), lambda: (0, length))
    assert chosen is not None
    assert tuple(index % length for index in chosen) == expected


WORDS = {"number": "0.5", "bound": "1", "value": "2", "session": "paris"}


def test_every_kind_of_the_wire_has_words_and_a_constructor_of_the_package() -> None:
    made = [kind.make.__annotations__["return"].replace("Patch", "PatchFrom") for kind in KINDS.values()]
    assert sorted(made) == sorted(edit.__name__ for edit in get_args(Edit))
    assert {kind.make.__name__ for kind in KINDS.values()} == set(edits.__all__)
    assert all(getattr(dj, kind.make.__name__) is kind.make for kind in KINDS.values())
    assert set(edits.__all__) <= set(dir(dj))


def test_the_words_of_a_kind_make_it_and_no_other() -> None:
    for name in KINDS:
        kind = KINDS[name]
        made = parse_edit([name, *(WORDS[word] for word in kind.words)], value=float, find=str)
        assert type(made).__name__ == kind.make.__annotations__["return"]
        assert kind.example.split()[0] == name
        with pytest.raises(UsageError, match=f"{name} takes {len(kind.words)} argument"):
            parse_edit([name, *["1"] * (len(kind.words) + 1)], value=float, find=str)
    for owner, key in [(name, one.key) for name, kind in KINDS.items() for one in kind.options]:
        for name, kind in KINDS.items():
            words = [name, *(WORDS[word] for word in kind.words)]
            if name == owner:
                bare = parse_edit(words, value=float, find=str)
                assert parse_edit(words, value=float, find=str, options={key: "3"}) != bare
            else:
                with pytest.raises(UsageError, match=f"belongs? to {owner}, not to {name}"):
                    parse_edit(words, value=float, find=str, options={key: "3"})
