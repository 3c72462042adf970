"""The symmetries of a model as a value."""

from __future__ import annotations

import fnmatch
import hashlib
import io
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ddc import _C, picture
from ddc._C import Completeness, Finding, Gauge, Refusal, Verdict
from ddc._model import parameters_of

if TYPE_CHECKING:
    from ddc.compare import Difference
    from ddc.permutations import Permutations


class Element:
    """One element of a symmetry group: a move along the orbits of a model, which changes no function.

    Made by :meth:`SymmetryGroup.random_element`, :meth:`SymmetryGroup.canonicalize_`,
    :meth:`SymmetryGroup.align_` and :meth:`load`. ``second @ first`` acts as `second` does after
    `first`.

    Parameters
    ----------
    group : SymmetryGroup
    seed : int
        Same seed, same element.
    size : float
        How far it moves: the standard deviation of log-scales, rotation angles and shifts.
    """

    # Defaults of the class, for elements that were pickled by ddc 0.1.
    _parts: list[tuple[str, Tensor]] | None = None

    def __init__(self, group: SymmetryGroup, seed: int, size: float = 1.0) -> None:
        self.group = group
        self.seed: int | None = seed
        self.size: float | None = size

    @staticmethod
    def of(group: SymmetryGroup, parts: Iterable[tuple[str, Tensor]]) -> Element:
        """The element with these parts: names of gauges, and what each does, in acting order.

        A part is, in float64, for a scale the logarithms of its factors, for a shift or an exchange what
        it adds, for rotations and linear gauges one matrix per block. A gauge may have several parts, or
        none.
        """
        element = Element.__new__(Element)
        element.group = group
        element.seed = element.size = None
        known = {gauge.name for gauge in group.gauges}
        kept = []
        for name, part in parts:
            if name not in known:
                raise ValueError(f"element: the group has no gauge '{name}'")
            if part.dtype != torch.float64 or not bool(part.isfinite().all()):
                raise ValueError(
                    f"element: the part of gauge '{name}' must be finite and of type float64, "
                    f"is of {part.dtype}"
                )
            kept.append((name, part.detach().clone()))
        element._parts = kept
        return element

    @property
    def parts(self) -> list[tuple[str, Tensor]]:
        """Names of gauges and what each does, in the order in which they act."""
        if self._parts is None:
            assert self.seed is not None and self.size is not None
            # Shapes are all that drawing needs to know.
            shapes = [
                (name, torch.zeros((), dtype=torch.float64).expand(shape))
                for name, shape in self.group._core.parameters
            ]
            gauges = self.group._core.gauges()
            drawn = _C.random_element(gauges, shapes, self.size, self.seed)
            self._parts = [(g.name, part) for g, part in zip(gauges, drawn, strict=True)]
        return self._parts

    def apply_(self, model: nn.Module) -> nn.Module:
        """Move the parameters of `model` along their orbit, in place.

        The function that the model computes does not change. Raises, and changes nothing, if the model
        has other parameters than the one the group was found on.
        """
        parameters = parameters_of(model)
        self.group._core.check(parameters)
        if self.seed is not None and self.size is not None:
            self.group._core.act_random_(parameters, self.size, self.seed)
        else:
            self._act_(parameters)
        return model

    def _act_(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        by_name = {gauge.name: gauge for gauge in self.group._core.gauges()}
        gauges = [by_name[name] for name, _ in self.parts]
        _C.act_(gauges, [part for _, part in self.parts], touched(gauges, parameters))

    def inverse(self) -> Element:
        """The element that undoes this one."""
        by_name = {gauge.name: gauge for gauge in self.group._core.gauges()}
        return Element.of(
            self.group,
            [(name, _C.inverse(by_name[name], part)) for name, part in reversed(self.parts)],
        )

    def __matmul__(self, first: Element) -> Element:
        if not isinstance(first, Element):
            return NotImplemented
        if first.group != self.group:
            raise ValueError("elements of two groups cannot follow one another as one element")
        return Element.of(self.group, [*first.parts, *self.parts])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the element to a file, which is written as a whole or not at all."""
        data = io.BytesIO()
        torch.save(
            {
                "format": _FILE,
                "symmetries": digest(self.group._core.gauges()),
                "gauges": [name for name, _ in self.parts],
                "parts": [part for _, part in self.parts],
            },
            data,
        )
        write_whole(path, data.getvalue())

    @staticmethod
    def load(path: str | os.PathLike[str], symmetries: SymmetryGroup) -> Element:
        """Read an element of these symmetries from a file."""
        try:
            read = torch.load(path, weights_only=True)
        except FileNotFoundError:
            raise
        except (EOFError, RuntimeError, pickle.UnpicklingError, ValueError) as error:
            raise ValueError(f"'{os.fspath(path)}' is no file of an element: {error}") from None
        stem, number = _FILE.rsplit(" ", 1)
        found = read.get("format") if isinstance(read, dict) else None
        if not isinstance(found, str) or not found.startswith(stem + " "):
            raise ValueError(f"'{os.fspath(path)}' is no file of an element")
        if found != _FILE:
            raise ValueError(
                f"'{os.fspath(path)}' has an element in format {found.removeprefix(stem + ' ')}, this "
                f"version of ddc reads format {number}"
            )
        for key in ("symmetries", "gauges", "parts"):
            if key not in read:
                raise ValueError(f"'{os.fspath(path)}' has an element without its '{key}'")
        own = digest(symmetries._core.gauges())
        if read["symmetries"] != own:
            raise ValueError(
                f"'{os.fspath(path)}' has an element of the symmetries {read['symmetries']}, "
                f"these are {own}"
            )
        return Element.of(symmetries, zip(read["gauges"], read["parts"], strict=True))

    def __repr__(self) -> str:
        if self.seed is not None:
            return f"Element(seed={self.seed}, size={self.size}, of {self.group!r})"
        return f"<Element: {len(self.parts)} parts, of {self.group!r}>"


_FILE = "ddc element 1"


def touched(
    gauges: Iterable[Gauge], parameters: Sequence[tuple[str, Tensor]]
) -> list[tuple[str, Tensor]]:
    """Those parameters that gauges move, or look at when they do."""
    names: set[str] = set()
    for gauge in gauges:
        for leg in gauge.legs:
            names.update((leg.tensor, leg.through.gain, leg.through.shift, leg.through.bias))
    return [(name, tensor) for name, tensor in parameters if name in names]


def digest(gauges: Iterable[Gauge], treatment: Mapping[str, Any] | None = None) -> str:
    """A line that tells symmetries, and how they are treated, from others."""
    every = [gauge.to_json() for gauge in gauges]
    what = json.dumps([every, treatment or {}], sort_keys=True, default=str)
    return f"{len(every)} gauges; {hashlib.sha256(what.encode()).hexdigest()[:16]}"


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file as a whole, or leave what was there."""
    target = os.path.abspath(os.fspath(path))
    handle, name = tempfile.mkstemp(prefix=".ddc-", dir=os.path.dirname(target))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


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
        """Residual of all gauges together, from the gate."""
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

    def canonicalize_(self, model: nn.Module) -> Element:
        """Move the parameters of `model` to their canonical place, in place.

        Gains are folded into the weights that read them, both sides of a scale are equally large, Gram
        matrices equal and diagonal, means zero, exchanged vectors empty. Two models that are one
        function, written differently along these symmetries, have the same weights there. Raises, and
        changes nothing, if the model has other parameters than the one the group was found on, or
        16-bit ones, which cannot be moved without changing the function.

        Returns
        -------
        Element
            The move that was made; its ``inverse().apply_(model)`` takes it back.
        """
        parameters = parameters_of(model)
        self._core.check(parameters)
        return self._place_(parameters)

    def _place_(self, parameters: Sequence[tuple[str, Tensor]]) -> Element:
        gauges = self._core.gauges()
        # Nothing will be stepped: no copies of the weights are needed.
        placed = _C.Placement(touched(gauges, parameters), gauges, {"project": "never"})
        return Element.of(self, placed.elements()).inverse()

    def distance(
        self,
        a: nn.Module | Mapping[str, Tensor],
        b: nn.Module | Mapping[str, Tensor],
        permutations: Permutations | None = None,
    ) -> float:
        """How far two models are apart modulo symmetry, relative to their size.

        Both are brought to their canonical place, as copies in float64, and turned there next to each other
        (Procrustes). Zero but for rounding if one is the other, moved along its orbit. The norm of the
        difference of all parameters is relative to the root of the mean of both squared norms: that of
        two models without anything in common is about 1.4. Permutations of units are no part of the group:
        they are taken out where they are given.

        Parameters
        ----------
        a, b : Module, or dict of tensors by name
        permutations : Permutations, optional
            Permutations of units and heads, as :func:`ddc.permutations` finds them.
        """
        from ddc import compare

        return compare.distance(self, a, b, permutations)

    def difference(
        self,
        a: nn.Module | Mapping[str, Tensor],
        b: nn.Module | Mapping[str, Tensor],
        permutations: Permutations | None = None,
    ) -> Difference:
        """Differences of two models: per tensor in weights and modulo symmetry, per gauge along orbits.

        Parameters
        ----------
        a, b : Module, or dict of tensors by name
        permutations : Permutations, optional
            Permutations of units and heads: the first model is brought into the order of the second.
        """
        from ddc import compare

        return compare.difference(self, a, b, permutations)

    def align_(
        self,
        model: nn.Module,
        to: nn.Module | Mapping[str, Tensor],
        permutations: Permutations | None = None,
    ) -> Element:
        """Move `model` along its orbit, in place, next to another.

        It takes over the other's place: proportions of both sides of scales and linear gauges, means, and
        is turned to where it is nearest at the canonical place. Its function stays.

        Parameters
        ----------
        model : Module
        to : Module, or dict of tensors by name
        permutations : Permutations, optional
            Permutations of units and heads: these are brought into the other's order first.

        Returns
        -------
        Element
            The move that was made, after units were permuted.
        """
        from ddc import compare

        return compare.align_(self, model, to, permutations)

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

    def show(self, path: str | os.PathLike[str] | None = None, title: str = "Symmetries") -> None:
        """Show the network with its gauges.

        Parameters
        ----------
        path : str or PathLike, optional
            Where to write a picture, one HTML page without external scripts: choose a gauge to see what it
            moves, or a tensor to see by what it is moved. Not given: the picture is displayed in a
            notebook, and the table is printed elsewhere.
        title : str
            Heading of the picture.

        Examples
        --------
        >>> group.show("symmetries.html")   # doctest: +SKIP
        """
        if path is not None:
            write_whole(path, picture.page(self, title).encode())
        elif picture.in_notebook():
            from IPython.display import HTML, display

            display(HTML(picture.embedded(self, title)))
        else:
            print(self)

    def _repr_html_(self) -> str:
        return picture.embedded(self, "Symmetries")

    def widen(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor] | None = None,
        *,
        dataloader: Iterable[Any] | None = None,
        batches: Sequence[Any] | None = None,
        max_batches: int = 8,
        seed: int = 0,
        engagement_steps: int = 0,
        completeness: bool = False,
        exact_up_to: int = 20000,
        verbose: bool | None = None,
    ) -> SymmetryGroup:
        """Find the symmetries of a model from these, of a narrow twin: the same code with smaller sizes.

        Nothing is searched for. What the twin's symmetries may be at the sizes of the model is tried, and
        what random elements of it leave alone belongs to the group, as in :func:`ddc.discover`, whose
        arguments these are. The twin may have fewer layers as well: three or more, which the model's first
        ones and its last are taken to be like, and all others like the second.

        Examples
        --------
        >>> group = ddc.discover(make(width=16, layers=4), loss).widen(  # doctest: +SKIP
        ...     model := make(width=1024, layers=24), loss
        ... )
        """
        from ddc.discovery import widened

        return widened(
            self,
            model,
            loss,
            dataloader=dataloader,
            batches=batches,
            max_batches=max_batches,
            seed=seed,
            engagement_steps=engagement_steps,
            completeness=completeness,
            exact_up_to=exact_up_to,
            verbose=verbose,
        )

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
        """The table, as wide as the terminal that it would be printed on."""
        if sys.stdout is None or not sys.stdout.isatty():
            return self._core.text()
        return self._core.text(os.get_terminal_size(sys.stdout.fileno()).columns or 200)

    def __repr__(self) -> str:
        return f"<SymmetryGroup: {len(self)} gauges, dimension {self.dimension}>"


def _matches(gauge: Finding, patterns: tuple[str, ...]) -> bool:
    return any(
        fnmatch.fnmatchcase(text, pattern)
        for pattern in patterns
        for text in (gauge.name, gauge.kind)
    )
