"""No message of a person reads or changes what is another's: every request of the wire's own list, with the names of
another person in every field that takes one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from jupyter_core.paths import jupyter_data_dir

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.methods.datasets.request import Collect
from djinn_jupyter.remote.engine.persons import NOT_KEPT, Person
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import respelled
from djinn_jupyter.wire.replies import Departed, Failed, Finished, Opened, Paused, SessionClosed, Welcome
from tests import adapters, saes
from tests.engine.adapters import adapting
from tests.engine.added import adding
from tests.engine.cases import KINDS
from tests.engine.desk import desk_of, tokens
from tests.engine.requests.house import GUESSED, UNSAID, House
from tests.wire import values

PROMPT: Final = tokens(9, seed=4)
MOST: Final = 6  # cases of a kind


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    desk = desk_of("llama")
    house = House(desk)
    _add_to_the_model(house, tmp_path_factory.mktemp(UNSAID))
    for name in (GUESSED, UNSAID):
        assert isinstance(house.ask("bert", ask.Open(session=name)), Opened)
        house.ask("bert", ask.SetBreakpoint(session=name, site="resid_post.3", when="step == 1"))
        assert isinstance(house.ask("bert", ask.Run(session=name, tokens=PROMPT, max_new_tokens=2)), Paused)
        house.ask("bert", ask.SaveCheckpoint(session=name, name=name, replace=True))
    yield house
    desk.close_all()
    for gone in (ask.RemoveModule(name=GUESSED), ask.RemoveAdapter(name=GUESSED)):
        assert house.ask("bert", gone).count == 1


def _add_to_the_model(house: House, folder: Path) -> None:
    """Have bert add a module and an adapter of guessed names, from folders that no one else hears of."""
    desk = house.desk
    house.ask("bert", ask.Open(session="to add"))
    module = saes.saved(folder / "sae", saes.drawn(desk.engine.anatomy.hidden_size))
    house.ask("bert", adding.request(module, "resid_post.4", GUESSED, session="to add"))
    adapter = adapters.saved(folder / "lora", adapting.drawn(desk))
    house.ask("bert", adapting.request(adapter, GUESSED, session="to add"))
    house.ask("bert", ask.Close(session="to add"))
    assert [one.name for one in house.ask("bert", ask.ListAddedModules()).modules] == [GUESSED]
    assert [one.name for one in house.ask("bert", ask.ListAdapters()).adapters] == [GUESSED]


def _says(reply: Any, word: bytes) -> bool:
    return any(word in bytes(frame) for frame in codec.encode_reply(1, reply))


def _named(kind: type, fields: dict[str, Any], name: str) -> Any:
    """The request with this name in every field that takes a person's; None where the class refuses the fields."""
    try:
        made = kind(**fields, **({"session": name} if issubclass(kind, ask.SessionRequest) else {}))
    except (DjinnError, TypeError):
        return None
    return respelled(made, lambda _: name)


@pytest.mark.parametrize("spelled", [GUESSED, f"bert@{GUESSED}", f"anna@{GUESSED}"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not ask.Goodbye], ids=lambda kind: kind.__name__)
def test_no_request_of_a_person_reads_or_changes_what_is_anothers(house: House, kind: type, spelled: str) -> None:
    before = house.of_bert()
    prompt = b"".join(map(msgspec.msgpack.encode, PROMPT))
    for fields in values.requests(kind, "ordinary")[:MOST]:
        request = _named(kind, fields, spelled)
        if request is None:
            continue
        reply = house.ask("anna", request)
        assert not _says(reply, UNSAID.encode()), reply
        assert not _says(reply, prompt), reply
    assert house.of_bert() == before


def test_what_another_added_to_the_model_is_not_there(house: House) -> None:
    before = house.of_bert()
    house.ask("anna", ask.Open(session="hers", fresh=True))
    for request, code in (
        (ask.RemoveModule(name=GUESSED), "UnknownSite"),
        (ask.SetBreakpoint(session="hers", site=f"{GUESSED}.4[1]"), "UnknownSite"),
        (ask.RemoveAdapter(name=GUESSED), "UsageError"),
        (ask.SetAdapter(session="hers", adapter=GUESSED), "UsageError"),
    ):
        refused = house.ask("anna", request)
        assert isinstance(refused, Failed), refused
        assert refused.code == code, refused
        assert not _says(refused, UNSAID.encode()), refused
    assert house.ask("anna", ask.ListAddedModules()).modules == ()
    assert house.ask("anna", ask.ListAdapters()).adapters == ()
    house.ask("anna", ask.Close(session="hers"))
    assert house.of_bert() == before


def test_the_names_are_each_persons_own(house: House) -> None:
    opened = house.ask("anna", ask.Open(session="main", fresh=True, force=True))
    assert (opened.session.name, opened.session.owner) == ("main", "anna")
    done = house.ask("anna", ask.Run(session="main", tokens=PROMPT, max_new_tokens=2, ignore_eos=True))
    assert isinstance(done, Finished)
    assert (done.session, done.stop.session) == ("main", "main")
    house.ask("bert", ask.Open(session="main"))
    assert house.ask("bert", ask.Describe(session="main")).session.tokens == 0
    alone = house.ask(None, protocol.hello(holder="k", user="root"))
    assert isinstance(alone, Welcome)
    for name in ("anna@main", "bert@main"):
        assert house.ask(None, ask.Describe(session=name)).session.name == name
    house.ask("anna", ask.Close(session="main"))
    house.ask("bert", ask.Close(session="main"))


