"""No field of a session is forgotten on the way through the journal or a checkpoint: those of each class are asked of
the class, so a new one has to be kept or named here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import torch

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.breakpoints import Breakpoint, Rule, Watch
from djinn_jupyter.engine.passes.conditions import Condition
from djinn_jupyter.engine.passes.edits import Change
from djinn_jupyter.engine.passes.frame import Frame, Override
from djinn_jupyter.engine.passes.site_value import Guard
from djinn_jupyter.engine.session.generation import Generation, Sampler
from djinn_jupyter.engine.session.history import History, Passes, PassLog, StopEdit, StopRecord
from djinn_jupyter.engine.session.session import MOST_REQUESTS, AnsweredRequests, Grants, RequestId, Session
from djinn_jupyter.engine.store import image
from djinn_jupyter.engine.store.dump import dump_session
from djinn_jupyter.engine.store.image import ImagePart, SessionImage
from djinn_jupyter.engine.store.load import load_session
from djinn_jupyter.errors import CheckpointRefused
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale, Set
from djinn_jupyter.wire.looks import Direction
from djinn_jupyter.wire.nouns import Sampling, SamplingChanges
from djinn_jupyter.wire.sites import parse_site
from tests.engine.desk import Desk, array, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import carry, pair_of
from tests.engine.persistence.works import PROMPT

OF_THIS_PROCESS: Final[Mapping[type, set[str]]] = {
    Session: {
        *("holder", "holder_notebook", "kept_for", "used_by", "temporary"),  # the kernels of another engine
        "left_by",  # test_repeated
        *("work", "progress", "pause_requested", "plan_version", "last_used"),  # work that is under way
        *("residence", "storage_table", "cache"),  # where its bytes are; rows are compared in test_round_trip
        *("needs_recompute", "exactness", "logits_1V"),  # made again
        *("stop", "edition", "last_edition"),  # it stands under new numbers: test_stop_numbers
    },
    History: {"kept", "on_disk", "why"},  # settings of the engine and places
    Breakpoint: {"text_of", "id_of"},
    Guard: {"text_of", "id_of"},
    Watch: {"lines", "repeated", "reached"},  # earlier runs have no recipe any more; the others are of the positions
    Frame: {"attended"},  # computed again
    Generation: {"states"},  # test_states_on_disk
    Rule: {
        "_unread",  # with `_read` they are `sizes()`
        *(
            "announced",
            "_last",
            "_changed_in",
            "_refused_in",
            "_arrays",
            "_made_for",
        ),  # of the pass under way, and copies
        *("what", "places"),  # made of the others
    },
}
UNDER_OTHER_NAMES: Final[Mapping[tuple[type, type[ImagePart]], dict[str, set[str]]]] = {
    (Session, image.SessionImage): {
        **{"state": {"paused"}, "edits": {"edits", "edits_made"}, "pass_log": {"trail"}, "logits_1V": {"logits"}},
        **{"cache": {"committed", "rows", "places", "states"}, "generation": {"line", "lines"}},
        **{"answered": {"answered", "let_go"}, "left_by": {"holder"}},
        **{"frame": {"frame", "frames"}, "saved_states": {"journal"}, "needs_recompute": {"lost"}},
    },
    (History, image.HistoryImage): {},
    (StopRecord, image.StopImage): {"generation": {"line"}},
    (Frame, image.FrameImage): {"overrides": {"inlays"}},
    (Override, image.OverrideImage): {},
    (Change, image.ChangeImage): {},
    (Generation, image.GenerationImage): {
        "sampler": {"sampling", "prompt_length", "generator"},
        "states": {"states", "state_lengths"},
    },
    (Breakpoint, image.BreakpointImage): {"site": {"tap"}, "condition": {"when"}},
    (Rule, image.RuleImage): {
        **{"sites": {"tap", "more"}, "taps": {"tap", "more"}, "guard": {"when"}, "_read": {"sizes"}}
    },
    (Watch, image.WatchImage): {"site": {"tap"}, "run": {"runs"}},
    (PassLog, image.PassLogImage): {"passes": {"passes", "rules"}},
    (Passes, image.PassesImage): {},
}
"""The kept classes, each with its image and the fields that have other names there."""


@pytest.mark.parametrize(("kind", "made"), UNDER_OTHER_NAMES, ids=lambda value: value.__name__)
def test_each_field_is_in_the_image_or_named_here(kind: type, made: type[ImagePart]) -> None:
    """A field of equal default on both sides differs in no session: its loss shows in the classes alone."""
    own, in_image = {one.name for one in fields(kind)}, set(made.__struct_fields__)
    renamed, here = UNDER_OTHER_NAMES[kind, made], OF_THIS_PROCESS.get(kind, set())
    assert here | renamed.keys() <= own, "named here and gone"
    assert own - in_image - here - renamed.keys() == set(), "not kept"
    assert in_image - own == set().union(*renamed.values()) - own, "kept, and of no field"


def differing(one: Any, other: Any, path: str = "session") -> Iterator[str]:
    """Yield the paths at which two values differ, by the fields of their own classes."""
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        yield from () if alike else (path,)
    elif type(one) is not type(other):
        yield path
    elif isinstance(one, Tap):
        yield from () if (one.site, one.kind) == (other.site, other.kind) else (path,)
    elif isinstance(one, Condition):
        yield from () if one.text == other.text else (path,)
    elif isinstance(one, Sampler):
        yield from differing(one.generator.get_state(), other.generator.get_state(), f"{path}.generator")
    elif isinstance(one, Grants):
        yield from differing(one.by_person, other.by_person, path)
    elif isinstance(one, AnsweredRequests):
        yield from differing([list(one), one.let_go], [list(other), other.let_go], path)
    elif is_dataclass(one) or isinstance(one, msgspec.Struct):
        for name in _names(one):
            yield from differing(getattr(one, name), getattr(other, name), f"{path}.{name}")
    elif isinstance(one, Mapping):
        yield from () if one.keys() == other.keys() else (path,)
        for key in one.keys() & other.keys():
            yield from differing(one[key], other[key], f"{path}[{key}]")
    elif isinstance(one, list | tuple):
        yield from () if len(one) == len(other) else (path,)
        for number, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            yield from differing(mine, theirs, f"{path}[{number}]")
    elif one != other and not (isinstance(one, float) and math.isnan(one) and math.isnan(other)):
        yield path


def _names(value: Any) -> list[str]:
    names = [f.name for f in fields(value)] if is_dataclass(value) else list(value.__struct_fields__)
    return [name for name in names if name not in OF_THIS_PROCESS.get(type(value), ())]


def used(desk: Desk) -> Session:
    """A session of which no field that is kept has the value that it is made with."""
    desk.open()
    desk.steer("resid_post.1", positions=(0,))
    wide = Set(value=array(torch.zeros(11, 32)))
    limits: dict[str, Any] = {"onward": 1, "on": "prompt", "when": "norm > 0"}
    desk.ask(ask.Steer(session="a", site="resid_pre.*", edit=wide, positions=(0, 1), words="zeros", **limits))
    desk.ask(ask.Watch(session="a", site="resid_post.2"))
    v = Direction(name="v", vector=array(torch.arange(32.0)))
    desk.ask(ask.Watch(session="a", site="resid_post.2", direction=v))
    desk.stop_at("resid_post.3")
    number = desk.stop_at("resid_post.4", "step >= 0", once=True)
    desk.run(tokens(12), 6, sampling=Sampling(temperature=1.0, seed=3), stop=())
    desk.resume()
    desk.ask(ask.Resume(session="a", sampling=SamplingChanges(top_p=0.9)))
    desk.stop_at("resid_post.6", "norm > 1e30")
    desk.ask(ask.EnableBreakpoint(session="a", number=number + 1, enabled=False))
    desk.edit(Scale(factor=0.5), positions=(-1,))
    session = desk.session()
    session.shares.grant("bert", "read")
    for number in range(MOST_REQUESTS + 1):
        session.answered.conclude(RequestId(client=b"a digest", number=number), b"a reply")
    session.answered.begin(RequestId(client=b"a digest", number=100))
    assert session.state == "paused"
    for one in session.breakpoints.values():
        one.note = "what may be meant otherwise"
    for rule in session.rules.values():
        rule.sizes()
        rule.note = "what may be meant otherwise"
    return session


def unlike_new(values: Any) -> None:
    """Every kept field of one of these differs somewhere from its default; else its loss would not be seen."""
    values = list(values)
    for one in fields(values[0]):
        if one.name in OF_THIS_PROCESS.get(type(values[0]), ()) or one.name in ("enabled", "once"):
            continue
        default = one.default_factory() if callable(one.default_factory) else one.default
        assert any(getattr(value, one.name) != default for value in values), one.name


@pytest.mark.parametrize("way", ["journal", "checkpoint"])
def test_all_fields_of_a_session_are_there_again(way: str, tmp_path: Path) -> None:
    one, other = pair_of("llama")
    journal(one, tmp_path / "alive")
    before = used(one)
    unlike_new(before.breakpoints.values())
    assert before.edits
    unlike_new(before.rules.values())
    assert all(watch.values for watch in before.watches.values())
    if way == "journal":
        one.engine.persistence.touch("a")
        written(one)
        assert journal(other, crashed(tmp_path / "alive", tmp_path / "dead")) == ("a",)
    else:
        carry(one, other)
    lost = [path for path in differing(before, other.session()) if not _is_count_of_a_rule(path)]
    of_a_person = ["session.shares", "session.answered[0]", "session.answered[1]"]
    assert lost == ([] if way == "journal" else of_a_person)  # a checkpoint is opened by whoever has the file
    if way == "journal":
        forget(other)
    else:
        other.close_all()
    forget(one)


def _is_count_of_a_rule(path: str) -> bool:
    """True for the count of a rule: it is the session's, and for the passes under the rule only its effect is kept."""
    return path.startswith("session.pass_log.") and path.rpartition(".")[2] in COUNTS


