"""All views in one module, for the callers that show them: `views.stop_view(...)`."""

from __future__ import annotations

from djinn_jupyter.methods.circuits.card.circuit import circuit_view, curve_view
from djinn_jupyter.methods.circuits.card.edges import edges_view
from djinn_jupyter.methods.datasets.card import collected_lines, loss_lines
from djinn_jupyter.methods.direct.card import attribution_view
from djinn_jupyter.methods.graphs.card import attribution_graph_view
from djinn_jupyter.methods.heads.card import patterns_view, scores_view
from djinn_jupyter.methods.sweep.card import grid_view
from djinn_jupyter.widgets.added import adapter_line, added_line
from djinn_jupyter.widgets.attention import PATTERN_CELLS
from djinn_jupyter.widgets.diff import ROWS as DIFF_ROWS
from djinn_jupyter.widgets.diff import DiffSide, diff_view
from djinn_jupyter.widgets.dose_response import dose_response_view
from djinn_jupyter.widgets.effect import edit_view
from djinn_jupyter.widgets.lens import lens_grid_view, lens_view
from djinn_jupyter.widgets.look import Look
from djinn_jupyter.widgets.memory import memory_view
from djinn_jupyter.widgets.receiving import receiving_view
from djinn_jupyter.widgets.residency import checkpoints_view, rest_line, saved_line, swapped_line, transfer_line
from djinn_jupyter.widgets.result import broken_off_view, progress_view, result_view, running_view
from djinn_jupyter.widgets.snapshot import ROWS as SNAPSHOT_ROWS
from djinn_jupyter.widgets.snapshot import snapshot_view
from djinn_jupyter.widgets.status import loaded_view, status_view
from djinn_jupyter.widgets.stop import ROWS, positions_shown, site_of, stop_view
from djinn_jupyter.widgets.tables import (
    armed,
    breakpoint_line,
    breakpoints_view,
    history_view,
    rows_view,
    rules_view,
    sessions_view,
    table_view,
    watches_view,
)
from djinn_jupyter.widgets.tree import tree_view
from djinn_jupyter.widgets.view import View
from djinn_jupyter.widgets.watch import watch_view, watching
from djinn_jupyter.widgets.weights import sleep_line

__all__ = [
    "DIFF_ROWS", "PATTERN_CELLS", "ROWS", "SNAPSHOT_ROWS", "DiffSide", "Look", "View",
    "adapter_line", "added_line", "armed", "attribution_graph_view", "attribution_view", "checkpoints_view",
    "circuit_view", "collected_lines", "curve_view",
    "loss_lines",
    "memory_view", "rest_line", "sleep_line", "saved_line", "swapped_line",
    "transfer_line", "broken_off_view",
    "breakpoint_line", "breakpoints_view", "diff_view", "dose_response_view", "edges_view", "edit_view", "grid_view",
    "history_view",
    "patterns_view", "scores_view",
    "lens_grid_view", "lens_view", "loaded_view", "positions_shown", "progress_view", "receiving_view", "result_view",
    "rows_view",
    "rules_view", "running_view", "sessions_view", "site_of", "snapshot_view", "status_view", "stop_view", "table_view",
    "tree_view",
    "watch_view", "watches_view", "watching",
]  # fmt: skip
