"""A collection by an engine that is reached over a line: its shards are handed over and written here, and are those
that the engine would have written. No path crosses the line, and nothing is kept that was not asked for."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import djinn_jupyter as dj
from djinn_jupyter import files
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import EngineUnavailable, StorageFailed, UnknownSession, UsageError, WireError
from djinn_jupyter.methods.common.api import Question, require_all
from djinn_jupyter.methods.datasets.api import collecting
from djinn_jupyter.methods.datasets.api.collecting import Collection, CollectionWork, shard_request
from djinn_jupyter.methods.datasets.request import CheckCollect, Collect, Collected, CollectFields
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from tests.client.direct import DirectChannel
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.engine.words import tokenizer
from tests.families import build

PROMPTS = [(9, 8, 7, 21, 22), (9, 8), (31, 7, 7, 5)]
SITES = ["resid_post.1", "z.0"]


@pytest.fixture
def afar(engine: RemoteEngine) -> RemoteEngine:
    engine.channel.is_afar = True
    return engine


def collected(engine: RemoteEngine, folder: Path, **asked: Any) -> dj.Activations:
    return engine.collect(PROMPTS, SITES, to=folder, **{"shard_prompts": 1, **asked})


def near(engine: RemoteEngine, folder: Path, **asked: Any) -> dj.Activations:
    """Have the engine itself write a collection."""
    channel = engine.channel
    channel.is_afar, before = False, channel.is_afar
    try:
        return collected(engine, folder, **asked)
    finally:
        channel.is_afar = before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def asked_of(engine: RemoteEngine) -> list[CollectFields[Any]]:
    return [one for one in engine.channel.requests if isinstance(one, CollectFields)]


@pytest.mark.parametrize(
    "asked",
    [{}, {"positions": [0, -1], "dtype": "bfloat16"}, {"mode": "exact", "shard_prompts": 2}],
    ids=str,
)
def test_the_folder_has_the_bytes_that_the_engine_would_have_written(
    afar: RemoteEngine, tmp_path: Path, asked: dict[str, Any]
) -> None:
    written, done = near(afar, tmp_path / "near", **asked), list[int]()
    acts = collected(afar, tmp_path / "afar", on_progress=done.append, **asked)
    assert contents(tmp_path / "afar") == contents(tmp_path / "near")
    for site in SITES:
        one, other = acts[site].torch()[:], written[site].torch()[:]
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert isinstance(acts["z.0"][0], np.memmap)
    assert (acts.complete, done[-1], acts.recipe) == (True, 3, written.recipe)
    assert dj.reproduce(afar, tmp_path / "afar").same
    assert afar.sessions() == ()


def test_no_path_crosses_the_line_and_the_files_are_their_users_alone(afar: RemoteEngine, tmp_path: Path) -> None:
    for _ in range(2):  # the second finds them
        collected(afar, tmp_path / "secret-folder")
    assert [one.folder for one in asked_of(afar)] == [None] * 6
    for request in afar.channel.requests:
        assert b"secret-folder" not in b"".join(bytes(frame) for frame in codec.encode(1, request))
    acts = collected(afar, tmp_path / "acts")
    assert acts.folder.stat().st_mode & 0o777 == 0o700
    assert {shard.path.stat().st_mode & 0o777 for shard in acts.shards} == {0o600}


@pytest.mark.parametrize("first", [collected, near], ids=["handed over", "written by the engine"])
def test_it_goes_on_after_the_last_whole_shard_whoever_wrote_it(
    afar: RemoteEngine, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Callable[..., Any]
) -> None:
    whole = contents(near(afar, tmp_path / "whole").folder)
    sent = DirectChannel.ask

    def dies_at_the_third(channel: DirectChannel, request: ask.Request) -> Any:
        if isinstance(request, Collect) and request.shard == 2:
            raise EngineUnavailable("The engine has ended.")
        return sent(channel, request)

    with monkeypatch.context() as patch:
        patch.setattr(DirectChannel, "ask", dies_at_the_third)
        with pytest.raises(EngineUnavailable, match=r"has ended\. Whole shards are kept in .*; the same call goes on"):
            first(afar, tmp_path / "cut")
    assert sorted(contents(tmp_path / "cut")) == ["shard-00000.safetensors", "shard-00001.safetensors"]
    before = desk.engine.runtime.counters.layers_run
    assert collected(afar, tmp_path / "cut").complete
    assert desk.engine.runtime.counters.layers_run - before == 4  # the third prompt, and again alone
    assert contents(tmp_path / "cut") == whole


def test_what_another_has_opened_at_the_next_engine_is_not_closed(
    afar: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next engine has no session of this collection; there another notebook's has its name by then."""
    sent, channel = DirectChannel.ask, afar.channel

    def is_another_engine(channel: DirectChannel, request: ask.Request) -> Any:
        if isinstance(request, Collect) and request.shard == 1 and channel.welcome.engine != "next":
            channel.welcome = msgspec.structs.replace(channel.welcome, engine="next")
            sent(channel, ask.Close(session=request.session)).result()
            asked = sent(channel, request)
            with pytest.raises(UnknownSession):
                asked.result()
            sent(channel, ask.Open(session=request.session, temporary=True)).result()
            return asked
        return sent(channel, request)

    monkeypatch.setattr(DirectChannel, "ask", is_another_engine)
    assert collected(afar, tmp_path / "acts").complete
    assert [one.name for one in afar.sessions()] == ["collection 1"]
    assert {one.session for one in asked_of(afar)} == {"collection 1", "collection 2"}
    assert channel.welcome.engine == "next"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"dtype": "float16"}, r"shard-00000\.safetensors is of another collection \(dtype: null there"),
        ({"seed": 4}, r"\(seed: 0 there, 4 here\)"),
        ({"shard_prompts": 2}, "has other prompts than these"),
    ],
    ids=str,
)
def test_a_folder_of_another_collection_is_refused_and_left_as_it_is(
    afar: RemoteEngine, tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    before = contents(collected(afar, tmp_path).folder)
    with pytest.raises(UsageError, match=said):
        collected(afar, tmp_path, **asked)
    assert contents(tmp_path) == before


HEAD = json.dumps({"__metadata__": {"djinn": "{}"}}).encode()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file[:-5], "should have .*; delete it and collect again"),
        (lambda file: len(HEAD).to_bytes(8, "little") + HEAD, "is no shard of a collection"),
        (lambda file: file.replace(b'"starts"', b'"Starts"'), "is no shard of a collection"),
    ],
)
def test_a_damaged_shard_is_refused_and_left_as_it_is(
    afar: RemoteEngine, tmp_path: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    first = collected(afar, tmp_path).shards[0].path
    first.write_bytes(damage(first.read_bytes()))
    before = contents(tmp_path)
    with pytest.raises(StorageFailed, match=said):
        collected(afar, tmp_path)
    assert contents(tmp_path) == before


PARTS = st.lists(st.sampled_from(["..", "/", "\0", "~", "a", ".", "link"]), max_size=12).map("".join)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(max_size=40), PARTS))
def test_a_path_of_any_form_is_this_sides_alone(afar: RemoteEngine, tmp_path: Path, name: str) -> None:
    """The engine is asked for the same whatever the folder is called; a name that is none is one sentence."""
    target = tmp_path.joinpath(*"abcdefghijklmnop")  # deeper than any of these names leads up
    target.mkdir(parents=True, exist_ok=True)
    if not (target / "link").is_symlink():
        (target / "link").symlink_to(target.parent)
    before, folder = len(asked_of(afar)), f"{target}/{name}"
    found = acts_or_sentence(afar, folder)
    if isinstance(found, str):
        assert found.replace(name, "").count("\n") == 0
        assert len(asked_of(afar)) - before <= 1
    else:
        assert found.folder.samefile(folder)
    for request in asked_of(afar)[before:]:
        assert request.folder is None
        assert str(tmp_path) not in (request.there or "")


