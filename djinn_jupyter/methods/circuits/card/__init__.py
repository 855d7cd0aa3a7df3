"""The cards of circuits, their curves and edges."""

from djinn_jupyter.methods.circuits.card.circuit import circuit_view, curve_view, edges_view

__all__ = ["circuit_view", "curve_view", "edges_view"]
