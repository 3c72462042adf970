"""Models modulo symmetry: how far two of them are apart, in weights, along orbits, and beyond them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ddc import _C
from ddc._model import buffers_of, parameters_of, unwrap

if TYPE_CHECKING:
    from ddc.permutations import Permutations, Step
    from ddc.symmetry import Element, SymmetryGroup

Model = nn.Module | Mapping[str, Tensor]
Named = list[tuple[str, Tensor]]
Parts = list[tuple[str, Tensor]]

# Gauges that share tensors are turned one after the other, so often at most.
_SWEEPS = 100
# Rounds of turning and permuting, at most.
_ROUNDS = 20


@dataclass(frozen=True)
class TensorDifference:
    """Difference of one tensor in two models.

    Attributes
    ----------
    name : str
    weights : float
        The norm of the difference as the tensors are stored, relative to the norm of one (the root of the
        mean of both squares, or a thousandth of that of the largest tensor).
    modulo : float
        The same at the canonical place, and turned there next to each other: what no symmetry explains.
    """

    name: str
    weights: float
    modulo: float


@dataclass(frozen=True)
class GaugeDifference:
    """How far two models are apart along the orbit of one gauge: root mean squares.

    Where orbits of two gauges overlap (shifts of the rows and of the columns of one matrix), what they have
    in common is counted once, at either.

    Attributes
    ----------
    name, kind, group : str
    log_scale : float or None
        Logarithms of factors, for scales; logarithms of singular values, for linear gauges.
    angle : float or None
        Angles, in radians, for rotations and linear gauges.
    shift : float or None
        Vectors that are added, for shifts and exchanges, in units of the second model's weights.
    """

    name: str
    kind: str
    group: str
    log_scale: float | None = None
    angle: float | None = None
    shift: float | None = None


@dataclass(frozen=True)
class FunctionDifference:
    """How far two models are apart as functions, on batches.

    Attributes
    ----------
    batches : int
    first_loss, second_loss : float
        Means over the batches.
    outputs : float or None
        The root mean square of the difference of outputs, relative to that of the second model's. None where
        the loss shows no outputs of the model, or is blind to a shift of them.
    divergence : float or None
        The mean Kullback-Leibler divergence of the second model's predictions from the first's, in nats,
        where outputs are logits: the loss is blind to a shift of them (a cross-entropy).
    """

    batches: int
    first_loss: float
    second_loss: float
    outputs: float | None = None
    divergence: float | None = None

    def __str__(self) -> str:
        rows = [
            ("as functions, batches", str(self.batches)),
            ("loss of the first", f"{self.first_loss:.6g}"),
            ("loss of the second", f"{self.second_loss:.6g}"),
        ]
        if self.outputs is not None:
            rows.append(("difference of outputs", f"{self.outputs:.2e}"))
        if self.divergence is not None:
            rows.append(("divergence of predictions", f"{self.divergence:.2e}"))
        return _table(rows, 1)


@dataclass(frozen=True)
class Difference:
    """Differences of two models, in weights, along orbits and modulo symmetry.

    Attributes
    ----------
    weights, modulo : float
        Differences over all tensors together.
    tensors : list of TensorDifference
    gauges : list of GaugeDifference
    function : FunctionDifference or None
        Where a model to evaluate them in was given.
    """

    weights: float
    modulo: float
    tensors: list[TensorDifference]
    gauges: list[GaugeDifference]
    function: FunctionDifference | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        rows = [("tensor", "weights", "modulo symmetry")]
        rows += [(t.name, f"{t.weights:.2e}", f"{t.modulo:.2e}") for t in self.tensors]
        rows += [("all", f"{self.weights:.2e}", f"{self.modulo:.2e}")]
        orbits = [("gauge", "kind", "group", "log-scale", "angle", "shift")]
        for g in self.gauges:
            numbers = _number(g.log_scale), _number(g.angle), _number(g.shift)
            orbits.append((g.name, g.kind, g.group, *numbers))
        parts = [_table(rows, 1), _table(orbits, 3)]
        if self.function is not None:
            parts.append(str(self.function))
        return "\n\n".join(parts)


def difference(
    group: SymmetryGroup, a: Model, b: Model, permutations: Permutations | None = None
) -> Difference:
    """See :meth:`ddc.SymmetryGroup.difference`."""
    first, second = _copies(group, a, "the first model"), _copies(group, b, "the second model")
    _order_(group, first, second, permutations)
    placed = _place_together(group, first, second)
    orbits = _along_orbits(group, first, second, placed)
    return Difference(
        weights=_total(first, second),
        modulo=_total(placed.first, placed.second),
        tensors=[
            TensorDifference(name, weights, modulo)
            for (name, _), weights, modulo in zip(
                first, _each(first, second), _each(placed.first, placed.second), strict=True
            )
        ],
        gauges=orbits,
    )


def distance(
    group: SymmetryGroup, a: Model, b: Model, permutations: Permutations | None = None
) -> float:
    """See :meth:`ddc.SymmetryGroup.distance`."""
    first, second = _copies(group, a, "the first model"), _copies(group, b, "the second model")
    _order_(group, first, second, permutations)
    placed = _place_together(group, first, second)
    return _total(placed.first, placed.second)


def function_difference(
    group: SymmetryGroup,
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    batches: int = 8,
) -> FunctionDifference:
    """How far two checkpoints are apart as functions.

    Parameters
    ----------
    group : SymmetryGroup
        Loss of the model; tells whether its outputs are logits.
    model : Module
        Takes the weights of both, one after the other, and keeps those of the second.
    loss : callable
        Loss of the model, on a batch that it draws from the generators of torch, numpy or random.
    a, b : dict of tensors by name
    batches : int
    """
    first = _evaluate(model, loss, a, "the first checkpoint", batches)
    second = _evaluate(model, loss, b, "the second checkpoint", batches)
    outputs = divergence = None
    if first.outputs and second.outputs:
        pairs = list(zip(first.outputs, second.outputs, strict=True))
        if any(gauge.kind.startswith("CE") for gauge in group.gauges):
            divergence = math.fsum(_divergence(p, q) for p, q in pairs) / batches
        else:
            apart = math.fsum(float((p - q).square().sum()) for p, q in pairs)
            size = math.fsum(float(q.square().sum()) for _, q in pairs)
            outputs = math.sqrt(apart / max(size, torch.finfo().tiny))
    return FunctionDifference(
        batches,
        math.fsum(first.losses) / batches,
        math.fsum(second.losses) / batches,
        outputs,
        divergence,
    )


@dataclass
class _Evaluated:
    losses: list[float]
    outputs: list[Tensor]


def _evaluate(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    tensors: Mapping[str, Tensor],
    which: str,
    batches: int,
) -> _Evaluated:
    from ddc.discovery import _output_tensor, _seed_generators

    _load(model, tensors, which)
    seen: list[Tensor] = []

    def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
        tensor = _output_tensor(output)
        if tensor is not None:
            seen.append(tensor.detach().double())

    result = _Evaluated([], [])
    with model.register_forward_hook(look):
        for batch in range(batches):
            seen.clear()
            _seed_generators(batch)
            result.losses.append(float(loss(model).detach()))
            if len(seen) == 1:
                result.outputs.append(seen[0])
    if len(result.outputs) != batches:
        result.outputs = []
    return result


def _load(model: nn.Module, tensors: Mapping[str, Tensor], which: str) -> None:
    """Parameters, and those buffers that a checkpoint has."""
    parameters = parameters_of(model)
    buffers = [(name, b) for name, b in unwrap(model).named_buffers() if name in tensors]
    for name, _ in parameters:
        if name not in tensors:
            raise ValueError(f"{which} has no tensor '{name}', which is a parameter of the model")
    for name, own in (*parameters, *buffers):
        if tensors[name].shape != own.shape:
            raise ValueError(
                f"'{name}' of {which} has shape {list(tensors[name].shape)}, in the model "
                f"{list(own.shape)}"
            )
    with torch.no_grad():
        for name, own in (*parameters, *buffers):
            own.copy_(tensors[name])


def _divergence(p: Tensor, q: Tensor) -> float:
    first, second = p.log_softmax(-1), q.log_softmax(-1)
    return float((first.exp() * (first - second)).sum(-1).mean())


def align_(
    group: SymmetryGroup, model: nn.Module, to: Model, permutations: Permutations | None = None
) -> Element:
    """See :meth:`ddc.SymmetryGroup.align_`."""
    from ddc.symmetry import touched

    first, second = _copies(group, model, "the model"), _copies(group, to, "the one to align to")
    for name, tensor in touched(group._core.gauges(), parameters_of(model)):
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"align_: '{name}' is of type {tensor.dtype}: factors near one round to one there, "
                "and the function would change; it needs float32 or float64"
            )
    tensors = dict(parameters_of(model) + buffers_of(model))
    for step in _order_(group, first, second, permutations):
        step.apply_(tensors)
    move = _place_together(group, first, second).move()
    move.apply_(model)
    return move


def _order_(
    group: SymmetryGroup, first: Named, second: Named, permutations: Permutations | None
) -> list[Step]:
    """Brings the units of the first model into the order of the second.

    At the canonical place, which does not depend on the order; in turns with the gauges that mix channels.
    """
    if permutations is None:
        return []
    mine, others = _again(first), _again(second)
    group._place_(mine)
    group._place_(others)
    steps = permutations.match_(mine, others)
    for _ in range(_ROUNDS):
        _turn_(group, mine, others)
        better = permutations.improve_(mine, others)
        steps += better
        if not better:
            break
    for step in steps:
        step.apply_(dict(first))
    return steps


class _Placed:
    """Two models at their canonical place, turned next to each other, and the moves that did it."""

    def __init__(
        self, first: Named, second: Named, to_first: Element, turn: Element, to_second: Element
    ) -> None:
        self.first = first
        self.second = second
        self.to_first = to_first
        self.turn = turn
        self.to_second = to_second

    def move(self) -> Element:
        """From the first model to the place of the second."""
        return self.to_second.inverse() @ self.turn @ self.to_first


def _place_together(group: SymmetryGroup, first: Named, second: Named) -> _Placed:
    from ddc.symmetry import Element

    first, second = _again(first), _again(second)
    to_first, to_second = group._place_(first), group._place_(second)
    turn = Element.of(group, _turn_(group, first, second))
    return _Placed(first, second, to_first, turn, to_second)


def _turn_(group: SymmetryGroup, first: Named, second: Named) -> Parts:
    """Turns the first next to the second by gauges that mix channels, in closed form for each."""
    from ddc.symmetry import touched

    parts: Parts = []
    gauges = [gauge for gauge in group._core.gauges() if gauge.action in ("rotation", "linear")]
    for _ in range(_SWEEPS if len(gauges) > 1 else 1):
        gained = size = 0.0
        for gauge in gauges:
            mine, others = touched([gauge], first), touched([gauge], second)
            overlap = _C.overlap(gauge, mine, others)
            turn = _nearest(gauge, overlap)
            now = overlap.diagonal(dim1=-2, dim2=-1).sum()
            gained += float((overlap * turn).sum() - now)
            size += float(torch.linalg.matrix_norm(overlap, "nuc").sum())
            _C.act_([gauge], [turn], mine)
            parts.append((gauge.name, turn))
        if gained <= 1e-15 * size:
            break
    return parts


def _nearest(gauge: _C.Gauge, overlap: Tensor) -> Tensor:
    """The element with the largest overlap: the orthogonal polar factor.

    Linear gauges too: at the canonical place their Gram matrices are equal, and only rotations are left.
    """
    size = overlap.size(-1)
    eye = torch.eye(size, dtype=overlap.dtype)
    if gauge.fixes_ones:
        ones = torch.ones(size, 1, dtype=overlap.dtype)
        inside = torch.linalg.qr(torch.cat([ones, eye[:, 1:]], 1)).Q[:, 1:]
        turned = _polar(inside.mT @ overlap @ inside)
        result: Tensor = inside @ turned @ inside.mT + 1 / size
        return result
    # Reflections of a plane in which positions turn are no symmetry.
    return _polar(overlap, proper=gauge.action == "rotation" and gauge.block == 2)


def _polar(matrices: Tensor, proper: bool = False) -> Tensor:
    # Directions that do not matter stay as they are.
    scale = torch.linalg.matrix_norm(matrices)[..., None, None]
    eye = torch.eye(matrices.size(-1), dtype=matrices.dtype)
    u, _, vh = torch.linalg.svd(matrices + 1e-14 * scale * eye + torch.finfo().tiny * eye)
    if proper:
        u = torch.cat([u[..., :-1], u[..., -1:] * torch.linalg.det(u @ vh)[..., None, None]], -1)
    result: Tensor = u @ vh
    return result


def _along_orbits(
    group: SymmetryGroup, first: Named, second: Named, placed: _Placed
) -> list[GaugeDifference]:
    """What takes the first model to the place of the second, gauge by gauge."""
    from ddc.symmetry import Element

    action = {gauge.name: gauge.action for gauge in group.gauges}
    rigid = ("scale", "rotation", "linear")
    parts = [part for part in placed.move().parts if action[part[0]] in rigid]
    moved: dict[str, Tensor] = {}
    for name, part in parts:
        if name not in moved:
            moved[name] = part
        else:
            moved[name] = moved[name] + part if action[name] == "scale" else part @ moved[name]
    # Shifts are compared where all else is the same.
    there = _again(first)
    Element.of(group, parts)._act_(there)
    mine = dict(group._place_(there).parts)
    others = dict(placed.to_second.parts)
    result = []
    for gauge in group.gauges:
        what = gauge.name, gauge.kind, gauge.group
        if gauge.action == "scale":
            result.append(GaugeDifference(*what, log_scale=_rms(moved[gauge.name])))
        elif gauge.action in rigid:
            u, s, vh = torch.linalg.svd(moved[gauge.name])
            angle = _rms(torch.linalg.eigvals(u @ vh).angle())
            log_scale = _rms(s.log()) if gauge.action == "linear" else None
            result.append(GaugeDifference(*what, log_scale=log_scale, angle=angle))
        else:
            apart = mine[gauge.name] - others[gauge.name]
            result.append(GaugeDifference(*what, shift=_rms(apart)))
    return result


# ---- Tensors by name ---------------------------------------------------------------------------------


def _copies(group: SymmetryGroup, model: Model, which: str) -> Named:
    """The parameters of a model, as copies in float64, in the order of the group."""
    named = dict(parameters_of(model)) if isinstance(model, nn.Module) else model
    result = []
    for name, shape in group._core.parameters:
        if name not in named:
            near = _C.nearest(name, list(named))
            hint = f"; it has '{near}'" if near else ""
            raise ValueError(f"{which} has no tensor '{name}', of which the symmetries are{hint}")
        tensor = named[name].detach()
        if list(tensor.shape) != shape:
            raise ValueError(
                f"'{name}' of {which} has shape {list(tensor.shape)}, the symmetries are of {shape}"
            )
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"'{name}' of {which} is not finite")
        result.append((name, tensor.to("cpu", torch.float64, copy=True)))
    return result


def _again(named: Named) -> Named:
    return [(name, tensor.clone()) for name, tensor in named]


def _norms(first: Named, second: Named) -> tuple[list[float], list[float]]:
    """Squared norms of the difference of each tensor, and of one of the two."""
    apart, size = [], []
    for (_, a), (_, b) in zip(first, second, strict=True):
        apart.append(float((a - b).norm()))
        size.append(math.sqrt((float(a.square().sum()) + float(b.square().sum())) / 2))
    return apart, size


def _total(first: Named, second: Named) -> float:
    apart, size = _norms(first, second)
    return math.hypot(*apart) / max(math.hypot(*size), torch.finfo().tiny)


def _each(first: Named, second: Named) -> list[float]:
    apart, size = _norms(first, second)
    # Some tensors are empty, but for rounding errors of the others' size.
    least = max(*size, torch.finfo().tiny) / 1000
    return [each / max(own, least) for each, own in zip(apart, size, strict=True)]


def _rms(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def _table(rows: Iterable[Sequence[str]], texts: int) -> str:
    """Columns of text, then columns of numbers."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
