"""Tests of gauges of one's own: the identities that every gauge must satisfy, in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.func import functional_call

from ddc import _C
from ddc._C import Check, Gauge, InvariantReport
from ddc._model import plain_name
from ddc.discovery import BatchLoss, Evaluation, Loss
from ddc.optim import Lifted

# Rule; names and options of the param groups; recipe; treatment.
Description = tuple[Any, list[tuple[list[str], dict[str, Any]]], str, dict[str, Any]]

__all__ = ["Check", "InvariantReport", "MakesOptimizer", "gauge_invariants"]


class MakesOptimizer(Protocol):
    """What makes an optimizer: a class of this package or of :func:`ddc.lifted`, or a
    :func:`functools.partial` of one."""

    def __call__(self, params: Any, /, *, symmetries: Any) -> Lifted: ...


def gauge_invariants(
    gauge: Gauge,
    model: nn.Module,
    loss: Loss | BatchLoss | None = None,
    *,
    optimizer: MakesOptimizer | None = None,
    others: Sequence[Gauge] = (),
    seed: int = 0,
    steps: int = 20,
    dataloader: Iterable[Any] | None = None,
    batches: Sequence[Any] | None = None,
    max_batches: int = 8,
) -> InvariantReport:
    """Report on the identities that a gauge must satisfy.

    These are the group law; that the loss is invariant, and its gradient covariant; and of an optimizer
    that binds the gauge, that steps commute with the group and do not move along the orbit. Each is
    checked at the weights of the model and at nasty points made from them (one side tiny, one side
    zero), under group elements at the identity, near it, at random, and huge. The model is left as it
    was.

    Use a float64 model: bounds are 1e-11 for the gauge then, and 2e-4 in float32.

    Parameters
    ----------
    gauge : Gauge
        From :mod:`ddc.gauges`, or made leg by leg.
    model, loss, dataloader, batches, max_batches
        As for :func:`ddc.discover`. The loss must use the model that it is given, and find its
        parameters where they are registered: they are replaced by others.
    optimizer : callable, optional
        Makes the optimizer under test from ``(named_parameters, symmetries=gauges)``:
        ``functools.partial(ddc.DDCMuon, lr=1e-2)``. By default :class:`ddc.DDCAdam` at a learning rate of
        1e-3. Weights are in place unless it says ``placement="canonical"``.
    others : sequence of Gauge
        Further gauges that are bound together with the one under test.
    seed : int
        Seed of the group elements.
    steps : int
        Number of steps that the optimizer is followed over.

    Returns
    -------
    InvariantReport
        True if all checks passed; the failures when printed.

    Examples
    --------
    >>> report = ddc.testing.gauge_invariants(gauge, model, loss)   # doctest: +SKIP
    >>> assert report.ok, report                                    # doctest: +SKIP
    """
    for each in (gauge, *others):
        if not isinstance(each, Gauge):
            raise TypeError(f"a gauge must be a ddc.Gauge, is {type(each).__name__}")
    described = _described(optimizer, model, [gauge, *others]) if optimizer is not None else None
    with Evaluation(model, loss, dataloader, batches, max_batches) as evaluate:
        replaced = _Replaced(evaluate)
        return _C.gauge_invariants(
            gauge,
            evaluate.parameters,
            replaced.loss,
            optimizer=described,
            others=list(others),
            seed=seed,
            steps=steps,
        )


class _Replaced(nn.Module):
    """A loss at tensors that take the place of the model's parameters."""

    def __init__(self, evaluate: Evaluation) -> None:
        super().__init__()
        self.model = evaluate.model
        self._of_model = evaluate.loss
        self._evaluate = evaluate
        # Names of parameters inside this module by their plain names.
        self._places = {
            plain_name(name): f"model.{name}" for name, _ in self.model.named_parameters()
        }

    def forward(self, *batch: Any) -> Any:
        return self._of_model(self.model, *batch)

    def loss(self, parameters: Sequence[tuple[str, Tensor]], batch: int) -> Tensor:
        table = {self._places[name]: tensor for name, tensor in parameters}

        def replaced(_: nn.Module, *drawn: Any) -> Any:
            return functional_call(self, table, drawn)

        self._evaluate.loss = replaced
        value, _ = self._evaluate(batch)
        return value


def _described(make: MakesOptimizer, model: nn.Module, gauges: Sequence[Gauge]) -> Description:
    """An optimizer of the model as the C++ library can make it of other tensors."""
    # On copies: an optimizer may move the weights that it is given.
    copies = [
        (name, nn.Parameter(tensor.detach().clone(), tensor.requires_grad))
        for name, tensor in model.named_parameters()
    ]
    made = make(copies, symmetries=gauges)
    if not isinstance(made, Lifted):
        raise TypeError(f"optimizer must make an optimizer of ddc, made a {type(made).__name__}")
    groups = [
        ([plain_name(name) for name in group["param_names"]], values)
        for group, values in zip(
            [group for group in made.param_groups if group["params"]],
            made._options(made.param_groups),
            strict=True,
        )
    ]
    # In place but for those who ask for more: there orbit parts of steps are zero, and not only small.
    return made._core_rule(), groups, made._recipe, {"placement": "in_place", **made._treatment}
