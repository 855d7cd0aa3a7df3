"""The names of features stand wherever a feature is shown: literal, cut, in every form, and in no number or key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import names
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.names import digests_of, labelled, naming
from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.texts import in_quotes
from tests import saes

PROMPT = [9, 8, 7, 21, 22]
AT: Final = "sae.1[17]"
HOSTILE: Final = (
    "$a$ of %{x} and \\frac{",
    "<b>bold</b> & <a href=javascript:alert(1)>",
    "</script><script>alert(1)</script>",
    "\u202eright\u202c \u05d0\u05d1 to left",
    "\U0001f600 \x1b[31m\nred",
    "x" * 10_000,
)


@pytest.fixture
def session(engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session stopped at a feature that a rule changes, after an edit of it, with a watch on it."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    engine.add_module(
        "sae", saes.saved(tmp_path / "sae", saes.drawn(engine.description.hidden_size)), at="resid_post.1"
    )
    session = engine.session("main", fresh=True)
    session.steer(AT, dj.scale(2.0))
    session.watch(AT)
    session.breakpoint(AT)
    session.breakpoint("sae.1[3,17]")
    session.run(PROMPT)
    yield session
    for one in engine.sessions():
        engine.session(one.name, join=True, fresh=True).close()
    engine.remove_module("sae")


def swept(engine: RemoteEngine, session: Any) -> Any:
    return dj.sweep(engine, corrupted=PROMPT, site="sae.1[*]", edit=dj.zero(), metric="logit(5)")


def swept_by_position(engine: RemoteEngine, session: Any) -> Any:
    over = ("neuron", "position")
    return dj.sweep(engine, corrupted=PROMPT, site="sae.1[*]", over=over, edit=dj.zero(), metric="logit(5)")


def swept_over_pairs(engine: RemoteEngine, session: Any) -> Any:
    pair = {"corrupted": [PROMPT, PROMPT[::-1]], "clean": [PROMPT[::-1], PROMPT]}
    return dj.sweep(engine, **pair, site="sae.1[*]", metric="logit(5)")


def patched(engine: RemoteEngine, session: Any) -> Any:
    return dj.sweep(engine, corrupted=PROMPT, site=AT, over="position", edit=dj.zero(), metric="logit(5)")


def plain_stop(engine: RemoteEngine) -> Any:
    """Return a session at a stop of a pass that was the model's own, so that its readings have a recipe."""
    session = engine.session("plain", fresh=True)
    session.watch(AT)
    session.breakpoint(AT)
    session.run(PROMPT)
    session.edit(dj.zero())
    return session


def edited(engine: RemoteEngine, session: Any) -> View:
    done = session.edit(dj.zero())
    return views.edit_view(done, session.stop.reply)


RESULTS: Final[dict[str, Callable[[RemoteEngine, Any], Any]]] = {
    "stop": lambda engine, session: session.where(),
    "sweep": swept,
    "sweep by position": swept_by_position,
    "sweep over pairs": swept_over_pairs,
    "sweep at a feature": patched,
    "feature": lambda engine, session: engine.feature(AT),
    "text": lambda engine, session: session.text([1, 2, 3, 4], site=AT),
    "why": lambda engine, session: session.why("2.0", query=-1, key=1, features="sae.1"),
    "snapshot": lambda engine, session: plain_stop(engine).inspect(AT),
    "watched": lambda engine, session: plain_stop(engine).watched(AT),
    "lens": lambda engine, session: plain_stop(engine).lens(),
    "effect": lambda engine, session: plain_stop(engine).effect(),
}
VIEWS: Final[dict[str, Callable[[RemoteEngine, Any], View]]] = {
    "breakpoints": lambda engine, session: views.breakpoints_view(session.breakpoints()),
    "rules": lambda engine, session: views.rules_view([rule.reply for rule in session.rules()]),
    "watches": lambda engine, session: views.watches_view(session.describe().watches),
    "history": lambda engine, session: views.history_view(session.history().stops, 0),
    "sessions": lambda engine, session: views.sessions_view(engine.sessions(), present=None, mine=()),
    "tree": lambda engine, session: views.tree_view(engine.tree()),
    "edit": edited,
}


