"""The options of an engine, each described once. Python's signature, the command lines, the magic, an editor's
configuration and the checks of ranges are made from `GivenOptions` (`described.py`). Below it are the values.

A new option is a line in `GivenOptions` and one in `Options`. `%load_ext` reads this file: the standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Final, TypedDict

from djinn_jupyter.described import AllowedValues, Description, settings_of
from djinn_jupyter.errors import UsageError

LOG_FORMATS: Final = ("text", "json")
LOG_LEVELS: Final = ("debug", "info", "warning")


class GivenOptions(TypedDict, total=False):
    """The options as a user gives them; amounts of memory in bytes or as `20GiB`."""

    revision: Annotated[str | None, Description("a branch, tag or commit of a hub model")]
    dtype: Annotated[object, Description("float32, bfloat16 or float16; by default as the model was saved")]
    device: Annotated[object, Description("cpu, cuda, cuda:1, ...; by default the accelerator if there is one")]
    devices: Annotated[
        str | None,
        Description("several GPUs that share the layers, in order, by memory", metavar="cuda:0,cuda:1"),
    ]
    tensor_parallel: Annotated[
        int | None, Description("split each layer among so many ranks, for speed (docs/cards.md); default 1", least=1)
    ]
    attention: Annotated[
        str | None,
        Description(
            "sdpa or eager; under eager the pattern can be stopped at and edited", metavar="NAME", formerly=("attn",)
        ),
    ]
    random_weights: Annotated[bool, Description("draw the weights of a folder that holds none")]
    random_seed: Annotated[int | None, Description("of those weights; default 0", metavar="S")]
    copy: Annotated[int | None, Description("one of several engines of the same model, by number; default 1", least=1)]
    device_memory: Annotated[
        int | str | None,
        Description("the most that weights and pages may take, as 20GiB; what is beyond streams", least=1),
    ]
    card_memory: Annotated[
        int | str | None,
        Description("a cap on everything that is allocated on the GPU, as if it were smaller", least=1),
    ]
    host_memory: Annotated[
        int | str | None, Description("the most that sessions which left the device may take; 0: none", least=0)
    ]
    disk_memory: Annotated[int | str | None, Description("likewise on disk; 0: none", least=0)]
    idle_swap_seconds: Annotated[
        float | None, Description("a session leaves the device after so long without use; default 60", least=0)
    ]
    evict_by_last_use: Annotated[
        bool,
        Description("for want of room the session unused for longest leaves, not the one expected back last"),
    ]
    no_prefetch: Annotated[bool, Description("a session comes back to the device only when a request needs it")]
    sleep_seconds: Annotated[
        float | None,
        Description("the weights leave the device after so long without work", least=0, formerly=("nap_seconds",)),
    ]
    page_positions: Annotated[int | None, Description("positions in a page of keys and values", least=1)]
    stops_kept: Annotated[
        int | None, Description("stops a session keeps in memory, older ones on disk; default 64", least=1)
    ]
    no_journal: Annotated[bool, Description("sessions end with the engine's process")]
    shared_journal: Annotated[
        str | None,
        Description(
            "a folder that several machines share, or s3://BUCKET/PATH, for the journal (docs/cluster.md)",
            metavar="ADDRESS",
        ),
    ]
    checkpoints: Annotated[
        str | None,
        Description("where checkpoints lie: a folder, or s3://BUCKET/PATH (docs/keeping.md)", metavar="ADDRESS"),
    ]
    moves: Annotated[
        str | None,
        Description(
            "s3://BUCKET/PATH, where sessions wait that move to or from an engine with that place (docs/keeping.md)",
            metavar="ADDRESS",
        ),
    ]
    trust_remote_code: Annotated[bool, Description("run model code that comes with the model")]
    cuda_graphs: Annotated[bool, Description("run decode steps by CUDA graphs where all weights are on the GPU")]
    threads: Annotated[int | None, Description("threads for computing; by default torch's choice", least=1)]
    idle_seconds: Annotated[
        float | None, Description("the engine ends after so long without clients and sessions; default 1800", least=0)
    ]
    listen: Annotated[
        str | None, Description("admit persons with keys on TCP too (docs/sharing.md)", metavar="tcp://HOST:PORT")
    ]
    quota: Annotated[
        str | None,
        Description("the most that each person with a key may have (docs/sharing.md)", metavar="device=8GiB,..."),
    ]
    metrics: Annotated[
        str | None,
        Description("serve counts and bytes for Prometheus there, for all who reach that address", metavar="HOST:PORT"),
    ]
    log_format: Annotated[
        str | None,
        Description(
            "json writes the log as an object a line, text (the default) for people (docs/logs.md)",
            metavar="FORMAT",
            rule=AllowedValues("log_format is text or json", lambda name: name in LOG_FORMATS),
        ),
    ]
    log_level: Annotated[
        str | None,
        Description(
            "debug, info (the default) or warning; debug tells of each turn and layer",
            metavar="LEVEL",
            rule=AllowedValues("log_level is debug, info or warning", lambda name: name in LOG_LEVELS),
        ),
    ]


AMOUNTS: Final = tuple(one.name for one in settings_of(GivenOptions) if one.is_amount)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options that make a model: two loads that differ here mean two engines. None is left open."""

    model: str
    revision: str | None = None
    dtype: str | None = None
    device: str | None = None
    tensor_parallel: int = 1
    attention: str | None = None
    random_weights: bool = False
    random_seed: int = 0
    copy: int = 1


