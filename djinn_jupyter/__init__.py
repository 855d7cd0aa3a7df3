"""Djinn for Jupyter: a debugger for transformer inference that stops inside the forward pass.

    import djinn_jupyter as dj
    session = dj.load("demo").session("paris")

Importing this imports neither torch nor IPython nor numpy: every name below is found when it is first used.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter._version import __version__ as __version__

EDITS: Final = f"{__name__}.api.edits"

# The names of `dj`, in the order of the reference. Type checkers read these lines, and so does `_homes`.
# isort: off
if TYPE_CHECKING:
    from djinn_jupyter.api.loading import load as load
    from djinn_jupyter.api.loading import engines as engines
    from djinn_jupyter.api.loading import attach as attach
    from djinn_jupyter.api.loading import connect as connect
    from djinn_jupyter.api.loading import beside as beside
    from djinn_jupyter.methods.sweep.api.sweeping import sweep as sweep
    from djinn_jupyter.methods.paths.api import path as path
    from djinn_jupyter.methods.sweep.api.pair_metrics import per_pair as per_pair
    from djinn_jupyter.methods.attribution.api import attribute as attribute
    from djinn_jupyter.methods.circuits.api.pruning import acdc as acdc
    from djinn_jupyter.methods.graphs.api import attribution_graph as attribution_graph
    from djinn_jupyter.methods.circuits.api.circuits import auroc as auroc
    from djinn_jupyter.methods.circuits.api.circuits import circuit as circuit
    from djinn_jupyter.methods.circuits.api.circuits import circuit_curve as circuit_curve
    from djinn_jupyter.methods.direct.api import direct as direct
    from djinn_jupyter.methods.circuits.api.edges import edges as edges
    from djinn_jupyter.methods.sweep.api.arguments import noise as noise
    from djinn_jupyter.api.reproducing import reproduce as reproduce
    from djinn_jupyter.api.studies import study as study
    from djinn_jupyter.methods.datasets.api.collecting import collect as collect
    from djinn_jupyter.methods.datasets.api.scoring import splice as splice
    from djinn_jupyter.modules.training.calls import train_sae as train_sae
    from djinn_jupyter.modules.training.calls import train_transcoder as train_transcoder
    from djinn_jupyter.modules.training.calls import train_tuned_lens as train_tuned_lens
    from djinn_jupyter.modules.training.calls import train_probe as train_probe
    from djinn_jupyter.modules.training.calls import steering_vector as steering_vector
    from djinn_jupyter.methods.datasets.api.activations import Activations as Activations
    from djinn_jupyter.methods.direct.api import Attribution as Attribution
    from djinn_jupyter.methods.sweep.api.grid import Grid as Grid
    from djinn_jupyter.api.result_files import Reproduction as Reproduction
    from djinn_jupyter.api.studies import Study as Study
    from djinn_jupyter.methods.datasets.api.scoring import Losses as Losses
    from djinn_jupyter.methods.circuits.api.edges import Edges as Edges
    from djinn_jupyter.methods.graphs.api import AttributionGraph as AttributionGraph
    from djinn_jupyter.methods.circuits.api.circuits import Circuit as Circuit
    from djinn_jupyter.methods.heads.api import HeadScores as HeadScores
    from djinn_jupyter.methods.heads.api import HeadPatterns as HeadPatterns
    from djinn_jupyter.methods.heads.api import HeadPage as HeadPage
    from djinn_jupyter.methods.why.api import ScoreParts as ScoreParts
    from djinn_jupyter.methods.text.api import TokenMeasures as TokenMeasures
    from djinn_jupyter.methods.text.api import TextLens as TextLens
    from djinn_jupyter.methods.features.api.page import FeaturePage as FeaturePage
    from djinn_jupyter.methods.circuits.api.circuits import CircuitCurve as CircuitCurve
    from djinn_jupyter.methods.datasets.api.scoring import Splice as Splice
    from djinn_jupyter.api.looks import Lens as Lens
    from djinn_jupyter.api.looks import Effect as Effect
    from djinn_jupyter.modules.training.process import TrainedModule as TrainedModule
    from djinn_jupyter.api.engine import RemoteEngine as RemoteEngine
    from djinn_jupyter.api.session import RemoteSession as RemoteSession
    from djinn_jupyter.api.stops import Paused as Paused
    from djinn_jupyter.api.stops import Finished as Finished
    from djinn_jupyter.api.stops import Interrupted as Interrupted
    from djinn_jupyter.api.stops import BatchInterrupted as BatchInterrupted
    from djinn_jupyter.api.interrupts import WorkInterrupted as WorkInterrupted
    from djinn_jupyter.errors import BatchEnded as BatchEnded
    from djinn_jupyter.errors import DjinnError as DjinnError
    from djinn_jupyter.api.edits import *  # noqa: F403  the constructors that `api.edits.KINDS` names
# isort: on


@cache
def _homes() -> dict[str, str]:
    """Return the module of each name, from the lines above: none of them is carried out."""
    written = Path(__file__).read_text("utf-8")
    return {name: home for home, name in re.findall(r"^    from (\S+) import (\w+) as", written, re.MULTILINE)}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *_homes(), *_edits()]
    home = _homes().get(name) or (EDITS if not name.startswith("_") and name in _edits() else None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))


def _edits() -> list[str]:
    """Return the constructors of edits, by their names."""
    return [kind.make.__name__ for kind in import_module(EDITS).KINDS.values()]


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
