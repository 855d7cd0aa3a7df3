"""Modules that are imported when the first magic needs them: `%load_ext` must not wait for numpy, msgspec or zmq."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from djinn_jupyter.client import arrays, batches, doses, figures, memory_trace, pooling, reproducing, stops
    from djinn_jupyter.client import positions as places
    from djinn_jupyter.client.engines import keys, logs, naming, spelling, terminal
    from djinn_jupyter.methods.attribution.api import attributing
    from djinn_jupyter.methods.circuits.api import circuit_curves, circuits, edges, pruning
    from djinn_jupyter.methods.datasets.api import splicing
    from djinn_jupyter.methods.direct.api import direct
    from djinn_jupyter.methods.graphs.api import graphs
    from djinn_jupyter.methods.paths import api as paths
    from djinn_jupyter.methods.sweep.api import sweep_arguments, sweeping
    from djinn_jupyter.widgets import live_memory, views
    from djinn_jupyter.wire import requests, sites
else:

    class _Lazy:
        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self._module), name)

    arrays = _Lazy("djinn_jupyter.client.arrays")
    attributing = _Lazy("djinn_jupyter.methods.attribution.api.attributing")
    batches = _Lazy("djinn_jupyter.client.batches")
    circuit_curves = _Lazy("djinn_jupyter.methods.circuits.api.circuit_curves")
    circuits = _Lazy("djinn_jupyter.methods.circuits.api.circuits")
    direct = _Lazy("djinn_jupyter.methods.direct.api.direct")
    doses = _Lazy("djinn_jupyter.client.doses")
    edges = _Lazy("djinn_jupyter.methods.circuits.api.edges")
    figures = _Lazy("djinn_jupyter.client.figures")
    graphs = _Lazy("djinn_jupyter.methods.graphs.api.graphs")
    memory_trace = _Lazy("djinn_jupyter.client.memory_trace")
    keys = _Lazy("djinn_jupyter.client.engines.keys")
    logs = _Lazy("djinn_jupyter.client.engines.logs")
    places = _Lazy("djinn_jupyter.client.positions")
    naming = _Lazy("djinn_jupyter.client.engines.naming")
    spelling = _Lazy("djinn_jupyter.client.engines.spelling")
    paths = _Lazy("djinn_jupyter.methods.paths.api")
    pooling = _Lazy("djinn_jupyter.client.pooling")
    pruning = _Lazy("djinn_jupyter.methods.circuits.api.pruning")
    reproducing = _Lazy("djinn_jupyter.client.reproducing")
    splicing = _Lazy("djinn_jupyter.methods.datasets.api.splicing")
    stops = _Lazy("djinn_jupyter.client.stops")
    sweep_arguments = _Lazy("djinn_jupyter.methods.sweep.api.sweep_arguments")
    sweeping = _Lazy("djinn_jupyter.methods.sweep.api.sweeping")
    live_memory = _Lazy("djinn_jupyter.widgets.live_memory")
    terminal = _Lazy("djinn_jupyter.client.engines.terminal")
    requests = _Lazy("djinn_jupyter.wire.requests")
    sites = _Lazy("djinn_jupyter.wire.sites")
    views = _Lazy("djinn_jupyter.widgets.views")

__all__ = [
    "arrays",
    "attributing",
    "batches",
    "circuit_curves",
    "circuits",
    "direct",
    "doses",
    "edges",
    "figures",
    "graphs",
    "keys",
    "live_memory",
    "logs",
    "memory_trace",
    "naming",
    "paths",
    "places",
    "pooling",
    "pruning",
    "reproducing",
    "requests",
    "sites",
    "spelling",
    "splicing",
    "stops",
    "sweep_arguments",
    "sweeping",
    "terminal",
    "views",
]
