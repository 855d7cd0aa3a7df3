"""Messages that connect a client to an engine, keep the connection alive, and end it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.extensions import MOST_CHARACTERS, NAME
from djinn_jupyter.wire.base import EventBase, OwnName, ReplyBase
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.request_base import Name, NotebookPath, RequestBase, SessionName

MOST_METHODS = 1000
Methods = Annotated[
    tuple[
        tuple[Annotated[str, Meta(max_length=MOST_CHARACTERS, pattern=NAME)], Annotated[str, Meta(max_length=64)]], ...
    ],
    Meta(max_length=MOST_METHODS),
]
"""The name of each method, with the digest of what it adds to the messages."""


class Welcome(ReplyBase):
    """`engine` is this process's own random name, drawn at its start, and `events` the number of its latest event.
    `anew` is the reason why a signal ended an earlier engine of the client. `methods` are the engine's methods,
    `left_out` a sentence for each method that it has and cannot use."""

    version: str
    model: ModelDescription
    attached: tuple[OwnName, ...]
    engine: str = ""
    events: int = 0
    anew: str | None = None
    methods: Methods = ()
    left_out: tuple[str, ...] = ()


class Hello(RequestBase[Welcome], small=True, forbid_unknown_fields=False):
    """First message of a client. `holder` names the kernel or process that will hold sessions; a restart keeps it.
    `notebook` is the path of the notebook that it runs, None for a process without one. An `observer` only watches,
    like a Jupyter server: an engine without other clients and sessions counts as idle. `protocol` is the digest of the
    core's messages, `methods` are the client's. Unknown fields are ignored, so that a client of another version gets a
    proper refusal. After a lost connection a client sends Hello again with the same secret `token`, the number of the
    last event that it has `heard`, and the name of its former `engine`; then it sends all unanswered requests again,
    also to the next engine of the model."""

    version: Name
    holder: OwnName
    user: Name
    observer: bool = False
    protocol: Annotated[str, Meta(max_length=256)] = ""
    notebook: NotebookPath | None = None
    token: Annotated[str, Meta(max_length=64)] = ""
    heard: int | None = None
    engine: Annotated[str, Meta(max_length=64)] = ""
    methods: Methods = ()


class Departed(ReplyBase): ...


class Goodbye(RequestBase[Departed], small=True):
    """Last message of a client. When its holder has no other client, the holder's sessions become detached."""


class Pong(ReplyBase): ...


class Ping(RequestBase[Pong], unasked="line", browser="asks", small=True):
    """A liveness check. The client has the replies to all requests up to number `answered`."""

    answered: int = 0


class ShuttingDown(ReplyBase):
    """`sessions_kept` are in the journal and return with the next engine of this model."""

    sessions_lost: tuple[str, ...]
    sessions_kept: tuple[str, ...] = ()


class Shutdown(RequestBase[ShuttingDown], browser="asks", resent="refused", of_the_engine=True):
    """Refused while other holders have sessions, or with `forget` while sessions belong to other notebooks, unless
    `force`. With a journal the sessions return with the next engine of this model, unless `forget`."""

    force: bool = False
    forget: bool = False


class Listening(ReplyBase):
    """From here on the client receives the events, or no longer. `events` is the number of the latest one."""

    events: int = 0


class Unlisten(RequestBase[Listening], shared="read", unasked="view", small=True):
    """End the sending of events that a Listen started."""

    session: SessionName | None = None


class Listen(RequestBase[Listening], shared="read", unasked="view"):
    """Send this client the events of a session, or with None of all sessions. A second identical request changes
    nothing."""

    session: SessionName | None = None


class EventsMissed(EventBase):
    """Events for this client were dropped, of any session (`session` is empty): it did not read them for too long, or
    its connection was lost for too long."""


class Checked(ReplyBase):
    """The work would begin. `alike` has the values on which all shards of a collection must agree, by name; empty for a
    sweep."""

    alike: tuple[tuple[str, str], ...] = ()
