"""Batches for a loss: a few are taken of what gives them, and kept."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Named:
    """Iterable of batches under a name of its own in notes and errors.

    Parameters
    ----------
    name : str
    start : callable
        Returns a new iterator.
    once : bool
        Whether the batches come from an iterator of the caller's.
    """

    def __init__(self, name: str, start: Callable[[], Iterator[Any]], once: bool = False) -> None:
        self.name = name
        self.once = once
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return self._start()


class Batches:
    """Batches that are kept.

    Made without taking any; :meth:`take` does that.

    Parameters
    ----------
    dataloader, batches, max_batches
        As for :func:`ddc.discover`, one of the first two.
    """

    def __init__(self, dataloader: Any, batches: Any, max_batches: int) -> None:
        if isinstance(max_batches, bool) or not isinstance(max_batches, int):
            raise TypeError(f"max_batches must be a whole number, is {max_batches!r}")
        if max_batches < 1:
            raise ValueError(f"max_batches must be at least 1, is {max_batches}")
        self._given = dataloader is None
        if self._given:
            _check_batches(batches)
            self._source, self._limit = batches, len(batches)
            self._name = "batches"
        else:
            check_dataloader(dataloader)
            self._source, self._limit = dataloader, max_batches
            self._name = (
                dataloader.name
                if isinstance(dataloader, Named)
                else f"dataloader ({type(dataloader).__name__})"
            )
        self._kept: list[Any] = []
        self.notes: list[str] = []

    def take(self, device: torch.device) -> None:
        """Take the batches, detach them and move them to `device`."""
        generator: Any = getattr(self._source, "generator", None)  # of a DataLoader that shuffles
        state = generator.get_state() if isinstance(generator, torch.Generator) else None
        iterator = iter(self._source)
        own = iterator is not self._source
        kept: list[Any] = []
        try:
            while len(kept) < self._limit:
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                except Exception as error:
                    error.add_note(f"(from {self._name}, which was asked for batch {len(kept)})")
                    raise
                kept.append(self._keep(batch, len(kept), device))
        finally:
            # An iterator of the caller's goes on where it is.
            if own and hasattr(iterator, "close"):
                iterator.close()
            if state is not None:
                generator.set_state(state)
        if not kept:
            raise ValueError(f"{self._name} gave no batch; discovery needs at least one")
        self._kept = kept
        once = self._source.once if isinstance(self._source, Named) else not own
        self.notes = self._describe(once)

    def of(self, number: int) -> Any:
        """The batch for evaluation `number`. What is done to it is not done to the one kept."""
        return _map(
            # In turn, not at random: small searches and the gate ask for the first few numbers.
            self._kept[number % len(self._kept)],
            Tensor.clone,
            lambda value: copy.copy(value) if hasattr(value, "to") else value,
        )

    def check(self, rule: Callable[[Any], str | None]) -> None:
        """Raise a TypeError with what `rule` has to say against a batch."""
        for number, batch in enumerate(self._kept):
            complaint = rule(batch)
            if complaint is not None:
                raise TypeError(f"batch {number} of {self._name} {complaint}")

    def split(self, size: int) -> None:
        """Cut the batches that were taken along their first axis, into parts of up to `size` samples."""
        parts: list[Any] = []
        for number, batch in enumerate(self._kept):
            count = size_of(batch)
            if count is None:
                raise ValueError(
                    f"batch {number} of {self._name} has no tensor whose first axis is that of samples: "
                    "batch_size cannot cut it"
                )
            parts.extend(_part(batch, start, size) for start in range(0, count, size))
        self._kept = parts

    def halved(self) -> tuple[Any, Any, Any] | None:
        """The first batch that has two samples or more, and two parts of it; None if there is none."""
        for batch in self._kept:
            count = size_of(batch)
            if count is not None and count > 1:
                half = count // 2
                return batch, _part(batch, 0, half), _part(batch, half, count - half)
        return None

    @contextmanager
    def replaced(self, batches: Sequence[Any]) -> Iterator[None]:
        """Context in which these are the batches."""
        kept, self._kept = self._kept, list(batches)
        try:
            yield
        finally:
            self._kept = kept

    def __len__(self) -> int:
        return len(self._kept)

    def _keep(self, batch: Any, number: int, device: torch.device) -> Any:
        def tensor(value: Tensor) -> Tensor:
            # A loader may fill the same memory again.
            return value.detach().to(device, copy=not self._given)

        def other(value: Any) -> Any:
            if isinstance(value, type) or not callable(getattr(value, "to", None)):
                return value
            moved = value.to(device)
            return value if moved is None else moved

        try:
            return _map(batch, tensor, other)
        except (NotImplementedError, RuntimeError) as error:
            raise ValueError(
                f"batch {number} of {self._name} cannot be moved to {device}, where the model is: "
                f"{error}"
            ) from error

    def _describe(self, once: bool) -> list[str]:
        count = _count(len(self._kept), "batch", "batches")
        what = count + _samples([size_of(batch) for batch in self._kept])
        if self._given:
            return [f"the loss was evaluated on {what}, given as batches"]
        fewer = ", which had no more" if len(self._kept) < self._limit else ""
        notes = [f"the loss was evaluated on {what}, taken from {self._name}{fewer}"]
        if once:
            notes.append(f"{self._name} is an iterator, and is {count} further now")
        elif not isinstance(self._source, (list, tuple)):
            notes.append(f"an iterator of {self._name} was advanced by {count} and dropped")
        return notes


def _check_batches(batches: Any) -> None:
    if isinstance(batches, (DataLoader, Iterator, IterableDataset)):
        raise TypeError(
            f"batches must be a list of batches, is {type(batches).__name__}: pass it as dataloader"
        )
    if not isinstance(batches, (list, tuple)):
        raise TypeError(
            f"batches must be a list of batches, is {type(batches).__name__}: "
            "pass a single batch as batches=[batch]"
        )
    _check_not_one_batch("batches", batches)
    if not batches:
        raise ValueError(f"batches must hold at least one batch, is {batches!r}")


def check_dataloader(dataloader: Any) -> None:
    """Raise a TypeError if this cannot give batches."""
    rule = "dataloader must be an iterable of batches"
    kind = type(dataloader).__name__
    if isinstance(dataloader, Dataset) and not isinstance(dataloader, IterableDataset):
        raise TypeError(
            f"{rule}, is {kind}, which gives samples: pass DataLoader(dataset, batch_size=...)"
        )
    if isinstance(dataloader, (Mapping, Tensor, str, bytes, nn.Module)):
        raise TypeError(f"{rule}, is {kind}; a single batch is passed as batches=[batch]")
    if not isinstance(dataloader, Iterable):
        raise TypeError(f"{rule}, is {kind}")
    if isinstance(dataloader, (list, tuple)):
        _check_not_one_batch("dataloader", dataloader)


def _check_not_one_batch(name: str, value: Any) -> None:
    if isinstance(value, tuple) and value and all(isinstance(item, Tensor) for item in value):
        raise TypeError(
            f"{name} is a tuple of {len(value)} tensors, which looks like one batch: "
            "pass batches=[(inputs, targets), ...], a list also for a single one"
        )


def _map(value: Any, tensor: Callable[[Tensor], Tensor], other: Callable[[Any], Any]) -> Any:
    """A batch of the same structure, with what the functions make of its tensors and the rest."""
    if isinstance(value, Tensor):
        return tensor(value)
    if isinstance(value, Mapping):
        items = {key: _map(item, tensor, other) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return items
        mapping = copy.copy(value)
        for key, item in items.items():
            mapping[key] = item
        return mapping
    if hasattr(value, "to"):  # also tuples that know better, as PackedSequence
        return other(value)
    if isinstance(value, (tuple, list)):
        parts = [_map(item, tensor, other) for item in value]
        if type(value) is list:
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        record = copy.copy(value)
        for field in dataclasses.fields(value):
            changed = _map(getattr(value, field.name), tensor, other)
            object.__setattr__(record, field.name, changed)
        return record
    return other(value)


def _part(batch: Any, start: int, size: int) -> Any:
    """The samples of a batch from `start` on, `size` of them at most."""
    count = size_of(batch)

    def part(value: Tensor) -> Tensor:
        of_samples = value.dim() > 0 and value.shape[0] == count
        return value[start : start + size] if of_samples else value

    return _map(batch, part, lambda value: value)


def size_of(batch: Any) -> int | None:
    """Number of samples in a batch, where all of its tensors agree on it."""
    sizes: set[int] = set()

    def look(tensor: Tensor) -> Tensor:
        if tensor.dim() > 0:
            sizes.add(tensor.size(0))
        return tensor

    _map(batch, look, lambda value: value)
    return sizes.pop() if len(sizes) == 1 else None


def _samples(sizes: list[int | None]) -> str:
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return ""
    least, most = min(known), max(known)
    if least == most:
        return f" of {_count(most, 'sample', 'samples')}"
    return f" of {least} to {most} samples ({sum(known)} in all)"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
