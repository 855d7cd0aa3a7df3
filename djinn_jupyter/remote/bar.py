"""The progress bar of a large reply."""

from __future__ import annotations

from djinn_jupyter.remote.large_messages import SoFar
from djinn_jupyter.widgets.html import card, meter
from djinn_jupyter.widgets.view import View


def receiving_view(progress: SoFar, *, over: bool = False) -> View:
    """Return a card with the progress of the reply as a bar; a line for one that is `over`."""
    if over:
        return View(plain=progress.ended, html=card(title=progress.ended))
    line = f"{progress}; interrupt the kernel to end it"
    return View(plain=line, html=card(meter(progress.share), title=line, dot="running"))
