"""What a search is doing: lines in the log `ddc`, and one line on a terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator

log = logging.getLogger("ddc")

# A terminal is told so often, in seconds.
_INTERVAL = 0.2


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


class Progress:
    """What a search is doing.

    A context; on leaving it the line on a terminal is gone.

    Parameters
    ----------
    verbose : bool or None
        Whether the log is shown, a line for each stage. None: one line, on a terminal.
    """

    def __init__(self, verbose: bool | None) -> None:
        self._log = shown(bool(verbose))
        self._live = verbose is None and sys.stderr.isatty()
        self._stage, self._done, self._all = "", 0, 0
        self._evaluations = 0
        self._start = self._begun = time.monotonic()
        self._shown = 0.0

    def __enter__(self) -> Progress:
        self._log.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._log.__exit__(None, None, None)
        if self._live and self._shown:
            self._write("")

    def stage(self, stage: str, done: int, all_: int) -> None:
        if stage != self._stage:
            log.info(stage)
            self._begun = time.monotonic()
        self._stage, self._done, self._all = stage, done, all_

    def evaluated(self) -> None:
        self._evaluations += 1
        now = time.monotonic()
        if not self._live or now - self._shown < _INTERVAL:
            return
        self._shown = now
        self._write(self.line(now))

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()

    def line(self, now: float) -> str:
        parts = [f"ddc: {self._stage or 'the loss'}"]
        if self._all:
            parts[0] += f" {self._done} of {self._all}"
        parts += [f"{self._evaluations} evaluations", f"{now - self._start:.0f} s"]
        if 0 < self._done < self._all:
            left = (now - self._begun) * (self._all - self._done) / self._done
            parts.append(f"about {left:.0f} s left")
        return ", ".join(parts)