@dataclass(frozen=True, kw_only=True)
class Identity(ModelOptions):
    """The model of an engine, as the name of its files and in messages."""

    def slug(self) -> str:
        """Return a short file name: readable first, unique by hash."""
        import msgspec  # not at import: `%load_ext` goes without

        readable = re.sub(r"[^A-Za-z0-9.]+", "-", short_name(self.model)).strip("-.")[:40]
        later = (("copy", 1), ("tensor_parallel", 1))  # without them a journal has the name that it always had
        asked = {name: value for name, value in msgspec.to_builtins(self).items() if (name, value) not in later}
        digest = sha256(msgspec.json.encode(asked)).hexdigest()[:10]
        return f"{readable or 'model'}-{digest}"

    def __str__(self) -> str:
        extras = [f"{name} {value}" for name, value in self._asked()]
        return self.model if not extras else f"{self.model} ({', '.join(extras)})"

    def _asked(self) -> list[tuple[str, str]]:
        named = [(name, getattr(self, name)) for name in ("revision", "dtype", "device", "attention")]
        asked = [(name, value) for name, value in named if value is not None]
        if self.tensor_parallel > 1:
            asked.append(("tensor parallel", str(self.tensor_parallel)))
        drawn = [("random weights, seed", str(self.random_seed))] if self.random_weights else []
        return [*asked, *drawn, *([("copy", str(self.copy))] if self.copy > 1 else [])]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of an engine besides its model. They cannot be changed while it runs. None is left open."""

    devices: str | None = None
    device_memory: int | None = None
    card_memory: int | None = None
    host_memory: int | None = None
    disk_memory: int | None = None
    idle_swap_seconds: float | None = None
    sleep_seconds: float | None = None
    page_positions: int | None = None
    trust_remote_code: bool = False
    stops_kept: int | None = None
    no_journal: bool = False
    shared_journal: str | None = None
    checkpoints: str | None = None
    moves: str | None = None
    cuda_graphs: bool = False
    evict_by_last_use: bool = False
    no_prefetch: bool = False
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class SettledOptions(Options):
    """The options of an engine that runs: of those left open, the ones that have a default."""

    idle_swap_seconds: float = 60.0
    stops_kept: int = 64


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """The service of the engine's process. `idle_seconds` and the log's form and level apply only to the load that
    starts it."""

    listen: str | None = None
    quota: str | None = None
    metrics: str | None = None
    idle_seconds: float | None = None
    log_format: str | None = None
    log_level: str | None = None


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`; port 0 is any that is free. UsageError where it is no such address."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{address!r} is no address; write a host and a port, as 127.0.0.1:9464.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def short_name(model: str) -> str:
    """Return the last part of a folder or a hub name."""
    return model.rstrip("/").rpartition("/")[2]
