"""Progress of a search: lines in the log `ddc`, and a bar on a terminal or in a notebook."""

from __future__ import annotations

import contextlib
import html
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

from ddc.picture import in_notebook

log = logging.getLogger("ddc")

# Seconds between two updates.
_INTERVAL = 0.2
# Characters of a bar.
_BAR = 16


@contextlib.contextmanager
def shown(verbose: bool) -> Iterator[None]:
    """The log on standard error, unless the program has said where logs go."""
    level = log.level
    handler = None
    if verbose:
        log.setLevel(min(log.getEffectiveLevel(), logging.INFO))
        if not log.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("ddc: %(message)s"))
            log.addHandler(handler)
    try:
        yield
    finally:
        log.setLevel(level)
        if handler is not None:
            log.removeHandler(handler)


class Terminal:
    """One line on standard error, written over and over."""

    def show(self, line: str, bar: str) -> None:
        # A line that is broken could not be written over.
        fits = len(line) + len(bar) < shutil.get_terminal_size().columns
        self._write(line.replace(",", f" {bar},", 1) if bar and fits else line)

    def clear(self) -> None:
        self._write("")

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


class Notebook:
    """One output below the cell, whose contents are exchanged."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, line: str, bar: str) -> None:
        from IPython.display import HTML, display

        shown = HTML(f"<pre>{html.escape(f'{bar} {line}' if bar else line)}</pre>")
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)

    def clear(self) -> None:
        from IPython.display import HTML

        self._handle.update(HTML(""))


class Progress:
    """Progress of a search.

    A context; on leaving it the line on a terminal or in a notebook is gone.

    Parameters
    ----------
    verbose : bool or None
        Whether the log is shown, a line for each stage. None: one line with a bar, on a terminal or in a
        notebook.
    """

    def __init__(self, verbose: bool | None) -> None:
        self._log = shown(bool(verbose))
        self._output: Terminal | Notebook | None = None
        if verbose is None and in_notebook():
            self._output = Notebook()
        elif verbose is None and sys.stderr.isatty():
            self._output = Terminal()
        self._stage, self._done, self._all = "", 0, 0
        self._evaluations = 0
        self._start = self._begun = time.monotonic()
        self._shown = 0.0

    def __enter__(self) -> Progress:
        self._log.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._log.__exit__(None, None, None)
        if self._output is not None and self._shown:
            self._output.clear()

    def stage(self, stage: str, done: int, all_: int) -> None:
        if stage != self._stage:
            log.info(stage)
            self._begun = time.monotonic()
        self._stage, self._done, self._all = stage, done, all_

    def evaluated(self) -> None:
        self._evaluations += 1
        now = time.monotonic()
        if self._output is None or now - self._shown < _INTERVAL:
            return
        self._shown = now
        self._output.show(self.line(now), self.bar())

    def bar(self) -> str:
        """Share of the stage that is done; empty where its size is not known."""
        if not self._all:
            return ""
        full = _BAR * min(self._done, self._all) // self._all
        return f"[{'#' * full}{'.' * (_BAR - full)}]"

    def line(self, now: float) -> str:
        parts = [f"ddc: {self._stage or 'the loss'}"]
        if self._all:
            parts[0] += f" {self._done} of {self._all}"
        parts += [f"{self._evaluations} evaluations", f"{now - self._start:.0f} s"]
        if 0 < self._done < self._all:
            left = (now - self._begun) * (self._all - self._done) / self._done
            parts.append(f"about {left:.0f} s left")
        return ", ".join(parts)
