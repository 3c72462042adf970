"""Curvature of a model as linear operators, its quotient by a group, and spectra."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ddc import _C
from ddc._batches import Batches, size_of
from ddc.discovery import BatchLoss, Evaluation, Loss
from ddc.symmetry import SymmetryGroup

Result = TypeVar("Result")


class Curvature:
    """Curvature of the mean loss over some batches, as a symmetric linear operator on the parameters.

    Use one of :class:`GaussNewton`, :class:`MonteCarloFisher`, :class:`EmpiricalFisher` and :class:`Hessian`.
    It belongs to the values that the parameters have when it is made. A product takes one evaluation of every
    batch with forward differentiation, and one way back; needed at once are the graph of one batch and about
    four vectors. The model is left as it was.

    Parameters
    ----------
    model : torch.nn.Module
        Any model. It is evaluated in the mode (train or eval) that it is in.
    loss, dataloader, batches, max_batches
        As for :func:`ddc.discover`. The loss of a batch must be a mean over its samples; batches count by how
        many samples they have. Of several, a loss that is a sum over samples is refused: it is evaluated on a
        batch and on its two halves.
    batch_size : int, optional
        Cuts batches along their first axis into parts of up to so many samples, which bounds the memory.
    parameters : str or iterable of str, optional
        A block: names of parameters, or patterns (``"layers.0.*"``). All that require gradients by default.
    """

    _kind = "gauss_newton"

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | BatchLoss | None = None,
        *,
        dataloader: Iterable[Any] | None = None,
        batches: Sequence[Any] | None = None,
        max_batches: int = 8,
        batch_size: int | None = None,
        parameters: str | Iterable[str] | None = None,
    ) -> None:
        self._make(
            model, loss, dataloader, batches, max_batches, batch_size, parameters, labels=1, seed=0
        )

    def _make(
        self,
        model: nn.Module,
        loss: Loss | BatchLoss | None,
        dataloader: Iterable[Any] | None,
        batches: Sequence[Any] | None,
        max_batches: int,
        batch_size: int | None,
        parameters: str | Iterable[str] | None,
        labels: int,
        seed: int,
    ) -> None:
        self._evaluation = Evaluation(model, loss, dataloader, batches, max_batches)
        self._evaluation.take_batches()
        kept = self._evaluation.batches
        whole = None if kept is None else kept.halved()
        if batch_size is not None:
            if batch_size < 1:
                raise ValueError(f"batch_size must be at least 1, is {batch_size}")
            if kept is None:
                raise ValueError("batch_size needs dataloader or batches: loss(model) is one batch")
            kept.split(batch_size)
        if kept is not None and whole is not None and len(kept) > 1:
            self._refuse_sum(kept, whole)
        tensors = [] if parameters is None else self._chosen(parameters)
        self._core: _C.Curvature = self._within(
            lambda evaluate: _C.Curvature(
                evaluate.parameters,
                evaluate,
                kind=self._kind,
                batches=1 if kept is None else len(kept),
                tensors=tensors,
                labels=labels,
                seed=seed,
            )
        )

    def _refuse_sum(self, kept: Batches, whole: tuple[Any, Any, Any]) -> None:
        """Raise a ValueError if the loss of a batch is the sum of those of its halves, rather than a mean."""
        size, *parts = [size_of(batch) or 0 for batch in whole]
        try:
            with kept.replaced(whole):
                losses = self._within(lambda evaluate: [evaluate(k)[0].item() for k in range(3)])
        except (RuntimeError, ValueError, IndexError):
            # It takes batches of one size only, and says nothing here of what they are together.
            return
        together, *halves = losses
        total = sum(halves)
        mean = sum(n * loss for n, loss in zip(parts, halves, strict=True)) / size
        if abs(total - mean) <= 1e-3 * sum(map(abs, halves)):
            return  # nothing tells them apart
        if abs(together - total) < abs(together - mean):
            raise ValueError(
                f"the loss is a sum over samples: of {size} it is {together:.6g}, of two parts of them "
                f"{halves[0]:.6g} and {halves[1]:.6g}. Batches count by their samples, which a mean needs: "
                'divide it by the number of samples (reduction="mean"), or give a single batch without '
                "batch_size"
            )

    def _chosen(self, parameters: str | Iterable[str]) -> list[str]:
        patterns = [parameters] if isinstance(parameters, str) else list(parameters)
        names = [name for name, tensor in self._evaluation.parameters if tensor.requires_grad]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"parameters: no parameter that requires a gradient matches '{pattern}'"
                )
        return [name for name in names if any(fnmatchcase(name, each) for each in patterns)]

    def _within(self, function: Callable[[Evaluation], Result]) -> Result:
        # Fused attention cannot be differentiated forward.
        with self._evaluation as evaluate, sdpa_kernel(SDPBackend.MATH):
            return function(evaluate)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self._core.size

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.size

    @property
    def dtype(self) -> torch.dtype:
        return self._core.dtype

    @property
    def likelihood(self) -> str:
        """What the loss is in its outputs: ``softmax`` (cross-entropy), ``diagonal`` or ``other``."""
        return self._core.likelihood

    @property
    def samples(self) -> int:
        """Terms of the mean: positions with a label, or samples."""
        return self._core.samples

    def __matmul__(self, other: Tensor) -> Tensor:
        """Product with a vector, or with every column of a matrix."""
        if not isinstance(other, Tensor):
            raise TypeError(f"a Curvature is multiplied with a tensor, not {type(other).__name__}")
        wide = other.detach().to(self.dtype)
        if wide.dim() == 1:
            return self._within(lambda _: self._product(wide))
        return self._within(
            lambda _: torch.stack([self._product(column) for column in wide.unbind(1)], 1)
        )

    def _product(self, vector: Tensor) -> Tensor:
        return self._core.product(vector)

    def jacobian(self, vector: Tensor, *, transposed: bool = False) -> Tensor:
        """Jacobian of the outputs times a vector, or its transpose times a vector of outputs."""
        return self._within(lambda _: self._core.jacobian(vector, transposed))

    def along(self, vector: Tensor) -> float:
        """Curvature in a direction, v^T C v / |v|^2: of a step, at the weights before it or after it."""
        wide = vector.detach().to(self.dtype)
        return (torch.dot(wide, self @ wide) / torch.dot(wide, wide)).item()

    def dense(self) -> Tensor:
        """The matrix, in float64."""
        return self._within(lambda _: self._core.dense())

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Parts of a vector by the name of the parameter, in its shape."""
        tensors = self._core.tensors
        parts = torch.split(vector, [tensor.numel() for _, tensor in tensors])
        return {
            name: part.view(tensor.shape)
            for (name, tensor), part in zip(tensors, parts, strict=True)
        }

    def vector(self, named: Mapping[str, Tensor]) -> Tensor:
        """The vector with these parts, zero where there is none."""
        return torch.cat(
            [
                named[name].detach().flatten().to(self.dtype)
                if name in named
                else torch.zeros(tensor.numel(), dtype=self.dtype, device=tensor.device)
                for name, tensor in self._core.tensors
            ]
        )


