"""Models and the Trainer of Hugging Face's `transformers`, which is imported only when it is used.

>>> trainer = Trainer(model, args, train_dataset=data)                             # doctest: +SKIP
>>> group = ddc.huggingface.discover(trainer)                                      # doctest: +SKIP
>>> trainer.optimizer = ddc.huggingface.optimizer(model, args, group)              # doctest: +SKIP
>>> trainer.train()                                                                # doctest: +SKIP
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ddc import discovery
from ddc._batches import Named
from ddc.discovery import Loss
from ddc.optim import Lifted
from ddc.optimizers import DDCAdam
from ddc.symmetry import SymmetryGroup

if TYPE_CHECKING:
    from ddc.geometry import Meter

Batch = Mapping[str, Tensor]


def discover(trainer: Any, *, max_batches: int = 8, **options: Any) -> SymmetryGroup:
    """Find the symmetries of a Trainer's model under the loss that the Trainer computes.

    Parameters
    ----------
    trainer : transformers.Trainer
        Batches are of its ``get_train_dataloader()``, made by its data collator. The loss is its
        ``compute_loss``, with label smoothing and a ``compute_loss_func`` if it has them. Neither
        autocast nor gradient accumulation plays a part. The model is looked at in train mode, as the
        Trainer trains it, and is back in its own mode afterwards.
    max_batches : int
        How many batches to take.
    **options
        Options of :func:`ddc.discover`.

    Returns
    -------
    SymmetryGroup

    Notes
    -----
    In train mode dropout is on. It masks single coordinates, so a rotation of what it masks is no
    symmetry, and is refused. Set dropout to zero in the model's config for those.

    The Trainer is left as it was: it trains on the same batches in the same order as without.

    Examples
    --------
    >>> group = ddc.huggingface.discover(trainer)                                   # doctest: +SKIP
    >>> trainer.optimizer = ddc.huggingface.optimizer(model, args, group)           # doctest: +SKIP
    """
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise TypeError(f"trainer must be a transformers.Trainer, is {type(trainer).__name__}")
    model = trainer.model
    if model is None:
        raise ValueError("trainer has no model")

    def start() -> Iterator[Any]:
        loader = trainer.get_train_dataloader()
        device = next(model.parameters()).device
        try:
            for batch in loader:
                # Here, where all ranks are: the count may be summed over them.
                (batch,), items = trainer.get_batch_samples(iter([batch]), 1, device)
                yield batch, items
        finally:
            # What accelerate prepared is known to it as the one in use until its last batch.
            if hasattr(loader, "end"):
                loader.end()

    def loss(model: nn.Module, drawn: tuple[Any, Any]) -> Tensor:
        batch, items = drawn
        value = trainer.compute_loss(model, batch, num_items_in_batch=items)
        return value[0] if isinstance(value, tuple) else value

    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        group = discovery.discover(
            model,
            loss,
            dataloader=Named("the Trainer's train dataloader", start),
            max_batches=max_batches,
            **options,
        )
    finally:
        for module, mode in modes:
            module.training = mode
    if not all(mode for _, mode in modes):
        note = "the model was in train mode for discovery, as the Trainer trains it"
        group = group.with_notes([note])
    return group


def loss_fn(batch: Batch | Sequence[Batch]) -> Loss:
    """The loss that a model of `transformers` computes itself, as :func:`ddc.discover` takes it.

    Parameters
    ----------
    batch : mapping of str to Tensor, or a sequence of them
        What the model is called with, labels included: a batch of a DataLoader, or several. Of
        several, one is drawn by torch's generator on every call. They are moved to the model's
        device.

    Returns
    -------
    callable
        ``loss(model)``, that is ``model(**batch).loss``.

    Notes
    -----
    One batch shows only the tokens that are in it; what is true for these alone may be taken for a
    symmetry. Four batches or more are a safe choice.

    Language models compute their loss (and some their norms) in float32, also when they are float64
    themselves. Discovery looks at float64 models in float64 throughout; training does not.

    ``ddc.discover(model, dataloader=loader)`` does the same with the first batches of a loader.

    Examples
    --------
    >>> group = ddc.discover(model, ddc.huggingface.loss_fn(batches))    # doctest: +SKIP
    """
    batches = [batch] if isinstance(batch, Mapping) else list(batch)
    if not batches:
        raise ValueError("loss_fn needs a batch, got an empty list")
    for given in batches:
        if not isinstance(given, Mapping):
            raise TypeError(
                f"a batch must be a dict of tensors, as the model takes, is {type(given).__name__}"
            )

    def loss(model: nn.Module) -> Tensor:
        drawn = batches[int(torch.randint(len(batches), ())) if len(batches) > 1 else 0]
        device = next(model.parameters()).device
        return discovery.own_loss(model, {name: value.to(device) for name, value in drawn.items()})

    return loss


def optimizer(
    model: nn.Module, args: Any, symmetries: SymmetryGroup | None, **options: Any
) -> DDCAdam:
    """DDCAdam for the Trainer, with the settings that its AdamW would have.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Or any other model that the Trainer takes, one with adapters of `peft` for example.
    args : transformers.TrainingArguments
        Learning rate, betas, epsilon and weight decay are taken from here.
    symmetries : SymmetryGroup
        From :func:`ddc.discover`, of this model in the mode in which it will be trained: if it has
        dropout, call ``model.train()`` before discovery, or set dropout to zero.
    **options
        Options of :class:`ddc.DDCAdam`, in place of those of `args`.

    Returns
    -------
    DDCAdam

    Notes
    -----
    Weight decay is the Trainer's: biases and the parameters of norms are in a param group without
    it. Tensors of one gauge may well be in both. Decay acts on each tensor in coordinates that the
    gauge cannot change, so copies of a model that are one function are treated alike.

    The Trainer clips gradients to a norm of 1 unless told otherwise. At the canonical place of the
    weights that norm is the same for all copies of a function. Where they are trained in place it does
    depend on where on its orbit the model is, so clipping takes copies apart that DDCAdam keeps
    together. A warning says so then; set ``max_grad_norm=0`` in `args`.

    Examples
    --------
    >>> args = TrainingArguments("out", learning_rate=2e-5, max_grad_norm=0)   # doctest: +SKIP
    >>> optimizer = ddc.huggingface.optimizer(model, args, group)              # doctest: +SKIP
    >>> trainer = Trainer(model, args, optimizers=(optimizer, None))           # doctest: +SKIP
    """
    from transformers import Trainer

    # A method of the Trainer that uses nothing of it but the rule for names.
    decayed = set(Trainer.get_decay_parameter_names(None, model))  # type: ignore[arg-type]
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": options.pop("weight_decay", args.weight_decay)},
        {"params": [], "weight_decay": 0.0},
    ]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[0 if name in decayed else 1]["params"].append((name, parameter))
    settings = {
        "lr": args.learning_rate,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
        **options,
    }
    made = DDCAdam(
        [given for given in groups if given["params"]], symmetries=symmetries, **settings
    )
    if symmetries and args.max_grad_norm and made.place == "in_place":
        warnings.warn(
            f"gradients are clipped to a norm of {args.max_grad_norm}, which depends on where on "
            "its orbit the model is, since its weights are trained in place; set max_grad_norm=0 in "
            "TrainingArguments",
            stacklevel=2,
        )
    return made


def optimizer_cls_and_kwargs(
    args: Any, symmetries: SymmetryGroup | None, **options: Any
) -> tuple[Callable[[], Callable[..., DDCAdam]], dict[str, Any]]:
    """:func:`optimizer` for when the Trainer makes its model itself (``model_init``).

    Parameters
    ----------
    args, symmetries, **options
        As for :func:`optimizer`.

    Returns
    -------
    tuple
        For the Trainer's argument of the same name.

    Examples
    --------
    >>> trainer = Trainer(
    ...     args=args, model_init=make,
    ...     optimizer_cls_and_kwargs=ddc.huggingface.optimizer_cls_and_kwargs(args, group),
    ... )                                                                      # doctest: +SKIP
    """
    # The Trainer calls what it gets here, and what that returns with the model.
    return lambda: optimizer, {"args": args, "symmetries": symmetries, **options}


def log_metrics(trainer: Any) -> None:
    """Let a Trainer log :meth:`ddc.Lifted.metrics` of its optimizer with everything else it logs.

    The numbers are in ``trainer.state.log_history``, and reach TensorBoard, wandb and the like.

    Examples
    --------
    >>> ddc.huggingface.log_metrics(trainer)   # doctest: +SKIP
    >>> trainer.train()                        # doctest: +SKIP
    """
    from transformers import TrainerCallback

    class Metrics(TrainerCallback):
        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any
        ) -> None:
            optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
            if logs is None or not isinstance(optimizer, Lifted):
                return
            values = optimizer.metrics()
            logs.update(values)
            if state.log_history:
                state.log_history[-1].update(values)

    # In front of the callbacks that report.
    trainer.callback_handler.callbacks.insert(0, Metrics())


def log_meters(
    trainer: Any, *, every: int = 1, **meters: Meter | Callable[[], Mapping[str, float]]
) -> Any:
    """Let a Trainer measure at its steps, and log what was measured last with everything else it logs.

    Parameters
    ----------
    trainer : transformers.Trainer
    every : int
        Steps of the optimizer between calls of functions.
    **meters
        As for :class:`ddc.geometry.Meters`, by name.

    Returns
    -------
    transformers.TrainerCallback
        It has been added to the trainer. From the start of training on, ``callback.meters`` is the
        :class:`ddc.geometry.Meters`, with all records and the cost.

    Examples
    --------
    >>> arc = ddc.geometry.ArcMeter(model, group)                      # doctest: +SKIP
    >>> callback = ddc.huggingface.log_meters(trainer, arc=arc)        # doctest: +SKIP
    >>> trainer.train()                                                # doctest: +SKIP
    >>> print(callback.meters)                                         # doctest: +SKIP
    """
    from transformers import Trainer, TrainerCallback

    from ddc.geometry import Meters

    if not isinstance(trainer, Trainer):
        raise TypeError(f"trainer must be a transformers.Trainer, is {type(trainer).__name__}")

    class Measure(TrainerCallback):
        meters: Meters | None = None

        def on_train_begin(
            self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
        ) -> None:
            # What accelerate prepared steps the one that is in it.
            inner = getattr(optimizer, "optimizer", optimizer)
            self.meters = Meters(inner, every=every, **meters)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.meters is not None:
                self.meters.remove()

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any
        ) -> None:
            if logs is None or self.meters is None:
                return
            values = self.meters.latest
            logs.update(values)
            if state.log_history:
                state.log_history[-1].update(values)

    callback = Measure()
    # In front of the callbacks that report.
    trainer.callback_handler.callbacks.insert(0, callback)
    return callback
