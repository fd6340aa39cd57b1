"""How the progress of a fit is drawn: a bar on a terminal and in a notebook, lines elsewhere.

`Progress` says what is shown: the phases before the first iteration, and the iterations. The bar keeps the
count and the time left on narrow terminals, where the metrics are cut.
"""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from dboost.display import counted, duration, number

#: Seconds between two updates of a bar, and between two lines of a phase.
_BAR_INTERVAL, _LINE_INTERVAL = 0.1, 5.0
#: Seconds after which a line says which phase is running: errors of a quick phase stay one line.
_LINE_DELAY = 1.0
#: Characters of the bar on a terminal.
_BAR_WIDTH = 16
#: Iterations between two lines while their number is not known.
_LINE_ITERATIONS = 25
BOOSTING, SEARCHING = "boosting", "searching"


class Display(Protocol):
    """What is drawn: a phase, with the count 0 of 0 if it is not known, or iterations."""

    def begin(self, phase: str) -> None: ...
    def update(self, done: int, n_total: int, unit: str, left: str, note: str) -> None: ...
    def write(self, text: str) -> None: ...
    def close(self) -> None: ...


class Progress:
    """Shows the phases and iterations of a fit.

    Parameters
    ----------
    wanted : bool or None
        None: a bar on a terminal (stderr) and in a notebook, else no output. True: lines elsewhere, too.
    """

    def __init__(self, wanted: bool | None) -> None:
        self._wanted, self._unit = wanted, ""
        self._display: Display | None = None
        self._is_open, self._is_boosting = False, False
        self._last, self._first, self._first_ended = 0, 0, 0.0
        self._n_rows_grown, self._seconds = 0, 0.0

    def phase(self, name: str) -> None:
        """Show a phase before the first iteration."""
        self._open()
        if self._display is not None:
            self._display.begin(name)

    def count(self, n_done: int, n_total: int, unit: str) -> None:
        """Show how much of the phase is done; no effect while boosting, when rows of new workers are read."""
        if self._display is not None and not self._is_boosting:
            self._display.update(n_done, n_total, unit, "", "")

    def write(self, text: str) -> None:
        """Show a line beside the bar."""
        if self._display is not None:
            self._display.write(text)

    def begin(self, last: int, unit: str = "iteration") -> None:
        """Show that boosting has begun. last : number of the last iteration; unit : what is counted."""
        self.phase(BOOSTING)
        self._is_boosting, self._last, self._unit = True, last, unit

    def show(self, record: dict[str, Any], scores: Mapping[str, float], seconds: float) -> None:
        """Show an iteration.

        scores : metrics by name, as people read them; seconds : duration of the iteration alone; with arcbites
        ``record["seconds"]`` may include loading one.
        """
        iteration, now = record["iteration"], time.monotonic()
        if not self._first_ended:  # kernels are compiled in the first one
            self._first, self._first_ended = iteration, now
        else:
            self._n_rows_grown += record["rows_kept"]
            self._seconds += seconds
        if self._display is None:
            return
        left = ""
        if iteration > self._first and self._last:
            each = (now - self._first_ended) / (iteration - self._first)
            left = f"{duration(each * (self._last - iteration))} left"
        self._display.update(iteration, self._last, self._unit, left, self._note(record, scores))

    @property
    def is_shown(self) -> bool:
        """Whether there is a display now."""
        return self._display is not None

    def part(self, name: str) -> Progress:
        """Return the progress of one of several fits, whose iterations are shown as a phase in the display of this one.

        The number of iterations of a phase "searching" is not known.
        """
        self._open()
        return _Part(name, self._display)

    def close(self) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def _open(self) -> None:
        if self._is_open or self._wanted is False:
            return
        self._is_open = True
        self._display = open_display(bool(self._wanted))

    def _note(self, record: dict[str, Any], scores: Mapping[str, float]) -> str:
        """Current metrics, rows per second from the second iteration on, and on a cluster the number of workers with rows."""
        parts = [f"{name} {number(value, 5)}" for name, value in scores.items()]
        if self._seconds > 0:
            parts.append(f"{self._n_rows_grown / self._seconds:,.0f} rows/s")
        if "workers" in record:
            parts.append(counted(record["workers"], "worker"))
        return ", ".join(parts)


class _Part(Progress):
    """See `Progress.part`."""

    def __init__(self, name: str, display: Display | None) -> None:
        super().__init__(False)
        self._name, self._display = name, display

    def phase(self, name: str) -> None:
        super().phase(self._name if name == BOOSTING else name)

    def begin(self, last: int, unit: str = "iteration") -> None:
        super().begin(0 if self._name == SEARCHING else last, unit)

    def close(self) -> None:
        """Leave the display open for the next part."""
        self._display = None


