"""Djinn for Jupyter: a debugger for transformer inference that stops inside the forward pass.

    import djinn_jupyter as dj
    session = dj.load("demo").session("paris")

Importing this imports neither torch nor IPython nor numpy: every name below is found when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from djinn_jupyter._version import __version__ as __version__

if TYPE_CHECKING:
    from djinn_jupyter.client.activations import Activations as Activations
    from djinn_jupyter.client.attributing import attribute as attribute
    from djinn_jupyter.client.attribution import Attribution as Attribution
    from djinn_jupyter.client.circuit_curves import CircuitCurve as CircuitCurve
    from djinn_jupyter.client.circuit_curves import circuit_curve as circuit_curve
    from djinn_jupyter.client.circuits import Circuit as Circuit
    from djinn_jupyter.client.circuits import auroc as auroc
    from djinn_jupyter.client.circuits import circuit as circuit
    from djinn_jupyter.client.direct import direct as direct
    from djinn_jupyter.client.edges import Edges as Edges
    from djinn_jupyter.client.edges import edges as edges
    from djinn_jupyter.client.edits import *  # noqa: F403  the constructors that `client.edits.KINDS` names
    from djinn_jupyter.client.engine import RemoteEngine as RemoteEngine
    from djinn_jupyter.client.engine import collect as collect
    from djinn_jupyter.client.graphs import AttributionGraph as AttributionGraph
    from djinn_jupyter.client.graphs import attribution_graph as attribution_graph
    from djinn_jupyter.client.grid import Grid as Grid
    from djinn_jupyter.client.heads import HeadPatterns as HeadPatterns
    from djinn_jupyter.client.heads import HeadScores as HeadScores
    from djinn_jupyter.client.interrupts import WorkInterrupted as WorkInterrupted
    from djinn_jupyter.client.loading import attach as attach
    from djinn_jupyter.client.loading import beside as beside
    from djinn_jupyter.client.loading import connect as connect
    from djinn_jupyter.client.loading import engines as engines
    from djinn_jupyter.client.loading import load as load
    from djinn_jupyter.client.looks import Effect as Effect
    from djinn_jupyter.client.looks import Lens as Lens
    from djinn_jupyter.client.pair_metrics import per_pair as per_pair
    from djinn_jupyter.client.paths import path as path
    from djinn_jupyter.client.pruning import acdc as acdc
    from djinn_jupyter.client.reproducing import reproduce as reproduce
    from djinn_jupyter.client.reproduction import Reproduction as Reproduction
    from djinn_jupyter.client.scoring import Losses as Losses
    from djinn_jupyter.client.session import RemoteSession as RemoteSession
    from djinn_jupyter.client.splicing import Splice as Splice
    from djinn_jupyter.client.splicing import splice as splice
    from djinn_jupyter.client.stops import BatchInterrupted as BatchInterrupted
    from djinn_jupyter.client.stops import Finished as Finished
    from djinn_jupyter.client.stops import Interrupted as Interrupted
    from djinn_jupyter.client.stops import Paused as Paused
    from djinn_jupyter.client.sweep_arguments import noise as noise
    from djinn_jupyter.client.sweeping import sweep as sweep
    from djinn_jupyter.client.training.calls import steering_vector as steering_vector
    from djinn_jupyter.client.training.calls import train_probe as train_probe
    from djinn_jupyter.client.training.calls import train_sae as train_sae
    from djinn_jupyter.client.training.calls import train_transcoder as train_transcoder
    from djinn_jupyter.client.training.calls import train_tuned_lens as train_tuned_lens
    from djinn_jupyter.client.training.trained import TrainedModule as TrainedModule
    from djinn_jupyter.errors import BatchEnded as BatchEnded
    from djinn_jupyter.errors import DjinnError as DjinnError

_HOMES = {
    "load": "client.loading",
    "engines": "client.loading",
    "attach": "client.loading",
    "connect": "client.loading",
    "beside": "client.loading",
    "sweep": "client.sweeping",
    "path": "client.paths",
    "per_pair": "client.pair_metrics",
    "attribute": "client.attributing",
    "acdc": "client.pruning",
    "attribution_graph": "client.graphs",
    "auroc": "client.circuits",
    "circuit": "client.circuits",
    "circuit_curve": "client.circuit_curves",
    "direct": "client.direct",
    "edges": "client.edges",
    "noise": "client.sweep_arguments",
    "reproduce": "client.reproducing",
    "collect": "client.engine",
    "splice": "client.splicing",
    "train_sae": "client.training.calls",
    "train_transcoder": "client.training.calls",
    "train_tuned_lens": "client.training.calls",
    "train_probe": "client.training.calls",
    "steering_vector": "client.training.calls",
    "Activations": "client.activations",
    "Attribution": "client.attribution",
    "Grid": "client.grid",
    "Reproduction": "client.reproduction",
    "Losses": "client.scoring",
    "Edges": "client.edges",
    "AttributionGraph": "client.graphs",
    "Circuit": "client.circuits",
    "HeadScores": "client.heads",
    "HeadPatterns": "client.heads",
    "CircuitCurve": "client.circuit_curves",
    "Splice": "client.splicing",
    "Lens": "client.looks",
    "Effect": "client.looks",
    "TrainedModule": "client.training.trained",
    "RemoteEngine": "client.engine",
    "RemoteSession": "client.session",
    "Paused": "client.stops",
    "Finished": "client.stops",
    "Interrupted": "client.stops",
    "BatchInterrupted": "client.stops",
    "WorkInterrupted": "client.interrupts",
    "BatchEnded": "errors",
    "DjinnError": "errors",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *_HOMES, *_edits()]
    home = _HOMES.get(name) or ("client.edits" if not name.startswith("_") and name in _edits() else None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))


def _edits() -> list[str]:
    """Return the constructors of edits, by their names."""
    return [kind.make.__name__ for kind in import_module(f"{__name__}.client.edits").KINDS.values()]


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext djinn_jupyter`"""
    import_module(f"{__name__}.magics").load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext djinn_jupyter`"""
    import_module(f"{__name__}.magics").unload_ipython_extension(shell)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Return the server extension, as Jupyter Server asks for it."""
    return [{"module": __name__, "app": import_module(f"{__name__}.server.extension").DjinnServer}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Return the folder of the built sidebar, for `jupyter labextension develop`."""
    return [{"src": "labextension", "dest": "djinn-jupyter"}]
