"""A fork with edited keys or values goes on as plain Hugging Face does from a cache edited by hand; its parent does not
notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from djinn_jupyter.errors import InvalidEdit, UnknownSite, UsageError
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Edit, PatchFrom, Scale, Zero
from djinn_jupyter.wire.nouns import Sampling
from tests.engine.desk import Desk, Outcome, array, desk_of, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import carry, future, pair_of, reading, same
from tests.engine.plain import generate, plain_of

pytestmark = pytest.mark.drawn

PROMPT, NEW, MORE = tokens(21, seed=5), 3, 4
FAMILIES = ("llama", "gpt2", "gemma3_text", "mistral", "falcon", "mixtral", "jamba", "qwen3")
ByHand = Callable[[DynamicCache], None]


@pytest.fixture
def desk() -> Iterator[Desk]:
    found = desk_of("llama")
    yield found
    found.close_all()


def fork(desk: Desk, site: str, edit: Edit | None = None, name: str = "b", parent: str = "a", **where: Any) -> None:
    desk.ask(ask.Fork(session=parent, name=name, edit=edit or Zero(), site=site, **where))


def on(desk: Desk, name: str = "b", new: int = MORE) -> Outcome:
    """Extend the line, whose last token is not in the cache yet."""
    reply = desk.ask(ask.Run(session=name, tokens=(), extend=True, max_new_tokens=new, ignore_eos=True))
    return desk.outcome(reply, name)


@torch.inference_mode()
def by_hand(model: Any, prompt: tuple[int, ...], edit: ByHand, new: int = NEW, more: int = MORE) -> Outcome:
    """Run a prompt and `new` tokens in plain Hugging Face, edit the cache, then draw `more` tokens greedily."""
    cache = DynamicCache(config=model.config)
    step, drawn, logits = torch.tensor([prompt], device=model.device), [], None
    for number in range(new + more):
        if number == new:
            edit(cache)
        made = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits = made.logits[0, -1]
        drawn.append(int(logits.argmax()))
        step = torch.tensor([drawn[-1:]], device=model.device)
    return Outcome(tuple(drawn[new:]), logits.float().cpu())


def layer_with_rows(model: Any) -> int:
    """Return a layer whose cache keeps all positions."""
    kinds = getattr(model.config, "layer_types", None) or getattr(model.config, "layers_block_type", None)
    full = [i for i, kind in enumerate(kinds or []) if kind in ("full_attention", "attention")]
    return full[-1] if full else 4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("point", ["k_rot", "v"])
def test_it_goes_on_as_the_plain_cache_edited_by_hand(family: str, point: str) -> None:
    desk, model = desk_of(family), plain_of(family)
    layer = layer_with_rows(model)

    def edit(cache: DynamicCache) -> None:
        held = cache.layers[layer]
        rows = held.keys if point == "k_rot" else held.values
        rows[:, 0, [-7, -5]] *= 3.0  # of 23, or of those that a window keeps

    desk.open()
    desk.run(PROMPT, NEW)
    fork(desk, f"{point}.{layer}[0]", Scale(factor=3.0), positions=(16, 18))
    changed, plain = on(desk), on(desk, "a")
    desk.close_all()
    whole = generate(model, PROMPT, NEW + MORE)
    assert plain == Outcome(whole.tokens[NEW:], whole.logits)
    assert changed == by_hand(model, PROMPT, edit)
    assert not torch.equal(changed.logits, plain.logits), "the edit did nothing"


def test_at_a_stop_the_layers_above_attend_to_the_edited_rows(desk: Desk) -> None:
    model = plain_of("llama")

    def edit(cache: DynamicCache) -> None:
        cache.layers[5].values[:, :, 2:4] = 0

    desk.open()
    desk.stop_at("resid_post.3", "step == 3")
    desk.run(PROMPT, NEW + MORE)
    fork(desk, "v.5", positions=(2, 3))
    changed = desk.outcome(desk.resume("b", free=True), "b")
    whole = by_hand(model, PROMPT, edit)
    assert changed.tokens[NEW:] == whole.tokens
    assert torch.equal(changed.logits, whole.logits)
    assert desk.outcome(desk.resume(free=True)) == generate(model, PROMPT, NEW + MORE)


def test_only_the_pages_touched_are_copied_and_those_of_others_stay(desk: Desk) -> None:
    long = tokens(100, seed=3)
    desk.open()
    desk.run(long, 1)
    mine = desk.session("a").cache.groups[0]
    before = [mine.slab.key_view(page, 4).clone() for page in mine.table.pages]
    fork(desk, "k_rot.4", positions=(2, 40))
    theirs = desk.session("b").cache.groups[0]
    shared = [one == other for one, other in zip(mine.table.pages, theirs.table.pages, strict=True)]
    assert shared == [False, True, False, *[True] * (len(shared) - 3)]
    assert all(torch.equal(mine.slab.key_view(p, 4), rows) for p, rows in zip(mine.table.pages, before, strict=True))
    assert not theirs.slab.key_view(theirs.table.pages[0], 4)[:, 2].any()
    desk.settle()


def test_two_edits_after_each_other_both_hold_and_a_fork_has_them(desk: Desk) -> None:
    model, vector = plain_of("llama"), torch.arange(8.0)

    def edit(cache: DynamicCache) -> None:
        cache.layers[2].keys[:, 1, :5] += 2 * vector
        cache.layers[6].values[:, :, 7] = 0

    desk.open()
    desk.run(PROMPT, NEW)
    fork(desk, "k_rot.2[1]", Add(vector=array(vector), coef=2.0), positions=tuple(range(5)))
    fork(desk, "v.6", name="c", parent="b", positions=(-16,))  # of the 23 positions that are committed
    desk.fork("d", "c")
    expected = by_hand(model, PROMPT, edit)
    assert on(desk, "c") == expected
    assert on(desk, "d") == expected


def test_what_was_edited_is_told_at_its_later_stops(desk: Desk) -> None:
    desk.open()
    desk.run(PROMPT, NEW)
    fork(desk, "v.5[1]", positions=(2, 3), words="nothing there")
    desk.stop_at("resid_post.2", name="b")
    desk.ask(ask.Run(session="b", tokens=(), extend=True, max_new_tokens=2))
    earlier = desk.ask(ask.ReadStop(session="b")).influences.earlier
    assert [(one.start, one.end, one.changes) for one in earlier] == [
        (2, 4, ("nothing there at v.5[1], positions 2-3, in the cache",))
    ]


# --- kept ------------------------------------------------------------------------------------------------------------


def _work(desk: Desk) -> None:
    """Leave a session "b" that stands at a stop after two edits, before and after which tokens were drawn."""
    desk.open()
    desk.run(PROMPT, NEW, sampling=Sampling(temperature=1.0, seed=4))
    fork(desk, "k_rot.2[1]", Scale(factor=3.0), positions=tuple(range(5)), name="middle")
    desk.ask(ask.Run(session="middle", tokens=(), extend=True, max_new_tokens=2, ignore_eos=True))
    fork(desk, "v.6", positions=(20, 22), parent="middle")
    desk.stop_at("resid_post.3", "step == 2", name="b")
    desk.ask(ask.Run(session="b", tokens=(), extend=True, max_new_tokens=4, ignore_eos=True))
    desk.close("a", "middle")


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "jamba"])
def test_it_comes_back_from_the_journal_with_the_edits_made_again(family: str, tmp_path: Path) -> None:
    one, other = pair_of(family)
    journal(one, tmp_path / "alive")
    if family == "jamba":
        _recurrent_work(one)
    else:
        _work(one)
    written(one)
    assert journal(other, crashed(tmp_path / "alive", tmp_path / "dead")) == ("b",)
    assert other.describe("b").exactness == "recomputed"
    assert same(reading(one, "b"), reading(other, "b"))
    assert same(future(one, "b"), future(other, "b"))
    forget(other)
    forget(one)


def _recurrent_work(desk: Desk) -> None:
    desk.open()
    desk.run(PROMPT, NEW)
    fork(desk, f"v.{layer_with_rows(desk.engine.model)}", positions=(4, 20))
    on(desk, "b", 2)
    desk.close("a")


def test_a_checkpoint_has_it() -> None:
    one, other = pair_of("llama")
    _work(one)
    carry(one, other, "b")
    assert same(future(one, "b"), future(other, "b"))
    one.close_all()
    other.close_all()


def test_back_at_a_token_before_it_the_rows_below_stay_edited_and_the_others_are_new(desk: Desk) -> None:
    def edit(cache: DynamicCache) -> None:
        cache.layers[5].values[:, :, 3] = 0

    desk.open()
    desk.stop_at("resid_post.3", "step == 3")
    desk.run(PROMPT, NEW + MORE)
    fork(desk, "v.5", positions=(3, 22))
    desk.resume("b", free=True)
    desk.back(NEW + MORE - 2, by="token", name="b")
    assert [(one.at, one.positions) for one in desk.session("b").pass_log.edited] == [(22, (3,))]
    changed = desk.outcome(desk.resume("b", free=True), "b")
    whole = by_hand(plain_of("llama"), PROMPT, edit, new=2, more=NEW + MORE - 2)
    assert changed.tokens[2:] == whole.tokens
    assert torch.equal(changed.logits, whole.logits)


def test_a_recurrent_line_goes_back_to_states_behind_the_edit_and_never_before_it() -> None:
    """Tokens run again from states before an edited position would make its row anew, without the edit."""
    desk, drawn = desk_of("jamba"), 30
    layer = layer_with_rows(plain_of("jamba"))
    desk.open()
    desk.stop_at("resid_post.1", "step == 8")
    desk.run(PROMPT, drawn)
    fork(desk, f"v.{layer}", positions=(20, 27))
    session = desk.session("b")
    whole = desk.outcome(desk.resume("b", free=True), "b")
    assert list(session.generation.states) == [21, 32, 48]  # type: ignore[union-attr]
    desk.back(len(PROMPT) + drawn - 36, by="token", name="b")
    assert session.committed == 35  # run again from 32
    assert desk.outcome(desk.resume("b", free=True), "b") == whole
    for committed in (28, 31):  # from 21, where position 27 is to come
        with pytest.raises(UsageError, match="no longer kept; go back by stop"):
            desk.back(len(PROMPT) + drawn - 1 - committed, by="token", name="b")
    desk.close_all()


def test_its_stops_begin_at_the_edit(desk: Desk) -> None:
    desk.open()
    desk.stop_at("resid_post.3")
    desk.run(PROMPT, NEW)
    desk.resume()
    fork(desk, "v.5", positions=(2,))
    assert len(desk.ask(ask.ReadHistory(session="b")).stops) == 1
    with pytest.raises(UsageError, match="before the edit of this fork"):
        desk.back(name="b")
    assert desk.back().step == 0


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "fields", "said"),
    [
        ("k.5", {}, r"k\.5 is not in the cache.*k_rot\.5 or v\.5"),
        ("resid_post.5", {}, "is not in the cache"),
        ("v.5", {"positions": (99,)}, "Position 99 has no keys and values"),
        ("v.5", {"positions": (23,)}, "holds positions 0 to 22"),
        ("v.5", {"edit": Scale(factor=3e38)}, "makes NaN or infinity of the keys or values"),
        ("v.5", {"edit": PatchFrom(session="a", site="v.5")}, "patch_from takes the value of a stop"),
        ("v.5", {"edit": Add(vector=array(torch.ones(3)))}, "3"),
    ],
)
def test_a_wrong_one_is_one_sentence_and_leaves_no_fork(desk: Desk, site: str, fields: Any, said: str) -> None:
    desk.open()
    desk.run(PROMPT, NEW)
    pages = desk.describe().pages
    with pytest.raises(InvalidEdit, match=said):
        fork(desk, site, **fields)
    assert set(desk.engine.sessions) == {"a"}
    desk.close("a")
    assert all(slab.pages_in_use == 0 for slab in desk.engine.slabs), pages


def test_a_layer_that_has_run_in_the_stopped_pass_is_refused(desk: Desk) -> None:
    desk.open()
    desk.stop_at("resid_post.3", "step == 1")
    desk.run(PROMPT, NEW)
    with pytest.raises(InvalidEdit, match="Layer 3 has run in the stopped pass"):
        fork(desk, "v.3", positions=(2,))
    fork(desk, "v.4", positions=(2,))


def test_where_there_is_no_such_site_or_nothing_committed_it_says_so(desk: Desk) -> None:
    desk.open()
    with pytest.raises(InvalidEdit, match="No position is committed yet"):
        fork(desk, "v.3")
    desk.run(PROMPT, 1)
    with pytest.raises(UnknownSite, match=r"layers 0\.\.7"):
        fork(desk, "v.9")
    with pytest.raises(UnknownSite, match="heads"):
        fork(desk, "v.3[7]")
    with pytest.raises(UsageError, match="needs their site"):
        desk.ask(ask.Fork(session="a", name="b", edit=Zero()))


def test_its_line_is_no_pass_over_its_tokens(desk: Desk) -> None:
    desk.open()
    desk.run(PROMPT, NEW)
    fork(desk, "v.3")
    desk.open("score")
    with pytest.raises(UsageError, match="edited keys or values"):
        desk.ask(Score(session="score", prompts=("b",), rules_of="b"))


def test_the_refusal_of_an_edit_at_a_committed_position_names_the_fork(desk: Desk) -> None:
    desk.open()
    desk.stop_at("k_rot.3", "step == 1")
    desk.run(PROMPT, NEW)
    with pytest.raises(InvalidEdit, match=r"%djinn_fork NAME EDIT --site v\.N --positions P"):
        desk.edit(Zero(), positions=(2,))
