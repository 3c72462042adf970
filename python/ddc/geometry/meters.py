"""Meters: what is measured while a model is trained, and what that costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddc import _C
from ddc._model import parameters_of
from ddc.geometry.curvature import Curvature, GaussNewton, Quotient, quotient, spectrum
from ddc.geometry.observables import Trajectory
from ddc.measure import GaugeCoordinates
from ddc.symmetry import SymmetryGroup


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


def _check_every(every: int) -> int:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be a whole number of at least 1, is {every!r}")
    return every


class DriftMeter(Meter):
    """How far gauge coordinates are from where they were when the meter was made.

    ``largest`` and ``rms`` over channels; ``channels_without_coordinate`` if a side of some is zero.

    Parameters
    ----------
    model : torch.nn.Module
    symmetries : SymmetryGroup
    every : int
    """

    def __init__(self, model: nn.Module, symmetries: SymmetryGroup, *, every: int = 1) -> None:
        self.every = _check_every(every)
        self._coordinates = GaugeCoordinates(model, symmetries)
        self._start = self._coordinates.measure()

    def measure(self) -> dict[str, float]:
        now = self._coordinates.measure()
        parts = [(now[name] - start).flatten().double() for name, start in self._start.items()]
        moved = torch.cat(parts) if parts else torch.zeros(0)
        known = moved[moved.isfinite()].abs()
        values: dict[str, float] = {}
        if known.numel() < moved.numel():
            values["channels_without_coordinate"] = float(moved.numel() - known.numel())
        if known.numel() > 0:
            values["largest"] = known.max().item()
            values["rms"] = known.square().mean().sqrt().item()
        return values


class TurnMeter(Meter):
    """By what angle a step turns each head along its orbit, which has no coordinate.

    ``largest``, and one number per block (head) of a gauge, ``gauge.block``: the norm of the logarithm of the
    rotation that takes the block before the step closest to that after it. Of gauges on whose tensors nothing
    but rotations and linear groups act: where a scale changes the units of the weights, a step without any
    part along the orbit turns them too.

    Parameters
    ----------
    model : torch.nn.Module
    symmetries : SymmetryGroup
    every : int
    """

    def __init__(self, model: nn.Module, symmetries: SymmetryGroup, *, every: int = 1) -> None:
        self.every = _check_every(every)
        self._parameters = dict(parameters_of(model))
        gauges = symmetries._core.gauges()
        symmetries._core.check(parameters_of(model))
        scaled = {leg.tensor for each in gauges if not _mixes(each) for leg in each.legs}
        self._gauges = [
            each
            for each in gauges
            if _mixes(each) and not any(leg.tensor in scaled for leg in each.legs)
        ]
        if not self._gauges:
            raise ValueError(
                "symmetries have no rotation or linear gauge on tensors that no scale acts on, whose angle "
                "could be read"
            )
        self._before: dict[str, Tensor] = {}

    def _blocks(self) -> dict[str, Tensor]:
        return {
            f"{gauge.name}.{block}": _turned_block(gauge, self._parameters, block)
            for gauge in self._gauges
            for block in range(gauge.channels // gauge.block)
        }

    def before_step(self) -> None:
        self._before = self._blocks()

    def measure(self) -> dict[str, float]:
        angles = {
            name: _angle(self._before[name], after)
            for name, after in self._blocks().items()
            if name in self._before
        }
        return {"largest": max(angles.values()), **angles} if angles else {}


def _mixes(gauge: _C.Gauge) -> bool:
    return gauge.action in ("rotation", "linear")


def _turned_block(gauge: _C.Gauge, parameters: Mapping[str, Tensor], block: int) -> Tensor:
    """What of the parameters a block of a gauge turns, [block, entries of all legs]."""
    plus: list[Tensor] = []
    minus: list[Tensor] = []
    for leg in gauge.legs:
        weight = (parameters[leg.tensor].detach().double() + leg.offset).movedim(leg.axis, 0)
        channels = leg.channel_of or list(range(len(weight)))
        rows = [
            k
            for channel in range(block * gauge.block, (block + 1) * gauge.block)
            for k, owner in enumerate(channels)
            if owner == channel
        ]
        side = minus if gauge.action == "linear" and leg.exponent < 0 else plus
        side.append(weight[rows].reshape(gauge.block, -1).cpu())
    if not minus:
        return torch.cat(plus, 1)
    return _balanced(torch.cat(plus, 1), torch.cat(minus, 1))


def _power(symmetric: Tensor, exponent: float) -> Tensor:
    values, vectors = torch.linalg.eigh(symmetric)
    power: Tensor = (vectors * values.pow(exponent)) @ vectors.T
    return power


def _balanced(plus: Tensor, minus: Tensor) -> Tensor:
    """The point on the orbit (A plus, A^-T minus) where both sides have one Gram matrix."""
    gram = plus @ plus.T
    root, inverse = _power(gram, 0.5), _power(gram, -0.5)
    mean = inverse @ _power(root @ minus @ minus.T @ root, 0.5) @ inverse
    return torch.cat([_power(mean, 0.5) @ plus, _power(mean, -0.5) @ minus], 1)


def _angle(before: Tensor, after: Tensor) -> float:
    """Frobenius norm of the logarithm of the rotation that takes `before` closest to `after`."""
    u, _, v = torch.linalg.svd(after @ before.T)
    rotation = u @ v
    # Small angles are in R - R^T: phases of eigenvalues that meet are known to the root of rounding.
    small: float = ((rotation - rotation.T) / 2).norm().item()
    if small < 1e-3 and rotation.trace() > 0:
        return small
    angle: float = torch.linalg.eigvals(rotation).log().abs().norm().item()
    return angle


class FisherMeter(Meter):
    """Curvature modulo the group: what :func:`ddc.geometry.spectrum` reads, as numbers.

    ``smallest``, ``largest``, ``trace``, ``log_determinant`` and ``effective_rank``, with ``_error`` where
    they have one; ``removed``, ``dead``, ``zeros``, ``zeros_in[tensor]``, ``gap`` and
    ``samples_per_parameter``; ``few_samples`` where that was allowed. It is measured once when the meter is
    made, so that what cannot be measured is refused before training.

    Parameters
    ----------
    make : callable
        Returns the curvature at the weights as they stand: ``lambda: GaussNewton(model, loss,
        batches=batches)``.
    symmetries : SymmetryGroup, optional
    every : int
    **options
        Options of :func:`ddc.geometry.spectrum`.

    Attributes
    ----------
    spectrum : Spectrum
        The last one, with notes.
    """

    def __init__(
        self,
        make: Callable[[], Curvature],
        symmetries: SymmetryGroup | None = None,
        *,
        every: int = 1,
        **options: Any,
    ) -> None:
        self.every = _check_every(every)
        self._make = make
        self._symmetries = symmetries
        self._options = options
        self.measure()

    def _curvature(self) -> Curvature | Quotient:
        curvature = self._make()
        if not isinstance(curvature, Curvature):
            raise TypeError(
                f"make must return a Curvature ({GaussNewton.__name__}, ...), "
                f"returned {type(curvature).__name__}"
            )
        return curvature if self._symmetries is None else quotient(curvature, self._symmetries)

    def measure(self) -> dict[str, float]:
        self.spectrum = spectrum(self._curvature(), **self._options)
        read = self.spectrum
        values: dict[str, float] = {}
        for name in ("smallest", "largest", "trace", "log_determinant", "effective_rank"):
            value, error = getattr(read, name)
            values[name] = value
            if error > 0 or math.isnan(error):
                values[f"{name}_error"] = error
        values["removed"] = float(read.removed)
        values["dead"] = float(read.dead)
        if read.zeros is not None:
            values["zeros"] = float(read.zeros)
        values.update({f"zeros_in[{name}]": share for name, share in read.zeros_in})
        if read.gap > 0:
            values["gap"] = read.gap
        values["samples_per_parameter"] = read.samples_per_parameter
        if read.few_samples:
            values["few_samples"] = 1.0
        return values


class ArcMeter(Meter):
    """Arc length on the quotient since the meter was made, every step counted.

    Parameters
    ----------
    model : torch.nn.Module
    symmetries : SymmetryGroup, optional
        Without one it is the length of the steps themselves.
    every : int
        Steps between measurements; steps between these count all the same.
    """

    def __init__(
        self, model: nn.Module, symmetries: SymmetryGroup | None = None, *, every: int = 1
    ) -> None:
        self.every = _check_every(every)
        self._trajectory = Trajectory(model, symmetries)

    def after_step(self) -> None:
        self._trajectory.update()

    def measure(self) -> dict[str, float]:
        return {"length": self._trajectory.arc}


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
        self._latest: dict[str, float] = {}
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
            self._latest.update(values)

    @property
    def latest(self) -> dict[str, float]:
        """What every meter measured last."""
        return dict(self._latest)

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
