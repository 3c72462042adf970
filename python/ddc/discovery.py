"""Discovery: from a model and a loss to the symmetries of the model."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ddc import _C
from ddc._batches import Batches
from ddc._model import parameters_of, unwrap
from ddc._precision import Float64
from ddc._progress import Progress, log
from ddc.routing import roles_of
from ddc.symmetry import SymmetryGroup

Loss = Callable[[nn.Module], Tensor]
BatchLoss = Callable[[nn.Module, Any], Tensor]


def discover(
    model: nn.Module,
    loss: Loss | BatchLoss | None = None,
    *,
    dataloader: Iterable[Any] | None = None,
    batches: Sequence[Any] | None = None,
    max_batches: int = 8,
    seed: int = 0,
    head_sizes: Iterable[int] = (),
    engagement_steps: int = 0,
    completeness: bool = False,
    exact_up_to: int = 20000,
    verbose: bool | None = None,
) -> SymmetryGroup:
    """Find the symmetries of a model, and verify them.

    Candidates come from gradients: along a symmetry the derivative of the loss is zero on every batch.
    What is found so belongs to the group only if random elements of it, small and large, leave the loss
    where it is, to the precision of the model.

    Parameters
    ----------
    model : torch.nn.Module
        Any model. It is looked at in the mode (train or eval) that it is in, and through
        DistributedDataParallel and torch.compile. Parameters that do not require gradients are
        held fixed. Parameters, buffers, gradients and random number generators are left as they were.
        A float64 model is evaluated in float64 also where its code asks for float32; weights of 16
        bits are float32 meanwhile.
    loss : callable, optional
        ``loss(model, batch)`` if there is a `dataloader` or `batches`, ``loss(model)`` otherwise;
        returns a scalar tensor. It is called many times. All generators (of torch, numpy and random)
        are seeded before every call, so that the same batch can be had twice: ``loss(model)`` may
        draw a batch from them, or use the same one always. It cannot take the next batch of an
        iterator; that is what `dataloader` is for. Without a loss batches must be dicts, and
        ``model(**batch).loss`` is it, as in `transformers`.
    dataloader : iterable, optional
        What gives batches: a DataLoader, a generator, a list. The first `max_batches` are taken
        once, detached and kept on the model's device; evaluations use them in turn. An iterator has
        given away so many then; of a DataLoader a new iterator is made and dropped. The notes of the
        group say how many batches of how many samples they were.
    batches : list, optional
        The batches themselves, in place of a `dataloader`. Evaluations use them in turn; a search
        gets to the first eight at least.
    max_batches : int
        How many batches to take of a `dataloader`. Eight are a safe choice: what is true for the
        data of a single batch alone may be taken for a symmetry.
    seed : int
        Seed of the search.
    head_sizes : iterable of int
        Sizes of attention heads to try, where the search would not find them by itself (very small
        heads in models above a million parameters). Nothing here is believed.
    engagement_steps : int
        Steps over which to measure how far AdamW and DDCAdam move each gauge.
    completeness : bool
        Count the directions that no batch sees, and how many of them the group explains. Exact up to
        `exact_up_to` parameters, an upper bound above.
    verbose : bool, optional
        Say on standard error what is being done: the stage, how often the loss was evaluated, and the
        time that the rest of the stage will take where that is known. Unless told, on a terminal or in a
        notebook only, in one line with a bar that goes away.

    Returns
    -------
    SymmetryGroup

    Raises
    ------
    KeyboardInterrupt
        If it is interrupted before any gauge was verified. Later an interruption (Ctrl-C) ends the
        search, and what has been verified is returned, with a note.

    Notes
    -----
    With ``torch.distributed`` initialised, rank 0 searches and all ranks get what it found. Every
    rank takes batches of its `dataloader`.

    A loss may call ``backward``; the call does nothing here. Hooks on gradients of parameters are
    off meanwhile.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> def loss(model):
    ...     inputs = torch.randn(32, 4)
    ...     return torch.nn.functional.cross_entropy(model(inputs), torch.randint(3, (32,)))
    >>> group = ddc.discover(model, loss)
    >>> [(gauge.kind, gauge.group) for gauge in group.gauges]
    [('relu rescale', '(R+)^8'), ('CE row shift', 'R^8'), ('CE bias shift', 'R')]

    Or with the batches of a loader:

    >>> data = torch.utils.data.TensorDataset(torch.randn(99, 4), torch.randint(3, (99,)))
    >>> loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    >>> def loss(model, batch):
    ...     inputs, targets = batch
    ...     return torch.nn.functional.cross_entropy(model(inputs), targets)
    >>> group = ddc.discover(model, loss, dataloader=loader)
    >>> group.dimension
    17
    """
    return _verified(
        Evaluation(model, loss, dataloader, batches, max_batches),
        _C.discover,
        verbose,
        seed=seed,
        head_sizes=list(head_sizes),
        engagement_steps=engagement_steps,
        completeness=completeness,
        exact_up_to=exact_up_to,
    )


def widened(
    narrow: SymmetryGroup,
    model: nn.Module,
    loss: Loss | BatchLoss | None = None,
    *,
    dataloader: Iterable[Any] | None = None,
    batches: Sequence[Any] | None = None,
    max_batches: int = 8,
    verbose: bool | None = None,
    **options: Any,
) -> SymmetryGroup:
    """See :meth:`ddc.SymmetryGroup.widen`."""
    return _verified(
        Evaluation(model, loss, dataloader, batches, max_batches),
        partial(_C.widen, narrow._core),
        verbose,
        **options,
    )


def _verified(
    evaluation: Evaluation,
    find: Callable[..., _C.SymmetryGroup],
    verbose: bool | None,
    **options: Any,
) -> SymmetryGroup:
    def search() -> SymmetryGroup:
        with evaluation as evaluate, Progress(verbose) as progress:
            for note in evaluate.notes:
                log.info(note)
            evaluate.progress = progress
            group = SymmetryGroup(
                find(evaluate.parameters, evaluate, progress=progress.stage, **options)
            )
            roles = roles_of(evaluate.model, evaluate.output_weights())
            group = _leave_running_means(evaluate, group)
            return group.with_notes(evaluate.notes)._with_roles(roles)

    return _on_rank_zero(evaluation.take_batches, search)


def _leave_running_means(evaluate: Evaluation, group: SymmetryGroup) -> SymmetryGroup:
    """The group without what is null in train mode, and moves what a norm keeps for eval mode."""
    reasons = {}
    for gauge in group.gauges:
        if gauge.kind != "null shift":
            continue
        tensor = gauge.legs[0][0]
        if buffers := evaluate.buffers_that_follow(tensor):
            reasons[gauge.name] = (
                f"in train mode the loss does not depend on '{tensor}', but {', '.join(map(repr, buffers))} "
                "follows it: to move one without the other would change outputs in eval mode"
            )
    return SymmetryGroup(group._core.refuse(reasons)) if reasons else group


def _on_rank_zero(
    prepare: Callable[[], None], search: Callable[[], SymmetryGroup]
) -> SymmetryGroup:
    """What `search` finds on rank 0, after all ranks have called `prepare`."""
    distributed = torch.distributed
    alone = not (distributed.is_available() and distributed.is_initialized())
    if alone or distributed.get_world_size() == 1:
        prepare()
        return search()
    answer: list[Any] = [None]
    failure: BaseException | None = None
    # The other ranks wait for the answer, whatever it is.
    try:
        prepare()
        if distributed.get_rank() == 0:
            answer = [("found", search().to_json())]
    except Exception as error:
        failure = error
        answer = [("failed", f"{type(error).__name__}: {error}")]
    distributed.broadcast_object_list(answer, src=0)
    if failure is not None:
        raise failure
    outcome, text = answer[0]
    if outcome == "failed":
        raise RuntimeError(f"discovery failed on rank 0: {text}")
    return SymmetryGroup.from_json(text)


class Evaluation:
    """A loss as the search asks for it: by the number of the batch, twice the same for the same number.

    A context; on leaving it, generators, buffers and gradients are as they were.

    Parameters
    ----------
    model, loss, dataloader, batches, max_batches
        As for :func:`ddc.discover`.

    Attributes
    ----------
    notes : list of str
        What was done with the data, and with the loss.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | BatchLoss | None,
        dataloader: Iterable[Any] | None = None,
        batches: Sequence[Any] | None = None,
        max_batches: int = 8,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, is {type(model).__name__}")
        if dataloader is not None and batches is not None:
            raise TypeError("dataloader and batches are both given: pass one of them")
        has_batches = dataloader is not None or batches is not None
        _check_loss(loss, has_batches)
        self.model = unwrap(model)
        self.loss: Callable[..., Any] = loss if loss is not None else own_loss
        self.batches = Batches(dataloader, batches, max_batches) if has_batches else None
        self.parameters = parameters_of(model)
        if not any(tensor.requires_grad for _, tensor in self.parameters):
            raise ValueError("the model has no parameter that requires a gradient")
        self._said = "loss(model, batch)" if has_batches else "loss(model)"
        self._all_double = all(tensor.dtype == torch.float64 for _, tensor in self.parameters)
        self._device = self.parameters[0][1].device.type
        self._outputs: list[Tensor] = []
        self._has_outputs = True
        self._taken = False
        self._checked = False
        self._no_backward: _NoBackward | None = _NoBackward()
        self._narrow: Widened | None = None
        self.progress: Progress | None = None

    @property
    def notes(self) -> list[str]:
        notes = list(self.batches.notes) if self.batches is not None else []
        if self._no_backward is not None and self._no_backward.called:
            notes.append("the loss calls backward, which did nothing in discovery")
        if self._narrow is not None and self._narrow.count:
            notes.append(
                f"{self._narrow.count} tensors of 16 bits were evaluated as float32, which tells a symmetry "
                "from rounding"
            )
        return notes

    def take_batches(self) -> None:
        """Take the batches that the loss will be evaluated on, once."""
        if self.batches is None or self._taken:
            return
        states = _generator_states()
        try:
            self.batches.take(self.parameters[0][1].device)
        finally:
            _set_generator_states(states)
        if self.loss is own_loss:
            self.batches.check(_no_arguments)
        self._taken = True

    def __enter__(self) -> Evaluation:
        self.take_batches()
        self._generators = _generator_states()
        self._gradients = Gradients(tensor for _, tensor in self.parameters)
        self._narrow = Widened(self.model)
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in self.model.buffers()]
        self._hook = self.model.register_forward_hook(self._remember)
        try:
            if not self._checked:
                self._check()
            self._checked = True
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hook.remove()
        self._outputs = []
        self._restore_buffers()
        if self._narrow is not None:
            self._narrow.restore()
        self._gradients.restore()
        _set_generator_states(self._generators)

    def __call__(self, batch: int) -> tuple[Tensor, Tensor | None]:
        self._restore_buffers()
        _seed_generators(batch)
        self._outputs = []
        if self.progress is not None:
            self.progress.evaluated()
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            # The caller's; the library computes without it.
            stack.enter_context(torch.autocast(self._device, enabled=False))
            if self._all_double:
                stack.enter_context(Float64())
            if self._no_backward is not None:
                stack.enter_context(self._no_backward)
            drawn = () if self.batches is None else (self.batches.of(batch),)
            loss = self.loss(self.model, *drawn)
            if isinstance(loss, Tensor) and loss.numel() == 1:
                loss = loss.reshape(())
        self._gradients.clear()
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            what = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"{self._said} must return a scalar tensor, returned {what}")
        if not loss.requires_grad:
            raise ValueError(
                f"{self._said} returned a tensor without a gradient: does it use the model it is given?"
            )
        return loss, self._one_output() if self._has_outputs else None

    def _check(self) -> None:
        seen: set[torch.dtype] = set()

        def look(*_: Any) -> None:
            if torch.is_autocast_enabled(self._device):
                seen.add(torch.get_autocast_dtype(self._device))

        with nn.modules.module.register_module_forward_pre_hook(look):
            first, outputs = self(0)
        if any(dtype.itemsize == 2 for dtype in seen):
            # Autocast around discovery is off; this one is the loss's own.
            raise ValueError(
                f"{self._said} runs the model under autocast ({', '.join(map(str, seen))}), which "
                "rounds away what symmetries are found by: leave it out of the loss that discovery "
                "is given; training may use it all the same"
            )
        second, _ = self(0)
        difference = abs(first.item() - second.item())
        if difference > 1e-5 * abs(first.item()):
            twice = f"{self._said} returned {first.item():.8g} and then {second.item():.8g}"
            if self.batches is not None:
                raise ValueError(
                    f"{twice} for the same batch with all random number generators seeded the same: "
                    "it must depend on the model and the batch alone, not on state that it keeps"
                )
            raise ValueError(
                f"{twice} with all random number generators seeded the same: draw batches from the "
                "generators of torch, numpy or random, not from an iterator. For batches of an "
                "iterator or a DataLoader use discover(model, dataloader=loader, loss=fn) with "
                "fn(model, batch), which keeps a few of them"
            )
        self._check_graph(second)
        assert self._no_backward is not None
        if not self._no_backward.called:
            self._no_backward = None  # it would be asked about every operation
        if outputs is None:
            self._has_outputs = False
        else:
            # Outputs that the loss does not use say nothing about it.
            (used,) = torch.autograd.grad(first, outputs, allow_unused=True, retain_graph=True)
            self._has_outputs = used is not None

    def _check_graph(self, loss: Tensor) -> None:
        trainable = [tensor for _, tensor in self.parameters if tensor.requires_grad]
        if "CheckpointFunctionBackward" in _operations(loss):
            raise ValueError(
                f"{self._said} checkpoints activations with use_reentrant=True, which gives gradients to "
                "backward alone: use use_reentrant=False, or none (gradient_checkpointing_disable)"
            )
        try:
            torch.autograd.grad(loss, trainable, allow_unused=True)
        except RuntimeError as error:
            if "through the graph a second time" not in str(error):
                raise
            raise ValueError(
                f"{self._said} returned a tensor whose graph is freed already: return the loss "
                "before torch.autograd.backward or torch.autograd.grad is called on it, "
                "or call these with retain_graph=True"
            ) from error

    def _remember(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        tensor = _output_tensor(output)
        if tensor is not None:
            self._outputs.append(tensor)

    def _one_output(self) -> Tensor | None:
        # Nobody knows how a loss puts several calls together: then it is looked at alone.
        return self._outputs[0] if len(self._outputs) == 1 else None

    def output_weights(self) -> list[Tensor]:
        """Weights of the layers whose output is the model's, as the first batch sees it."""
        seen: list[tuple[Tensor, Tensor]] = []

        def note(module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and isinstance(module.weight, Tensor):
                seen.append((output, module.weight))

        layers = [m for m in self.model.modules() if getattr(m, "weight", None) is not None]
        hooks = [layer.register_forward_hook(note) for layer in layers]
        try:
            self(0)
            outputs = list(self._outputs)
        finally:
            for hook in hooks:
                hook.remove()
        return [
            weight
            for output, weight in seen
            if any(output is each or output.data_ptr() == each.data_ptr() for each in outputs)
        ]

    def buffers_that_follow(self, parameter: str) -> list[str]:
        """Buffers to which a batch writes something else where all entries of a parameter are moved."""
        if not any(buffer.is_floating_point() for buffer, _ in self._buffers):
            return []
        tensor = dict(self.parameters)[parameter]
        kept = tensor.detach().clone()

        def written() -> dict[str, Tensor]:
            self(0)
            return {name: buffer.clone() for name, buffer in self.model.named_buffers()}

        before = written()
        try:
            with torch.no_grad():
                tensor.add_(1)
            after = written()
        finally:
            with torch.no_grad():
                tensor.copy_(kept)
        # A running mean follows by its momentum, however large it is; what else changes is rounding.
        return [
            name
            for name, value in before.items()
            if value.is_floating_point()
            and ((after[name] - value).abs() > 1e-4 + 1e-6 * value.abs()).any()
        ]

    def _restore_buffers(self) -> None:
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)


def _operations(loss: Tensor) -> set[str]:
    """Names of all operations that the loss was computed by, as autograd calls them."""
    seen: set[Any] = set()
    open_ = [loss.grad_fn]
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        open_ += [each for each, _ in node.next_functions]
    return {node.name() for node in seen}


class Widened:
    """Parameters and buffers of 16 bits as float32, in place, until :meth:`restore`.

    Attributes
    ----------
    count : int
        How many there are.
    """

    def __init__(self, model: nn.Module) -> None:
        narrow = (torch.float16, torch.bfloat16)
        tensors = [*model.parameters(), *model.buffers()]
        self._saved = [(each, each.data) for each in tensors if each.dtype in narrow]
        self.count = len(self._saved)
        for tensor, data in self._saved:
            # A gradient has the type of its tensor.
            tensor.grad = None
            tensor.data = data.float()

    def restore(self) -> None:
        for tensor, data in self._saved:
            tensor.data = data


class Gradients:
    """Gradients of parameters, put aside until :meth:`restore`, with the hooks on them."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._saved = [(parameter, parameter.grad) for parameter in parameters]
        self._hooks: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        for parameter, _ in self._saved:
            for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                hooks = getattr(parameter, name, None)
                if hooks:
                    self._hooks.append((hooks, dict(hooks)))
                    hooks.clear()
        self.clear()

    def clear(self) -> None:
        for parameter, _ in self._saved:
            parameter.grad = None

    def restore(self) -> None:
        for parameter, gradient in self._saved:
            parameter.grad = gradient
        for hooks, saved in self._hooks:
            hooks.update(saved)


class _NoBackward(TorchFunctionMode):
    """A context in which ``backward`` of a tensor does nothing.

    Attributes
    ----------
    called : bool
        Whether anybody called it.
    """

    called = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function is Tensor.backward:
            self.called = True
            return None
        return function(*args, **(kwargs or {}))


def _check_loss(loss: Any, has_batches: bool) -> None:
    """Raise a TypeError if the loss cannot be called as it will be."""
    if loss is None:
        if has_batches:
            return
        raise TypeError(
            "loss is missing: pass loss(model), or dataloader or batches with loss(model, batch)"
        )
    rule = f"loss must be a function of the model{' and a batch' if has_batches else ''}"
    kind = type(loss).__name__
    if not callable(loss):
        advice = "; pass what gives batches as dataloader" if isinstance(loss, Iterable) else ""
        raise TypeError(f"{rule}, is {kind}{advice}")
    of_outputs = getattr(loss, "__module__", None) == "torch.nn.functional"
    if of_outputs or isinstance(loss, nn.modules.loss._Loss):
        raise TypeError(
            f"{rule}, is {loss.__name__ if of_outputs else kind}, a function of outputs and targets: "
            "pass dataloader and loss=lambda model, batch: criterion(model(batch[0]), batch[1])"
        )
    if _takes(loss, 2 if has_batches else 1):
        return
    signature = inspect.signature(loss)
    if has_batches:
        raise TypeError(
            f"{rule}, loss(model, batch), if dataloader or batches is given; this one takes {signature}"
        )
    advice = ": pass dataloader or batches as well" if _takes(loss, 2) else ""
    raise TypeError(f"{rule} alone, this one takes {signature}{advice}")


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether the function can be called with so many arguments, as far as one can know."""
    try:
        inspect.signature(function).bind(*range(count))
    except ValueError:  # it has no signature
        return True
    except TypeError:
        return False
    return True


def _no_arguments(batch: Any) -> str | None:
    """What is wrong with a batch that the model is to be called with."""
    if isinstance(batch, Mapping):
        return None
    of = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    return (
        f"is a {type(batch).__name__}{of}: without a loss it must be a dict, for model(**batch).loss; "
        "pass for example loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1])"
    )


def own_loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """The loss that a model of `transformers` computes itself."""
    output = model(**batch)
    value: Tensor | None = (
        output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    )
    if value is None:
        raise ValueError(
            f"the model computed no loss from {', '.join(batch)}: the batch needs labels, "
            "or discovery a loss(model, batch)"
        )
    return value


def _output_tensor(output: Any) -> Tensor | None:
    """The predictions or logits in what a model returned."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() and output.requires_grad else None
    for name in ("logits", "last_hidden_state"):
        value = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return _output_tensor(value)
    if isinstance(output, (tuple, list)):
        tensors = [item for item in output if _output_tensor(item) is not None]
        # A loss that is returned beside them is no output.
        return next((item for item in tensors if item.dim() > 0), None)
    return None


def _generator_states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def _set_generator_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["random"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


def _seed_generators(batch: int) -> None:
    seed = batch % 2**32
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
