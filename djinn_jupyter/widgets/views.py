"""The core's cards in one module, for the callers that show them: `views.stop_view(...)`. A method has its own."""

from __future__ import annotations

from djinn_jupyter.widgets.charts import dose_response_view
from djinn_jupyter.widgets.diff import ROWS as DIFF_ROWS
from djinn_jupyter.widgets.diff import DiffSide, diff_view
from djinn_jupyter.widgets.lens import (
    edit_view,
    effect_card,
    lens_card,
    lens_grid_view,
    lens_view,
    watch_view,
    watched_card,
    watching,
)
from djinn_jupyter.widgets.memory import (
    checkpoints_view,
    memory_view,
    rest_line,
    saved_line,
    sleep_line,
    swapped_line,
    trace_view,
)
from djinn_jupyter.widgets.pictures import PATTERN_CELLS
from djinn_jupyter.widgets.result import (
    broken_off_view,
    error_view,
    progress_view,
    receiving_view,
    result_view,
    running_view,
)
from djinn_jupyter.widgets.sessions import engines_view, session_list_view, sessions_view
from djinn_jupyter.widgets.snapshot import ROWS as SNAPSHOT_ROWS
from djinn_jupyter.widgets.snapshot import snapshot_card, snapshot_view
from djinn_jupyter.widgets.status import adapter_line, added_line, loaded_view, names_line, status_view
from djinn_jupyter.widgets.stop import ROWS, Look, numbered, places_of_largest, positions_shown, site_of, stop_view
from djinn_jupyter.widgets.studies import study_item_view, study_report_view, study_view
from djinn_jupyter.widgets.tables import (
    armed,
    breakpoint_line,
    breakpoints_view,
    history_view,
    rows_view,
    rules_view,
    table_view,
    watches_view,
)
from djinn_jupyter.widgets.tree import tree_view
from djinn_jupyter.widgets.view import View
