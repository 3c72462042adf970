"""Modules of Lightning, which is not imported here: a module that is given has done so.

>>> group = ddc.lightning.discover(module, dataloader)     # doctest: +SKIP
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ddc import discovery
from ddc._batches import Named, check_dataloader
from ddc._model import unwrap
from ddc.optim import Lifted
from ddc.symmetry import SymmetryGroup

if TYPE_CHECKING:
    from ddc.geometry import Meter

# What torch keeps in every module.
_TORCHS = frozenset(vars(nn.Module()))


def discover(
    module: nn.Module,
    dataloader: Iterable[Any] | None = None,
    *,
    datamodule: Any = None,
    max_batches: int = 8,
    **options: Any,
) -> SymmetryGroup:
    """Find the symmetries of a LightningModule under the loss of its ``training_step``.

    Parameters
    ----------
    module : LightningModule
        Module of `lightning` or `pytorch_lightning`, with or without a trainer. ``training_step`` returns
        a tensor, or a dict with ``'loss'``; what it logs is not logged, and what it keeps in
        attributes of the module (lists, tensors, numbers, metrics) is taken out again.
    dataloader : iterable, optional
        What gives batches, as for :func:`ddc.discover`.
    datamodule : LightningDataModule, optional
        Gives its ``train_dataloader()``, after ``prepare_data()`` and ``setup("fit")``. Without
        either, batches are of the data module of the module's trainer, or of the module's own
        ``train_dataloader()``.
    max_batches : int
        How many batches to take. They go through the hooks that a batch goes through on its way to
        the device.
    **options
        Options of :func:`ddc.discover`.

    Returns
    -------
    SymmetryGroup

    Examples
    --------
    >>> def configure_optimizers(self):
    ...     group = ddc.lightning.discover(self)
    ...     return ddc.DDCAdam(self.named_parameters(), lr=1e-3, symmetries=group)   # doctest: +SKIP
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a LightningModule, is {type(module).__name__}")
    module = unwrap(module)
    if not _is_lightning(module):
        raise TypeError(
            f"module must be a LightningModule, is {type(module).__name__}; "
            "ddc.discover takes any torch.nn.Module"
        )
    if dataloader is not None and datamodule is not None:
        raise TypeError("dataloader and datamodule are both given: pass one of them")
    if not getattr(module, "automatic_optimization", True):
        raise ValueError(
            "module.automatic_optimization is False, so that its training_step steps the optimizer: "
            "use ddc.discover(module, dataloader=loader, loss=fn) with fn(module, batch)"
        )
    if not _overrides(module, "training_step"):
        raise ValueError(f"{type(module).__name__} has no training_step, which computes the loss")
    takes_number = _takes_number(module)
    attached = getattr(getattr(module, "_trainer", None), "datamodule", None)
    source, start = _source(module, dataloader, datamodule, attached)
    hooks = datamodule if datamodule is not None else attached

    def batches() -> Iterator[tuple[int, Any]]:
        for number, batch in enumerate(start()):
            yield number, _transferred(module, hooks, batch)

    def loss(module: Any, drawn: tuple[int, Any]) -> Tensor:
        number, batch = drawn
        with _untouched(module):
            result = module.training_step(batch, *[number] * takes_number)
        value = result.get("loss") if isinstance(result, Mapping) else result
        if not isinstance(value, Tensor):
            what = (
                f"a dict of {', '.join(map(str, result)) or 'nothing'}"
                if isinstance(result, Mapping)
                else type(result).__name__
            )
            raise TypeError(
                f"training_step must return a tensor or a dict with 'loss', returned {what}"
            )
        return value

    once = isinstance(dataloader, Iterator)
    return discovery.discover(
        module, loss, dataloader=Named(source, batches, once), max_batches=max_batches, **options
    )


def _is_lightning(module: nn.Module) -> bool:
    return any(kind.__name__ == "LightningModule" for kind in type(module).__mro__)


def _overrides(instance: Any, name: str) -> bool:
    """Whether a method is not Lightning's own, which does nothing."""
    method = getattr(type(instance), name, None)
    return method is not None and not method.__module__.startswith(
        ("lightning.", "pytorch_lightning.")
    )


def _takes_number(module: Any) -> bool:
    """Whether ``training_step`` takes the number of the batch beside the batch."""
    signature = inspect.signature(module.training_step)
    if "dataloader_iter" in signature.parameters:
        raise ValueError(
            "training_step takes dataloader_iter, and so its batches itself: "
            "use ddc.discover(module, dataloader=loader, loss=fn) with fn(module, batch)"
        )
    try:
        signature.bind(None, 0)
    except TypeError:
        return False
    return True