COUNTS: Final = {"passes_met", "passes_changed", "passes_refused", "trouble", "met_at", "refused_at", "note", "_read"}


def test_a_field_that_is_lost_is_found() -> None:
    site = parse_site("resid_post.4")
    one, other = (
        StopEdit(number=1, what="x", site=site, edit=Scale(factor=2.0), positions=None, size=size)
        for size in (1.0, 2.0)
    )
    assert list(differing(one, other)) == ["session.size"]


# --- numbers of stops -------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped() -> Desk:
    desk, _ = pair_of("llama")
    desk.open()
    desk.stop_at("resid_post.2", "step < 2")
    desk.run(PROMPT)
    desk.edit()
    return desk


def rebuilt(desk: Desk, image: SessionImage) -> Session:
    kept = desk.engine.config.stops_kept
    return load_session(desk.engine.runtime, image, name="again", owner="tester", holder=None, stops_kept=kept)


def test_a_recovered_session_stands_where_it_stood_and_counts_on(stopped: Desk, tmp_path: Path) -> None:
    _, other = pair_of("llama")
    journal(stopped, tmp_path / "alive")
    stopped.engine.persistence.touch("a")
    written(stopped)
    journal(other, crashed(tmp_path / "alive", tmp_path / "dead"))
    stood = stopped.session().stop_identity
    assert stood is not None
    assert other.session("a").stop_identity == stood
    other.ask(ask.Open(session="a"))
    assert other.edit().stop.edition > stood.edition
    assert other.resume().stop.number > stood.edition
    forget(other)
    forget(stopped)


