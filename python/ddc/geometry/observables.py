"""What is read off activations, weights and trajectories, and the rate at which it vanishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

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
        Singular values of the matrix of outputs (or inputs), a row per input and position.
    effective_rank : float
        exp(H(p)) of the shares p of singular values in their sum.
    rows, channels : int
        Shape of that matrix. With fewer rows than channels no rank can be above the number of rows.
    dead : DeadUnits or None
        Units of a ReLU whose inputs never cross zero.
    """

    sigma_min: float
    sigma_max: float
    effective_rank: float
    rows: int
    channels: int
    dead: _C.DeadUnits | None = None


# Which axis of what these return is that of channels, counted from the end; the second of _SECOND; what keeps
# the shape of its inputs (_KEEP) keeps theirs.
_CHANNELS = {
    **{f"{kind}{n}d": -1 - n for kind in ("conv", "conv_transpose") for n in (1, 2, 3)},
    **{
        f"{kind}{n}d": -1 - n
        for kind in (
            "max_pool",
            "avg_pool",
            "lp_pool",
            "adaptive_max_pool",
            "adaptive_avg_pool",
        )
        for n in (1, 2, 3)
    },
    **dict.fromkeys(("linear", "layer_norm", "rms_norm", "embedding"), -1),
}
_SECOND = frozenset({"batch_norm", "group_norm", "instance_norm"})
_KEEP = frozenset(
    {
        *("add", "sub", "mul", "div", "true_divide", "neg", "where", "lerp", "addcmul"),
        *("__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__"),
        *("__mul__", "__rmul__", "__imul__", "__truediv__", "__itruediv__"),
        *("add_", "sub_", "mul_", "div_", "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_"),
        *("elu", "celu", "selu", "gelu", "silu", "mish", "softplus", "prelu", "rrelu", "hardtanh"),
        *("hardswish", "hardsigmoid", "sigmoid", "tanh", "sin", "exp", "square", "pow", "clamp"),
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout"),
        *("contiguous", "detach", "clone", "to", "float", "double", "half", "bfloat16", "type_as"),
    }
)