def acts_or_sentence(engine: RemoteEngine, folder: str) -> dj.Activations | str:
    try:
        return engine.collect(PROMPTS[:1], "resid_post.0", to=folder)
    except (UsageError, StorageFailed) as error:
        return str(error)


def lies(afar: RemoteEngine, monkeypatch: pytest.MonkeyPatch, changed: Callable[[Collected], Any]) -> None:
    """Have the engine's replies changed on the way."""
    answer = DirectChannel._answer

    def answered(channel: DirectChannel, future: Any, reply: Any) -> None:
        answer(channel, future, changed(reply) if isinstance(reply, Collected) else reply)

    monkeypatch.setattr(DirectChannel, "_answer", answered)


def with_content(change: Callable[[bytes], bytes]) -> Callable[[Collected], Collected]:
    def changed(reply: Collected) -> Collected:
        return msgspec.structs.replace(reply, content=Array.of_bytes(change(bytes(reply.content.data))))

    return changed


@pytest.mark.parametrize(
    "changed",
    [
        with_content(lambda file: file[:-1]),
        with_content(lambda file: file + b"\0"),
        with_content(lambda file: b""),
        with_content(lambda file: b"\x80\x04K\x05."),  # a pickle
        with_content(lambda file: file.replace(rb"\"shard\": 0", rb"\"shard\": 7")),
        with_content(lambda file: file.replace((9).to_bytes(8, "little"), (11).to_bytes(8, "little"))),  # a token
        with_content(lambda file: file.replace(b'"tokens"', b'"Tokens"')),
        lambda reply: msgspec.structs.replace(reply, content=None),
        lambda reply: msgspec.structs.replace(reply, content=None, existed=True),
    ],
    ids=["short", "long", "empty", "pickle", "another shard", "other prompts", "no tokens", "nothing", "it was there"],
)
def test_what_was_not_asked_for_is_not_kept(
    afar: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: Callable[[Collected], Any]
) -> None:
    lies(afar, monkeypatch, changed)
    with pytest.raises(WireError, match="did not hand over the shard that was asked for; nothing of it is written"):
        collected(afar, tmp_path / "acts")
    assert [*tmp_path.rglob("*shard*")] == []


