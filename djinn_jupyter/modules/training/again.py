"""Train a module again from its provenance, in a temporary folder, and compare its numbers bit for bit."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from djinn_jupyter import files
from djinn_jupyter.api import arrays, interrupts
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.result_files import BitComparison, Reproduction
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.modules.files.files import tensors_in
from djinn_jupyter.modules.training import calls, jobs
from djinn_jupyter.modules.training.collections import GivenCollection, collection_of
from djinn_jupyter.modules.training.process import VECTOR, OnTrained, TrainedModule, module_in, train

NOT_OF_BITS: Final = ("name", "ids")  # of a model or a collection: no number follows from them
POINTS: Final = ("site", "written", "last")  # of a job: what its collection has
Numbers = dict[str, "np.ndarray[Any, Any]"]


def trained_again(
    engine: RemoteEngine, before: TrainedModule, given: GivenCollection | None, on_progress: OnTrained
) -> Reproduction:
    """Train again, on the given collection or on the same prompts collected again, and compare. UsageError without
    either; errors as in the training."""
    if before.cut:
        raise UsageError(f"Its training was {before.cut}, so it is not made again: train it whole.")
    with tempfile.TemporaryDirectory() as place:
        again = _trained(engine, before, given, Path(place), on_progress)
        then, now = _numbers(before.folder), _numbers(again.folder)
    return _compared(before, then, now, tuple(_differences(before.provenance, again.provenance)))


def _trained(
    engine: RemoteEngine, before: TrainedModule, given: GivenCollection | None, place: Path, on_progress: OnTrained
) -> TrainedModule:
    asked = before.provenance["training"]
    collection = _collected(engine, before, place) if given is None else collection_of(given)
    places = {"collection": str(collection.folder.absolute()), "to": str(place / "again")}
    if "last" in asked:
        places["head"] = str(place / "h.npz")
    try:
        job = msgspec.convert({**asked, **places}, jobs.AnyJob)
    except msgspec.ValidationError as error:
        raise UsageError(f"{before.folder} was trained by another version, whose call is another: {error}.") from None
    if "last" in asked:
        calls.unembedding_of(engine, collection, asked["last"]).save(Path(places["head"]))
    if isinstance(job, jobs.SteeringJob) and not files.was_trained(before.provenance):
        calls.write_difference(job)
    else:
        try:
            train(job, on_progress)
        except interrupts.WorkInterrupted:
            raise KeyboardInterrupt from None  # the partial module goes with its temporary folder
    return module_in(Path(job.to), before.site, before.kind)


def _collected(engine: RemoteEngine, before: TrainedModule, place: Path) -> Activations:
    """Return the collection of a training, collected again in this engine."""
    asked, of = before.provenance["training"], before.provenance["collection"]
    ids = of["prompts"].get("ids")
    if ids is None or not of.get("plain", True):
        why = "it was collected under rules or an adapter" if ids is not None else "it is too large to be kept with it"
        raise UsageError(
            f"The provenance of {before.folder} does not say how to make its collection, for {why}: give that too, as "
            "collection='acts' (--collection acts)."
        )
    sites = list(dict.fromkeys(asked[name] for name in POINTS if name in asked))
    how = {"positions": of["positions"], "dtype": of["dtype"], "mode": of["mode"], "seed": of["seed"]}
    return engine.collect(ids, sites, to=place / "acts", **how)


def _numbers(folder: Path) -> Numbers:
    """Return all numbers of a module's folder: the tensors of its files, and its vector."""
    found: Numbers = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= {name: arrays.to_numpy(one) for name, one in tensors_in(path, path.read_bytes()).items()}
    with contextlib.suppress(FileNotFoundError):
        found[VECTOR] = np.load(folder / VECTOR, allow_pickle=False)
    return found


def _compared(
    before: TrainedModule, then: Numbers, now: Numbers, origin: tuple[tuple[str, str, str], ...]
) -> Reproduction:
    shapes = [{name: one.shape for name, one in numbers.items()} for numbers in (then, now)]
    if shapes[0] != shapes[1]:
        raise UsageError(f"{before.folder} has tensors of other shapes than a training by its provenance makes.")
    found = BitComparison()
    for name, values in then.items():
        found.add(values, now[name], partial(_place, name))
    return found.told(before, None, origin)


def _place(tensor: str, at: tuple[int, ...]) -> dict[str, Any]:
    return {"tensor": tensor, "index": list(at)}


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the differences between two provenances of one call: (name, then, now)."""
    for name in then:
        one, other = then[name], now.get(name)
        if name in NOT_OF_BITS or one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from ((f"{name} {of}", first, second) for of, first, second in _differences(one, other))
        else:
            yield name, str(one), str(other)
