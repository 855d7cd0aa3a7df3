"""A study keeps results, tables, figures and text in one file, which is read without an engine, checked, and computed
again."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import djinn_jupyter as dj
from djinn_jupyter.api import reproducing, studies
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.interrupts import WorkInterrupted
from djinn_jupyter.api.studies import Study
from djinn_jupyter.errors import EngineUnavailable, UsageError
from tests.client import tables
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.engine.words import tokenizer
from tests.families import build

LINE, OTHER = tables.LINE, tables.OTHER
HOSTILE = [
    "$a$ <b> </script><script>alert(1)</script>",
    "\u200fright\u200e <a href=javascript:x>",
    "\U0001f9de emoji",
    "y" * 200,
]


@pytest.fixture(scope="module")
def another() -> Iterator[RemoteEngine]:
    """An engine of the same family with other weights."""
    model = build("llama", layers=3)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0] += 1
    with reached(build_desk(model, tokenizer())) as [found]:
        yield found


def begun(engine: RemoteEngine) -> Study:
    study = dj.study("capitals")
    study.add(engine.loss([LINE, OTHER]), title="loss", note="Two *lines*.")
    study.add(engine.head_scores([LINE]), title="heads")
    study.note("What follows from this.")
    return study


def edited_lens(engine: RemoteEngine) -> Any:
    """A reading behind a pass that stopped with an edit, which nothing computes again."""
    session = engine.session("mine", fresh=True)
    session.breakpoint("resid_post.1", once=True)
    session.run(LINE, max_new_tokens=2)
    session.edit(dj.scale(0.5))
    session.breakpoint("resid_post.2")
    session.resume()
    session.resume()
    return session.lens(3)


# --- the file --------------------------------------------------------------------------------------------------------


def test_every_kind_of_table_and_result_comes_back_with_its_values(engine: RemoteEngine, tmp_path: Path) -> None:
    made = {}
    for kind, make in tables.TABLES.items():
        if kind.__module__ == studies.__name__:
            continue
        (tmp_path / kind.__name__).mkdir()
        made[kind.__name__] = make(engine, tmp_path / kind.__name__)
    study = dj.study("all")
    for title, result in made.items():
        study.add(result, title=title)
    read = dj.study(study.save(tmp_path / "all.study.zip"))
    assert [one.title for one in read] == [one.title for one in study] == list(made)
    for title, result in made.items():
        item = read[title]
        assert item.text == result._repr_mimebundle_()["text/plain"]
        if title == "Activations":
            with pytest.raises(UsageError, match="'Activations' is a Activations and has no values"):
                item.columns()
            continue
        assert item.columns().keys() == {str(name): () for name in result.columns()}.keys()
        if type(result) in reproducing.kinds().values():
            assert type(item.result) is type(result)
            assert item.result.compared_values.tobytes() == result.compared_values.tobytes()
            assert item.recipe == result.recipe
            assert item._repr_mimebundle_() == result._repr_mimebundle_()
    assert read.check().ok
    assert read.save(tmp_path / "again.study.zip").read_bytes() == (tmp_path / "all.study.zip").read_bytes()


def test_a_result_in_the_unzipped_file_is_the_file_of_that_result(engine: RemoteEngine, tmp_path: Path) -> None:
    study = begun(engine)
    file = study.save(tmp_path / "a.study.zip")
    with zipfile.ZipFile(file) as unzipped:
        unzipped.extractall(tmp_path / "out")
    [heads] = (tmp_path / "out").rglob("*.heads.djinn")
    assert load_file(heads)["scores"].tobytes() == study["heads"].values.tobytes()
    assert dj.HeadScores.read(heads).recipe == study["heads"].recipe
    assert dj.reproduce(engine, heads).same
    assert hashlib.sha256(file.read_bytes()).hexdigest() == study.digest == dj.study(file).digest


def test_equal_studies_have_equal_bytes(engine: RemoteEngine, tmp_path: Path) -> None:
    first, second = (begun(engine).save(tmp_path / f"{n}.study.zip").read_bytes() for n in range(2))
    assert first == second


def test_a_result_without_a_recipe_is_kept_with_its_values(engine: RemoteEngine, tmp_path: Path) -> None:
    lens = edited_lens(engine)
    with pytest.raises(UsageError, match="No recipe makes this Lens again"):
        lens.save(tmp_path / "a.lens.djinn")
    study = dj.study("edited")
    study.add(lens)
    file = study.save(tmp_path / "a.study.zip")
    read = dj.study(file)["Lens"]
    assert read.values.tobytes() == lens.values.tobytes()
    assert (repr(read.result), read.model) == (repr(lens), None)
    with pytest.raises(
        UsageError, match=r"^Nothing computes 'Lens' again: an earlier pass of its line was edited at a stop"
    ):
        _ = read.recipe
    [row] = dj.study(file).reproduce(engine).rows
    assert (row.outcome, row.message) == ("no recipe", f"not computed again: {lens._unmade}")
    with zipfile.ZipFile(file) as unzipped:
        unzipped.extract("items/000.lens.djinn", tmp_path)
    with pytest.raises(UsageError, match=r"^000\.lens\.djinn is no file of a lens .*: it has no recipe\.$"):
        dj.Lens.read(tmp_path / "items/000.lens.djinn")


def test_tables_and_figures_are_kept(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib.figure")
    figure = matplotlib.Figure()
    axes = figure.add_subplot()
    axes.plot([1, 2])
    study = dj.study("drawn")
    study.add({"layer": [0, 1], "value": np.array([0.5, np.nan])}, title="mine")
    study.add(figure, title="figure")
    study.add(axes, title="axes")
    read = dj.study(study.save(tmp_path / "a.study.zip"))
    found = read["mine"].columns()
    assert (found["layer"], found["value"][0]) == ([0, 1], 0.5)
    assert np.isnan(found["value"][1])
    assert read["figure"].picture == read["axes"].picture
    assert read["figure"].picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert "data:image/png;base64," in read["figure"]._repr_mimebundle_()["text/html"]
    assert [one.unmade for one in read] == ["a table has no recipe", *["a figure has no recipe"] * 2]
    nested = {"a": {0: 1.5}}  # DataFrame.to_dict(), of which only the keys would stay
    for one in (3, "text", [1, 2], {"a": 1}, {"a": "xy"}, nested, {"a": [1], "b": [1, 2]}, {1: [0], "1": [2]}, None):
        with pytest.raises(
            UsageError, match=r"^A study takes a result, |^The columns of a table have (the same length|diff)"
        ):
            study.add(one)
    assert len(study) == 3


def test_a_card_without_values_is_shown_as_text(engine: RemoteEngine, tmp_path: Path) -> None:
    stop = tables.stopped(engine).stop
    study = dj.study("stops")
    study.add(stop, title="the stop")
    read = dj.study(study.save(tmp_path / "a.study.zip"))["the stop"]
    shown = read._repr_mimebundle_()
    assert "paused at resid_post.1" in shown["text/plain"]
    assert "layers have run" not in shown["text/html"], "markup of a file is never put into a notebook"
    assert b"layers have run" in read._parts["html"]
    with pytest.raises(UsageError, match=r"^'the stop' is a Paused and has no values; its card is in the page\.$"):
        _ = read.values


def test_it_is_read_without_torch_and_without_an_engine(engine: RemoteEngine, tmp_path: Path) -> None:
    file = begun(engine).save(tmp_path / "a.study.zip")
    program = (
        "import sys, djinn_jupyter as dj\n"
        f"study = dj.study({str(file)!r})\n"
        "assert study.check().ok, study.check()\n"
        "print(study['heads'].values.shape, study['heads'].result.top(1) != [], sorted({'torch'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "(3, 3, 4) True []\n", done.stderr


# --- items -----------------------------------------------------------------------------------------------------------


def test_a_cell_that_is_run_again_adds_nothing(engine: RemoteEngine) -> None:
    study, scores = dj.study("twice"), engine.head_scores([LINE])
    for _ in range(2):
        study.add(scores)
        study.add(engine.loss([LINE]), title="loss")
        study.note("Hello.")
    assert [one.title for one in study] == ["HeadScores", "loss", "note"]
    study.add(engine.head_scores([OTHER]))
    study.note("Another.")
    assert [one.title for one in study] == ["HeadScores", "loss", "note", "HeadScores 2", "note 2"]
    study.add(engine.loss([OTHER]), title="loss")
    assert study[1].values.tobytes() == engine.loss([OTHER]).values.tobytes(), "replaced in its place"
    del study["HeadScores"]
    assert [one.title for one in study] == ["loss", "note", "HeadScores 2", "note 2"]
    other = dj.study("other")
    other.add(study["loss"])
    assert other["loss"].values.tobytes() == study["loss"].values.tobytes()
    assert other[-1].recipe == study[0].recipe


def test_an_item_is_as_it_was_when_it_was_added(engine: RemoteEngine) -> None:
    study, scores = dj.study("kept"), engine.head_scores([LINE])
    study.add(scores)
    was = scores.values.tobytes()
    scores.values[:] = 0
    assert study[0].values.tobytes() == was


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda study: study["nothing"], "There is no item 'nothing'; there are: "),
        (lambda study: study[3], "There is no item 3; there are: heads, loss, note."),
        (lambda study: study["note"].values, "'note' is a note and has no values; its card is in the page."),
        (lambda study: study["note"].recipe, "Nothing computes 'note' again: it is a note."),
        (lambda study: study.note(" "), "A note is a text that is not empty."),
        (lambda study: study.note("x" * 100_001), "A note has at most 100,000 characters, and this one 100,001."),
        (lambda study: study.note("x", "y" * 201), "A title has 1 to 200 characters, not 201."),
        (lambda study: study.note("x", "a\x1bb"), "A title cannot hold '\\x1b', which is obeyed and not shown; "),
        (lambda study: study.save(), "This study is in no file yet: give a path, such as study.save('study.s"),
        (lambda study: study.save("a.zip"), "A study is kept in a file that ends in .study.zip; 'a.zip' does not."),
        (lambda study: study.save("a\0b"), "'a\\x00b' names no file."),
        (lambda study: study.reproduce(None), "engine is a RemoteEngine, not None."),
        (lambda study: dj.study(""), "The name of a study has 1 to 200 characters, not 0."),
        (lambda study: dj.study(3), "name is a text or a Path, not 3."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_nothing_is_lost(
    engine: RemoteEngine, call: Callable[[Study], object], said: str
) -> None:
    study = begun(engine)
    with pytest.raises(UsageError) as refused:
        call(study)
    assert str(refused.value).startswith(said)
    assert [one.title for one in study] == ["loss", "heads", "note"]


# --- two notebooks, and damaged files --------------------------------------------------------------------------------


def test_another_notebooks_change_is_not_written_over(engine: RemoteEngine, tmp_path: Path) -> None:
    file = begun(engine).save(tmp_path / "a.study.zip")
    mine, theirs = dj.study(file), dj.study(file)
    mine.note("Mine.", title="mine")
    assert mine.save() == file, "its own file is written over"
    theirs.note("Theirs.", title="theirs")
    before = file.read_bytes()
    for where in ((), (file,)):
        with pytest.raises(UsageError, match=r"^There is another 'a\.study\.zip' already"):
            theirs.save(*where)
    assert file.read_bytes() == before
    theirs.save(replace=True)
    assert "theirs" in [one.title for one in dj.study(file)]
    assert [one.name for one in tmp_path.iterdir()] == ["a.study.zip"]
    with pytest.raises(UsageError, match="There is another"):
        begun(engine).save(file)


def test_any_flipped_bit_and_any_cut_is_found(engine: RemoteEngine, tmp_path: Path) -> None:
    study = dj.study("small")
    study.add(engine.loss([LINE]), title="loss")
    file = study.save(tmp_path / "a.study.zip")
    whole = file.read_bytes()
    draw = np.random.default_rng(0)
    for at in [*draw.integers(0, len(whole), 100).tolist(), *range(len(whole) - 90, len(whole))]:
        for spoiled in (whole[:at], whole[:at] + bytes([whole[at] ^ (1 << int(draw.integers(8)))]) + whole[at + 1 :]):
            file.write_bytes(spoiled)
            with pytest.raises(UsageError, match=r"^'a\.study\.zip' is no study .*\.$"):
                dj.study(file)


def sealed(members: Mapping[str, bytes] | list[tuple[str, bytes]], **how: Any) -> bytes:
    """Return a zip file with a right digest, as whoever knows the format can make one."""
    into = BytesIO()
    with zipfile.ZipFile(into, "w", **how) as file:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            file.writestr(name, data)
        file.comment = bytes(64)
    data = into.getvalue()[:-64]
    return data + hashlib.sha256(data).hexdigest().encode()


def crafted(whole: bytes, change: Callable[[dict[str, Any]], object]) -> dict[str, bytes]:
    """Return the members with another study.json."""
    with zipfile.ZipFile(BytesIO(whole)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    told = json.loads(members["study.json"])
    change(told)
    return members | {"study.json": json.dumps(told).encode()}


def changes() -> dict[str, Callable[[dict[str, Any]], object]]:
    return {
        "has format 2, and Djinn .* reads format 1: upgrade": lambda told: told.update(format=2),
        "has format None": lambda told: told.update(format=None),
        "unknown field": lambda told: told.update(more=1),
        "two items have one title": lambda told: told["items"][1].update(title="loss"),
        "its parts are not those of its items": lambda told: told["items"][0]["parts"].update(more="0" * 64),
        "Expected `str` matching regex": lambda told: told["items"][0]["parts"].update({"../../up": "0" * 64}),
        "is not what was written": lambda told: told["items"][0]["parts"].update(html="0" * 64),
        "a name cannot hold": lambda told: told["items"][0].update(title="a\u202eb"),
        "Expected `array`": lambda told: told.update(items=3),
    }


@pytest.mark.parametrize("said", changes())
def test_a_crafted_study_is_refused_in_a_sentence(engine: RemoteEngine, tmp_path: Path, said: str) -> None:
    whole = begun(engine).save(tmp_path / "a.study.zip").read_bytes()
    (tmp_path / "b.study.zip").write_bytes(sealed(crafted(whole, changes()[said])))
    with pytest.raises(UsageError, match=rf"^'b\.study\.zip' .*{said}.*\.$"):
        dj.study(tmp_path / "b.study.zip")


LIVE = (
    "<script>alert(1)</script>",
    '<meta http-equiv="refresh" content="0;url=//a.b">',
    '<META name="x" http-equiv=refresh content="0;url=//a.b">',
    "<!--><script src=//a.b></script>",
    "<form action=//a.b>",
    "<iframe srcdoc=x>",
)


@pytest.mark.parametrize("card", LIVE)
def test_no_live_card_gets_into_a_page(engine: RemoteEngine, tmp_path: Path, card: str) -> None:
    whole = begun(engine).save(tmp_path / "a.study.zip").read_bytes()
    digest = hashlib.sha256(card.encode()).hexdigest()
    members = crafted(whole, lambda told: told["items"][0]["parts"].update(html=digest))
    (tmp_path / "b.study.zip").write_bytes(sealed(members | {"items/000.html": card.encode()}))
    with pytest.raises(UsageError, match=r"items/000\.html has live elements\.$"):
        dj.study(tmp_path / "b.study.zip")


def test_a_part_that_is_a_link_is_refused(engine: RemoteEngine, tmp_path: Path) -> None:
    members = crafted(begun(engine).save(tmp_path / "a.study.zip").read_bytes(), lambda told: None)
    into = BytesIO()
    with zipfile.ZipFile(into, "w") as file:
        for name, data in members.items():
            one = zipfile.ZipInfo(name)
            one.external_attr = 0o120777 << 16
            file.writestr(one, data)
        file.comment = bytes(64)
    data = into.getvalue()[:-64]
    (tmp_path / "b.study.zip").write_bytes(data + hashlib.sha256(data).hexdigest().encode())
    with pytest.raises(UsageError, match="it has parts that are no files"):
        dj.study(tmp_path / "b.study.zip")


def test_compressed_doubled_foreign_and_climbing_parts_are_refused(engine: RemoteEngine, tmp_path: Path) -> None:
    members = crafted(begun(engine).save(tmp_path / "a.study.zip").read_bytes(), lambda told: None)
    bomb = sealed(members | {"zeros": bytes(2**26)}, compression=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 2**18
    with pytest.warns(UserWarning, match="Duplicate name"):
        doubled = sealed([*members.items(), ("index.html", members["index.html"])])
    for data, said in (
        (sealed(members), None),
        (bomb, "it has compressed parts"),
        (doubled, "its parts share bytes or names"),
        (sealed(members | {"../up": b""}), "its parts are not those of its items"),
        (sealed(members | {"/root": b""}), "its parts are not those of its items"),
        (sealed({}), "'study.json'"),
        (sealed({"study.json": b"[" * 100_000}), ""),
        (b"", "it is damaged, truncated or another file"),
        (b"PK" + bytes(200), "it is damaged, truncated or another file"),
    ):
        (tmp_path / "b.study.zip").write_bytes(data)
        if said is None:
            assert len(dj.study(tmp_path / "b.study.zip")) == 3
            continue
        with pytest.raises(UsageError, match=rf"^'b\.study\.zip' is no study .*{re.escape(said)}.*\.$"):
            dj.study(tmp_path / "b.study.zip")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.study.zip", "b.study.zip"]
    with pytest.raises(UsageError, match=r"nowhere\.study\.zip could not be read: No such file or directory\.$"):
        dj.study(tmp_path / "nowhere.study.zip")
    with pytest.raises(UsageError, match=r"could not be read: Is a directory\.$"):
        dj.study(tmp_path)


def test_a_check_finds_an_item_that_is_not_what_the_study_says(engine: RemoteEngine, tmp_path: Path) -> None:
    study = begun(engine)
    study.add({"a": [1]}, title="table")
    whole = study.save(tmp_path / "a.study.zip").read_bytes()
    sha = hashlib.sha256(b"[1]").hexdigest()

    def change(told: dict[str, Any]) -> None:
        told["items"][0]["by"]["model"] = "gpt2"
        told["items"][1]["text"] = "Another text."
        told["items"][3]["parts"]["json"] = sha

    (tmp_path / "b.study.zip").write_bytes(sealed(crafted(whole, change) | {"items/003.json": b"[1]"}))
    found = dj.study(tmp_path / "b.study.zip").check()
    assert not found.ok
    assert found.columns()["outcome"] == ["wrong", "wrong", "ok", "wrong"]
    assert found["loss"].message == (
        f"The study says another model or machine than the file, which has {study['loss'].model}."
    )
    assert found["heads"].message == "Its card does not show its values."
    assert found["table"].message.startswith("'table' has no table that Djinn wrote: Expected `object`, got `array`")
    assert repr(found).startswith("Check: 3 wrong, 1 ok\n0  loss: The study says another model")


def test_a_result_of_a_method_that_is_not_here_keeps_its_card(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = begun(engine).save(tmp_path / "a.study.zip")
    there = {ending: kind for ending, kind in reproducing.kinds().items() if kind is not dj.HeadScores}
    monkeypatch.setattr(reproducing, "kinds", lambda: there)
    study = dj.study(file)
    said = "'heads' is of an unknown kind: a file of another distribution's method is read where that is installed."
    assert (study.check()["heads"].outcome, study.check()["heads"].message) == ("wrong", said)
    assert "Scores of 3 layers" in study["heads"]._repr_mimebundle_()["text/plain"]


# --- computed again --------------------------------------------------------------------------------------------------


def test_each_item_is_computed_again_and_said_by_itself(
    engine: RemoteEngine, another: RemoteEngine, tmp_path: Path
) -> None:
    study = begun(engine)
    study.add(another.loss([LINE]), title="other weights")
    study.add({"a": [1]}, title="table")
    read = dj.study(study.save(tmp_path / "a.study.zip"))
    found = read.reproduce(engine)
    assert found.columns()["title"] == ["loss", "heads", "other weights", "table"]
    assert found.columns()["outcome"] == ["same", "same", "another model", "no recipe"]
    assert not found.ok
    assert found["loss"].found.same
    assert found["loss"].message == "The same bits: 8 values of " + found["loss"].message.partition("values of ")[2]
    assert found["other weights"].message == f"it needs {study['other weights'].model}; this is {study['loss'].model}"
    assert read.reproduce(another).columns()["outcome"] == ["another model", "another model", "same", "no recipe"]
    assert engine.sessions() == another.sessions() == ()
    del read["other weights"]
    assert read.reproduce(engine).ok


def test_other_bits_are_told_with_their_place(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = begun(engine)
    again = reproducing.reproduce

    def spoiled(engine: RemoteEngine, result: Any, **given: Any) -> Any:
        if isinstance(result, dj.HeadScores):
            result.values[0, 1, 2] += 1
        return again(engine, result, **given)

    monkeypatch.setattr(reproducing, "reproduce", spoiled)
    row = study.reproduce(engine)["heads"]
    assert row.outcome == "other"
    assert re.match(
        r"Other bits: 1 of 36 values differ, by up to 1, most at kind previous, layer 1, head 2\.", row.message
    )


def test_an_error_of_an_item_is_its_outcome_and_an_engine_that_is_gone_ends_it(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = dj.study("spliced")
    study.add(tables.spliced(engine, tmp_path), title="splice")
    study.add(engine.loss([LINE]), title="loss")
    found = study.reproduce(engine)
    assert found.columns()["outcome"] == ["refused", "same"]
    assert "sae" in found["splice"].message

    def gone(*_: Any, **given: Any) -> Any:
        raise EngineUnavailable("It ended.")

    monkeypatch.setattr(reproducing, "reproduce", gone)
    with pytest.raises(EngineUnavailable):
        study.reproduce(engine)


def test_an_interrupt_keeps_the_items_that_were_done(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    study, again = begun(engine), reproducing.reproduce

    def interrupted(engine: RemoteEngine, result: Any, **given: Any) -> Any:
        if isinstance(result, dj.HeadScores):
            raise WorkInterrupted("The reproduction was interrupted.")
        return again(engine, result, **given)

    monkeypatch.setattr(reproducing, "reproduce", interrupted)
    with pytest.raises(
        WorkInterrupted, match=r"1 of 2 items were done; `kept` of this error has what there is"
    ) as broken:
        study.reproduce(engine)
    assert (broken.value.kept.ok, broken.value.kept.columns()["title"]) == (True, ["loss"])


def test_reproduce_says_how_a_study_is_computed_again(engine: RemoteEngine, tmp_path: Path) -> None:
    file = begun(engine).save(tmp_path / "a.study.zip")
    with pytest.raises(UsageError, match=r"^a\.study\.zip is a study: dj\.study\('.*'\)\.reproduce\(engine\) computes"):
        dj.reproduce(engine, file)


# --- shown -----------------------------------------------------------------------------------------------------------


def test_the_page_loads_and_runs_nothing_and_shows_texts_literally(engine: RemoteEngine, tmp_path: Path) -> None:
    study = dj.study(HOSTILE[0])
    for title in HOSTILE:
        study.add(engine.loss([LINE]), title=title, note=title * 10)
    study.add({"<img src=x>": HOSTILE}, title="table")
    study.note("half \ud800 a pair")
    file = study.save(tmp_path / "a.study.zip")
    with zipfile.ZipFile(file) as unzipped:
        pages = [unzipped.read(name).decode() for name in unzipped.namelist() if name.endswith(".html")]
    for page in pages:
        assert page.startswith(studies._pages().HEAD)
        assert "default-src 'none'" in page
        tags = re.findall(r"<\w[^>]*>", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))
        assert [tag for tag in tags if re.match(r"<(script|iframe|object|embed|link|base|form|img)\b", tag)] == []
        assert [tag for tag in tags if re.search(r"\s(src|on\w+)=|\shref=\"(?!#\d+\")", tag)] == []
    read = dj.study(file)
    assert read.name == HOSTILE[0]
    assert read[-1].note == "half \\ud800 a pair"
    shown = read._repr_mimebundle_()
    assert "<script" not in shown["text/html"]
    assert all(title in shown["text/plain"] for title in HOSTILE[:3])
    assert "alert(1)&lt;/script&gt;" in shown["text/html"]
    assert 'class="djinn mathjax_ignore tex2jax_ignore"' in shown["text/html"], "or $a$ is set as a formula"
    assert "<script" not in read.check()._repr_mimebundle_()["text/html"]
    assert "<script" not in read[HOSTILE[0]]._repr_mimebundle_()["text/html"]


def test_markup_of_a_file_is_not_put_into_a_notebook(engine: RemoteEngine, tmp_path: Path) -> None:
    whole = begun(engine).save(tmp_path / "a.study.zip").read_bytes()
    evil = b"<img src=x onerror=alert(1)>"
    sha = hashlib.sha256(evil).hexdigest()
    members = crafted(whole, lambda told: [one["parts"].update(html=sha) for one in told["items"] if one["parts"]])
    members |= {name: evil for name in members if name.startswith("items/") and name.endswith(".html")}
    (tmp_path / "b.study.zip").write_bytes(sealed(members))
    study = dj.study(tmp_path / "b.study.zip")
    for shown in (study, *study, study.check()):
        assert "alert" not in shown._repr_mimebundle_()["text/html"]