class Texts(HTMLParser):
    """The tags of a page, and what a reader sees of it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.seen: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.seen += [value for _, value in attrs if value]

    def handle_data(self, data: str) -> None:
        self.seen.append(data)


def forms(result: Any) -> dict[str, str]:
    """Return every form in which a result or a view is shown, and its data."""
    if isinstance(result, View):
        return {"text": repr(result), "html": result.html}
    bundle = result._repr_mimebundle_()
    found = {"text": bundle["text/plain"], "html": bundle["text/html"]}
    if hasattr(result, "figure"):
        found["figure"] = json.dumps(json.loads(result.figure().to_json()), ensure_ascii=False)
        drawn = result.plot()
        for ax in getattr(drawn, "flat", [drawn]):
            shown = [ax.title, ax.xaxis.label, *ax.get_xticklabels(), *ax.get_yticklabels(), *ax.texts]
            assert not any(one.get_parse_math() and "$" in one.get_text() for one in shown)
            found["plot"] = found.get("plot", "") + "\n".join(one.get_text() for one in shown)
    return found


def data_of(result: Any) -> list[Any]:
    keys = [getattr(result, "recipe", None) if getattr(result, "reply", None) is None else None]
    return [*keys, result.columns() if hasattr(result, "columns") else None]


@pytest.mark.parametrize("place", [*RESULTS, *VIEWS])
def test_a_name_is_shown_literally_in_every_form(place: str, engine: RemoteEngine, session: Any) -> None:
    made = (RESULTS | VIEWS)[place]
    digest = engine.added_modules()[0].digest
    result = made(engine, session)
    bare, before = forms(result), repr(data_of(result))
    for hostile in HOSTILE:
        names.write(digest, dict.fromkeys(range(48), hostile))
        with naming(digests_of(engine.channel) if isinstance(result, View) else None):
            shown = forms(made(engine, session) if isinstance(result, View) else result)
        assert repr(data_of(result)) == before
        beginning = in_quotes(" ".join(hostile.split()))[1:7]
        assert beginning in shown["text"]
        page = Texts(shown["html"])
        assert beginning in "\n".join(page.seen)
        assert page.tags <= Texts(bare["html"]).tags | {"bdi"}
        assert len(shown["text"]) <= 2000 or isinstance(result, View)
        for form, text in shown.items():
            assert "\u202e" not in text, form
            assert "x" * 70 not in text, form
        assert "<a " not in shown.get("figure", "")
        assert "$a" not in shown.get("figure", "")
        assert "%{x} and" not in shown.get("figure", "")


@pytest.mark.parametrize("place", ["sweep", "sweep by position", "sweep over pairs", "feature", "why"])
def test_figures_have_the_names_too(place: str, engine: RemoteEngine, session: Any) -> None:
    names.write(engine.added_modules()[0].digest, dict.fromkeys(range(48), "soup"))
    shown = forms(RESULTS[place](engine, session))
    assert "'soup'" in shown["figure"]
    assert "'soup'" in shown["plot"]


def test_only_the_sites_of_features_are_labelled() -> None:
    known = {"sae.4[17]": "soup", "sae.4[2]": "verbs", "z.4[17]": "no"}
    said = "rule 1: zero at sae.4[17], position 4; z.4[17] and resid_post.4, when token == ' sae.4[17]'"
    assert labelled(said, known) == said.replace("at sae.4[17]", "at sae.4[17] 'soup'")
    assert labelled("x.sae.4[17]", known) == "x.sae.4[17]"
    assert labelled("sae.4[17] or sae.4[2]", known) == "sae.4[17] 'soup' or sae.4[2] 'verbs'"
    many = {f"sae.4[{at}]": "n" for at in range(4096)}
    assert (
        labelled("sae.4[0:4096]", many)
        == f"sae.4[0:4096] {', '.join(chr(39) + 'n' + chr(39) for _ in range(8))} and 4,088 more"
    )


def test_a_block_reads_the_digests_once_and_only_for_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    names.write("a digest", {17: "soup"})
    asked: list[int] = []

    def digests() -> dict[str, str]:
        asked.append(1)
        return {"sae.4": "a digest"}

    with naming(digests):
        assert [labelled(one) for one in ("resid_post.4", "z.4[17]", "tc.4")] == ["resid_post.4", "z.4[17]", "tc.4"]
        assert not asked
        assert labelled(AT.replace("1[", "4[")) == "sae.4[17] 'soup'"
        with naming(None):
            assert labelled("sae.4[17] twice, sae.4[18]") == "sae.4[17] 'soup' twice, sae.4[18]"
    assert len(asked) == 1
    assert labelled("sae.4[17]") == "sae.4[17]"
