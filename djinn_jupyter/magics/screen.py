"""The card of a stop on the page, which shows when its session has moved on, its value was edited, or the connection to
the engine is down; and the output of magics."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from IPython import display as ipython

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.link import naming, waiting
from djinn_jupyter.wire.texts import in_quotes, label

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from djinn_jupyter.displayed import Shown
    from djinn_jupyter.link.channel import Channel
    from djinn_jupyter.link.io_thread import SoFar
    from djinn_jupyter.link.waiting import TerminalProgress
    from djinn_jupyter.widgets.view import View
    from djinn_jupyter.wire.nouns import StopIdentity
    from djinn_jupyter.wire.replies import Event


MOVED, EDITED, CLOSED = "past", "edited since", "closed since"
LINE_DOWN = "the line to the engine is down"
TOLD = {"SessionRunning": MOVED, "SessionClosed": CLOSED}


class StandingCard:
    """Listens to its session, which any client may move, until there is something to show, and shows it once. `stop` is
    the stop of the card. It listens in the thread that receives messages."""

    def __init__(self, channel: Channel, handle: Any, view: View, stop: StopIdentity) -> None:
        self._handle, self._view, self._stop = handle, view, stop
        self._where = where(stop.session)
        self.said: str | None = None
        self._forget_line = channel.watch_connection(self._heard_of_line)
        self._forget = channel.listen(stop.session, self._heard)

    def _heard(self, event: Event) -> None:
        words = self._words(event)
        if words is None or self.said is not None or self._view.since is None:
            return
        self.said = words
        self._handle.update(self._view.since(words if words == CLOSED else f"{words}: {self._where}"))
        self._forget()
        self._forget_line()

    def _heard_of_line(self, down_since: float | None) -> None:
        if self.said is not None or self._view.since is None:
            return
        if down_since is None:
            self._handle.update(self._view)
        else:
            at = time.strftime("%H:%M", time.localtime(down_since))
            self._handle.update(self._view.since(f"{LINE_DOWN} since {at}, shown as it was then"))

    def _words(self, event: Event) -> str | None:
        """Return the words for an event on the stop; events from before that stop may still arrive."""
        name = type(event).__name__
        if name in ("SessionPaused", "SessionEdited"):
            stop = event.stop  # type: ignore[attr-defined]
            if stop.number > self._stop.number:
                return MOVED
            return EDITED if stop.edition > self._stop.edition else None
        return TOLD.get(name)


def where(session: str | None) -> str:
    """Return the magic that draws a session's stop: the notebook's own session needs no name."""
    if session is None or session == naming.notebook_path():
        return "%djinn_where"
    shown = label(session)
    return f"%djinn_where --session {in_quotes(shown) if ' ' in shown else shown}"


# The output of magics: lines to stdout, views to display; streamed tokens into one display that is updated in place.
# With DJINN_STATIC=1, and outside a notebook, only final forms are shown and nothing is updated, so that nbval and
# nbconvert see the same as a reader. A terminal rewrites one line while an engine starts.

UPDATE_SECONDS = 0.1
_display: Any = ipython.display


class Screen:
    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    @property
    def is_static(self) -> bool:
        """Only final forms: on request, or where no notebook is known. Consoles drop updates of outputs."""
        return naming.is_static() or (naming.notebook_path() is None and "google.colab" not in sys.modules)

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")

    def show(self, view: Shown) -> None:
        _display(view)

    def show_stop(self, view: View, stop: StopIdentity, channel: Channel) -> None:
        """Show the card of a stop, which shows when the session has left it."""
        self.live().end(view, stop, channel)

    def show_live(self, widget: object) -> Any:
        """Show something that changes; return the handle that replaces it with its final form."""
        return _display(widget, display_id=True)

    def live(self, session: str | None = None) -> Live:
        in_terminal = self.is_static and not hasattr(self._shell, "kernel")
        return Live(
            static=self.is_static, session=session, terminal=waiting.TerminalProgress() if in_terminal else None
        )


class Live:
    """One display while something runs: progress or tokens first, the result in the same place at the end."""

    def __init__(self, *, static: bool, session: str | None = None, terminal: TerminalProgress | None = None) -> None:
        self._static, self._terminal, self._session = static, terminal, session
        self._handle: Any = None
        self._said: list[str] = []
        self._gained: list[tuple[str, float | None]] = []  # texts with their probabilities
        self._shown_at = 0.0

    @contextmanager
    def loading(self, model: str) -> Iterator[None]:
        """Show that a model is being loaded, before the modules that draw cards are imported, which takes long under a
        debugger; and if that fails, that it did."""
        if not self._static:
            self._handle = _display({"text/plain": f"loading {model}"}, raw=True, display_id=True)
        try:
            yield
        except (DjinnError, KeyboardInterrupt):
            if not self._static:
                self._step(f"the load of {model} did not succeed", self._said, running=False)
            raise

    def progress(self, line: str) -> None:
        """Show the present activity at once, because such lines are few."""
        if not self._static:
            self._step(line, self._said)
        self._said.append(line)

    def second(self, line: str) -> None:
        """Show the present step again, with its seconds so far. A terminal rewrites its line."""
        if not self._static:
            self._step(line, [step for step in self._said if not line.startswith(step)])
        elif self._terminal is not None:
            self._terminal.second(line)

    def gained(self, text: str, probability: float | None = None) -> None:
        """Add one more token's text with its probability; it is shown at most ten times a second."""
        self._gained.append((text, probability))
        if not self._static and time.monotonic() - self._shown_at >= UPDATE_SECONDS:
            from djinn_jupyter.widgets import views

            self._shown_at = time.monotonic()
            said = {"session": self._session or "", "where": where(self._session), "drawn": time.strftime("%H:%M:%S")}
            self._update(views.running_view(self._gained, **said))

    def broken_off(self, why: str) -> None:
        """Mark the shown run as failed, so that its card no longer shows it as running."""
        if self._handle is not None:
            from djinn_jupyter.widgets import views

            said = {"session": self._session or "", "where": where(self._session), "why": why}
            text = "".join(text for text, _ in self._gained)
            self.end(views.broken_off_view(text, len(self._gained), **said))

    def end(self, view: View, stop: StopIdentity | None = None, channel: Channel | None = None) -> None:
        """Show the final form in place of the running one. A `stop`'s card hears its session's moves on its channel."""
        if self._terminal is not None:
            self._terminal.clear()
        if self._static:
            _display(view)
            return
        self._update(view)
        if stop is not None and channel is not None:
            StandingCard(channel, self._handle, view, stop)

    def _step(self, line: str, said: Sequence[str], *, running: bool = True) -> None:
        """Show a step of a load below the steps `said` before. The first imports the modules that draw cards."""
        from djinn_jupyter.widgets import views

        self._update(views.progress_view(line, tuple(said), running=running))

    def _update(self, view: View) -> None:
        if self._handle is None:
            self._handle = _display(view, display_id=True)
        else:
            self._handle.update(view)


