"""Names of features: kept by the files of the module, seen from every notebook, shown literally, and in no number."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api import names
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.names import digests_of, labelled, names_in, naming
from djinn_jupyter.errors import StorageFailed, UnknownSite, UsageError
from djinn_jupyter.magics import looking
from djinn_jupyter.methods.sweep import card
from djinn_jupyter.widgets import views
from tests import saes
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.families import build
from tests.threads import one_thread

PROMPT = [9, 8, 7, 21, 22]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of user data without names."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def folder(engine: RemoteEngine, tmp_path: Path) -> Iterator[Path]:
    """The folder of the module sae.1."""
    folder = saes.saved(tmp_path / "sae", saes.drawn(engine.description.hidden_size))
    engine.add_module("sae", folder, at="resid_post.1")
    yield folder
    for session in engine.sessions():
        engine.session(session.name, join=True, fresh=True, force=True)
    for name in {module.name for module in engine.added_modules()}:
        engine.remove_module(name)


def test_names_are_added_changed_and_removed(engine: RemoteEngine, folder: Path) -> None:
    named = engine.name_features("sae.1", {17: "capitals", 3: "verbs"})
    assert list(named.items()) == [(3, "verbs"), (17, "capitals")]
    assert engine.name_features("sae.1", {17: "cities", 3: " "}) == {17: "cities"}
    assert engine.feature_names("sae.1") == {17: "cities"}


def test_names_outlive_the_module_the_kernel_and_the_engine(engine: RemoteEngine, desk: Desk, folder: Path) -> None:
    engine.name_features("sae.1", {17: "capitals"})
    with reached(desk) as [notebook]:
        assert notebook.feature_names("sae.1") == {17: "capitals"}
    engine.remove_module("sae")
    engine.add_module("other", folder, at="resid_post.0")
    assert engine.feature_names("other.0") == {17: "capitals"}
    with one_thread(), reached(build_desk(build("llama", layers=3))) as [anew]:
        anew.add_module("sae", folder, at="resid_post.1")
        sites = ["sae.1[17]", "sae.1[2]", "resid_post.1[17]"]
        assert names_in(digests_of(anew.channel), sites) == {"sae.1[17]": "capitals"}


def test_another_module_at_the_same_site_has_none_of_them(engine: RemoteEngine, folder: Path, tmp_path: Path) -> None:
    engine.name_features("sae.1", {17: "capitals"})
    engine.remove_module("sae")
    engine.add_module("sae", saes.saved(tmp_path / "b", saes.drawn(folder_width(engine), seed=1)), at="resid_post.1")
    assert engine.feature_names("sae.1") == {}
    assert names_in(digests_of(engine.channel), ["sae.1[17]"]) == {}


def folder_width(engine: RemoteEngine) -> int:
    return engine.description.hidden_size


def test_a_file_is_taken_whole_or_not_at_all(engine: RemoteEngine, folder: Path, tmp_path: Path) -> None:
    engine.name_features("sae.1", {17: "capitals"})
    file = tmp_path / "export.jsonl"
    rows = [{"modelId": "llama-3-8b", "layer": "1-res", "index": "3", "description": "verbs"}]
    file.write_text("\n".join(json.dumps(row) for row in [*rows, {"index": "48", "description": "none"}]))
    with pytest.raises(UsageError, match=r"export\.jsonl, line 2: the module has 48 features, from 0, and no"):
        engine.name_features("sae.1", file)
    assert engine.feature_names("sae.1") == {17: "capitals"}
    file.write_text("\n".join(json.dumps(row) for row in [*rows, {"index": 5, "name": "x" * 10_000}]))
    with pytest.warns(UserWarning, match="^its files say that it was trained on llama-3-8b; 1 name was cut to 500"):
        assert engine.name_features("sae.1", file) == {3: "verbs", 5: "x" * 499 + "\u2026", 17: "capitals"}


@pytest.mark.parametrize("given", [{48: "x"}, {-1: "x"}, {1: None}, {"one": "x"}, {1.5: "x"}, 5, None, "", "missing"])
def test_what_is_no_name_is_refused(given: object, engine: RemoteEngine, folder: Path) -> None:
    with pytest.raises(UsageError):
        engine.name_features("sae.1", given)  # type: ignore[arg-type]
    assert engine.feature_names("sae.1") == {}


def test_names_of_another_model_are_refused(engine: RemoteEngine, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(json.dumps({"modelId": "gpt2-small", "index": 1, "description": "x"}))
    with pytest.raises(UsageError, match=r"has modelId 'gpt2-small', and this engine serves"):
        engine.name_features("sae.1", tmp_path / "b.jsonl")


@pytest.mark.parametrize("site", ["sae.2", "resid_post.1", "sae", "sae.1[3]", "$a$", ""])
def test_only_an_added_module_has_names(site: str, engine: RemoteEngine, folder: Path) -> None:
    with pytest.raises(UnknownSite, match=r"whose features have names; there are: sae\.1\."):
        engine.name_features(site, {1: "x"})
    with pytest.raises(UnknownSite):
        engine.feature_names(site)


def test_two_that_name_at_once_lose_nothing() -> None:
    def name(number: int) -> None:
        for feature in range(number, 48, 2):
            names.write("digest", {feature: f"by {number}"})

    threads = [threading.Thread(target=name, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names.read("digest") == {feature: f"by {feature % 2}" for feature in range(48)}


def test_a_hundred_thousand_long_names_stay_bounded(data: Path) -> None:
    names.write("digest", dict.fromkeys(range(100_000), "x" * 500))
    assert names.read("digest", [5, 99_999, 100_000]) == {5: "x" * 500, 99_999: "x" * 500}
    assert len(labelled("sae.1[5]", {"sae.1[5]": "x" * 500})) < 80


def test_a_label_is_one_literal_line() -> None:
    hostile = "a\n$b$ </script> \u202e\x1b[31m"
    assert labelled("sae.1[5]", {"sae.1[5]": hostile}) == "sae.1[5] 'a $b$ </script> \\u202e\\x1b[31m'"
    assert labelled("sae.1[5,7]", {"sae.1[7]": "verbs", "sae.1[5]": "nouns"}) == "sae.1[5,7] 'nouns', 'verbs'"
    assert labelled("sae.1", {"sae.1[5]": "nouns"}) == "sae.1"


def test_a_stop_shows_names_literally(engine: RemoteEngine, folder: Path) -> None:
    engine.name_features("sae.1", {17: "<b>$x$</b>", **dict.fromkeys(range(17), "another"), 18: "more"})
    session = engine.session("main", fresh=True)
    session.breakpoint("sae.1[17]")
    stop = session.run(PROMPT)
    assert isinstance(stop, dj.Paused)
    drawn = stop._repr_mimebundle_()
    assert drawn["text/plain"].startswith("paused at sae.1[17] '<b>$x$</b>' (step 0")
    assert "&lt;b&gt;$x$&lt;/b&gt;" in drawn["text/html"]
    assert "<b>$x$" not in drawn["text/html"]
    engine.name_features("sae.1", {17: ""})
    assert stop._repr_mimebundle_()["text/plain"].startswith("paused at sae.1[17] (step 0")


def test_a_stop_at_a_module_shows_its_largest_features(engine: RemoteEngine, folder: Path) -> None:
    session = engine.session("main", fresh=True)
    session.breakpoint("sae.1")
    stop = session.run(PROMPT)
    assert isinstance(stop, dj.Paused)
    last = np.asarray(session.inspect("sae.1").value)[-1]
    order = [int(one) for one in np.argsort(-last, kind="stable")[:5]]
    engine.name_features("sae.1", {order[0]: "capitals"})
    told = f"largest at position 4: {order[0]} 'capitals': {last[order[0]]:.3g}, {order[1]}: {last[order[1]]:.3g}"
    with naming(digests_of(engine.channel)):
        view = looking.outcome_view(stop)
        look = views.snapshot_view(looking.look_at(session, "sae.1"))
        chosen = views.snapshot_view(looking.look_at(session, f"sae.1[{order[1]},{order[0]}]"))
    assert told in view.plain
    assert f"{order[0]} 'capitals': {last[order[0]]:.3g}" in view.html
    assert told.replace("position 4", "the last position") in look.plain
    assert chosen.plain.startswith(f"sae.1[{order[1]},{order[0]}] 'capitals': ")
    assert f"{order[0]} 'capitals': {last[order[0]]:.3g}, {order[1]}: " in chosen.plain


def test_a_damaged_file_of_names_hides_no_stop(engine: RemoteEngine, folder: Path, data: Path) -> None:
    engine.name_features("sae.1", {17: "capitals"})
    (data / "djinn" / names.FILE).write_bytes(b"not a database" * 100)
    assert names_in(digests_of(engine.channel), ["sae.1[17]"]) == {}
    with pytest.raises(StorageFailed, match="cannot be read: file is not a database"):
        engine.feature_names("sae.1")
    with pytest.raises(StorageFailed, match="No name was changed"):
        engine.name_features("sae.1", {1: "x"})


def test_a_feature_that_no_module_can_have_has_no_name(engine: RemoteEngine, folder: Path) -> None:
    engine.name_features("sae.1", {17: "capitals"})
    sites = ["sae.1[17]", f"sae.1[{2**63}]", f"sae.1[{10**30}]"]
    assert names_in(digests_of(engine.channel), sites) == {"sae.1[17]": "capitals"}


def test_a_name_is_in_no_recipe_and_no_number(engine: RemoteEngine, folder: Path) -> None:
    def swept() -> dj.Grid:
        return dj.sweep(engine, corrupted=PROMPT, site="sae.1[*]", edit=dj.zero(), metric="logit(5)")

    before = swept()
    engine.name_features("sae.1", {17: "capitals"})
    after = swept()
    assert np.array_equal(before.values, after.values)
    assert before.recipe == after.recipe


def test_a_sweep_shows_the_names_of_the_features_that_matter_most(
    engine: RemoteEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card, "COLUMNS", 8)  # of a single prompt, the card of a wide grid has a table
    swept = {"site": "sae.1[*]", "over": "neuron", "edit": dj.zero(), "metric": "logit(5)", "mode": "exact"}
    one = dj.sweep(engine, corrupted=PROMPT, **swept)
    both = dj.sweep(engine, corrupted=[PROMPT, PROMPT[::-1]], **swept)
    (first, _), (most, _) = one.top(1)[0], both.top(1)[0]
    before = [grid._repr_mimebundle_() for grid in (one, both)]
    engine.name_features("sae.1", {first: "capitals <b>", most: "capitals <b>"})
    for grid, feature, was in ((one, first, before[0]), (both, most, before[1])):
        shown = grid._repr_mimebundle_()
        assert f"neuron {feature} 'capitals <b>'" in shown["text/plain"]
        assert f"neuron {feature} 'capitals &lt;b&gt;'" in shown["text/html"]
        assert "capitals" not in was["text/plain"] + was["text/html"]


def test_a_features_page_shows_its_name_and_those_of_features_like_it(
    engine: RemoteEngine, folder: Path, tmp_path: Path
) -> None:
    page = engine.feature("sae.1[17]", top=2)
    near, other = (one.feature for one in page.like)
    before = page._repr_mimebundle_()
    engine.name_features("sae.1", {17: "capitals <b>", near: "a long name " * 20, 40: "no"})
    shown = page._repr_mimebundle_()
    assert "Feature sae.1[17] 'capitals <b>', read without" in shown["text/plain"]
    assert f"sae.1[{near}] 'a long name a l\u2026' 0." in shown["text/plain"]
    assert f", sae.1[{other}] 0." in shown["text/plain"]
    assert "'capitals &lt;b&gt;'" in shown["text/html"]
    assert "<b>" not in shown["text/html"]
    assert page._chart().panels[1].names[0].startswith(f"sae.1[{near}] 'a long name")
    engine.name_features("sae.1", {17: "", near: ""})
    assert page._repr_mimebundle_() == before
    assert page.save(tmp_path / "a.feature.djinn").read_bytes().count(b"capitals") == 0