class GaussNewton(Curvature):
    """Gauss-Newton matrix J^T H J with the Hessian H of the loss by the outputs.

    For cross-entropy it is the exact Fisher information matrix: labels are averaged over and not drawn.
    """

    _kind = "gauss_newton"


class MonteCarloFisher(Curvature):
    """Fisher information matrix with labels drawn from the model ("true" Fisher).

    Parameters
    ----------
    labels : int
        Labels drawn per sample.
    seed : int
        Seed of the labels.
    """

    _kind = "monte_carlo_fisher"

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | BatchLoss | None = None,
        *,
        dataloader: Iterable[Any] | None = None,
        batches: Sequence[Any] | None = None,
        max_batches: int = 8,
        batch_size: int | None = None,
        parameters: str | Iterable[str] | None = None,
        labels: int = 1,
        seed: int = 0,
    ) -> None:
        self._make(
            model, loss, dataloader, batches, max_batches, batch_size, parameters, labels, seed
        )


class EmpiricalFisher(Curvature):
    """Mean of the outer products of gradients with the labels of the data. It is no Fisher matrix."""

    _kind = "empirical_fisher"


class Hessian(Curvature):
    """Hessian of the loss."""

    _kind = "hessian"


class Quotient:
    """Curvature on what is orthogonal to the orbits of a group: P C P. Made by :func:`quotient`.

    Attributes
    ----------
    curvature : Curvature
    """

    def __init__(self, curvature: Curvature, orbits: _C.OrbitSpace) -> None:
        self.curvature = curvature
        self._orbits = orbits

    @property
    def size(self) -> int:
        return self.curvature.size

    @property
    def shape(self) -> tuple[int, int]:
        return self.curvature.shape

    @property
    def removed(self) -> int:
        """Dimension of the orbits."""
        return self._orbits.dimension

    @property
    def removed_by(self) -> list[tuple[str, int]]:
        """Gauges, with what each adds to the span of those before it."""
        return self._orbits.gauges

    @property
    def basis(self) -> Tensor | None:
        """Orthonormal columns that span the tangents of the orbits; None if they are too many to store."""
        return self._orbits.basis

    def without_orbits(self, vector: Tensor) -> Tensor:
        """The part of a vector that is orthogonal to the orbits."""
        return self._orbits.without(vector)

    def __matmul__(self, other: Tensor) -> Tensor:
        if other.dim() == 2:
            return torch.stack([self @ column for column in other.unbind(1)], 1)
        return self.without_orbits(self.curvature @ self.without_orbits(other))


