"""`dj.reproduce`: compute a result again from its recipe, here or in another engine, and compare it bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final

from djinn_jupyter.api.arguments import given_path, shown, typed
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.interrupts import interruptible
from djinn_jupyter.api.result import Result, origin_of
from djinn_jupyter.api.result_files import FOLDER, STUDY, Reproducible, Reproduction, compared, naming_models
from djinn_jupyter.errors import UsageError
from djinn_jupyter.extensions import methods, part
from djinn_jupyter.modules.training.again import trained_again
from djinn_jupyter.modules.training.collections import GivenCollection
from djinn_jupyter.modules.training.process import PROVENANCE, TrainedModule

WITHOUT_ENDING: Final = ".grid.djinn"  # the kind of a file with another name
OF_OTHERS: Final = "a file of another distribution's method is read where that is installed."
OnRepeated = Callable[[Any, int, int], None]


@typed
def reproduce(
    engine: RemoteEngine,
    result: object,
    *,
    collection: GivenCollection | None = None,
    on_progress: OnRepeated | None = None,
) -> Reproduction:
    """Compute a result again, by its recipe alone, and compare the two bit for bit: a grid (of `dj.sweep`, `dj.path` or
    `dj.attribute`), losses, a splice, head scores, patterns, a lens, an effect or a snapshot at a stop, the recording
    of a watch, edges, a circuit, a curve of circuits, an attribution graph, a direct attribution, a collection or a
    trained module; or the file or folder of one. The engine may be another one, on another day. `on_progress` is called
    with the grid so far (None for other results), and with the finished and total number of cells, prompts or steps.

    A trained module is trained again on the `collection`, or without one on its prompts, which are collected again if
    few enough to be kept with it.

    In mode "exact" the same model on the same kind of machine gives the same bits. In "fast" the same cells share each
    pass as before, unless a pass takes too long here or finds less memory. Otherwise bits may differ by rounding, and
    the notes say so. UsageError for an incomplete grid; errors as in `dj.sweep`; WorkInterrupted.

    >>> grid = dj.sweep(
    ...     engine,
    ...     clean="The capital of France is",
    ...     corrupted="The capital of Italy is",
    ...     site="z.*[*]",
    ...     metric="logit(' Paris')",
    ...     mode="exact",
    ... )
    >>> dj.reproduce(engine, grid).same
    True
    """
    kept = _read(given_path(result, "file")) if isinstance(result, str | Path) else result
    if collection is not None and not isinstance(kept, TrainedModule):
        raise UsageError("collection is what a module was trained on, and this result is none: leave collection out.")
    with interruptible("The reproduction", quiet=on_progress is not None):
        if isinstance(kept, Reproducible):
            module, _, function = kept.reproduced_by.partition(":")
            found: Reproduction = getattr(import_module(module), function)(engine, kept, on_progress)
            return found
        if isinstance(kept, TrainedModule):
            return trained_again(engine, kept, collection, _by_step(on_progress))
    raise UsageError(
        "Grids, losses, splices, head scores, patterns, lenses, effects and snapshots at a stop, what watches "
        "recorded, edges, circuits, their curves, attribution graphs, direct attributions, collections and trained "
        "modules are computed again; "
        f"{shown(result)} is none of these."
    )


def _by_step(on_progress: OnRepeated | None) -> Callable[[int, int, float], None]:
    return lambda done, of, loss: None if on_progress is None else on_progress(None, done, of)


def _read(path: Path) -> Reproducible | TrainedModule:
    """Return the result in a file, whose ending gives its kind, or the collection or trained module in a folder."""
    if (path / PROVENANCE).is_file():
        return TrainedModule.read(path)
    name, there = FOLDER if path.is_dir() else path.name, kinds()
    if name.endswith(STUDY):
        raise UsageError(f"{path.name} is a study: dj.study({str(path)!r}).reproduce(engine) computes its items again.")
    found = max((ending for ending in there if name.endswith(ending)), key=len, default=None)
    try:
        return there[found or WITHOUT_ENDING].found_at(path)
    except UsageError as error:
        if found is None and name.endswith(".djinn"):
            raise UsageError(f"{str(error).removesuffix('.')}; {OF_OTHERS}") from None
        raise


def kinds() -> dict[str, type[Reproducible]]:
    """Return the kinds of results by the endings of their files: ours, then those of strangers' methods."""
    for method in methods():
        api = part(method, "api")
        for inner in iter_modules(getattr(api, "__path__", ())) if method.is_ours else ():
            import_module(f"{method.package}.api.{inner.name}")
    below = _below(Reproducible)
    ours = [kind for kind in below if kind.__module__.startswith("djinn_jupyter.")]
    strangers = [kind for kind in below if any(method.has(kind.__module__) for method in methods())]
    return {kind.ending: kind for kind in (*strangers, *ours)}


def _below(kind: type[Reproducible]) -> list[type[Reproducible]]:
    """Return the subclasses of a class whose files have an ending."""
    return [of for one in kind.__subclasses__() for of in ([one] if "ending" in vars(one) else []) + _below(one)]


def measured(engine: RemoteEngine, before: Result, on_progress: OnRepeated | None) -> Reproduction:
    """Measure again, and compare. An error names the model of the measurement where this engine serves another."""
    by = origin_of(before).by
    with naming_models("measurement", by, engine.description):
        again = before.again(engine.channel)
        then, now = before.compared_values, again.compared_values
        if then.shape != now.shape:
            raise UsageError(f"measured again there are {now.size:,} values, and were {then.size:,}.")
    return compared(before, again, before.place_of, origins=(by, origin_of(again).by), notes=before.notes_on)