def test_of_others_a_list_has_owner_and_size_alone(house: House) -> None:
    listed = house.ask("anna", ask.ListSessions())
    others = [one for one in listed.sessions if one.owner == "bert"]
    assert [one.tokens for one in others] == [10, 10]
    assert all(one.device_bytes > 0 for one in others)
    assert len({one.name for one in others}) == 2
    assert not _says(listed, UNSAID.encode())
    assert not _says(listed, GUESSED.encode())
    tree, kept = house.ask("anna", ask.ReadTree()), house.ask("anna", ask.ListCheckpoints())
    assert [*tree.branches, *kept.checkpoints] == []
    assert len(house.ask("bert", ask.ReadTree()).branches) == 2
    assert sorted(one.name for one in house.ask("bert", ask.ListCheckpoints()).checkpoints) == sorted([GUESSED, UNSAID])


def test_what_the_journal_does_not_have_is_told_without_names() -> None:
    told = Departed(not_kept=f"The journal does not have the latest of sessions 'anna@main', 'bert@{UNSAID}'.")
    heard = Person("anna").hears(told)
    assert heard.not_kept == NOT_KEPT
    assert not _says(heard, UNSAID.encode())
    assert Person("anna").hears(Departed()) == Departed()


@pytest.mark.parametrize(
    "request_",
    [
        ask.Shutdown(force=True),
        ask.Sleep(),
        ask.Wake(),
        ask.RestoreCheckpoint(session="a", name="/etc/passwd"),
        ask.DropCheckpoint(name="../x"),
        Collect(session="a", folder="/tmp", shard=0, first=0, last=True, prompts=(PROMPT,), sites=("resid_post.1",)),
    ],
    ids=lambda request: type(request).__name__,
)
def test_what_is_of_all_and_paths_of_the_machine_are_refused(house: House, request_: Any) -> None:
    refused = house.ask("anna", request_)
    assert refused.code == "UsageError"
    assert "engine" in refused.message


def test_a_person_is_told_no_path_of_the_machine(house: House) -> None:
    """Of a checkpoint that is saved, of one that is damaged, of a move that has ended; its own user is."""
    folder = Path(jupyter_data_dir()) / "djinn"
    asked = (
        ask.SaveCheckpoint(session="told", name="told", replace=True),
        ask.RestoreCheckpoint(session="back", name="torn"),
        ask.TakeIn(session="taken", move="0" * 32),
    )
    for person, spelled in (("anna", "anna@torn"), (None, "torn")):
        house.ask(person, ask.Open(session="told"))
        (folder / "checkpoints" / f"{spelled}.djinn").write_bytes(b"no checkpoint of ours")
        for request in asked:
            assert _says(house.ask(person, request), str(folder).encode()) == (person is None)
    refused = house.ask("anna", asked[1])
    assert refused.message == "…/checkpoints/torn.djinn is refused. It is not a checkpoint of Djinn."


def test_a_connection_of_another_person_is_not_the_client_that_said_hello(house: House) -> None:
    replies: list[Any] = []
    house.clients.receive(b"bert", ask.Describe(session=UNSAID), replies.append, "anna")
    house.clients.receive(b"bert", ask.Describe(session=f"bert@{UNSAID}"), replies.append, None)
    assert [reply.code for reply in replies] == ["IllegalMove", "IllegalMove"]
    assert "say Hello first" in replies[0].message


def test_the_engines_own_user_takes_no_name_of_a_person(house: House) -> None:
    house.ask(None, protocol.hello(holder="k", user="root"))
    taken = "anna@new"
    for request in (
        ask.Open(session=taken),
        ask.Fork(session=f"bert@{UNSAID}", name=taken),
        ask.RestoreCheckpoint(session=taken, name="kept"),
        ask.SaveCheckpoint(session=f"bert@{UNSAID}", name=taken),
    ):
        refused = house.ask(None, request)
        assert "choose a name without @" in refused.message
    assert house.ask("anna", ask.Describe(session="new")).code == "UnknownSession"


def test_the_engines_own_user_enters_a_persons_session_which_stays_its_persons(house: House) -> None:
    house.ask(None, protocol.hello(holder="k", user="root"))
    before = house.ask("bert", ask.Describe(session=UNSAID)).session
    opened = house.ask(None, ask.Open(session=f"bert@{UNSAID}"))
    assert (opened.created, opened.session.name, opened.session.owner) == (False, f"bert@{UNSAID}", "bert")
    after = house.ask("bert", ask.Describe(session=UNSAID)).session
    assert (after.holder, after.in_use, after.tokens) == (before.holder, before.in_use, before.tokens)
    emptied = house.ask(None, ask.Open(session=f"bert@{UNSAID}", fresh=True, force=True))
    assert isinstance(emptied, Failed)
    assert house.ask("bert", ask.Describe(session=UNSAID)).session.tokens == before.tokens


def test_a_holder_of_the_same_name_is_another_persons(house: House) -> None:
    house.greet("anna", UNSAID)
    house.ask("anna", ask.Goodbye())
    house.desk.settle()
    assert house.ask("bert", ask.Describe(session=UNSAID)).session.holder == f"kernel of {UNSAID}"
    house.greet("anna", "hers")


def test_an_event_is_heard_by_its_person_alone(house: House) -> None:
    for person in ("anna", "bert"):
        house.ask(person, ask.Listen())
    heard = house.clients.hearing(SessionClosed(session=f"bert@{UNSAID}"))
    assert heard == [(SessionClosed(session=UNSAID), [b"bert"])]
    for person in ("anna", "bert"):
        house.ask(person, ask.Unlisten())