def _source(
    module: Any, dataloader: Iterable[Any] | None, datamodule: Any, attached: Any
) -> tuple[str, Callable[[], Iterable[Any]]]:
    """What gives batches: what it is called, and how to get at it."""
    if dataloader is not None:
        given = dataloader
        _check_single("dataloader", given)
        check_dataloader(given)
        return f"dataloader ({type(given).__name__})", lambda: given
    owner = datamodule if datamodule is not None else attached
    if owner is None:
        owner = module
    name = type(owner).__name__
    if not _overrides(owner, "train_dataloader"):
        if owner is not module:
            raise TypeError(f"datamodule must have a train_dataloader, is {name}")
        raise TypeError(
            f"dataloader and datamodule are missing, and {name} has no train_dataloader of its own"
        )

    def start() -> Iterable[Any]:
        if datamodule is not None:
            datamodule.prepare_data()
            datamodule.setup("fit")
        loader = owner.train_dataloader()
        _check_single(f"train_dataloader() of {name}", loader)
        given: Iterable[Any] = loader
        return given

    return f"train_dataloader() of {name}", start


def _check_single(name: str, loader: Any) -> None:
    loaders = list(loader.values()) if isinstance(loader, Mapping) else loader
    if isinstance(loaders, (list, tuple)) and any(hasattr(each, "dataset") for each in loaders):
        raise TypeError(
            f"{name} is a {type(loader).__name__} of {len(loaders)} loaders: "
            "pass one iterable of batches, as training_step takes them, as dataloader"
        )


def _transferred(module: Any, datamodule: Any, batch: Any) -> Any:
    """The batch after the hooks that Lightning calls on its way to the device."""
    device = next(module.parameters()).device
    for hook, arguments in (
        ("on_before_batch_transfer", (0,)),
        ("transfer_batch_to_device", (device, 0)),
        ("on_after_batch_transfer", (0,)),
    ):
        owner = datamodule if datamodule is not None and _overrides(datamodule, hook) else module
        batch = getattr(owner, hook)(batch, *arguments)
    return batch


@contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Attributes of the module and of those in it are as they were afterwards. Logging is off."""
    saved = [(part, _attributes(part)) for part in module.modules()]
    for part, _ in saved:
        if _is_lightning(part):
            vars(part).update(log=_ignore, log_dict=_ignore)
    try:
        yield
    finally:
        for part, attributes in saved:
            _restore(part, attributes)


def _ignore(*_: Any, **__: Any) -> None:
    pass


def _attributes(part: nn.Module) -> list[tuple[str, Any, Any]]:
    """Names and values of a module's own attributes, with copies of what can change in place."""
    return [
        (name, value, _content(value)) for name, value in vars(part).items() if name not in _TORCHS
    ]


def _content(value: Any) -> Any:
    if isinstance(value, Tensor):
        return None if value.is_inference() else (value._version, value.detach().clone())
    return value.copy() if type(value) in (list, dict, set) else None


def _restore(part: nn.Module, attributes: list[tuple[str, Any, Any]]) -> None:
    own = vars(part)
    names = {name for name, _, _ in attributes}
    for name in [name for name in own if name not in _TORCHS and name not in names]:
        del own[name]
    for name, value, content in attributes:
        own[name] = value
        if content is None:
            continue
        if isinstance(value, Tensor):
            version, before = content
            if value._version != version:
                value.data.copy_(before)
        else:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(content)


def metrics_callback(every: int = 50) -> Any:
    """Callback that logs :meth:`ddc.Lifted.metrics` of the module's optimizers.

    Parameters
    ----------
    every : int
        Steps between logs.

    Examples
    --------
    >>> lightning.Trainer(callbacks=[ddc.lightning.metrics_callback()])   # doctest: +SKIP
    """
    import lightning

    class Metrics(lightning.Callback):
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if batch_idx % every:
                return
            for optimizer in trainer.optimizers:
                if isinstance(optimizer, Lifted):
                    pl_module.log_dict(optimizer.metrics(), on_step=True, on_epoch=False)

    return Metrics()


def meters_callback(
    *, every: int = 1, log_every: int = 50, **meters: Meter | Callable[[], Mapping[str, float]]
) -> Any:
    """Callback that measures at the steps of the module's optimizer, and logs what was measured last.

    Parameters
    ----------
    every : int
        Steps of the optimizer between calls of functions.
    log_every : int
        Batches between logs.
    **meters
        As for :class:`ddc.geometry.Meters`, by name.

    Returns
    -------
    lightning.Callback
        From the start of training on, ``callback.meters`` is the :class:`ddc.geometry.Meters`, with all
        records and the cost.

    Examples
    --------
    >>> arc = ddc.geometry.ArcMeter(module, group)                          # doctest: +SKIP
    >>> callback = ddc.lightning.meters_callback(arc=arc)                   # doctest: +SKIP
    >>> lightning.Trainer(callbacks=[callback]).fit(module, loader)         # doctest: +SKIP
    """
    import lightning

    from ddc.geometry import Meters

    class Measure(lightning.Callback):
        meters: Meters | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if len(trainer.optimizers) != 1:
                count = len(trainer.optimizers)
                raise ValueError(
                    f"meters_callback counts the steps of one optimizer; the module has {count}"
                )
            self.meters = Meters(trainer.optimizers[0], every=every, **meters)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if self.meters is not None:
                self.meters.remove()

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if self.meters is not None and self.meters.latest and batch_idx % log_every == 0:
                pl_module.log_dict(self.meters.latest, on_step=True, on_epoch=False)

    return Measure()