def test_a_full_disk_is_one_sentence_and_leaves_no_half_of_a_shard(
    afar: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "force", full)
        with pytest.raises(StorageFailed, match=r"written: No space left on device\. Shards that are whole stay"):
            collected(afar, tmp_path)
    assert contents(tmp_path) == {}
    assert collected(afar, tmp_path).complete


def test_a_kernel_that_is_interrupted_or_killed_while_it_writes_leaves_whole_shards(
    afar: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(aside: Path, request: Collect) -> None:
        if request.shard == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collecting, "_require_asked", interrupted)
        with pytest.raises(dj.WorkInterrupted, match="Whole shards are kept in"):
            collected(afar, tmp_path)
    assert sorted(contents(tmp_path)) == ["shard-00000.safetensors"]
    (tmp_path / ".shard-00001.safetensors.killed.part").write_bytes(b"half")
    collected(afar, tmp_path)
    assert sorted(contents(tmp_path)) == [f"shard-0000{n}.safetensors" for n in range(3)]
    assert afar.sessions() == ()


@pytest.fixture
def engines() -> Iterator[list[RemoteEngine]]:
    with ExitStack() as stack:
        desks = [build_desk(build("llama", layers=3), tokenizer()) for _ in range(2)]
        yield [stack.enter_context(reached(desk))[0] for desk in desks]


def test_shards_of_an_engine_here_and_of_one_afar_are_one_collection(
    engines: list[RemoteEngine], tmp_path: Path
) -> None:
    """Each writes where it can: a folder is named to the one here alone, also where it is asked first."""
    here, there = engines
    alone = contents(collected(here, tmp_path / "alone").folder)
    there.channel.is_afar = True
    collected(there, tmp_path / "both")
    (tmp_path / "both" / "shard-00001.safetensors").unlink()
    collected(here, tmp_path / "both")
    assert contents(tmp_path / "both") == alone
    require_all(engines, "collection", lambda engine: question(engine, tmp_path / "both"))
    assert {one.folder for one in asked_of(there)} == {None}
    assert None not in {one.folder for one in asked_of(here)}
    assert [type(one) for one in asked_of(there)][-1] is CheckCollect


def question(engine: RemoteEngine, folder: Path) -> Question:
    asked = Collection(
        sites=tuple(SITES), folder=folder, positions=None, dtype=None, shard_prompts=1, mode="fast", seed=0
    )
    first = shard_request(asked, "collection", (PROMPTS[0],), shard=0, first=0, last=False)
    return CollectionWork(asked, lambda done: None).question(engine.channel, first)
