"""Results that a cell returns are displayed as their views, as the magics show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.magics.lazily import views

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

VIEW_OF: Final = {
    ("djinn_jupyter.client.grid", "Grid"): "grid_view",
    ("djinn_jupyter.client.heads", "HeadScores"): "scores_view",
    ("djinn_jupyter.client.heads", "HeadPatterns"): "patterns_view",
    ("djinn_jupyter.client.attribution", "Attribution"): "attribution_view",
    ("djinn_jupyter.client.edges", "Edges"): "edges_view",
    ("djinn_jupyter.client.circuits", "Circuit"): "circuit_view",
    ("djinn_jupyter.client.circuit_curves", "CircuitCurve"): "curve_view",
    ("djinn_jupyter.client.graphs", "AttributionGraph"): "attribution_graph_view",
}


def register(shell: InteractiveShell) -> None:
    """Have the shell display each kind of result by its view. Neither is imported before the first of its kind."""
    for (module, name), view in VIEW_OF.items():
        _formatter(shell).for_type_by_name(module, name, _shown(view))


def unregister(shell: InteractiveShell) -> None:
    """Leave the results their plain text."""
    for module, name in VIEW_OF:
        _formatter(shell).pop(f"{module}.{name}", None)


def _shown(view: str) -> Callable[[Any], dict[str, Any]]:
    def bundle(result: Any) -> dict[str, Any]:
        shown: dict[str, Any] = getattr(views, view)(result)._repr_mimebundle_()
        return shown

    return bundle


def _formatter(shell: InteractiveShell) -> Any:  # IPython's methods have no types
    assert shell.display_formatter is not None
    return shell.display_formatter.mimebundle_formatter
