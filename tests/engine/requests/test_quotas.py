"""The quotas of persons: who is over one is told so in one sentence, loses nothing, and disturbs no one else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from djinn_jupyter.engine.loop import owners
from djinn_jupyter.engine.session.table import by_person
from djinn_jupyter.errors import EngineError
from djinn_jupyter.methods.datasets.request import Score, Scored
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.people import NO_QUOTA, Quota
from djinn_jupyter.wire.replies import CheckpointSaved, Failed, Finished, Opened, Paused, Swapped
from tests import adapters, saes
from tests.engine.adapters import adapting
from tests.engine.added import adding
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.requests.house import House
from tests.families import build

LONG: Final = tokens(96, seed=4)  # six pages
SHORT: Final = tokens(9, seed=5)
PAGES: Final = 6


@dataclass
class Told:
    """The quotas as a folder would have them; the others have none."""

    own: dict[str, Quota] = field(default_factory=dict)

    def __call__(self, person: str) -> Quota:
        return self.own.get(person, NO_QUOTA)


@dataclass
class Quoted:
    house: House
    told: Told

    @property
    def desk(self) -> Desk:
        return self.house.desk

    def ask(self, person: str | None, request: Any) -> Any:
        return self.house.ask(person, request)

    def run(self, person: str | None, name: str, prompt: tuple[int, ...] = LONG, new: int = 2, **more: Any) -> Any:
        if f"{person}@{name}" not in self.desk.engine.sessions:
            self.ask(person, ask.Open(session=name))
        more.setdefault("ignore_eos", True)
        return self.ask(person, ask.Run(session=name, tokens=prompt, max_new_tokens=new, **more))

    def device(self, person: str) -> int:
        self.desk.engine.storage_table.purge()
        return by_person(self.desk.engine.sessions.values(), self.desk.engine.storage_table)[person].device

    def residency(self, person: str, name: str) -> str:
        return self.desk.engine.sessions[f"{person}@{name}"].residence.state


@pytest.fixture(scope="module")
def made() -> Quoted:
    desk = build_desk(build("llama"))
    quoted = Quoted(House(desk), Told())
    desk.engine.apply_owner_budgets(quoted.told)
    quoted.ask(None, protocol.hello(holder="k", user="root"))
    return quoted


@pytest.fixture
def quoted(made: Quoted) -> Iterator[Quoted]:
    yield made
    made.told.own.clear()
    made.desk.settle()
    for kept in made.desk.ask(ask.ListCheckpoints()).checkpoints:
        made.desk.ask(ask.DropCheckpoint(name=kept.name))
    made.desk.close_all()


def refused(reply: Any, *said: str) -> str:
    assert isinstance(reply, Failed), reply
    assert reply.code == "OverQuota", reply
    for word in (*said, "`djinn quota anna`"):
        assert word in reply.message, reply.message
    return reply.message


@pytest.mark.parametrize("person", [None, "anna"])
def test_no_one_has_more_sessions_than_one_person_may_have_by_any_way(
    quoted: Quoted, person: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    quoted.ask("bert", ask.Open(session="his"))
    quoted.ask(person, ask.Open(session="a"))
    quoted.ask(person, ask.SaveCheckpoint(session="a", name="of many", replace=True))
    quoted.ask(person, ask.Open(session="b"))
    monkeypatch.setattr(owners, "MOST_SESSIONS", 2)
    for request in (
        ask.Open(session="c"),
        ask.Fork(session="a", name="c"),
        ask.RestoreCheckpoint(session="c", name="of many"),
    ):
        told = quoted.ask(person, request)
        assert told.message == (
            "There are 2 sessions, the most that one person may have in an engine: close some (%djinn_close)."
        )
    assert isinstance(quoted.ask(person, ask.Open(session="a", fresh=True)), Opened)  # it is there
    assert isinstance(quoted.ask("bert", ask.Open(session="hers")), Opened)
    quoted.ask(person, ask.Close(session="b"))
    assert isinstance(quoted.ask(person, ask.RestoreCheckpoint(session="c", name="of many")), Opened)


def test_over_the_quota_of_the_device_ones_own_session_leaves_and_no_others(quoted: Quoted) -> None:
    assert isinstance(quoted.run("bert", "his"), Finished)
    first = quoted.run("anna", "a")
    one = quoted.device("anna")
    quoted.told.own["anna"] = Quota(device=one + one // 2)
    kept = quoted.desk.logits("anna@a")
    second = quoted.run("anna", "b")
    assert isinstance(second, Finished)
    assert second.tokens == first.tokens
    assert torch.equal(quoted.desk.logits("anna@b"), kept)
    assert quoted.residency("anna", "a") in ("host", "disk")
    assert quoted.residency("bert", "his") == "resident"
    assert quoted.device("anna") <= one + one // 2
    assert torch.equal(quoted.desk.logits("anna@a"), kept)  # back on the device, for which the other leaves
    assert quoted.residency("anna", "b") in ("host", "disk")
    assert quoted.residency("bert", "his") == "resident"


def test_a_prompt_that_alone_is_beyond_the_quota_is_refused_and_the_old_line_is_there(quoted: Quoted) -> None:
    assert isinstance(quoted.run("anna", "a", SHORT), Finished)
    before = quoted.desk.logits("anna@a")
    quoted.told.own["anna"] = Quota(device=quoted.device("anna") + 100)
    message = refused(quoted.run("anna", "a"), "quota of device memory is", "more are needed", "Close a session")
    assert "KiB" in message
    assert torch.equal(quoted.desk.logits("anna@a"), before)
    assert isinstance(quoted.run("anna", "a", SHORT), Finished)  # in place of the line that is there


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_run_that_reaches_the_quota_ends_with_what_it_has(quoted: Quoted, mode: Any) -> None:
    assert isinstance(quoted.run("anna", "a", SHORT), Finished)
    quoted.told.own["anna"] = Quota(device=2 * quoted.device("anna"))
    ended = quoted.run("anna", "a", SHORT, new=400, mode=mode)
    assert isinstance(ended, Finished)
    assert ended.reason == "slab_full"
    assert ended.detail is not None
    assert "anna's quota of device memory is" in ended.detail
    assert 0 < len(ended.tokens) < 400
    quoted.told.own.clear()
    more = quoted.run("anna", "a", (), new=3, extend=True)
    alone = quoted.run("bert", "a", SHORT, new=len(ended.tokens) + 3)
    assert (*ended.tokens, *more.tokens) == alone.tokens


def test_who_has_too_much_in_a_tier_makes_nothing_more_and_keeps_all(quoted: Quoted) -> None:
    quoted.run("anna", "a")
    quoted.told.own["anna"] = Quota(host=0)
    refused(quoted.ask("anna", ask.SwapOut(session="a", tier="host")), "quota of host memory is 0 B", "stays where it")
    assert quoted.residency("anna", "a") == "resident"
    quoted.told.own.clear()
    assert isinstance(quoted.ask("anna", ask.SwapOut(session="a", tier="host")), Swapped)
    quoted.told.own["anna"] = Quota(host=10)
    quoted.ask("anna", ask.Open(session="b"))
    refused(quoted.ask("anna", ask.Run(session="b", tokens=SHORT)), "quota of host memory is 10 B", "Close a session")
    assert isinstance(quoted.run("bert", "a", SHORT), Finished)
    assert isinstance(quoted.run("anna", "a", SHORT), Finished)  # instead of what is there
    assert isinstance(quoted.ask("anna", ask.Run(session="b", tokens=SHORT, max_new_tokens=1)), Finished)


def test_copies_of_what_is_on_the_device_go_before_anything_is_refused(quoted: Quoted) -> None:
    quoted.run("anna", "a")
    quoted.desk.engine.residency.swapping.write_through(quoted.desk.session("anna@a"))
    quoted.desk.settle()
    assert quoted.desk.describe("anna@a").host_bytes > 0
    quoted.told.own["anna"] = Quota(host=10)
    assert isinstance(quoted.run("anna", "b", SHORT), Finished)
    assert quoted.desk.describe("anna@a").host_bytes == 0


def test_no_session_leaves_for_one_that_no_request_needs_yet(quoted: Quoted) -> None:
    quoted.run("anna", "a")
    one = quoted.device("anna")
    quoted.told.own["anna"] = Quota(device=one + one // 2)
    quoted.run("anna", "b")
    assert quoted.residency("anna", "a") in ("host", "disk")
    quoted.ask("anna", ask.Note(session="a", activity="focused"))
    quoted.desk.settle()
    assert quoted.residency("anna", "a") in ("host", "disk")
    assert quoted.residency("anna", "b") == "resident"


def test_for_others_a_session_leaves_the_device_also_where_it_has_no_place_in_its_quota(quoted: Quoted) -> None:
    quoted.run("anna", "a")
    quoted.told.own["anna"] = Quota(host=0, disk=0)
    quoted.desk.engine.residency.eviction.attend()
    assert quoted.residency("anna", "a") == "resident"
    assert quoted.desk.engine.residency.eviction.clear(1) > 0
    quoted.desk.settle()
    assert quoted.residency("anna", "a") in ("host", "disk")


def test_checkpoints_count_for_the_disk_and_one_in_place_of_another_for_the_difference(quoted: Quoted) -> None:
    quoted.run("anna", "a")
    assert isinstance(quoted.ask("anna", ask.SaveCheckpoint(session="a", name="one")), CheckpointSaved)
    size = quoted.desk.engine.persistence.checkpoints.size_of("anna@one")
    assert size > 0
    quoted.told.own["anna"] = Quota(disk=size + 100)
    second = ask.SaveCheckpoint(session="a", name="two")
    refused(quoted.ask("anna", second), "quota of disk memory", "drop a checkpoint")
    assert isinstance(quoted.ask("anna", ask.SaveCheckpoint(session="a", name="one", replace=True)), CheckpointSaved)
    quoted.run("bert", "a")
    assert isinstance(quoted.ask("bert", ask.SaveCheckpoint(session="a", name="two")), CheckpointSaved)
    quoted.ask("anna", ask.DropCheckpoint(name="one"))
    assert isinstance(quoted.ask("anna", second), CheckpointSaved)


def test_a_run_is_paused_where_the_running_time_is_used_up_and_goes_on_when_there_is_more(quoted: Quoted) -> None:
    done: list[Any] = []
    quoted.ask("anna", ask.Open(session="a"))
    owners = quoted.desk.engine.turns._owners
    owners._clock = lambda: owners._looked + 1.0
    running = ask.Run(session="a", tokens=SHORT, max_new_tokens=40, ignore_eos=True)
    quoted.house.clients.receive(b"anna", running, done.append, "anna")
    session = quoted.desk.engine.sessions["anna@a"]
    while len(session.tokens) < len(SHORT) + 5:
        quoted.desk.engine.tick()
    quoted.told.own["anna"] = Quota(running=0)
    while not done:
        quoted.desk.engine.tick()
    (paused,) = done
    assert isinstance(paused, Paused)
    assert paused.reason == "quota"
    for request in (ask.Resume(session="a"), ask.Step(session="a"), Score(session="a", prompts=(SHORT,))):
        refused(quoted.ask("anna", request), "quota of running time is 0 s a day", "nothing is lost")
    assert isinstance(quoted.run("bert", "a", SHORT), Finished)
    quoted.told.own.clear()
    ended = quoted.ask("anna", ask.Resume(session="a"))
    alone = quoted.run("bert", "b", SHORT, new=40)
    assert paused.tokens[len(SHORT) :] + ended.tokens[len(paused.tokens) - len(SHORT) :] == alone.tokens


def test_other_work_that_uses_up_the_time_ends_with_the_sentence(quoted: Quoted) -> None:
    done: list[Any] = []
    quoted.ask("anna", ask.Open(session="a"))
    owners = quoted.desk.engine.turns._owners
    owners._clock = lambda: owners._looked + 1.0
    asked = Score(session="a", prompts=tuple(tokens(30, seed=seed) for seed in range(8)), mode="exact")
    quoted.house.clients.receive(b"anna", asked, done.append, "anna")
    while not len(quoted.desk.engine.scheduler):
        quoted.desk.engine.tick()
    quoted.told.own["anna"] = Quota(running=0)
    while not done:
        quoted.desk.engine.tick()
    refused(done[0], "quota of running time")
    assert isinstance(quoted.run("bert", "a", SHORT), Finished)
    quoted.told.own.clear()
    assert isinstance(quoted.ask("anna", asked), Scored)


@pytest.mark.parametrize("kind", ["module", "adapter"])
def test_what_a_person_adds_to_the_model_counts_for_the_device(quoted: Quoted, tmp_path: Path, kind: str) -> None:
    desk = quoted.desk
    if kind == "module":
        folder = saes.saved(tmp_path, saes.drawn(desk.engine.anatomy.hidden_size))
        asked: Any = adding.request(folder, "resid_post.4", session="a")
        gone: Any = ask.RemoveModule(name="sae")
    else:
        asked = adapting.request(adapters.saved(tmp_path, adapting.drawn(desk)), session="a")
        gone = ask.RemoveAdapter(name="sql")
    quoted.ask("anna", ask.Open(session="a"))
    quoted.told.own["anna"] = Quota(device=1)
    refused(quoted.ask("anna", asked), "quota of device memory is 1 B", "more are needed")
    quoted.told.own.clear()
    assert not isinstance(quoted.ask("anna", asked), Failed)
    size = desk.engine.budget.held()[f"{kind}s"]
    listed = {one.person: one.memory.device_bytes for one in quoted.ask(None, ask.ReadPeople()).people}
    assert listed["anna"] == quoted.device("anna") + size
    assert isinstance(quoted.run("bert", "a"), Finished)
    pages = quoted.device("bert")
    quoted.told.own["anna"] = Quota(device=size + pages // 2)
    refused(quoted.run("anna", "b"), "quota of device memory", "remove an added module or adapter")
    quoted.told.own["anna"] = Quota(device=size + pages)
    assert isinstance(quoted.run("anna", "b"), Finished)
    quoted.ask("anna", gone)
    quoted.told.own["anna"] = Quota(device=pages)  # what is gone counts no more
    quoted.ask("anna", ask.Close(session="b"))
    assert isinstance(quoted.run("anna", "c"), Finished)


def test_the_engines_own_user_has_no_quota(quoted: Quoted) -> None:
    quoted.told.own["anna"] = Quota(sessions=0, device=0, host=0, disk=0, running=0)
    refused(quoted.ask("anna", ask.Open(session="a")))
    quoted.ask(None, ask.Open(session="mine"))
    assert isinstance(quoted.ask(None, ask.Run(session="mine", tokens=LONG, max_new_tokens=2)), Finished)


def test_the_list_of_persons_has_the_quota_of_each(quoted: Quoted) -> None:
    quoted.told.own["anna"] = Quota(sessions=3)
    found = {one.person: one.quota for one in quoted.ask(None, ask.ReadPeople()).people}
    assert found == {None: NO_QUOTA, "anna": Quota(sessions=3), "bert": NO_QUOTA}
    mine = {one.person: one.quota for one in quoted.ask("bert", ask.ReadPeople()).people}
    assert mine == {None: None, "anna": None, "bert": NO_QUOTA}


def test_nothing_is_computed_for_one_who_leaves_too_much_unread(quoted: Quoted) -> None:
    quoted.run("anna", "a", SHORT)

    def require_reader(person: str) -> None:
        if person == "anna":
            raise EngineError("Read your replies.")

    asked = quoted.desk.engine.residency.owner_budgets
    usual, asked.require_reader = asked.require_reader, require_reader
    reply = quoted.ask("anna", ask.ReadLogits(session="a"))
    assert reply.message == "Read your replies."
    assert not isinstance(quoted.run("bert", "a", SHORT), Failed)
    asked.require_reader = usual
    assert not isinstance(quoted.ask("anna", ask.ReadLogits(session="a")), Failed)