def quotient(
    curvature: Curvature,
    symmetries: SymmetryGroup,
    others: Mapping[str, Tensor] | None = None,
    *,
    memory: int = 2**30,
) -> Quotient:
    """Curvature with the directions along orbits removed.

    For a block, only orbits that move nothing else are removed. Directions are orthogonal in the metric of
    the weights as they stand: see :func:`at_canonical_place`.

    Parameters
    ----------
    curvature : Curvature
    symmetries : SymmetryGroup
        Symmetries of the same model and loss. An error says where the parameters differ; or, where names and
        shapes fit by chance, which gauge has a tangent that the curvature sees. (For a Hessian: along which
        the loss of a batch changes.)
    others : dict, optional
        Further null directions by name, such as those of :func:`norm_input_scale`.
    memory : int
        Bytes up to which the tangents are kept as a matrix. Beyond it they are removed by least squares.
    """
    if not isinstance(symmetries, SymmetryGroup):
        raise TypeError(f"symmetries must be a SymmetryGroup, is {type(symmetries).__name__}")
    parameters = curvature._evaluation.parameters
    symmetries._core.check(parameters)
    orbits = curvature._within(
        lambda _: _C.orbit_space(
            symmetries._core.gauges(),
            parameters,
            curvature._core,
            others=list((others or {}).items()),
            memory=memory,
        )
    )
    return Quotient(curvature, orbits)


@contextmanager
def at_canonical_place(model: nn.Module, symmetries: SymmetryGroup) -> Iterator[None]:
    """Context in which the weights are at their canonical place.

    Eigenvalues there are the same for all copies of a function; elsewhere they depend on where on its orbit
    the model is.
    """
    element = symmetries.canonicalize_(model)
    try:
        yield
    finally:
        element.inverse().apply_(model)


