"""Models and the Trainer of Hugging Face's `transformers`, which is imported only when it is used.

>>> group = ddc.discover(model, ddc.huggingface.loss_fn(batches))                  # doctest: +SKIP
>>> optimizer = ddc.huggingface.optimizer(model, args, group)                      # doctest: +SKIP
>>> Trainer(model, args, train_dataset=data, optimizers=(optimizer, None)).train() # doctest: +SKIP
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddc.discovery import Loss
from ddc.optim import DDCAdam
from ddc.symmetry import SymmetryGroup

Batch = Mapping[str, Tensor]


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

    Examples
    --------
    >>> batches = [batch for batch, _ in zip(loader, range(8))]          # doctest: +SKIP
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
        value: Tensor | None = model(
            **{name: tensor.to(device) for name, tensor in drawn.items()}
        ).loss
        if value is None:
            raise ValueError(
                f"the model computed no loss from {', '.join(drawn)}: the batch needs labels"
            )
        return value

    return loss


def optimizer(model: nn.Module, args: Any, group: SymmetryGroup | None, **options: Any) -> DDCAdam:
    """DDCAdam for the Trainer, with the settings that its AdamW would have.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Or any other model that the Trainer takes, one with adapters of `peft` for example.
    args : transformers.TrainingArguments
        Learning rate, betas, epsilon and weight decay are taken from here.
    group : SymmetryGroup
        From :func:`ddc.discover`, of this model in the mode in which it will be trained: if it has
        dropout, call ``model.train()`` before discovery, or set dropout to zero.
    **options
        Of :class:`ddc.DDCAdam`, in place of those of `args`.

    Returns
    -------
    DDCAdam

    Notes
    -----
    Weight decay is the Trainer's: biases and the parameters of norms are in a param group without
    it. Tensors of one gauge may well be in both. Decay acts on each tensor in coordinates that the
    gauge cannot change, so copies of a model that are one function are treated alike.

    The Trainer clips gradients to a norm of 1 unless told otherwise. That norm does depend on where
    on its orbit the model is, so clipping takes copies apart that DDCAdam keeps together. A warning
    says so; set ``max_grad_norm=0`` in `args`.

    Examples
    --------
    >>> args = TrainingArguments("out", learning_rate=2e-5, max_grad_norm=0)   # doctest: +SKIP
    >>> optimizer = ddc.huggingface.optimizer(model, args, group)              # doctest: +SKIP
    >>> trainer = Trainer(model, args, optimizers=(optimizer, None))           # doctest: +SKIP
    """
    from transformers import Trainer

    if group is not None and len(group) > 0 and args.max_grad_norm:
        warnings.warn(
            f"gradients are clipped to a norm of {args.max_grad_norm}, which depends on where on "
            "its orbit the model is; set max_grad_norm=0 in TrainingArguments",
            stacklevel=2,
        )
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
    return DDCAdam([given for given in groups if given["params"]], group, **settings)


def optimizer_cls_and_kwargs(
    args: Any, group: SymmetryGroup | None, **options: Any
) -> tuple[Callable[[], Callable[..., DDCAdam]], dict[str, Any]]:
    """:func:`optimizer` for when the Trainer makes its model itself (``model_init``).

    Parameters
    ----------
    args, group, **options
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
    return lambda: optimizer, {"args": args, "group": group, **options}
