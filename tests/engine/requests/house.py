"""A real engine whose clients are persons."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.remote.engine.persons import Persons, own_folders
from djinn_jupyter.wire import protocol
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Welcome
from tests.engine.desk import Desk

GUESSED: Final = "quetzal"  # the name of a session and of a checkpoint of bert, which anna guesses
PERSONS: Final = ("anna", "bert", "carl")
UNSAID: Final = "ibis"  # in all other names of bert


class House:
    """Each request is answered before the next is asked."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        folders = own_folders(EngineConfig(model="demo"))
        admission = Persons(desk.engine.access, knows=PERSONS.__contains__, folders=folders)
        self.clients = ClientTable(desk.engine, shut_down=self._must_not_end, admission=admission)
        for person, word in (("bert", UNSAID), ("anna", "hers")):
            self.greet(person, word)

    def ask(self, person: str | None, request: Any) -> Any:
        replies: list[Any] = []
        self.clients.receive((person or "local").encode(), request, replies.append, person)
        while not replies:
            self.desk.engine.tick()
        return replies[0]

    def greet(self, person: str, word: str) -> None:
        hello = protocol.hello(holder=f"kernel of {word}", user="root", notebook=f"{word}.ipynb")
        assert isinstance(self.ask(person, hello), Welcome)

    def of_bert(self) -> tuple[Any, ...]:
        """All that can be read of bert's sessions, as bits."""
        read: list[Any] = []
        for name in (GUESSED, UNSAID):
            described = self.ask("bert", ask.Describe(session=name)).session
            read.append(msgspec.structs.replace(described, idle_seconds=0.0))
            read.append(bytes(to_tensor(self.ask("bert", ask.Inspect(session=name)).snapshot.value).numpy().data))
        lists = (ask.ReadTree(), ask.ListCheckpoints(), ask.ListAddedModules(), ask.ListAdapters())
        return (*read, *(self.ask("bert", one) for one in lists))

    @staticmethod
    def _must_not_end() -> None:
        raise AssertionError("a person has ended the engine")
