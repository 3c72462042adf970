"""Permutations and signs: symmetries that no optimizer moves along, and that checkpoints differ by."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ddc._model import buffers_of, parameters_of

if TYPE_CHECKING:
    from ddc.symmetry import SymmetryGroup

Named = Sequence[tuple[str, Tensor]]

# What is left of a gradient that vanishes, and of a loss that does not change.
_ZERO = 1e-9
_UNSEEN = 1 << 16
# What may be a router is tried so often, nearest first.
_ROUTERS = 4
_FORMAT = "ddc-permutations-1"


@dataclass(frozen=True)
class PermutedAxis:
    """Axis of a tensor that is permuted: row ``k`` of `indices` belongs to unit ``k``.

    Attributes
    ----------
    tensor : str
    axis : int
    indices : list of list of int
    flips : bool
        Changes its sign where a unit does.
    of : int or None
        Number of a matrix in a stack of them; the axis is one of this matrix then.
    buffer : bool
        The tensor is a buffer (a running mean).
    """

    tensor: str
    axis: int
    indices: tuple[tuple[int, ...], ...]
    flips: bool = False
    of: int | None = None
    buffer: bool = False

    def view(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """What has the axis: the tensor, or one matrix of it."""
        tensor = tensors[self.tensor].detach()
        return tensor if self.of is None else tensor[self.of]

    def entries(self) -> list[tuple[str, int, int | None, int]]:
        """The tensor, axis, matrix and index of all that is permuted."""
        return [(self.tensor, self.axis, self.of, i) for unit in self.indices for i in unit]


@dataclass(frozen=True)
class Permutation:
    """Units, or heads, of a layer that may change places, and perhaps their signs.

    Attributes
    ----------
    name : str
    axes : list of PermutedAxis
        All that changes places with them.
    signs : bool
        Units may change their signs as well: those of the axes that say so.
    """

    name: str
    axes: tuple[PermutedAxis, ...]
    signs: bool = False

    @property
    def units(self) -> int:
        return len(self.axes[0].indices)

    def apply_(self, tensors: Mapping[str, Tensor], order: Tensor, signs: Tensor) -> None:
        """Put unit ``order[k]``, with the k-th sign, at place ``k``.

        Buffers that are not among the tensors stay: where parameters alone are compared.
        """
        with torch.no_grad():
            for axis in self.axes:
                if axis.buffer and axis.tensor not in tensors:
                    continue
                tensor = axis.view(tensors)
                to = torch.tensor(axis.indices, device=tensor.device)
                taken = tensor.index_select(axis.axis, to[order].flatten())
                if axis.flips and self.signs:
                    shape = [1] * tensor.dim()
                    shape[axis.axis] = -1
                    each = signs.to(taken).repeat_interleave(to.size(1)).view(shape)
                    taken = taken * each
                tensor.index_copy_(axis.axis, to.flatten(), taken)

    def units_of(self, tensors: Mapping[str, Tensor], flips: bool | None = None) -> Tensor:
        """All entries of every unit, one unit per row."""
        parts = []
        for axis in self.axes:
            if axis.buffer or (flips is not None and axis.flips != flips):
                continue
            to = torch.tensor(axis.indices)
            taken = axis.view(tensors).index_select(axis.axis, to.flatten())
            front = taken.movedim(axis.axis, 0)
            parts.append(front.reshape(self.units, -1))
        return torch.cat(parts, 1) if parts else torch.zeros(self.units, 0, dtype=torch.float64)

    def best(self, overlap: Tensor, flipped: Tensor) -> tuple[Tensor, Tensor]:
        """Order and signs with the largest sum of overlaps, of units in their places and others."""
        gain = overlap + flipped.abs() if self.signs else overlap + flipped
        order = assignment(gain)
        signs = torch.ones(self.units, dtype=gain.dtype)
        if self.signs:
            signs[flipped[torch.arange(self.units), order] < 0] = -1
        return order, signs


@dataclass(frozen=True)
class Step:
    """Permutation, with the order and the signs that units are given."""

    permutation: Permutation
    order: Tensor
    signs: Tensor

    def apply_(self, tensors: Mapping[str, Tensor]) -> Step:
        self.permutation.apply_(tensors, self.order, self.signs)
        return self


class Permutations(tuple[Permutation, ...]):
    """Permutations of a model, as :func:`ddc.permutations` finds them."""

    def shuffle_(self, model: nn.Module, seed: int) -> nn.Module:
        """Permute the units of a model at random, with their signs: its function stays."""
        generator = torch.Generator().manual_seed(seed)
        tensors = dict(parameters_of(model) + buffers_of(model))
        for each in self:
            order = torch.randperm(each.units, generator=generator)
            signs = torch.randint(0, 2, (each.units,), generator=generator) * 2.0 - 1
            each.apply_(tensors, order, signs)
        return model

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, "permutations": [asdict(each) for each in self]})

    @staticmethod
    def from_json(text: str) -> Permutations:
        try:
            read = json.loads(text)
            if read["format"] != _FORMAT:
                raise ValueError
            return Permutations(_permutation_of(entry) for entry in read["permutations"])
        except (ValueError, TypeError, KeyError):
            raise ValueError("it has no permutations, as Permutations.save writes them") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them as JSON. The file is written as a whole or not at all."""
        folder, name = os.path.split(os.fspath(path))
        with tempfile.NamedTemporaryFile(
            "w", dir=folder or ".", prefix=name, suffix=".part", delete=False
        ) as file:
            try:
                file.write(self.to_json())
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Permutations:
        with open(path) as file:
            text = file.read()
        try:
            return Permutations.from_json(text)
        except ValueError as error:
            raise ValueError(f"'{os.fspath(path)}': {error}") from None

    def check(self, parameters: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Raise unless there are tensors with these names and axes as long as these units need.

        Buffers are permuted where they are among the tensors.
        """
        shapes = dict(parameters)
        for each in self:
            for axis in each.axes:
                if axis.buffer:
                    continue
                shape = shapes.get(axis.tensor)
                if shape is None:
                    raise ValueError(f"'{each.name}' permutes '{axis.tensor}', which is not there")
                last = max(max(unit) for unit in axis.indices)
                matrix = list(shape) if axis.of is None else list(shape)[1:]
                of_none = axis.of is not None and axis.of >= shape[0]
                if of_none or axis.axis >= len(matrix) or last >= matrix[axis.axis]:
                    where = "" if axis.of is None else f" of matrix {axis.of}"
                    raise ValueError(
                        f"'{each.name}' permutes axis {axis.axis}{where} of '{axis.tensor}' up to "
                        f"index {last}, which has shape {list(shape)}"
                    )

    def match_(self, first: Named, second: Named) -> list[Step]:
        """Bring the units of the first model into the order of the second, as far as entries tell.

        Magnitudes of a unit's entries, sorted, do not depend on the order and signs of the layers around
        it; that is where it starts. Then overlaps of entries decide, layer after layer, until none gains.
        """
        mine, others = dict(first), dict(second)
        steps = []
        for each in self:
            a, b = (each.units_of(t).abs().sort(1).values for t in (mine, others))
            step = Step(each, assignment(-torch.cdist(b, a).square()), torch.ones(each.units))
            steps.append(step.apply_(mine))
        return steps

    def improve_(self, first: Named, second: Named) -> list[Step]:
        """One round of changes that bring the first model nearer to the second."""
        mine, others = dict(first), dict(second)
        steps = []
        for each in self:
            fixed = None if not each.signs else False
            overlap = each.units_of(others, fixed) @ each.units_of(mine, fixed).T
            flipped = torch.zeros_like(overlap)
            if each.signs:
                flipped = each.units_of(others, True) @ each.units_of(mine, True).T
            order, signs = each.best(overlap, flipped)
            places = torch.arange(each.units)
            now = (overlap + flipped).diagonal().sum()
            then = (overlap[places, order] + signs * flipped[places, order]).sum()
            if then > now + 1e-12 * (overlap.abs() + flipped.abs()).diagonal().sum():
                steps.append(Step(each, order, signs).apply_(mine))
        return steps


def _permutation_of(entry: Mapping[str, Any]) -> Permutation:
    """A permutation from JSON; raises a ValueError, TypeError or KeyError if it is none."""
    axes = []
    for axis in entry["axes"]:
        indices = tuple(tuple(int(i) for i in unit) for unit in axis["indices"])
        if len({len(unit) for unit in indices}) != 1 or not indices[0]:
            raise ValueError
        flat = [i for unit in indices for i in unit]
        if len(set(flat)) != len(flat) or min(flat) < 0 or axis["axis"] < 0:
            raise ValueError
        of = None if axis["of"] is None else int(axis["of"])
        if of is not None and of < 0:
            raise ValueError
        flips, buffer = axis["flips"] is True, axis["buffer"] is True
        axes.append(
            PermutedAxis(str(axis["tensor"]), int(axis["axis"]), indices, flips, of, buffer)
        )
    if len({len(axis.indices) for axis in axes}) != 1:
        raise ValueError
    return Permutation(str(entry["name"]), tuple(axes), entry["signs"] is True)


def permutations(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], symmetries: SymmetryGroup | None = None
) -> Permutations:
    """Find units and heads that may change places, and signs that units may have.

    Where nothing reads a unit, nothing that makes it has a gradient: columns of each matrix are set to
    zero, and what then has none belongs to the unit. Blocks of the linear groups of `symmetries` are
    units as well (heads). What is found so is tried: permutations at random must not change the loss.

    Experts of a stack have an order, and the units of each of them one of their own. Running means and
    variances of a norm are permuted with what they are of.

    A unit that several layers read (of a recurrent net, of a residual stream) is not found.

    Parameters
    ----------
    model : Module
    loss : callable
        Loss of the model, on a batch that it draws from torch's generator.
    symmetries : SymmetryGroup, optional

    Examples
    --------
    >>> found = ddc.permutations(model, loss, group)              # doctest: +SKIP
    >>> group.distance(model, other, permutations=found)          # doctest: +SKIP
    """
    probe = copy.deepcopy(model).double()
    generator = torch.Generator().manual_seed(0)
    named = [(name, tensor) for name, tensor in parameters_of(probe) if tensor.requires_grad]
    with torch.no_grad():
        for _, tensor in named:
            size = float(tensor.square().mean().sqrt()) or 0.5
            tensor.add_(
                torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * size / 4
            )
    search = _Search(probe, named, loss)
    found: list[Permutation] = []
    taken: set[tuple[str, int, int | None, int]] = set()
    for name, axis, blocks in _readers(named, symmetries):
        if any((name, axis, of, i) in taken for i in blocks[0] for of in (None, 0)):
            continue
        axes = search.upstream(name, axis, blocks)
        if not axes:
            continue
        permutations = search.tried_all(f"{name}:permutation", axes)
        found += permutations
        taken.update(entry for each in permutations for a in each.axes for entry in a.entries())
    return Permutations(found)


def _readers(
    named: Named, symmetries: SymmetryGroup | None
) -> Iterable[tuple[str, int, list[list[int]]]]:
    """Axes that read units, with the indices of each: blocks of heads first, then single indices."""
    if symmetries is not None:
        for gauge in symmetries._core.gauges():
            if gauge.action != "linear" or gauge.channels == gauge.block:
                continue
            for leg in gauge.legs:
                if leg.exponent > 0 or leg.axis < 0:
                    continue
                blocks: list[list[int]] = [[] for _ in range(gauge.channels // gauge.block)]
                for i, channel in enumerate(leg.channel_of or range(gauge.channels)):
                    if channel >= 0:
                        blocks[channel // gauge.block].append(i)
                yield leg.tensor, leg.axis, blocks
    for name, tensor in named:
        if tensor.dim() < 2:
            continue
        for axis in (2, 1, 0) if tensor.dim() == 3 else (1, 0):
            yield name, axis, [[i] for i in range(tensor.size(axis))]
    # What is flattened is read in runs.
    channels = {tensor.size(0) for _, tensor in named if tensor.dim() > 2}
    for name, tensor in named:
        for count in sorted(channels):
            run, rest = divmod(tensor.size(-1), count)
            if tensor.dim() == 2 and run > 1 and rest == 0:
                yield name, 1, [list(range(k * run, (k + 1) * run)) for k in range(count)]


class _Search:
    """Tries what may be permuted, at a model that may be changed.

    Norms that keep running means use those, so that what is added before them has a gradient.
    """

    def __init__(self, model: nn.Module, named: Named, loss: Callable[[nn.Module], Tensor]) -> None:
        self.model = model
        self.loss = loss
        self.named = named
        self.buffers = dict(buffers_of(model))
        self.tensors = dict(named) | self.buffers
        self.training = {module: module.training for module in model.modules()}
        self.tracking = [
            module
            for module in model.modules()
            if any(b.is_floating_point() for b in module.buffers(recurse=False))
        ]
        self.statistics = self._statistics()
        self._train_norms(False)
        self.alive = [self._alive(gradient) for gradient in self._gradients()]

    def evaluate(self, batch: int) -> Tensor:
        from ddc._precision import Float64

        with torch.random.fork_rng(devices=[]), Float64():
            torch.manual_seed(batch)
            return self.loss(self.model)

    def _train_norms(self, training: bool) -> None:
        for module in self.tracking:
            module.train(training)

    def _statistics(self) -> dict[str, Tensor]:
        """What a batch writes to buffers that begin at zero."""
        kept = {name: buffer.clone() for name, buffer in self.buffers.items()}
        self._train_norms(True)
        try:
            with torch.no_grad():
                for module in self.tracking:
                    for buffer in module.buffers(recurse=False):
                        buffer.zero_()
                before = {name: buffer.clone() for name, buffer in self.buffers.items()}
                self.evaluate(0)
            return {
                name: buffer.clone()
                for name, buffer in self.buffers.items()
                if buffer.is_floating_point() and not torch.equal(buffer, before[name])
            }
        finally:
            self._train_norms(False)
            for name, value in kept.items():
                self.buffers[name].copy_(value)

    def _gradients(self) -> list[Tensor]:
        loss = self.evaluate(0)
        found = torch.autograd.grad(loss, [t for _, t in self.named], allow_unused=True)
        return [
            torch.zeros_like(t) if g is None else g
            for (_, t), g in zip(self.named, found, strict=True)
        ]

    @staticmethod
    def _alive(gradient: Tensor) -> list[Tensor]:
        """Per axis: which indices have a gradient."""
        size = gradient.abs()
        floor = _ZERO * float(size.max())
        return [
            (size.movedim(axis, 0).reshape(gradient.size(axis), -1) > floor).any(1)
            for axis in range(gradient.dim())
        ]

    def _silenced(
        self, name: str, axis: int, indices: list[int]
    ) -> dict[tuple[str, int], list[int]]:
        """What has no gradient where these indices are zero, by tensor and axis."""
        tensor = self.tensors[name]
        at = torch.tensor(indices)
        kept = tensor.detach().index_select(axis, at)
        with torch.no_grad():
            tensor.index_fill_(axis, at, 0)
        try:
            gradients = self._gradients()
        finally:
            with torch.no_grad():
                tensor.index_copy_(axis, at, kept)
        result = {}
        for (other, _), before, gradient in zip(self.named, self.alive, gradients, strict=True):
            if other == name:
                continue
            for k, alive in enumerate(self._alive(gradient)):
                gone = (before[k] & ~alive).nonzero().flatten().tolist()
                if gone and len(gone) < len(alive):
                    result[other, k] = gone
        return result

    def upstream(self, name: str, axis: int, blocks: list[list[int]]) -> tuple[PermutedAxis, ...]:
        """All that belongs to the units that an axis reads, or nothing.

        The first two and the last tell where the others are.
        """
        if len(blocks) < 2:
            return ()
        first = self._silenced(name, axis, blocks[0])
        if not first:
            return ()
        second, last = (self._silenced(name, axis, blocks[k]) for k in (1, -1))
        axes = [PermutedAxis(name, axis, tuple(map(tuple, blocks)))]
        for key, gone in first.items():
            other = second.get(key, [])
            if len(other) != len(gone) or len(last.get(key, [])) != len(gone):
                continue
            stride = other[0] - gone[0]
            units = [[i + k * stride for i in gone] for k in range(len(blocks))]
            flat = {i for unit in units for i in unit}
            if units[1] != other or units[-1] != last[key] or len(flat) != len(units) * len(gone):
                continue
            axes.append(PermutedAxis(*key, tuple(map(tuple, units))))
        return tuple(axes) if len(axes) > 1 else ()

    def _losses(self) -> list[float]:
        with torch.no_grad():
            return [float(self.evaluate(_UNSEEN + k)) for k in range(2)]

    def _changes(self, permutation: Permutation, order: Tensor, signs: Tensor) -> bool:
        """Whether the loss changes: with running means, and as the model was given."""
        kept = {
            axis.tensor: self.tensors[axis.tensor].detach().clone() for axis in permutation.axes
        } | {name: buffer.clone() for name, buffer in self.buffers.items()}

        def restore() -> None:
            with torch.no_grad():
                for name, value in kept.items():
                    self.tensors[name].copy_(value)

        for as_given in (False, True) if self.tracking else (False,):
            for module in self.tracking:
                module.train(self.training[module] if as_given else False)
            before = self._losses()
            restore()
            permutation.apply_(self.tensors, order, signs)
            try:
                after = self._losses()
            finally:
                restore()
                self._train_norms(False)
            if any(abs(a - b) > _ZERO * abs(b) for a, b in zip(after, before, strict=True)):
                return True
        return False

    def _with_buffers(
        self, permutation: Permutation, order: Tensor, signs: Tensor
    ) -> Permutation | None:
        """The permutation of what running means are of, and of them; nothing if there is none."""
        if not self.statistics:
            return permutation
        kept = {
            axis.tensor: self.tensors[axis.tensor].detach().clone() for axis in permutation.axes
        }
        permutation.apply_(self.tensors, order, signs)
        try:
            after = self._statistics()
        finally:
            with torch.no_grad():
                for name, value in kept.items():
                    self.tensors[name].copy_(value)
        maps = dict.fromkeys(axis.indices for axis in permutation.axes)
        added: list[PermutedAxis] = []
        for name, value in after.items():
            before = self.statistics[name]
            zero = _ZERO * float(before.abs().max())
            if torch.allclose(value, before, rtol=0, atol=zero):
                continue
            choices = [
                PermutedAxis(name, 0, indices, flips, buffer=True)
                for indices in maps
                for flips in (False, True)[: 1 + permutation.signs]
                if value.dim() == 1 and max(map(max, indices)) < len(value)
            ]
            for choice in choices:
                moved = {name: before.clone()}
                Permutation("", (choice,), permutation.signs).apply_(moved, order, signs)
                if torch.allclose(value, moved[name], rtol=0, atol=zero):
                    added.append(choice)
                    break
            else:
                return None
        return Permutation(permutation.name, (*permutation.axes, *added), permutation.signs)

    def tried_all(self, name: str, axes: tuple[PermutedAxis, ...]) -> list[Permutation]:
        """What is found to be a permutation: of units, or of the units of each expert, or of experts."""
        stacked = {axis.tensor: self.tensors[axis.tensor] for axis in axes}
        counts = {tensor.size(0) for tensor in stacked.values()}
        if all(t.dim() == 3 for t in stacked.values()) and len(counts) == 1:
            (count,) = counts
            if all(axis.axis > 0 for axis in axes):
                each = [
                    self.tried(Permutation(f"{name}.{k}", tuple(_of(axis, k) for axis in axes)))
                    for k in range(count)
                ]
                return [permutation for permutation in each if permutation is not None]
            if all(axis.axis == 0 for axis in axes):
                whole = self._with_router(name, axes)
                return [whole] if whole is not None else []
        whole = self.tried(Permutation(name, axes))
        return [whole] if whole is not None else []

    def _with_router(self, name: str, axes: tuple[PermutedAxis, ...]) -> Permutation | None:
        """The order of experts: a router has a row for each, and perhaps a bias."""
        names = [other for other, _ in self.named]
        near = min(names.index(axis.tensor) for axis in axes)
        routers = [
            PermutedAxis(other, 0, axes[0].indices)
            for other, tensor in sorted(
                self.named, key=lambda pair: abs(names.index(pair[0]) - near)
            )
            if tensor.size(0) == len(axes[0].indices) and tensor.dim() in (1, 2)
        ][:_ROUTERS]
        for chosen in ([], *([r] for r in routers), *([r, q] for r in routers for q in routers)):
            permutation = self.tried(Permutation(name, (*axes, *chosen)))
            if permutation is not None:
                return permutation
        return None

    def tried(self, permutation: Permutation) -> Permutation | None:
        """The permutation, with the signs that it may have; nothing if it changes the loss."""
        generator = torch.Generator().manual_seed(1)
        ones = torch.ones(permutation.units)
        order = torch.randperm(permutation.units, generator=generator)
        plain = permutation
        for each in (order.flip(0), order):
            whole = self._with_buffers(plain, each, ones)
            if whole is None or self._changes(whole, each, ones):
                return None
            permutation = whole if len(whole.axes) > len(permutation.axes) else permutation
        # A unit that is read with the other sign is made with it: by one layer, and its bias.
        stay, minus = torch.arange(permutation.units), -ones
        reader, *makers = plain.axes
        choices = [makers, *([m] for m in makers)]
        choices += [[m, n] for m in makers for n in makers if m.tensor < n.tensor]
        for flipped in choices:
            axes = tuple(replace(a, flips=a is reader or a in flipped) for a in plain.axes)
            signed = self._with_buffers(Permutation(permutation.name, axes, True), stay, minus)
            if signed is None or self._changes(signed, stay, minus):
                continue
            flips = {axis.tensor for axis in signed.axes if axis.buffer}
            rest = tuple(a for a in permutation.axes if a.buffer and a.tensor not in flips)
            return Permutation(permutation.name, (*signed.axes, *rest), True)
        return permutation


def _of(axis: PermutedAxis, matrix: int) -> PermutedAxis:
    return replace(axis, axis=axis.axis - 1, of=matrix)


def assignment(gain: Tensor) -> Tensor:
    """Which column each row takes so that the sum is largest, every column being taken once.

    The Hungarian method with potentials: rows are added one after the other, along shortest paths.
    """
    cost = -gain.detach().double().cpu().numpy()
    size = cost.shape[0]
    of_row, of_column = np.zeros(size), np.zeros(size + 1)
    row_of = np.full(size + 1, -1)
    for row in range(size):
        row_of[size] = row
        column = size
        least, before = np.full(size, np.inf), np.full(size, size)
        done = np.zeros(size + 1, dtype=bool)
        while row_of[column] >= 0:
            done[column] = True
            here = row_of[column]
            reduced = cost[here] - of_row[here] - of_column[:size]
            nearer = ~done[:size] & (reduced < least)
            least[nearer] = reduced[nearer]
            before[nearer] = column
            free = np.where(done[:size], np.inf, least)
            following = int(free.argmin())
            delta = free[following]
            of_row[row_of[done]] += delta
            of_column[done] -= delta
            least[~done[:size]] -= delta
            column = following
        while column != size:
            row_of[column] = row_of[before[column]]
            column = before[column]
    taken = np.empty(size, dtype=np.int64)
    taken[row_of[:size]] = np.arange(size)
    return torch.from_numpy(taken)


__all__: list[Any] = ["Permutation", "Permutations", "PermutedAxis", "permutations"]
