"""The symmetries of a model as a value."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from ddc import _C
from ddc._C import Completeness, Finding, Gauge, Refusal, Verdict
from ddc._model import parameters_of


class Element:
    """One element of a symmetry group.

    Parameters
    ----------
    group : SymmetryGroup
    seed : int
        Same seed, same element.
    size : float
        How far it moves: the standard deviation of log-scales, rotation angles and shifts.
    """

    def __init__(self, group: SymmetryGroup, seed: int, size: float = 1.0) -> None:
        self.group = group
        self.seed = seed
        self.size = size

    def apply_(self, model: nn.Module) -> nn.Module:
        """Move the parameters of `model` along their orbit, in place.

        The function that the model computes does not change. Raises, and changes nothing, if the model
        has other parameters than the one the group was found on.
        """
        parameters = parameters_of(model)
        self.group._core.check(parameters)
        self.group._core.act_random_(parameters, self.size, self.seed)
        return model

    def __repr__(self) -> str:
        return f"Element(seed={self.seed}, size={self.size}, of {self.group!r})"


class SymmetryGroup:
    """The verified symmetries of a model: print them, store them, hand them to an optimizer.

    Made by :func:`ddc.discover` and :meth:`load`.

    Attributes
    ----------
    gauges : list
        The symmetries that were found and passed the gate, each with ``name``, ``kind``, ``group``,
        ``dimension``, ``channels``, ``legs`` (tensor, axis, exponent), ``residual``, ``tolerance``.
    refusals : list
        What looked like a symmetry and is none: ``name``, ``kind``, ``tensors``, ``reason``.
    dimension : int
        The sum over gauges.
    completeness
        How much of what the loss cannot see the gauges explain, or None if that was not asked for.
    notes : list of str
    """

    def __init__(self, core: _C.SymmetryGroup) -> None:
        self._core = core

    @property
    def gauges(self) -> list[Finding]:
        return self._core.findings

    @property
    def refusals(self) -> list[Refusal]:
        return self._core.refusals

    @property
    def dimension(self) -> int:
        return self._core.dimension

    @property
    def completeness(self) -> Completeness | None:
        return self._core.completeness

    @property
    def notes(self) -> list[str]:
        return self._core.notes

    @property
    def residual(self) -> float:
        """Of all gauges together, from the gate."""
        return self._core.joint_residual

    @property
    def tolerance(self) -> float:
        """What `residual` would have had to exceed to be refused."""
        return self._core.joint_tolerance

    @property
    def roles(self) -> dict[str, str]:
        """What parameters are in the network, as far as discovery saw: embeddings, output layers."""
        return self._core.roles

    @staticmethod
    def of(
        model: nn.Module | Sequence[tuple[str, Tensor]], gauges: Sequence[Gauge]
    ) -> SymmetryGroup:
        """Make a group of gauges that were wired by hand.

        Nothing of it is verified: :meth:`verify` does, and :func:`ddc.testing.gauge_invariants`.

        Parameters
        ----------
        model : Module, or sequence of named tensors
        gauges : sequence of Gauge
            From :mod:`ddc.gauges`, or made leg by leg.
        """
        parameters = parameters_of(model) if isinstance(model, nn.Module) else model
        return SymmetryGroup(_C.SymmetryGroup.of(parameters, gauges))

    def with_notes(self, notes: Sequence[str]) -> SymmetryGroup:
        """The group with some more notes."""
        return SymmetryGroup(self._core.with_notes(notes))

    def _with_roles(self, roles: dict[str, str]) -> SymmetryGroup:
        return SymmetryGroup(self._core.with_roles(roles))

    def random_element(self, seed: int, size: float = 1.0) -> Element:
        """An element of the group, drawn at random.

        Examples
        --------
        >>> group.random_element(seed=0).apply_(model)   # doctest: +SKIP
        """
        return Element(self, seed, size)

    def without(self, *patterns: str) -> SymmetryGroup:
        """The group without the gauges whose name or kind matches a pattern (of :mod:`fnmatch`)."""
        return self._keep(lambda gauge: not _matches(gauge, patterns))

    def only(self, *patterns: str) -> SymmetryGroup:
        """The group of those gauges alone whose name or kind matches a pattern."""
        return self._keep(lambda gauge: _matches(gauge, patterns))

    def _keep(self, wanted: Callable[[Finding], bool]) -> SymmetryGroup:
        return SymmetryGroup(self._core.keep([g.name for g in self.gauges if wanted(g)]))

    def verify(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor] | None = None,
        seed: int = 0,
        *,
        dataloader: Iterable[Any] | None = None,
        batches: Sequence[Any] | None = None,
        max_batches: int = 8,
    ) -> Verdict:
        """Try all gauges at once on a model: random elements must not change the loss.

        For a group that was loaded: whether it still is a symmetry of this model. All arguments are
        those of :func:`ddc.discover`.
        """
        from ddc.discovery import Evaluation

        with Evaluation(model, loss, dataloader, batches, max_batches) as evaluate:
            self._core.check(evaluate.parameters)
            return self._core.gate(evaluate.parameters, evaluate, seed)

    def to_json(self) -> str:
        return self._core.to_json()

    @staticmethod
    def from_json(text: str) -> SymmetryGroup:
        return SymmetryGroup(_C.SymmetryGroup.parse(text))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the group as JSON. The file is written as a whole or not at all."""
        self._core.save(os.fspath(path))

    @staticmethod
    def load(path: str | os.PathLike[str], model: nn.Module | None = None) -> SymmetryGroup:
        """Read a group, and check that it fits `model` if one is given."""
        group = SymmetryGroup(_C.SymmetryGroup.load(os.fspath(path)))
        if model is not None:
            group._core.check(parameters_of(model))
        return group

    def __getstate__(self) -> dict[str, Any]:
        return {"json": self.to_json()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._core = _C.SymmetryGroup.parse(state["json"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymmetryGroup) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __len__(self) -> int:
        return len(self.gauges)

    def __str__(self) -> str:
        return self._core.text()

    def __repr__(self) -> str:
        return f"<SymmetryGroup: {len(self)} gauges, dimension {self.dimension}>"


def _matches(gauge: Finding, patterns: tuple[str, ...]) -> bool:
    return any(
        fnmatch.fnmatchcase(text, pattern)
        for pattern in patterns
        for text in (gauge.name, gauge.kind)
    )
