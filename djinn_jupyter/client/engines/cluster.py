"""The engines of a Ray cluster, from a process that is on one of its machines. A child process asks Ray (`djinn cluster
entry`) and ends; from then on the engine is spoken to directly, by this user's key."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from djinn_jupyter.client.engines import interpreter
from djinn_jupyter.client.engines.afar import used_by_this_process
from djinn_jupyter.client.engines.attended import entry_told, running, said_in
from djinn_jupyter.client.engines.starting import StartCallbacks
from djinn_jupyter.described import flags_of, words_of
from djinn_jupyter.errors import EngineUnavailable
from djinn_jupyter.wire.registry import Entry

CLUSTER: Final = "cluster"  # in the place of an address
_MODEL: Final = "--model="
_DJINN: Final = "from djinn_jupyter.cli.main import main; sys.exit(main())"


def entry_in_cluster(model: str | None, key: str | None, given: Mapping[str, Any], told: StartCallbacks) -> Entry:
    """Return the entry of the engine of a model in the cluster, where Ray places it if there is none; without a model
    that of the only one. Raises as a load on its machine would, and EngineUnavailable where no cluster is reached. An
    interrupt ends the waiting, and the engine comes all the same."""
    return _asked([*([model] if model is not None else []), *_key(key), *flags_of(given)], told)


def entry_anew(entry: Entry) -> Entry:
    """Return the entry of an engine of the cluster as it is now, on the machine where Ray has started it anew perhaps.
    Waits until it is there; UsageError where it has ended."""
    words = ["--there", *_key(entry.key), *words_of(entry.identity)]
    model = next(word for word in words if word.startswith(_MODEL))
    words.remove(model)
    return _asked([model.removeprefix(_MODEL), *words], StartCallbacks(line=_not_said, second=_not_said))


def entry_on(machine: str, entry: Entry, given: Mapping[str, Any], told: StartCallbacks) -> Entry:
    """Return the entry of an engine on the machine of that name, which is like the one of `entry` and is placed there
    where none runs. UsageError where no machine, or more than one, has that name."""
    return _asked([entry.identity.model, *_key(entry.key), f"--on={machine}", *flags_of(given)], told)


def _asked(words: list[str], told: StartCallbacks) -> Entry:
    command = interpreter.command(_DJINN, "cluster", "entry", *words)
    with tempfile.TemporaryFile() as errors, running(command, errors) as asking:
        assert asking.stdout is not None
        entry = entry_told(asking.stdout, told)
        if entry is None:
            last = (said_in(errors).strip().splitlines() or ["it said nothing"])[-1].strip().rstrip(".")
            raise EngineUnavailable(f"The cluster could not be asked ({last}).")
    return msgspec.structs.replace(used_by_this_process(entry), in_cluster=True)


def _key(key: str | None) -> list[str]:
    return [f"--key={key}"] if key else []


def _not_said(line: str) -> None: ...