class _Layouts(TorchFunctionMode):
    """Follows, through the functions that a model calls, which axis of a tensor is that of channels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._axis = WeakIdKeyDictionary()
        self._mixed = any(isinstance(each, _ConvNd) for each in model.modules())

    def of(self, tensor: Tensor) -> int | None:
        """Axis, from the end; None in a model with convolutions, where nothing tells."""
        axis: int | None = self._axis.get(tensor)  # type: ignore[no-untyped-call]
        if axis is None and (tensor.dim() == 2 or not self._mixed):
            return -1
        return axis

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(first, Tensor):
            return result
        axis = _CHANNELS.get(name)
        if name in _SECOND:
            axis = 1 - first.dim()
        elif name in _KEEP:
            axes = {
                axis
                for each in args
                if isinstance(each, Tensor) and (axis := self._kept(each, first)) is not None
            }
            axis = axes.pop() if len(axes) == 1 else None
        if axis is not None:
            self._axis[first] = axis
            self._mixed = self._mixed or (axis != -1 and first.dim() > 2)
        return result

    def _kept(self, given: Tensor, result: Tensor) -> int | None:
        if given.shape == result.shape:
            known: int | None = self._axis.get(given)  # type: ignore[no-untyped-call]
            return known
        # A gain or a bias per channel of the last axis.
        if isinstance(given, nn.Parameter) and given.shape == result.shape[-1:]:
            return -1
        return None


class _Recorder:
    def __init__(self, model: nn.Module, most: int, channels: Mapping[str, int]) -> None:
        self.most = most
        self.channels = channels
        self.layouts = _Layouts(model)
        self.outputs: dict[str, list[Tensor]] = {}
        self.inputs: dict[str, list[Tensor]] = {}
        self._entered: dict[str, Tensor] = {}
        self._copies: dict[str, Tensor] = {}

    def _add(
        self, where: dict[str, list[Tensor]], name: str, what: str, values: Tensor, axis: int | None
    ) -> None:
        if not values.is_floating_point() or values.dim() < 2:
            return
        if axis is None:
            raise ValueError(
                f"module '{name}': nothing tells which axis of its {what} of shape "
                f"{tuple(values.shape)} is that of channels, in a model that has convolutions: say so "
                f"with channels={{'{name}': 1}}, or choose other modules"
            )
        kept = where.setdefault(name, [])
        left = self.most - sum(each.shape[0] for each in kept)
        if left > 0:
            kept.append(values.detach().movedim(axis, -1).flatten(0, -2)[:left].cpu().clone())

    def hooks(self, module: nn.Module, name: str, *, outputs: bool, inputs: bool) -> list[Any]:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            given = _tensor_of(args or tuple(kwargs.values()))
            if given is not None:
                # What acts in place changes it.
                self._entered[name] = given
                self._copies[name] = given.detach().clone()

        def after(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            left = _tensor_of(output)
            axis = self.channels.get(name)
            of_output = axis if axis is not None or left is None else self.layouts.of(left)
            if outputs and left is not None:
                self._add(self.outputs, name, "outputs", left, of_output)
            entered, copy = self._entered.pop(name, None), self._copies.pop(name, None)
            if entered is None or copy is None:
                return
            of_input = axis if axis is not None else self.layouts.of(entered)
            if of_input is None and left is not None and left.shape == copy.shape:
                of_input = of_output
            self._add(self.inputs, name, "inputs", copy, of_input)

        handles = [module.register_forward_hook(after, with_kwargs=True)]
        if inputs:
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        return handles


def _tensor_of(value: Any) -> Tensor | None:
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    elif not isinstance(value, Tensor):
        value = getattr(value, "last_hidden_state", None)
    return value if isinstance(value, Tensor) else None


def _matching(
    patterns: str | Iterable[str], named: Mapping[str, nn.Module], option: str
) -> set[str]:
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in given:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ValueError(f"{option}: no module matches '{pattern}'")
    return {name for name in named if any(fnmatchcase(name, each) for each in given)}


def activations(
    model: nn.Module,
    loss: Loss | BatchLoss | None = None,
    *,
    dataloader: Iterable[Any] | None = None,
    batches: Sequence[Any] | None = None,
    max_batches: int = 8,
    modules: str | Iterable[str] | None = None,
    inputs: str | Iterable[str] | None = None,
    channels: Mapping[str, int] | None = None,
    max_rows: int = 16384,
) -> dict[str, Node]:
    """Spectra of activations, and dead units, at the modules of a model.

    Channels are the second axis of what convolutions, pooling, batch and group norms return, and of what the
    operations behind them make of that; the last axis of what linear layers, embeddings and other norms
    return. Every other position of the other axes is a row.

    Parameters
    ----------
    model, loss, dataloader, batches, max_batches
        As for :func:`ddc.discover`. The loss is what calls the model.
    modules : str or iterable of str, optional
        Names of modules, or patterns, whose outputs are looked at. By default every member of a ModuleList
        (the layers, whose outputs are the residual stream), of a Sequential, and every ReLU.
    inputs : str or iterable of str, optional
        Modules whose inputs are looked at, under their name and ``.input``. By default every norm (what it
        reads is a node of the residual stream), if `modules` is not given.
    channels : dict, optional
        Axis of channels by name of the module, where nothing tells which it is: in a model with convolutions,
        behind operations that move axes.
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
        chosen = {
            name for name, each in named.items() if id(each) in members or isinstance(each, nn.ReLU)
        }
    else:
        chosen = _matching(modules, named, "modules")
    if inputs is not None:
        read = _matching(inputs, named, "inputs")
    elif modules is None:
        read = {name for name, each in named.items() if _is_norm(each)}
    else:
        read = set()
    for name in channels or {}:
        if name not in named:
            raise ValueError(f"channels: there is no module '{name}'")
    recorder = _Recorder(model, max_rows, channels or {})
    evaluation = Evaluation(model, loss, dataloader, batches, max_batches)
    with evaluation as evaluate:
        handles = [
            handle
            for name, module in named.items()
            if name in chosen or name in read
            for handle in recorder.hooks(
                module,
                name,
                outputs=name in chosen,
                inputs=name in read or isinstance(module, nn.ReLU),
            )
        ]
        try:
            with torch.no_grad(), recorder.layouts:
                for number in range(1 if evaluate.batches is None else len(evaluate.batches)):
                    evaluate(number)
        finally:
            for handle in handles:
                handle.remove()
    result = {}
    for name, module in named.items():
        try:
            if name in read and name in recorder.inputs:
                result[f"{name}.input"] = _node(torch.cat(recorder.inputs[name]))
            if name in chosen and name in recorder.outputs:
                entering = recorder.inputs.get(name) if isinstance(module, nn.ReLU) else None
                result[name] = _node(
                    torch.cat(recorder.outputs[name]), torch.cat(entering) if entering else None
                )
        except ValueError as error:
            raise ValueError(f"module '{name}': {error}") from None
    return result