# A display that fills during a computation. Knows nothing of the values it shows.

DRAWN_SECONDS: Final = 0.25


class Redrawn:
    """One display, drawn again at most once in DRAWN_SECONDS, then its final form in the same place; plotly draws only
    that. Where outputs are static only the final form is shown. With `at_once` the first drawing does not wait."""

    def __init__(self, screen: Screen, *, at_once: bool = True) -> None:
        self._screen = screen
        self._handle: Any = None
        self._drawn = 0.0 if at_once else time.monotonic()

    def draw(self, view: Callable[[], View]) -> None:
        """Show a view, which is made only if it is time."""
        if self._screen.is_static or time.monotonic() - self._drawn < DRAWN_SECONDS:
            return
        self._drawn = time.monotonic()
        drawn = replace(view(), pictures=None)
        if self._handle is None:
            self._handle = self._screen.show_live(drawn)
        else:
            self._handle.update(drawn)

    def end(self, view: View) -> None:
        """Show the final form."""
        if self._handle is None:
            self._screen.show(view)
        else:
            self._handle.update(view)


class ReceivingBar:
    """The bar of a large reply that arrives from another machine: drawn once for each, and replaced by one line at its
    end. Where outputs are static nothing is shown, because the speed of a connection is not a result."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._bar: Redrawn | None = None

    def __call__(self, progress: SoFar, *, over: bool) -> None:
        if self._screen.is_static:
            return
        from djinn_jupyter.widgets import views

        self._bar = self._bar or Redrawn(self._screen)
        if over:
            self._bar.end(views.receiving_view(progress, over=True))
            self._bar = None
        else:
            self._bar.draw(lambda: views.receiving_view(progress))
