"""The page of a feature over a collection: its numbers are those of numpy over all values at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.features.api import examples
from djinn_jupyter.methods.features.api import page as of_page
from djinn_jupyter.methods.features.api.examples import BEFORE, BEHIND
from djinn_jupyter.methods.features.request import EncodeFeatures
from tests import saes, transcoders
from tests.client import crafted
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.engine.words import tokenizer
from tests.families import build

UNIT, DEAD, SITE = 5, 9, "sae.1[5]"
PROMPTS = [[3 + (7 * n * n + 5 * at) % 60 for at in range(3 + 9 * (n % 4))] for n in range(1, 12)]


@pytest.fixture
def sae(engine: RemoteEngine, tmp_path: Path) -> Iterator[saes.Tensors]:
    tensors = saes.drawn(engine.description.hidden_size)
    tensors["W_enc"][:, DEAD], tensors["b_enc"][DEAD] = 0, -1
    engine.add_module("sae", saes.saved(tmp_path / "sae", tensors), at="resid_post.1")
    yield tensors
    for name in {module.name for module in engine.added_modules()}:
        engine.remove_module(name)


@pytest.fixture
def acts(engine: RemoteEngine, sae: saes.Tensors, tmp_path: Path) -> dj.Activations:
    return collected(engine, tmp_path / "acts", "sae.1")


def collected(engine: RemoteEngine, folder: Path, sites: str, **how: Any) -> dj.Activations:
    return engine.collect(PROMPTS, sites, to=folder, shard_prompts=3, mode="exact", **how)


def over(page: dj.FeaturePage) -> examples.FeatureValues:
    assert page.over is not None
    return page.over


def column(acts: dj.Activations, unit: int = UNIT) -> NDArray[Any]:
    return np.asarray(acts["sae.1"]).astype(np.float64)[:, unit]


def test_how_often_and_how_strongly_it_is_active_is_what_numpy_finds_in_all_values(
    engine: RemoteEngine, acts: dj.Activations
) -> None:
    assert len(acts.shards) == 4
    page, values = engine.feature(SITE, over=acts), column(acts)
    of, active = over(page), values[values > 0]
    assert (of.positions, of.active, of.prompts) == (len(values), len(active), len(PROMPTS))
    assert len(active) > 20
    assert (of.largest, of.mean, of.density) == (values.max(), active.mean(), len(active) / len(values))
    counts, edges = np.histogram(active, 20, range=(0, values.max()))
    assert (list(of.counts), list(of.edges)) == (counts.tolist(), edges.tolist())
    whole = np.asarray(acts["sae.1"]).astype(np.float64)
    for one, found in zip(page.like, of.correlations, strict=True):
        with np.errstate(invalid="ignore"):
            wanted = np.corrcoef(values, whole[:, one.feature])[0, 1]
        assert (found is None) == bool(np.isnan(wanted))
        assert found is None or found == pytest.approx(wanted, rel=1e-9)


def test_its_examples_are_the_largest_values_with_their_texts(engine: RemoteEngine, acts: dj.Activations) -> None:
    page = engine.feature(SITE, over=acts.folder, examples=7)
    values = {(n, at): value for n, each in enumerate(acts["sae.1"]) for at, value in enumerate(each[:, UNIT].tolist())}
    left = sorted((place for place in values if values[place] > 0), key=lambda place: (-values[place], place))
    wanted: list[tuple[int, int]] = []
    for prompt, at in left:
        near = [one for one in wanted if one[0] == prompt]
        if len(near) < 2 and not any(-BEHIND <= at - one[1] <= BEFORE for one in near):
            wanted.append((prompt, at))
    assert [(one.prompt, one.position) for one in page.examples] == wanted[:7]
    assert max(Counter(one.prompt for one in page.examples).values()) == 2
    of = over(page)
    for one in of.examples:
        prompt = PROMPTS[one.prompt]
        assert one.first == max(0, one.position - BEFORE)
        assert list(one.tokens) == prompt[one.first : one.position + BEHIND + 1]
        assert one.texts == tuple(f" w{token}" for token in one.tokens)
        assert one.values == tuple(values[one.prompt, one.first + at] for at in range(len(one.tokens)))
        assert (one.value, one.text) == (values[one.prompt, one.position], f" w{prompt[one.position]}")
    assert page.top(3) == [(one.prompt, one.position, one.text, one.value) for one in page.examples[:3]]
    numbered = [one for one in of.examples if one.interval is not None]
    for one in numbered:
        assert of.largest * one.interval / 5 <= one.value <= of.largest * (one.interval + 1) / 5
    there = {min(4, int(5 * value / of.largest)) for value in values.values() if value > 0}
    assert {one.interval for one in numbered} >= there - {4}
    assert len({(one.prompt, one.position) for one in of.examples}) == len(of.examples)
    assert engine.feature(SITE, over=acts, examples=0).examples == ()


def test_a_collection_of_the_point_is_encoded_by_the_engine_in_parts(
    engine: RemoteEngine, acts: dj.Activations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "SENT", 5 * 4 * engine.description.hidden_size)
    asked, ask_for = list[Any](), examples.ask_for

    def counting(channel: Any, request: Any) -> Any:
        asked.append(request)
        return ask_for(channel, request)

    monkeypatch.setattr(examples, "ask_for", counting)
    page, raw = engine.feature(SITE, over=acts), collected(engine, tmp_path / "raw", "z.0,resid_post.1")
    assert not any(isinstance(one, EncodeFeatures) for one in asked)
    found = engine.feature(SITE, over=raw)
    sizes = [one.values.shape[0] for one in asked if isinstance(one, EncodeFeatures)]
    assert (sum(sizes), max(sizes)) == (sum(map(len, PROMPTS)), 5)
    one, other = over(page), over(found)
    assert (one.positions, one.active, one.counts) == (other.positions, other.active, other.counts)
    assert [(x.prompt, x.position) for x in one.examples] == [(x.prompt, x.position) for x in other.examples]
    np.testing.assert_allclose(page.values, found.values, rtol=1e-4, atol=1e-5)
    assert other.notes == ("Computed by the module from resid_post.1, stored as float32.",)
    assert one.notes == ()


@pytest.mark.parametrize("at", [[-1], [0, -1]])
def test_kept_positions_alone_are_counted_and_coloured(
    engine: RemoteEngine, sae: saes.Tensors, tmp_path: Path, at: list[int]
) -> None:
    acts = collected(engine, tmp_path / "ends", "sae.1", positions=at)
    of = over(engine.feature(SITE, over=acts))
    each = np.asarray(acts["sae.1"]).reshape(len(PROMPTS), len(at), -1)[:, :, UNIT]
    assert (of.positions, of.active) == (each.size, int((each > 0).sum()))
    for one in of.examples:
        length = len(PROMPTS[one.prompt])
        kept = {position % length: float(value) for position, value in zip(at, each[one.prompt], strict=True)}
        assert kept[one.position] == one.value
        assert one.values == tuple(kept.get(one.first + n) for n in range(len(one.tokens)))


def test_of_a_collection_of_some_features_those_correlate_that_it_has(
    engine: RemoteEngine, sae: saes.Tensors, acts: dj.Activations, tmp_path: Path
) -> None:
    whole = engine.feature(SITE, over=acts)
    near = whole.like[2].feature
    part = engine.feature(SITE, over=collected(engine, tmp_path / "part", f"sae.1[{near},{UNIT}]"))
    found = over(part).correlations
    assert [n for n, one in enumerate(found) if one is not None] == [2]
    assert found[2] == pytest.approx(over(whole).correlations[2], rel=1e-4)
    assert over(part).counts == over(whole).counts


def test_a_dead_feature_and_none_at_all_say_so(engine: RemoteEngine, acts: dj.Activations) -> None:
    page = engine.feature(f"sae.1[{DEAD}]", over=acts)
    of = over(page)
    assert (of.active, of.largest, of.mean, of.density, of.examples) == (0, 0.0, 0.0, 0.0, ())
    assert set(of.correlations) == {None}
    assert "It is never active here." in page._repr_mimebundle_()["text/plain"]
    assert "active at 0 of" in repr(page)
    alone = engine.feature(SITE)
    assert (alone.over, alone.examples, len(alone.promoted)) == (None, (), 10)
    largest = max((*alone.promoted, *alone.suppressed), key=lambda one: abs(one.logit))
    assert alone.top(1) == [(largest.text, largest.logit)]
    assert len(alone.values) == 30


def test_it_is_kept_and_read_again_from_its_collection(
    engine: RemoteEngine, acts: dj.Activations, tmp_path: Path
) -> None:
    page = engine.feature(SITE, over=acts, examples=4, top=3)
    read = dj.FeaturePage.read(page.save(tmp_path / "a.feature.djinn"))
    assert (read.over, read.reply, repr(read)) == (page.over, page.reply, repr(page))
    assert dj.reproduce(engine, read).same
    assert read.recipe["over"] == {"folder": str(acts.folder), "digest": over(page).digest}
    changed = read.columns()["value"].index(over(page).largest)
    read.values[changed] += 1
    assert dj.reproduce(engine, read).place == {"part": "measure", "text": "largest"}
    for shard in acts.folder.iterdir():
        shard.unlink()
    with pytest.raises(UsageError, match=r"^There is no collection in "):
        dj.reproduce(engine, page)
    engine.collect(PROMPTS[:5], "sae.1", to=acts.folder)
    with pytest.raises(UsageError, match=r"is another one than the page was read over: read it anew\.$"):
        dj.reproduce(engine, page)
    engine.remove_module("sae")
    with pytest.raises(UsageError, match=r"^It was computed with the module sae of "):
        dj.reproduce(engine, page)


def test_another_models_or_modules_collection_is_refused(
    engine: RemoteEngine, sae: saes.Tensors, acts: dj.Activations, tmp_path: Path
) -> None:
    others = saes.saved(tmp_path / "other", saes.drawn(32, seed=2))
    for folder, at in ((tmp_path / "sae", "resid_pre.1"), (others, "resid_post.1")):
        engine.remove_module("sae")
        engine.add_module("sae", folder, at=at)
        with pytest.raises(
            UsageError, match=rf"^The collection in .* is of another module sae\.1, of .* at {at}: coll"
        ):
            engine.feature(SITE, over=acts)
    with pytest.raises(UsageError, match=r"has z\.0, and neither sae\.1 nor resid_post\.1, which that reads"):
        engine.feature(SITE, over=collected(engine, tmp_path / "z", "z.0"))
    some = collected(engine, tmp_path / "some", "sae.1[1,2]")
    with pytest.raises(UsageError, match=r"has sae\.1\[1,2\], and neither"):
        engine.feature(SITE, over=some)
    with pytest.raises(UsageError, match=r"^There is no collection in "):
        engine.feature(SITE, over=tmp_path / "nothing")
    model = build("llama", layers=3)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0] += 1
    with reached(build_desk(model, tokenizer())) as [trained]:
        trained.add_module("sae", saes.saved(tmp_path / "sae", sae), at="resid_post.1")
        with pytest.raises(UsageError, match=r"^The collection in .* is of another model \(tiny, LlamaForCausalLM\)"):
            trained.feature(SITE, over=acts)
    assert engine.sessions() == ()


def test_what_a_collection_says_of_its_values_is_noted(
    engine: RemoteEngine, acts: dj.Activations, tmp_path: Path
) -> None:
    half = collected(engine, tmp_path / "half", "resid_post.1", dtype="bfloat16")
    last = sorted(half.folder.iterdir())[-1]
    last.unlink()
    page = engine.feature(SITE, over=half.folder)
    assert over(page).notes == (
        "Computed by the module from resid_post.1, stored as bfloat16.",
        "The collection is not complete: shards are missing at its end.",
    )
    assert over(page).positions == sum(map(len, PROMPTS[:9]))
    assert over(page).largest == pytest.approx(column(acts)[: over(page).positions].max(), rel=0.05)


def test_values_that_are_not_finite_are_left_out_and_counted(
    engine: RemoteEngine, acts: dj.Activations, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, by_shard = engine.feature(SITE, over=acts), type(acts["sae.1"]).by_shard

    def spoilt(values: Any) -> Iterator[NDArray[Any]]:
        for number, rows in enumerate(by_shard(values)):
            mine = np.array(rows)
            if number == 1:
                mine[0], mine[1] = np.nan, np.inf
            yield mine

    monkeypatch.setattr(type(acts["sae.1"]), "by_shard", spoilt)
    found = over(engine.feature(SITE, over=acts))
    assert found.notes == ("2 values are not finite, and are left out.",)
    assert found.positions == over(page).positions
    assert np.isfinite(found.largest)
    assert sum(found.counts) == found.active
    assert all(one is None or abs(one) <= 1 for one in found.correlations)
    assert any(one is not None for one in found.correlations)


def test_a_feature_of_several_layers_is_read_for_the_one_that_is_named(engine: RemoteEngine, tmp_path: Path) -> None:
    drawn = transcoders.drawn_across(engine.description.hidden_size, engine.description.layers)
    engine.add_transcoders("clt", transcoders.across_saved(tmp_path, drawn))
    try:
        pages = [engine.feature("clt.1[3]", layer=layer, top=2) for layer in (None, 1, 2)]
        assert [(page.reply.layer, page.reply.writes) for page in pages] == [(1, "mlp_out.1")] * 2 + [(2, "mlp_out.2")]
        assert pages[0].columns() == pages[1].columns() != pages[2].columns()
        assert {len(page.promoted) for page in pages} == {len(page.like) for page in pages} == {2}
        assert dj.reproduce(engine, pages[2]).same
    finally:
        engine.remove_module("clt")


@pytest.mark.parametrize("site", ["sae.1[48]", "sae.2[0]", "nowhere.1[3]", ""])
def test_a_site_that_is_not_there_is_refused(engine: RemoteEngine, sae: saes.Tensors, site: str) -> None:
    with pytest.raises((UnknownSite, UsageError, dj.DjinnError)):
        engine.feature(site)
    assert engine.sessions() == ()


def test_arguments_are_checked_before_anything_is_read(engine: RemoteEngine, sae: saes.Tensors) -> None:
    for examples_asked in (-1, 101):
        with pytest.raises(UsageError, match=r"^A page has 0 to 100 examples of the largest values, not -?\d+\.$"):
            engine.feature(SITE, over="nowhere", examples=examples_asked)
    with pytest.raises(UsageError, match=r"^Examples are of a collection: name one \(over\), or leave examples out\.$"):
        engine.feature(SITE, examples=3)
    with pytest.raises(UsageError, match=r"^over is "):
        engine.feature(SITE, over=3)
    with pytest.raises(UsageError, match=r"^A page is of one feature of an SAE or a transcoder"):
        engine.feature("sae.1")


def test_a_module_that_is_removed_meanwhile_ends_it_in_a_sentence(
    engine: RemoteEngine, sae: saes.Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, over_collection = collected(engine, tmp_path / "raw", "resid_post.1"), of_page.over_collection

    def removing(*args: Any) -> Any:
        engine.remove_module("sae")
        return over_collection(*args)

    monkeypatch.setattr(of_page, "over_collection", removing)
    with pytest.raises(dj.DjinnError, match="sae"):
        engine.feature(SITE, over=raw)
    assert engine.sessions() == ()
    engine.add_module("sae", tmp_path / "sae", at="resid_post.1")


def test_an_interrupt_keeps_the_page_without_its_collection(
    engine: RemoteEngine, acts: dj.Activations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    alone = engine.feature(SITE)
    monkeypatch.setattr(of_page, "over_collection", interrupted)
    with pytest.raises(
        dj.WorkInterrupted, match=r"`kept` of this error has the page without its collection\."
    ) as caught:
        engine.feature(SITE, over=acts)
    assert caught.value.kept.columns() == alone.columns()
    assert engine.sessions() == ()


CRAFTED: Final[dict[str, Callable[[Any], Any]]] = {
    "counts": lambda of: of.update(counts=of["counts"][1:]),
    "edges": lambda of: of.update(edges=of["edges"][1:]),
    "correlations": lambda of: of.update(correlations=of["correlations"][1:]),
    "active": lambda of: of.update(active=of["active"] + 1),
    "positions": lambda of: of.update(positions=0, active=0, counts=[0] * 20),
    "texts": lambda of: of["examples"][0].update(texts=[]),
    "position": lambda of: of["examples"][0].update(position=10**6),
    "interval": lambda of: of["examples"][0].update(interval=5),
    "value": lambda of: of["examples"][0].update(value=of["largest"] + 1),
}


@pytest.mark.parametrize("change", CRAFTED)
def test_a_crafted_file_is_refused(engine: RemoteEngine, acts: dj.Activations, tmp_path: Path, change: str) -> None:
    file = engine.feature(SITE, over=acts).save(tmp_path / "a.feature.djinn")
    head, body = crafted.parts(file)
    told = crafted.told(head)
    CRAFTED[change](told["over"])
    crafted.put_told(file, head, body, told)
    with pytest.raises(UsageError, match=r"^a\.feature\.djinn is no file of a feature's page that Djinn .* wrote: "):
        dj.FeaturePage.read(file)


@pytest.mark.parametrize("change", ["largest", "modules"])
def test_a_crafted_file_without_a_table_is_refused_before_it_is_drawn(
    engine: RemoteEngine, acts: dj.Activations, tmp_path: Path, change: str
) -> None:
    file = engine.feature(SITE, over=acts).save(tmp_path / "a.feature.djinn")
    head, body = crafted.parts(file)
    told = crafted.told(head)
    del told["values"]
    if change == "largest":
        told["over"]["largest"] = 0.0
    else:
        told["reply"]["made"]["modules"] = []
    crafted.put_told(file, head, body, told)
    with pytest.raises(UsageError, match=r"^a\.feature\.djinn is no file of a feature's page"):
        dj.FeaturePage.read(file)