class _Lines:
    """A line for each phase that takes longer than `_LINE_DELAY`, and for each twentieth of the iterations."""

    def __init__(self) -> None:
        self._phase, self._next_line = "", 0.0
        self._waiting: threading.Timer | None = None

    def begin(self, phase: str) -> None:
        self.close()
        self._phase, self._next_line = phase, time.monotonic() + _LINE_INTERVAL
        if phase not in (BOOSTING, SEARCHING):
            self._waiting = threading.Timer(_LINE_DELAY, self.write, [phase])
            self._waiting.daemon = True
            self._waiting.start()

    def update(self, done: int, n_total: int, unit: str, left: str, note: str) -> None:
        if self._phase == SEARCHING:
            if done % _LINE_ITERATIONS == 0 or done == 1:
                self.write(f"search, {unit} {done}: {note}")
        elif self._phase == BOOSTING:
            if done % max(n_total // 20, 1) == 0 or done in (1, n_total):
                self.write(f"{unit} {done}/{n_total}: {note}")
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_INTERVAL
            self.write(f"{self._phase}: {done:,} of {counted(n_total, unit)}")

    def write(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Write no line of the phase any more."""
        if self._waiting is not None:
            self._waiting.cancel()


class _Bar:
    """Base of bars: keeps what is shown, and limits how often it is drawn."""

    def __init__(self) -> None:
        self.phase, self.done, self.n_total, self.unit, self.left, self.note = "", 0, 0, "", "", ""
        self._began = time.monotonic()
        self._drawn, self._is_over = -1.0, False

    def begin(self, phase: str) -> None:
        self.phase, self.done, self.n_total, self.unit, self.left, self.note = phase, 0, 0, "", "", ""
        self._began = time.monotonic()
        self._draw()

    def update(self, done: int, n_total: int, unit: str, left: str, note: str) -> None:
        self.done, self.n_total, self.unit, self.left, self.note = done, n_total, unit, left, note
        now = time.monotonic()
        if now - self._drawn > _BAR_INTERVAL or done == n_total:
            self._drawn = now
            self._draw()

    @property
    def counts(self) -> str:
        """The count and the time left, or at the end the time that was needed."""
        seconds = duration(time.monotonic() - self._began)
        if not self.n_total:
            return f"{self.unit} {self.done}" if self.done else seconds
        count = f"{self.done}/{self.n_total}{' MiB' * (self.unit == 'MiB')}"
        if self._is_over:
            return f"{count} in {seconds}"
        return f"{count} {self.left}".rstrip()

    def write(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Show the final state, with the time that was needed."""
        self._is_over = True
        self._draw()

    def _draw(self) -> None:
        raise NotImplementedError


class _TerminalBar(_Bar):
    """A bar of rich, above which other output of the process appears."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn
        from rich.progress import Progress as RichProgress
        from rich.text import Text

        super().__init__()
        console, texts = Console(stderr=True), self._texts

        class Texts(ProgressColumn):
            """The texts before or after the bar."""

            max_refresh = None

            def __init__(self, place: int) -> None:
                super().__init__()
                self._place = place

            def render(self, task: Any) -> Text:
                return Text(texts(console.width)[self._place], no_wrap=True)

        self._bar = RichProgress(Texts(0), BarColumn(_BAR_WIDTH), Texts(1), console=console)
        self._task = self._bar.add_task("", total=None)

    def _texts(self, width: int) -> tuple[str, str]:
        """Return the phase, and count, time and note; the note is cut where the terminal is narrow."""
        n_left = width - len(self.phase) - _BAR_WIDTH - 3
        text = f"{self.counts}  {self.note}".rstrip()
        return self.phase, text if len(text) <= n_left else f"{text[: max(n_left, len(self.counts) + 1) - 1]}…"

    def begin(self, phase: str) -> None:
        super().begin(phase)
        self._bar.start()
        self._bar.refresh()

    def _draw(self) -> None:
        self._bar.update(self._task, completed=self.done, total=self.n_total or None)

    def close(self) -> None:
        super().close()
        self._bar.stop()


class _NotebookBar(_Bar):
    """A bar in the output of a notebook's cell."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None

    def _draw(self) -> None:
        from IPython.display import display

        text = f"{self.counts} {self.note}".rstrip()
        state = f'value="{self.done}" max="{self.n_total}"' if self.n_total else ""
        bar = f'<progress {state} style="width: 14em; vertical-align: middle"></progress>'
        shown = {
            "text/html": f"<div>{html.escape(self.phase)} {bar} {html.escape(text)}</div>",
            "text/plain": f"{self.phase} {text}",
        }
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def open_display(is_wanted: bool) -> Display | None:
    """Return a bar in a notebook and on a terminal, elsewhere lines if they are wanted."""
    if _in_notebook():
        return _NotebookBar()
    if sys.stderr.isatty():
        return _TerminalBar()
    return _Lines() if is_wanted else None


def _in_notebook() -> bool:
    """Whether a kernel of a notebook runs this process."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None
