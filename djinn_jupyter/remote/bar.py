"""The bar of a large reply on its way."""

from __future__ import annotations

from djinn_jupyter.remote.large_messages import SoFar
from djinn_jupyter.widgets.html import card, meter
from djinn_jupyter.widgets.view import View


def receiving_view(progress: SoFar, *, over: bool = False) -> View:
    """Return a card of how far the reply is, with a bar; of one that is `over` a line."""
    if over:
        return View(plain=progress.ended, html=card(title=progress.ended))
    line = f"{progress}; interrupt the kernel to end it"
    return View(plain=line, html=card(meter(progress.share), title=line, dot="running"))
