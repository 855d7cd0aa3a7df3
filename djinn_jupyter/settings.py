"""Settings described once, as the fields of a TypedDict. Command-line flags, Python's signature and help, and range
checks are made from the descriptions.

    class Given(TypedDict, total=False):
        threads: Annotated[int | None, Description("threads for computing", least=1)]

Knows no setting by name. `%load_ext` reads this file: the standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from hashlib import sha256
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, TypedDict, TypeVar

from djinn_jupyter.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
AnyDataclass = TypeVar("AnyDataclass")


_METAVARS: Final[dict[object, str]] = {int: "N", float: "S"}
_KINDS: Final = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}


class AllowedValues(NamedTuple):
    """The values that a setting allows: in words, and as a test."""

    words: str
    keeps: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a setting: the words of its help; its least value, or another rule; its former names."""

    help: str
    _: KW_ONLY
    metavar: str | None = None
    least: float | None = None
    rule: AllowedValues | None = None
    formerly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A described field. `kinds` are the types that its value may have, without None."""

    name: str
    kinds: frozenset[Any]
    hint: Any
    described: Description

    @property
    def is_amount(self) -> bool:
        """True for an amount of memory, which is given as a number of bytes or as a text."""
        return self.kinds == {int, str}

    @property
    def in_json(self) -> Any:
        """The type of its value in a configuration, where text names a Python object."""
        return (str if object in self.kinds else self.hint) | None

    def plain(self, value: Any) -> Any:
        """Return a number of another library, such as numpy, as Python's own."""
        if self.kinds == {float} and isinstance(value, numbers.Real):
            return float(value)
        return int(value) if int in self.kinds and isinstance(value, numbers.Integral) else value

    def require_kind(self, value: Any) -> None:
        """Raise UsageError for a value of another type, and for a whole number that no message can carry."""
        if object not in self.kinds and not isinstance(value, tuple(self.kinds)):
            words = " or ".join(word for kind, word in _KINDS.items() if kind in self.kinds)
            raise UsageError(f"{self.name} is {words}; it cannot be {_on_one_line(value)}.")
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise UsageError(f"{self.name} has at most 64 bits; it cannot be {_on_one_line(value)}.")

    @property
    def flags(self) -> tuple[str, ...]:
        """The names on a command line, former ones first: messages use the last."""
        return tuple(flag_of(name) for name in (*self.described.formerly, self.name))

    def argument(self, amount: Callable[[str], Any] | None) -> dict[str, Any]:
        """Return the keyword arguments for argparse. A setting that is not given is None."""
        made: dict[str, Any] = {"dest": self.name, "default": None, "help": self.described.help}
        if self.kinds == {bool}:
            return {**made, "action": "store_true"}
        number = next((kind for kind in (int, float) if self.kinds == {kind}), None)
        read = amount if self.is_amount else number
        metavar = self.described.metavar or _METAVARS.get(number) or ("AMOUNT" if self.is_amount else None)
        return {**made, **({"type": read} if read else {}), **({"metavar": metavar} if metavar else {})}


@functools.cache
def settings_of(described: type) -> tuple[Setting, ...]:
    """Return the described fields of a TypedDict, in its order."""
    made = []
    for name, hint in typing.get_type_hints(described, include_extras=True).items():
        kind, said = typing.get_args(hint)
        kinds = frozenset(typing.get_args(kind) or (kind,)) - {NoneType}
        made.append(Setting(name=name, kinds=kinds, hint=kind, described=said))
    return tuple(made)


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_flags(
    add: Callable[..., Any], described: type, *, amount: Callable[[str], Any] | None = None
) -> tuple[Any, ...]:
    """Add a flag for each setting by `add`, which takes argparse's arguments; return its results. Amounts of memory are
    parsed by `amount`, or stay texts."""
    return tuple(add(*one.flags, **one.argument(amount)) for one in settings_of(described))


def words_of(*values: Any) -> list[str]:
    """Return the flags that give the fields of dataclasses; open fields are left out."""
    return [word for value in values for word in flags_of(_fields_of(value))]


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def flags_of(given: Mapping[str, Any]) -> list[str]:
    """Return the flags that give settings by their names; those that are open are left out."""
    named = {name: value for name, value in given.items() if value is not None and value is not False}
    return [flag_of(name) if value is True else f"{flag_of(name)}={value}" for name, value in named.items()]


def chosen(described: type, parsed: object) -> dict[str, Any]:
    """Return the settings that a command line gave, from all that it parsed."""
    found = ((one.name, getattr(parsed, one.name, None)) for one in settings_of(described))
    return {name: value for name, value in found if value is not None}