def _is_norm(module: nn.Module) -> bool:
    # Libraries of models write their own: LlamaRMSNorm, T5LayerNorm, LayerNorm2d.
    name = type(module).__name__
    return isinstance(module, (_NormBase, nn.LayerNorm, nn.GroupNorm)) or any(
        part in name for part in ("RMSNorm", "LayerNorm")
    )


def _node(rows: Tensor, entering: Tensor | None = None) -> Node:
    seen = _C.activation_spectrum(rows)
    dead = None if entering is None else _C.dead_units(entering)
    return Node(
        seen.sigma_min, seen.sigma_max, seen.effective_rank, rows.shape[0], rows.shape[1], dead
    )


def joint_norms(entering: Tensor, leaving: Tensor, degree: float = 1.0) -> Tensor:
    """Per unit |in|^degree |out|, what no rescaling changes.

    The units are the first axis of `entering` and the last of `leaving`.
    """
    return _C.joint_norms(entering, leaving, degree)


def gate_dead(
    entering: Tensor, leaving: Tensor, *, floor: float = 1e-3, degree: float = 1.0
) -> int:
    """Number of units whose joint norm is below an absolute floor.

    A collapse that is nearly uniform hides from floors that are relative to the median.
    """
    if not floor > 0:
        raise ValueError(f"floor must be above 0, is {floor}")
    return int((joint_norms(entering, leaving, degree) < floor).sum())


def row_norms(weight: Tensor) -> Tensor:
    """Norm per index of the first axis: of what enters each unit."""
    norms: Tensor = weight.detach().flatten(1).norm(dim=1)
    return norms


def column_norms(weight: Tensor) -> Tensor:
    """Norm per index of the second axis: of what each input gives to all units."""
    return row_norms(weight.detach().movedim(1, 0))


def dead_directions(weight: Tensor, floor: float = 1e-3) -> Tensor:
    """Left singular directions of a weight below `floor` times its largest singular value, as columns.

    A weight with fewer columns than rows is refused: directions beyond the number of columns are zero
    whatever it is. Of activations, a row per unit, take as many inputs as there are units.
    """
    return _C.dead_directions(weight, floor)


def axis_alignment(directions: Tensor) -> float | None:
    """Mean over orthonormal columns of the square of the largest entry: 1 if each is an axis.

    The paper's formula. It depends on the basis, which of singular directions with one value (zero) is
    arbitrary; :func:`space_alignment` does not.
    """
    return _C.axis_alignment(directions)


def space_alignment(directions: Tensor) -> float | None:
    """tr(diag(P)^2) / rank(P) of the projection P on orthonormal columns: 1 if and only if axes span them."""
    return _C.space_alignment(directions)


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
