"""Meters: what is measured while a model is trained, and what that costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer


class Meter:
    """Something that is measured during training. Subclasses write what they need of it.

    Attributes
    ----------
    every : int
        Steps between measurements.
    """

    every: int = 1

    def before_step(self) -> None:
        """Called before a step that will be measured."""

    def after_step(self) -> None:
        """Called after every step, also those that are not measured."""

    def measure(self) -> Mapping[str, float]:
        """Numbers by name, after a step."""
        return {}


class _Function(Meter):
    def __init__(self, function: Callable[[], Mapping[str, float]], every: int) -> None:
        self._function = function
        self.every = every

    def measure(self) -> Mapping[str, float]:
        return self._function()


class Meters:
    """Meters on the steps of any torch optimizer.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its hooks call the meters; :meth:`remove` takes them off.
    meters : Meter or function
        By name, as keywords; a function returns numbers by name.
    every : int
        Steps between calls of functions.

    Attributes
    ----------
    records : list of dict
        ``step`` and the numbers, prefixed by the name of the meter.

    Examples
    --------
    >>> meters = ddc.geometry.Meters(optimizer, every=100, top=lambda: {      # doctest: +SKIP
    ...     "lambda": ddc.geometry.spectrum(make_fisher()).largest[0]})
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        every: int = 1,
        **meters: Meter | Callable[[], Mapping[str, float]],
    ) -> None:
        self._meters: dict[str, Meter] = {
            name: each if isinstance(each, Meter) else _Function(each, every)
            for name, each in meters.items()
        }
        for name, meter in self._meters.items():
            if meter.every < 1:
                raise ValueError(f"meter '{name}': every must be at least 1, is {meter.every}")
        self.records: list[dict[str, float]] = []
        self.steps = 0
        self._seconds = dict.fromkeys(self._meters, 0.0)
        self._start = time.perf_counter()
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def _timed(self, name: str, function: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = function()
        self._seconds[name] += time.perf_counter() - start
        return result

    def _before(self, *_: Any) -> None:
        for name, meter in self._meters.items():
            if (self.steps + 1) % meter.every == 0:
                self._timed(name, meter.before_step)

    def _after(self, *_: Any) -> None:
        self.steps += 1
        values: dict[str, float] = {}
        for name, meter in self._meters.items():
            self._timed(name, meter.after_step)
            if self.steps % meter.every == 0:
                measured = self._timed(name, meter.measure)
                values.update({f"{name}.{key}": value for key, value in measured.items()})
        if values:
            self.records.append({"step": self.steps, **values})

    @property
    def cost(self) -> dict[str, float]:
        """Seconds that each meter has taken."""
        return dict(self._seconds)

    def remove(self) -> None:
        """Take the meters off the optimizer."""
        for handle in self._handles:
            handle.remove()

    def __str__(self) -> str:
        total = time.perf_counter() - self._start
        return "\n".join(
            f"{name}: {seconds:.3g} s, {100 * seconds / total:.3g} % of the time"
            for name, seconds in self._seconds.items()
        )