def test_a_restored_stop_is_another_than_the_one_that_was_kept(stopped: Desk) -> None:
    """The stop was edited since, and will be again."""
    saved = stopped.ask(ask.SaveCheckpoint(session="a", name="numbers", replace=True))
    assert saved.checkpoint.stopped_at
    shown = [stopped.session().stop_identity, stopped.edit().stop]
    stopped.ask(ask.RestoreCheckpoint(session="a", name="numbers", replace=True))
    shown += [stopped.session().stop_identity, stopped.edit().stop]
    assert len(set(shown)) == 4
    stopped.close_all()


def test_an_image_from_before_there_were_numbers_is_given_one(stopped: Desk) -> None:
    image = dump_session(stopped.session(), None)
    assert (
        rebuilt(stopped, image).stop_identity
        != rebuilt(stopped, msgspec.structs.replace(image, stop=None)).stop_identity
    )
    assert rebuilt(stopped, msgspec.structs.replace(image, stop=None, edition=None)).stop_identity is not None
    stopped.close_all()


@pytest.mark.parametrize(("stop", "edition"), [(-1, 5), (5, 4), (1, 2**60)])
def test_numbers_that_none_was_given_are_refused(stopped: Desk, stop: int, edition: int) -> None:
    image = msgspec.structs.replace(dump_session(stopped.session(), None), stop=stop, edition=edition)
    with pytest.raises(CheckpointRefused, match="contradicts itself"):
        rebuilt(stopped, image)
    stopped.close_all()