def given_by_name(described: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings under their present names, without those that are None. UsageError for unknown ones and for
    values of another type."""
    names = {name: one for one in settings_of(described) for name in (*one.described.formerly, one.name)}
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, n=1, cutoff=0.6)
            raise UsageError(f"There is no option {name}{f'; did you mean {near[0]}?' if near else '.'}")
    found = {names[name]: names[name].plain(value) for name, value in given.items() if value is not None}
    for setting, value in found.items():
        setting.require_kind(value)
    return {setting.name: value for setting, value in found.items()}


def check_least(described: type, given: Mapping[str, Any]) -> None:
    """Raise UsageError where a setting is below its least value, or breaks its rule; NaN is below any least value."""
    for one in settings_of(described):
        least, value = one.described.least, given.get(one.name)
        if least is not None and value is not None and not value >= least:
            raise UsageError(f"{one.name} is at least {least}; it cannot be {value}.")
        _require_kept(one, value)


def check_rules(described: type, values: object) -> None:
    """Raise UsageError where an attribute breaks the rule of its setting, or has a type that the rule cannot check."""
    for one in settings_of(described):
        _require_kept(one, getattr(values, one.name))


def _require_kept(setting: Setting, asked: Any) -> None:
    rule = setting.described.rule
    if rule is not None and asked is not None and not _keeps(rule, asked):
        raise UsageError(f"{rule.words}; it cannot be {_on_one_line(asked)}.")


def _keeps(rule: AllowedValues, asked: Any) -> bool:
    try:
        return rule.keeps(asked)
    except TypeError:
        return False


def part_of(kind: type[AnyDataclass], given: Mapping[str, Any], **more: Any) -> AnyDataclass:
    """Return a dataclass made of the settings that are its fields; other fields have their defaults."""
    names = {field.name for field in dataclasses.fields(typing.cast(Any, kind))}
    return kind(**{name: value for name, value in given.items() if name in names}, **more)


def takes(described: type) -> Callable[[Function], Function]:
    """Give a function with `**settings` a signature and a help that list the settings."""

    def spell_out(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if one.kinds == {bool} else None,
                annotation=one.hint,
            )
            for one in settings_of(described)
        ]
        told = "\n".join(f"    {one.name}: {one.described.help}" for one in settings_of(described))
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *more])
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{told}\n"
        return function

    return spell_out


def refuses(described: type, reason: str) -> Callable[[Function], Function]:
    """Make a function raise UsageError, with the reason, for each of the settings that is no argument of its own."""

    def refuse(function: Function) -> Function:
        own = inspect.signature(function).parameters
        names = {name for one in settings_of(described) for name in (*one.described.formerly, one.name)} - own.keys()

        @functools.wraps(function)
        def called(*args: Any, **given: Any) -> Any:
            strange = [name for name in given if name in names]
            if strange:
                raise UsageError(f"{' and '.join(strange)} {'are' if strange[1:] else 'is'} of the sampling: {reason}")
            return function(*args, **given)

        return typing.cast(Function, called)

    return refuse


def _on_one_line(value: object) -> str:
    return f"{' '.join(repr(value).split()):.80}"


# The options of an engine, each described once. Python's signature, the command lines, the magic, an editor's
# configuration and the range checks are made from `GivenOptions`. Below it are the values. A new option is a line in
# `GivenOptions` and one in `Options`. `%load_ext` reads this file: the standard library only.

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
        int | None,
        Description("split each layer among so many ranks, for speed (docs/several_gpus.md); default 1", least=1),
    ]
    attention: Annotated[
        str | None,
        Description(
            "sdpa or eager; under eager the pattern can be stopped at and edited", metavar="NAME", formerly=("attn",)
        ),
    ]
    quantize: Annotated[
        str | None,
        Description(
            "int8: round the weights to 8 bits at load, by torchao (docs/quantized.md)",
            metavar="KIND",
            rule=AllowedValues("quantize is int8", lambda kind: kind == "int8"),
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
    """The options that identify an engine: two loads that differ here use two engines. None is left open."""

    model: str
    revision: str | None = None
    dtype: str | None = None
    device: str | None = None
    tensor_parallel: int = 1
    attention: str | None = None
    quantize: str | None = None
    random_weights: bool = False
    random_seed: int = 0
    copy: int = 1


OPTIONAL: Final = tuple(one.name for one in dataclasses.fields(ModelOptions) if one.default is None)


@dataclass(frozen=True, kw_only=True)
class Identity(ModelOptions):
    """The model of an engine, as the name of its files and in messages."""

    def slug(self) -> str:
        """Return a short file name: readable first, unique by hash."""
        import msgspec  # imported late: `%load_ext` needs none of it

        readable = re.sub(r"[^A-Za-z0-9.]+", "-", short_name(self.model)).strip("-.")[:40]
        # without them a journal keeps its former name
        later = (("copy", 1), ("tensor_parallel", 1), ("quantize", None))
        asked = {name: value for name, value in msgspec.to_builtins(self).items() if (name, value) not in later}
        digest = sha256(msgspec.json.encode(asked)).hexdigest()[:10]
        return f"{readable or 'model'}-{digest}"

    def __str__(self) -> str:
        extras = [f"{name} {value}" for name, value in self._asked()]
        return self.model if not extras else f"{self.model} ({', '.join(extras)})"

    def _asked(self) -> list[tuple[str, str]]:
        named = [(name, getattr(self, name)) for name in OPTIONAL]
        asked = [(name, value) for name, value in named if value is not None]
        if self.tensor_parallel > 1:
            asked.append(("tensor parallel", str(self.tensor_parallel)))
        drawn = [("random weights, seed", str(self.random_seed))] if self.random_weights else []
        return [*asked, *drawn, *([("copy", str(self.copy))] if self.copy > 1 else [])]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of an engine besides its model, fixed while it runs. None is left open."""

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
    """The options of a running engine: open ones have their default, if any."""

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
    """Return host and port of `host:port`; port 0 is any free port. UsageError for an invalid address."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{address!r} is no address; write a host and a port, as 127.0.0.1:9464.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def short_name(model: str) -> str:
    """Return the last part of a folder or a hub name."""
    return model.rstrip("/").rpartition("/")[2]


# The settings of sampling, each described once: Python's signature and help, `%djinn_run`, launch.json and the checks
# are made from `GivenSampling`. The value that crosses the wire is `wire.nouns.Sampling`. A new setting is a line here
# and one in `Sampling`. Where transformers' GenerationConfig has a field of that name, the engine applies it like
# `generate`. `%load_ext` reads this file: the standard library only.

OF_DRAWING: Final = ("top_k", "top_p", "min_p", "samples")
OF_A_RUN: Final = "a run keeps it to its end, and only `run` takes it."


class GivenDrawing(TypedDict, total=False):
    """The settings as a user gives them, for a run or for what is left of it; None is left open."""

    temperature: Annotated[
        float | None,
        Description(
            "0 (the default) takes the most probable token",
            metavar="T",
            rule=AllowedValues("A temperature is 0 (greedy) or more", lambda t: 0 <= t < math.inf),
        ),
    ]
    top_k: Annotated[
        int | None,
        Description(
            "sample among the K most probable tokens; default 50, 0 for all",
            metavar="K",
            rule=AllowedValues("top_k counts tokens, 0 for all", lambda k: k >= 0),
        ),
    ]
    top_p: Annotated[
        float | None,
        Description(
            "sample among the tokens that make up this probability",
            metavar="P",
            rule=AllowedValues("top_p is above 0 and at most 1", lambda p: 0 < p <= 1),
        ),
    ]
    min_p: Annotated[
        float | None,
        Description(
            "sample among the tokens with at least this part of the most probable one's probability",
            metavar="P",
            rule=AllowedValues("min_p is 0 to 1", lambda p: 0 <= p <= 1),
        ),
    ]
    repetition_penalty: Annotated[
        float | None,
        Description(
            "divide the logits of tokens that are there already by this; 1 for none",
            metavar="R",
            rule=AllowedValues("repetition_penalty is above 0, 1 for none", lambda r: 0 < r < math.inf),
        ),
    ]
    seed: Annotated[
        int | None,
        Description(
            "of the sampling; default 0",
            metavar="S",
            rule=AllowedValues("A seed has 64 bits", lambda s: -(2**63) <= s < 2**64),
        ),
    ]


class GivenSampling(GivenDrawing, total=False):
    """The settings of a run."""

    model_defaults: Annotated[bool, Description("apply the model's own generation settings")]


def require_drawn(given: Mapping[str, object], defaults: Mapping[str, str]) -> None:
    """Raise UsageError for settings that choose what is sampled in a run without sampling: `given` are the run's
    settings, `defaults` the model's own, which `model_defaults` applies. A seed is allowed, and beside a temperature of
    0 everything but `samples`, because a loop over temperatures begins there."""
    temperature = given.get("temperature")
    draws = temperature or (given.get("model_defaults") and defaults.get("do_sample") == "True")
    chosen = OF_DRAWING if temperature is None else ("samples",)
    idle = [name for name in chosen if given.get(name) is not None]
    if idle and not draws:
        raise UsageError(
            f"{' and '.join(idle)} {'is' if len(idle) == 1 else 'are'} of a run that draws its tokens, and this one "
            "takes the most probable each time: give a temperature too, or leave that out."
        )
