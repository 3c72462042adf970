"""Measures of what optimizers do to symmetries, whoever trains.

Symmetries are given as a :class:`ddc.SymmetryGroup`, a gauge, or a list of gauges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ddc import _C
from ddc._C import Engagement, Finding, Gauge, Leakage, PredictedDrift, Verdict
from ddc._model import parameters_of
from ddc.discovery import BatchLoss, Evaluation, Loss
from ddc.symmetry import SymmetryGroup

Symmetries = SymmetryGroup | Gauge | Finding | Sequence[Gauge | Finding]

__all__ = [
    "AdamWMoments",
    "Engagement",
    "GaugeCoordinates",
    "Leakage",
    "PredictedDrift",
    "Verdict",
    "engagement",
    "gate",
    "leakage",
    "predicted_drift",
]


def _gauge(one: Gauge | Finding) -> Gauge:
    if isinstance(one, Finding):
        return one.gauge
    if isinstance(one, Gauge):
        return one
    raise TypeError(f"a gauge must be a ddc.Gauge, is {type(one).__name__}")


def _gauges(symmetries: Symmetries) -> list[Gauge]:
    if isinstance(symmetries, SymmetryGroup):
        return symmetries._core.gauges()
    if isinstance(symmetries, (Gauge, Finding)):
        return [_gauge(symmetries)]
    return [_gauge(each) for each in symmetries]


def engagement(
    model: nn.Module,
    loss: Loss | BatchLoss | None,
    symmetries: Symmetries,
    *,
    steps: int = 10,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    dataloader: Iterable[Any] | None = None,
    batches: Sequence[Any] | None = None,
    max_batches: int = 8,
) -> dict[str, Engagement]:
    """Movement of every gauge coordinate over a few steps of AdamW, and of DDCAdam.

    Both start from the same point and see the same batches. The model is back where it was afterwards,
    bit for bit. DDCAdam's numbers are rounding, but for linear gauges and rotations that share tensors
    with other gauges, where they are of second order in `lr`.

    Parameters
    ----------
    model, loss, dataloader, batches, max_batches
        As for :func:`ddc.discover`.
    symmetries : SymmetryGroup, Gauge, or list of Gauge
        What to measure. DDCAdam binds all of it.
    steps : int
        Number of steps.
    lr, weight_decay : float
        Options of both optimizers.

    Returns
    -------
    dict
        By name of the gauge: ``plain`` (AdamW), ``lifted`` (DDCAdam), and ``engaged``, whether AdamW moves
        it by more than rounding.
    """
    gauges = _gauges(symmetries)
    with Evaluation(model, loss, dataloader, batches, max_batches) as evaluate:
        measured = _C.engagement(
            gauges, evaluate.parameters, evaluate, steps=steps, lr=lr, weight_decay=weight_decay
        )
    return {gauge.name: each for gauge, each in zip(gauges, measured, strict=True)}


def gate(
    symmetries: Symmetries,
    model: nn.Module,
    loss: Loss | BatchLoss | None = None,
    *,
    seed: int = 0,
    dataloader: Iterable[Any] | None = None,
    batches: Sequence[Any] | None = None,
    max_batches: int = 8,
) -> Verdict:
    """Verdict on gauges: random elements of the group, small and large, must not change the loss.

    Several gauges are tried at once, by elements of their product; try each alone first. The model is
    back where it was afterwards, bit for bit.

    Parameters
    ----------
    symmetries : SymmetryGroup, Gauge, or list of Gauge
        What to try.
    model, loss, dataloader, batches, max_batches
        As for :func:`ddc.discover`.
    seed : int
        Seed of the elements.

    Returns
    -------
    Verdict
        ``passed``, the ``residual`` and the ``tolerance`` up to which it passes, and which was the
        ``worst``, loss or outputs.
    """
    gauges = _gauges(symmetries)
    with Evaluation(model, loss, dataloader, batches, max_batches) as evaluate:
        return _C.gate(gauges, evaluate.parameters, evaluate, seed=seed)


class GaugeCoordinates:
    """Observer of the gauge coordinates of a model, whoever trains it.

    A gauge coordinate tells where on its orbit a gauge is: for a scale, the log of the ratio of the two
    sides. Its units are those that the parameters have when the observer is made.

    Parameters
    ----------
    model : torch.nn.Module
    symmetries : SymmetryGroup, Gauge, or list of Gauge

    Examples
    --------
    >>> coordinates = ddc.measure.GaugeCoordinates(model, group)   # doctest: +SKIP
    >>> coordinates.measure()["0.weight:rescale"]                  # doctest: +SKIP
    """

    def __init__(self, model: nn.Module, symmetries: Symmetries) -> None:
        gauges = _gauges(symmetries)
        self._names = [gauge.name for gauge in gauges]
        self._core = _C.GaugeCoordinates(parameters_of(model), gauges)

    def measure(self) -> dict[str, Tensor]:
        """Coordinates now, by name of the gauge.

        One number per channel, NaN where a side is zero; empty for a rotation, which has none.
        """
        return dict(zip(self._names, self._core.measure(), strict=True))


class AdamWMoments:
    """Moments that :class:`torch.optim.AdamW` makes of gradients, to look at without a step.

    Parameters
    ----------
    betas : tuple of float
    eps : float

    Examples
    --------
    >>> moments = ddc.measure.AdamWMoments()                                        # doctest: +SKIP
    >>> loss(model).backward()                                                      # doctest: +SKIP
    >>> moments.update(model)                                                       # doctest: +SKIP
    >>> ddc.measure.predicted_drift(gauge, model, moments, lr=1e-3).first_order     # doctest: +SKIP
    """

    def __init__(self, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        self._core = _C.AdamWMoments(beta1=betas[0], beta2=betas[1], eps=eps)

    def update(self, gradients: nn.Module | Mapping[str, Tensor]) -> None:
        """Take the gradients of one step.

        Parameters
        ----------
        gradients : Module or dict
            Gradients by name of the parameter, or a model whose parameters have them. A parameter
            without one is left alone.
        """
        if isinstance(gradients, nn.Module):
            named = [(name, p.grad) for name, p in parameters_of(gradients) if p.grad is not None]
        else:
            named = list(gradients.items())
        self._core.update(named)

    @property
    def direction(self) -> dict[str, Tensor]:
        """Update direction of the last step, preconditioner times momentum, by name."""
        return self._core.direction

    @property
    def preconditioner(self) -> dict[str, Tensor]:
        """One over the root of the second moment, plus eps, by name."""
        return self._core.preconditioner

    @property
    def momentum(self) -> dict[str, Tensor]:
        """First moment, corrected for its bias, by name."""
        return self._core.momentum


def leakage(gauge: Gauge | Finding, model: nn.Module, moments: AdamWMoments) -> Leakage:
    """Part of AdamW's update direction that points along the orbit of a gauge, in two parts.

    It is zero for a gradient of an invariant loss and a preconditioner that is one number. Known for
    scales, and for rotations of weights as they are stored.

    Parameters
    ----------
    gauge : Gauge
    model : torch.nn.Module
        The weights.
    moments : AdamWMoments
        Momentum and preconditioner.

    Returns
    -------
    Leakage
        ``mean``, what would be there with one number per tensor for a preconditioner, ``covariance``, the
        rest, and ``total``.
    """
    return _C.leakage(
        _gauge(gauge),
        parameters_of(model),
        list(moments.preconditioner.items()),
        list(moments.momentum.items()),
    )


def predicted_drift(
    gauge: Gauge | Finding,
    model: nn.Module,
    direction: AdamWMoments | Mapping[str, Tensor],
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
) -> PredictedDrift:
    """Change of a gauge coordinate in the next step, from the weights and the update direction alone.

    The step is ``W -> (1 - lr * weight_decay) W - lr * direction``. Known for scales, and for rotations of
    weights as they are stored.

    Parameters
    ----------
    gauge : Gauge
    model : torch.nn.Module
        The weights, before the step.
    direction : AdamWMoments or dict
        Update direction, or that of any other optimizer by name of the parameter.
    lr, weight_decay : float
        Options of the step.

    Returns
    -------
    PredictedDrift
        ``first_order`` and ``second_order``, the latter including the former.
    """
    given = direction.direction if isinstance(direction, AdamWMoments) else direction
    return _C.predicted_drift(
        _gauge(gauge), parameters_of(model), list(given.items()), lr=lr, weight_decay=weight_decay
    )
