"""Audit: everything that can be said of a model's symmetries, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from ddc.discovery import BatchLoss, Loss, discover
from ddc.symmetry import SymmetryGroup


class Audit:
    """What :func:`ddc.audit` found out.

    Attributes
    ----------
    group : SymmetryGroup
        With engagement and completeness.
    model : str
        Class of the model.
    parameters : int
    """

    def __init__(self, group: SymmetryGroup, model: nn.Module) -> None:
        self.group = group
        self.model = type(model).__name__
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.tensors = sum(1 for _ in model.parameters())

    def show(self) -> None:
        """Print the table."""
        print(self)

    def to_json(self) -> str:
        return self.group.to_json()

    def __str__(self) -> str:
        head = f"{self.model}: {self.parameters} parameters in {self.tensors} tensors"
        return f"{head}\n\n{self.group}"

    def __repr__(self) -> str:
        return f"<Audit of {self.model}: {self.group!r}>"


def audit(
    model: nn.Module,
    loss: Loss | BatchLoss | None = None,
    *,
    dataloader: Iterable[Any] | None = None,
    batches: Sequence[Any] | None = None,
    max_batches: int = 8,
    steps: int = 10,
    completeness: bool = True,
    seed: int = 0,
    verbose: bool = False,
) -> Audit:
    """Find the symmetries of a model and measure what optimizers do to them.

    Parameters
    ----------
    model, loss, dataloader, batches, max_batches
        As for :func:`ddc.discover`.
    steps : int
        Steps of AdamW and of DDCAdam over which the movement of each gauge is measured. The model is
        back where it was afterwards. 0: not measured.
    completeness : bool
        Count the directions that no batch sees (see :func:`ddc.discover`).

    Examples
    --------
    >>> ddc.audit(model, loss).show()   # doctest: +SKIP
    """
    group = discover(
        model,
        loss,
        dataloader=dataloader,
        batches=batches,
        max_batches=max_batches,
        seed=seed,
        engagement_steps=steps,
        completeness=completeness,
        verbose=verbose,
    )
    return Audit(group, model)