def spectrum(
    curvature: Curvature | Quotient,
    *,
    dense_up_to: int = 2048,
    iterations: int = 200,
    tolerance: float = 1e-8,
    probes: int = 8,
    quadrature_steps: int = 50,
    seed: int = 0,
    few_samples: bool = False,
) -> _C.Spectrum:
    """Spectrum: both ends, trace, log-determinant and effective rank, with errors.

    Parameters
    ----------
    curvature : Curvature or Quotient
    dense_up_to : int
        Number of parameters up to which all eigenvalues are found. Above it both ends are, by Lanczos' method
        with full reorthogonalisation, in the space of outputs if that is the smaller one.
    iterations, tolerance
        Steps of Lanczos' method at most, and how small a residual has to be, relative to the largest
        eigenvalue.
    probes, quadrature_steps
        Random vectors of the estimates of trace, log-determinant, effective rank and density, and steps for
        each.
    seed : int
        Seed of random vectors.
    few_samples : bool
        Allow a Monte-Carlo estimate from fewer than 100 samples per parameter. The result says so. (Several
        labels of a sample are no further samples.)

    Returns
    -------
    Spectrum
        A number is a pair: its value, and how far from the truth it may be.
    """
    operator, orbits = (
        (curvature.curvature, curvature._orbits)
        if isinstance(curvature, Quotient)
        else (curvature, None)
    )
    return operator._within(
        lambda _: _C.spectrum(
            operator._core,
            orbits,
            dense_up_to=dense_up_to,
            iterations=iterations,
            tolerance=tolerance,
            probes=probes,
            quadrature_steps=quadrature_steps,
            seed=seed,
            few_samples=few_samples,
        )
    )


def blocks(
    curvature: Callable[..., Curvature], model: nn.Module, *args: Any, **kwargs: Any
) -> dict[str, Curvature]:
    """Curvature of every parameter's block: ``blocks(GaussNewton, model, loss, batches=batches)``."""
    return {
        name: curvature(model, *args, parameters=name, **kwargs)
        for name, tensor in model.named_parameters()
        if tensor.requires_grad
    }


Product = Callable[[Tensor], Tensor]


def _product_of(matrix: Curvature | Quotient | Product) -> Product:
    if isinstance(matrix, (Curvature, Quotient)):
        return lambda vector: matrix @ vector
    return matrix


def lanczos(
    matrix: Curvature | Quotient | Product,
    start: Tensor,
    *,
    iterations: int,
    tolerance: float = -1.0,
    deflate: Tensor | None = None,
    restart: bool = False,
) -> _C.Ritz:
    """Ritz values with error bounds, by Lanczos' method with full reorthogonalisation.

    `deflate` has orthonormal columns that are taken out of every vector. A Krylov space has one vector per
    distinct eigenvalue; with `restart` an exhausted one is followed by that of a random vector which is
    orthogonal to it, until what is left is null (`complete`): values then come as often as they are
    eigenvalues.
    """
    return _C.lanczos(
        _product_of(matrix),
        start,
        iterations=iterations,
        tolerance=tolerance,
        deflate=deflate,
        restart=restart,
    )


def smallest(
    matrix: Curvature | Quotient | Product,
    like: Tensor | None = None,
    *,
    count: int = 1,
    iterations: int = 200,
    tolerance: float = 1e-10,
    seed: int = 0,
    deflate: Tensor | None = None,
) -> _C.EigenPairs:
    """Smallest eigenvalues by LOBPCG, with known null directions deflated.

    Orbits of a :class:`Quotient` with a stored basis are deflated by themselves. `like` is a vector of
    the operator's size and dtype; it is needed for a function.
    """
    if isinstance(matrix, Quotient):
        known = [each for each in (matrix.basis, deflate) if each is not None]
        deflate = torch.linalg.qr(torch.cat(known, 1))[0] if known else None
        like = torch.zeros(matrix.size, dtype=matrix.curvature.dtype) if like is None else like
    elif isinstance(matrix, Curvature):
        like = torch.zeros(matrix.size, dtype=matrix.dtype) if like is None else like
    if like is None:
        raise TypeError("like is missing: a vector of the size and dtype of the operator")
    return _C.lobpcg_smallest(
        _product_of(matrix),
        like,
        count=count,
        iterations=iterations,
        tolerance=tolerance,
        seed=seed,
        deflate=deflate if deflate is None else deflate.to(like.dtype),
    )


