"""`dj.reproduce`: a result is computed again from its recipe, here or in another engine, and compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from djinn_jupyter.client.arguments import shown, typed
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.given_paths import given_path
from djinn_jupyter.client.interrupts import interruptible
from djinn_jupyter.client.looks import Effect, Lens
from djinn_jupyter.client.measurement import Measurement, origin_of
from djinn_jupyter.client.measurement_files import (
    EFFECT,
    LENS,
    LOSSES,
    PARTS,
    PATTERNS,
    SCORES,
    SNAPSHOT,
    SPLICE,
    WATCHED,
)
from djinn_jupyter.client.reproduction import SHARED, Reproduction, Result, compared
from djinn_jupyter.client.snapshots import Snapshot
from djinn_jupyter.client.training.again import trained_again, trained_in
from djinn_jupyter.client.training.trained import PROVENANCE, TrainedModule
from djinn_jupyter.client.watched import Watched
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.methods.circuits.api.circuit_curves import CircuitCurve
from djinn_jupyter.methods.circuits.api.circuits import Circuit
from djinn_jupyter.methods.circuits.api.edge_files import CIRCUIT, CURVE, EDGES
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.methods.datasets.api.reproducing_collections import reproduced_collection
from djinn_jupyter.methods.datasets.api.scoring import Losses
from djinn_jupyter.methods.datasets.api.splicing import Splice
from djinn_jupyter.methods.direct.api.attribution import Attribution
from djinn_jupyter.methods.graphs.api.graph_files import GRAPH
from djinn_jupyter.methods.graphs.api.graphs import AttributionGraph
from djinn_jupyter.methods.heads.api import HeadPatterns, HeadScores
from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.api.reproducing_grids import reproduced_grid

MEASUREMENTS: Final = (
    (LOSSES, Losses),
    (SCORES, HeadScores),
    (PATTERNS, HeadPatterns),
    (EDGES, Edges),
    (CIRCUIT, Circuit),
    (CURVE, CircuitCurve),
    (SPLICE, Splice),
    (GRAPH, AttributionGraph),
    (PARTS, Attribution),
    (LENS, Lens),
    (EFFECT, Effect),
    (SNAPSHOT, Snapshot),
    (WATCHED, Watched),
)
OnRepeated = Callable[[Grid | None, int, int], None]


@typed
def reproduce(
    engine: RemoteEngine,
    result: object,
    *,
    collection: Activations | str | Path | None = None,
    on_progress: OnRepeated | None = None,
) -> Reproduction:
    """Compute a result again, by its recipe alone, and compare the two bit for bit: a grid (of `dj.sweep`, `dj.path` or
    `dj.attribute`), losses, a splice, head scores, patterns, a lens, an effect or a snapshot at a stop, what a watch
    recorded, edges, a circuit, a curve of circuits, an attribution graph, a direct attribution, a collection or a
    trained module; or the file or folder of one. The engine may be another one, of another day. `on_progress` is called
    with the grid so far (None of others), and with how many of how many cells, prompts or steps are done.

    A trained module is trained again on the `collection`, or where none is given on its prompts, collected anew if they
    are few enough to be kept with it.

    In mode "exact" the same model on the same kind of machine gives the same bits. In "fast" the same
    cells share each pass as then, unless a pass takes too long here or finds less memory; where they do not, bits may
    differ by rounding, and the notes say so.
    UsageError for a grid that was cut short; errors as of `dj.sweep`; WorkInterrupted.

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
        if isinstance(kept, Grid):
            return reproduced_grid(engine, kept, on_progress)
        if isinstance(kept, Measurement):
            return _measured(engine, kept)
        if isinstance(kept, Activations):
            return reproduced_collection(engine.channel, kept, _by_prompt(kept, on_progress))
        if isinstance(kept, TrainedModule):
            return trained_again(engine, kept, collection, _by_step(on_progress))
    raise UsageError(
        "Grids, losses, splices, head scores, patterns, lenses, effects and snapshots at a stop, what watches "
        "recorded, edges, circuits, their curves, attribution graphs, direct attributions, collections and trained "
        "modules are computed again; "
        f"{shown(result)} is none of these."
    )


def _by_prompt(kept: Activations, on_progress: OnRepeated | None) -> Callable[[int], None]:
    return lambda done: None if on_progress is None else on_progress(None, done, len(kept))


def _by_step(on_progress: OnRepeated | None) -> Callable[[int, int, float], None]:
    return lambda done, of, loss: None if on_progress is None else on_progress(None, done, of)


def _read(path: Path) -> Result | Activations | TrainedModule:
    """Return the result in a file, whose ending says what it is, or the collection or trained module in a folder."""
    if (path / PROVENANCE).is_file():
        return trained_in(path)
    if path.is_dir():
        return Activations(path)
    kinds: dict[str, Callable[[Path], Result]] = {kind.ending: of.read for kind, of in MEASUREMENTS}
    ending = next((ending for ending in kinds if path.name.endswith(ending)), None)
    return Grid.read(path) if ending is None else kinds[ending](path)


def _measured(engine: RemoteEngine, before: Measurement) -> Reproduction:
    """Measure again, and compare. An error says which other model the measurement is of."""
    by, here = origin_of(before).by, engine.description
    try:
        again = before.again(engine.channel)
        then, now = before.compared_values, again.compared_values
        if then.shape != now.shape:
            raise UsageError(f"measured again there are {now.size:,} values, and were {then.size:,}.")
    except DjinnError as error:
        if by.architecture == here.architecture and by.model == here.name:
            raise
        raise UsageError(
            f"The measurement is of {by.model} ({by.architecture}), and this engine serves {here.name} "
            f"({here.architecture}), which cannot repeat it: {error}"
        ) from error
    shared = isinstance(before, Losses) and before.mode == "fast"
    return compared(
        before,
        again,
        before.place_of,
        origins=(by, origin_of(again).by),
        notes=lambda same: [SHARED] if shared and not same else [],
    )
