"""Audit: everything that can be said of a model's symmetries, as a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from ddc import picture
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

    def show(self, path: str | os.PathLike[str] | None = None) -> None:
        """Print the table, display the picture in a notebook, or write it to `path`.

        The picture is that of :meth:`SymmetryGroup.show`.
        """
        if path is None and not picture.in_notebook():
            print(self)
        else:
            self.group.show(path, title=self.head)

    def _repr_html_(self) -> str:
        return picture.embedded(self.group, self.head)

    def to_json(self) -> str:
        return self.group.to_json()

    @property
    def head(self) -> str:
        """What was audited, in a line."""
        return f"{self.model}: {self.parameters} parameters in {self.tensors} tensors"

    def __str__(self) -> str:
        return f"{self.head}\n\n{self.group}"

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
    verbose: bool | None = None,
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
    verbose : bool or None
        Whether a line is printed for each stage. None: one line with a bar, on a terminal or in a
        notebook.

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