def norm_input_scale(
    model: nn.Module, *, weight: str, bias: str, gain: str, shift: str, readers: str, eps: float
) -> tuple[Tensor, Callable[[float], None]]:
    """Direction along which the scale of what a LayerNorm reads goes, and eps with it; and the finite action.

    ``LayerNorm(W x + b)`` forgets the scale of its input but for eps. Let u be the unit vector along the part
    of the centred bias that is orthogonal to the columns of the centred W: what the input cannot reach.
    Scaling W and the rest of b by c, that part of b by c' with |c' b_u|^2 / d + eps = c^2 (|b_u|^2 / d +
    eps), scales the variance plus eps by c^2, so that the normalised vector stays but for its component along
    u, which is c' / c as long; readers undo that: R diag(gain) u is multiplied with c / c', and the shift of
    the norm along gain u with c' / c. It is a symmetry for every c for which c' is real, of a form that no
    list of legs has (c' depends on b), and is therefore no gauge that an optimizer binds.

    Parameters
    ----------
    weight, bias, gain, shift, readers : str
        Names of W, b, the gain and the shift of the norm, and the weight of the layer that reads it.
    eps : float
        The norm's epsilon.

    Returns
    -------
    tuple
        Tangent at c = 1 by all trainable parameters, for ``others`` of :func:`quotient`, and a function that
        moves the model by log c.
    """
    table = dict(model.named_parameters())
    w, b, g, s, r = (table[name] for name in (weight, bias, gain, shift, readers))

    def parts() -> tuple[Tensor, Tensor, Tensor]:
        size = b.shape[0]
        centred = w.detach() - w.detach().mean(0)
        rest = b.detach() - b.detach().mean()
        basis, sigma, _ = torch.linalg.svd(centred, full_matrices=False)
        reached = basis[:, sigma > sigma[0] * size * torch.finfo(w.dtype).eps]
        for _ in range(2):
            rest = rest - reached @ (reached.T @ rest)
            rest = rest - rest.mean()
        length = rest.norm()
        if length <= 1e-8 * b.detach().norm():
            raise ValueError(
                f"'{weight}' reaches all that '{bias}' can add: there is no part of the bias to take eps up"
            )
        return rest, rest / length, length**2 / size

    def act(log_c: float) -> None:
        with torch.no_grad():
            rest, unit, square = parts()
            c = torch.tensor(log_c, dtype=w.dtype).exp()
            new = c**2 * (square + eps) - eps
            if new <= 0:
                raise ValueError(
                    f"the scale cannot shrink by {c:.3g}: eps is more than what is left"
                )
            factor = (new / square).sqrt()
            w.mul_(c)
            b.copy_(c * (b - rest) + factor * rest)
            along = (r * g) @ unit
            r.add_(torch.outer(along * (c / factor - 1), unit / g))
            s.add_(g * unit * ((unit / g) @ s) * (factor / c - 1))

    rest, unit, square = parts()
    # d factor / d log c at c = 1.
    rate = (square + eps) / square
    with torch.no_grad():
        tangents = {
            weight: w.detach().clone(),
            bias: b.detach() - rest + rate * rest,
            readers: torch.outer(((r * g) @ unit) * (1 - rate), unit / g),
            shift: g * unit * ((unit / g) @ s) * (rate - 1),
        }
        tangent = torch.cat(
            [
                tangents.get(name, torch.zeros_like(tensor)).flatten()
                for name, tensor in model.named_parameters()
                if tensor.requires_grad
            ]
        )
    return tangent, act
