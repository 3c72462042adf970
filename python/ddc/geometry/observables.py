"""What is read off activations, weights and trajectories, and the rate at which it vanishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ddc import _C
from ddc._model import parameters_of
from ddc.discovery import BatchLoss, Evaluation, Loss
from ddc.measure import AdamWMoments
from ddc.symmetry import SymmetryGroup


@dataclass(frozen=True)
class Node:
    """What :func:`activations` saw at one module.

    Attributes
    ----------
    sigma_min, sigma_max : float
        Singular values of the matrix of outputs, a row per input and position.
    effective_rank : float
        exp(H(p)) of the shares p of singular values in their sum.
    rows, channels : int
        Shape of that matrix.
    dead : DeadUnits or None
        Units of a ReLU whose inputs never cross zero.
    """

    sigma_min: float
    sigma_max: float
    effective_rank: float
    rows: int
    channels: int
    dead: _C.DeadUnits | None = None


class _Recorder:
    def __init__(self, most: int) -> None:
        self.most = most
        self.outputs: dict[str, list[Tensor]] = {}
        self.inputs: dict[str, list[Tensor]] = {}

    def _add(self, where: dict[str, list[Tensor]], name: str, value: Any) -> None:
        if isinstance(value, (tuple, list)) and value:
            value = value[0]
        elif not isinstance(value, Tensor):
            value = getattr(value, "last_hidden_state", None)
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 2:
            return
        kept = where.setdefault(name, [])
        left = self.most - sum(each.shape[0] for each in kept)
        if left > 0:
            kept.append(value.detach().reshape(-1, value.shape[-1])[:left].cpu().clone())

    def hook(self, module: nn.Module, name: str) -> Any:
        def note(_: nn.Module, inputs: Any, output: Any) -> None:
            self._add(self.outputs, name, output)
            if isinstance(module, nn.ReLU):
                self._add(self.inputs, name, inputs)

        return module.register_forward_hook(note)


def activations(
    model: nn.Module,
    loss: Loss | BatchLoss | None = None,
    *,
    dataloader: Iterable[Any] | None = None,
    batches: Sequence[Any] | None = None,
    max_batches: int = 8,
    modules: str | Iterable[str] | None = None,
    max_rows: int = 16384,
) -> dict[str, Node]:
    """Spectra of activations, and dead units, at the modules of a model.

    Parameters
    ----------
    model, loss, dataloader, batches, max_batches
        As for :func:`ddc.discover`. The loss is what calls the model.
    modules : str or iterable of str, optional
        Names of modules, or patterns. By default every member of a ModuleList (the layers, whose outputs are
        the residual stream), of a Sequential, and every ReLU.
    max_rows : int
        Inputs and positions that are kept per module at most, which bounds the memory.

    Returns
    -------
    dict
        By name of the module, in the order of the model.
    """
    named = dict(model.named_modules())
    if modules is None:
        members = {
            id(child)
            for each in named.values()
            if isinstance(each, (nn.ModuleList, nn.Sequential))
            for child in each.children()
        }
        chosen = [
            name for name, each in named.items() if id(each) in members or isinstance(each, nn.ReLU)
        ]
    else:
        patterns = [modules] if isinstance(modules, str) else list(modules)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in named):
                raise ValueError(f"modules: no module matches '{pattern}'")
        chosen = [name for name in named if any(fnmatchcase(name, each) for each in patterns)]
    recorder = _Recorder(max_rows)
    evaluation = Evaluation(model, loss, dataloader, batches, max_batches)
    with evaluation as evaluate:
        handles = [recorder.hook(named[name], name) for name in chosen]
        try:
            with torch.no_grad():
                for number in range(1 if evaluate.batches is None else len(evaluate.batches)):
                    evaluate(number)
        finally:
            for handle in handles:
                handle.remove()
    result = {}
    for name in chosen:
        if name not in recorder.outputs:
            continue
        rows = torch.cat(recorder.outputs[name])
        try:
            seen = _C.activation_spectrum(rows)
            dead = (
                _C.dead_units(torch.cat(recorder.inputs[name])) if name in recorder.inputs else None
            )
        except ValueError as error:
            raise ValueError(f"module '{name}': {error}") from None
        result[name] = Node(
            seen.sigma_min, seen.sigma_max, seen.effective_rank, rows.shape[0], rows.shape[1], dead
        )
    return result


def joint_norms(entering: Tensor, leaving: Tensor, degree: float = 1.0) -> Tensor:
    """Per unit |in|^degree |out|, what no rescaling changes.

    The units are the first axis of `entering` and the last of `leaving`.
    """
    return _C.joint_norms(entering, leaving, degree)


def dead_directions(weight: Tensor, floor: float = 1e-3) -> Tensor:
    """Left singular directions of a weight below `floor` times its largest singular value, as columns."""
    return _C.dead_directions(weight, floor)


def axis_alignment(directions: Tensor) -> float | None:
    """Mean over orthonormal columns of the square of the largest entry: 1 if each is an axis."""
    return _C.axis_alignment(directions)


def cluster_gap(values: Tensor) -> tuple[float, int]:
    """Largest ratio of neighbours among sorted positive numbers, and how many lie below it."""
    return _C.cluster_gap(values)


class Trajectory:
    """Arc length on the quotient of what a model does, whoever trains it.

    A step counts by the length of its part that is orthogonal to the orbits.

    Parameters
    ----------
    model : torch.nn.Module
    symmetries : SymmetryGroup, optional
        Without one the length of the steps themselves is added up.

    Attributes
    ----------
    arc : float
        So far.
    """

    def __init__(self, model: nn.Module, symmetries: SymmetryGroup | None = None) -> None:
        self._parameters = parameters_of(model)
        if symmetries is not None:
            symmetries._core.check(self._parameters)
        self._gauges = [] if symmetries is None else symmetries._core.gauges()
        self._before = self._copy()
        self.arc = 0.0

    def _copy(self) -> list[tuple[str, Tensor]]:
        return [(name, tensor.detach().clone()) for name, tensor in self._parameters]

    def update(self) -> float:
        """Add the step that was made since the last call; returns the arc length."""
        now = self._copy()
        moved = [
            (name, tensor - before)
            for (name, tensor), (_, before) in zip(now, self._before, strict=True)
        ]
        self.arc += _C.horizontal_length(self._gauges, self._before, moved)
        self._before = now
        return self.arc


def step_validity(moments: AdamWMoments, *, lr: float, beta2: float = 0.999) -> _C.StepValidity:
    """Whether a step is small enough for the paper's bound on its bias: lr kappa(P) / tau <= 0.1.

    kappa is the condition number of Adam's preconditioner P, tau = 1 / (1 - beta2).
    """
    return _C.step_validity(list(moments.preconditioner.items()), lr=lr, beta2=beta2)


def rate(
    arc: Sequence[float],
    values: Sequence[float] | Mapping[str, Sequence[float]],
    *,
    of: str = "curvature",
    end: float | None = None,
    min_points: int = 20,
    min_decades: float = 0.5,
    max_ascent: float = 0.02,
    max_drift: float = 0.1,
    max_uncertainty: float = 0.1,
    min_r_squared: float = 0.99,
    confidence: float = 0.95,
    resamples: int = 400,
    seed: int = 0,
) -> Any:
    """Rate at which an observable vanishes along a trajectory, or why none can be read.

    The slope of its logarithm against that of the distance to the minimum along the arc is fitted in the
    longest window at the end of the trajectory that passes the gate: the observable descends, the slopes of
    both halves of the way agree, and a bootstrap over blocks of residuals knows the slope well enough.

    Parameters
    ----------
    arc : sequence of float
        Arc length on the quotient at every point (:class:`Trajectory`).
    values : sequence of float, or dict of such
        Observable at every point. Of a dict (a grid of cells, layer and observable) every entry is read.
    of : str
        ``curvature``, an eigenvalue of the Fisher matrix, of slope 2 (k - 1), or ``loss``, of slope 2 k.
    end : float, optional
        Arc length at which the minimum is. It is fitted if it is not known.
    min_points, min_decades, max_ascent, max_drift, max_uncertainty, min_r_squared, confidence, resamples, \
    seed
        Options of the gate.

    Returns
    -------
    Rate, or dict of Rate
        ``verdict`` is ``readable``, ``not_asymptotic`` or ``ascending``, with the ``reason``.
    """
    if isinstance(values, Mapping):
        return {
            name: rate(
                arc,
                each,
                of=of,
                end=end,
                min_points=min_points,
                min_decades=min_decades,
                max_ascent=max_ascent,
                max_drift=max_drift,
                max_uncertainty=max_uncertainty,
                min_r_squared=min_r_squared,
                confidence=confidence,
                resamples=resamples,
                seed=seed,
            )
            for name, each in values.items()
        }
    return _C.rate(
        list(arc),
        list(values),
        of=of,
        end=end,
        min_points=min_points,
        min_decades=min_decades,
        max_ascent=max_ascent,
        max_drift=max_drift,
        max_uncertainty=max_uncertainty,
        min_r_squared=min_r_squared,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )
