"""Discovery: from a model and a loss to the symmetries of the model."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from types import TracebackType
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from ddc import _C
from ddc._model import parameters_of, unwrap
from ddc._precision import Float64
from ddc.symmetry import SymmetryGroup

Loss = Callable[[nn.Module], Tensor]


def discover(
    model: nn.Module,
    loss: Loss,
    *,
    seed: int = 0,
    head_sizes: Iterable[int] = (),
    engagement_steps: int = 0,
    completeness: bool = False,
    exact_up_to: int = 3500,
    verbose: bool = False,
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
        A float64 model is evaluated in float64 also where its code asks for float32.
    loss : callable
        ``loss(model)`` returns a scalar tensor. It is called many times, and may draw a new batch each
        time from the generators of torch, numpy or random, which are seeded before every call. It may
        also use the same batch always. (A loss that takes the next batch of an iterator cannot be
        asked twice for the same one; keep a few batches in a list and draw from it.)
    seed : int
        Of the search.
    head_sizes : iterable of int
        Sizes of attention heads to try, where the search would not find them by itself (very small
        heads in models above a million parameters). Nothing here is believed.
    engagement_steps : int
        Steps over which to measure how far AdamW and DDCAdam move each gauge.
    completeness : bool
        Count the directions that no batch sees, and how many of them the group explains. Exact up to
        `exact_up_to` parameters, an upper bound above.
    verbose : bool
        Say on standard error what is being done.

    Returns
    -------
    SymmetryGroup

    Notes
    -----
    With ``torch.distributed`` initialised, rank 0 searches and all ranks get what it found.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> def loss(model):
    ...     inputs = torch.randn(32, 4)
    ...     return torch.nn.functional.cross_entropy(model(inputs), torch.randint(3, (32,)))
    >>> group = ddc.discover(model, loss)
    >>> [gauge.kind for gauge in group.gauges]
    ['relu_rescale', 'shift']
    """

    def search() -> SymmetryGroup:
        with Evaluation(model, loss) as evaluate:
            return SymmetryGroup(
                _C.discover(
                    evaluate.parameters,
                    evaluate,
                    seed=seed,
                    head_sizes=list(head_sizes),
                    engagement_steps=engagement_steps,
                    completeness=completeness,
                    exact_up_to=exact_up_to,
                    progress=_say if verbose else None,
                )
            )

    return _on_rank_zero(search)


def _say(stage: str) -> None:
    print(f"ddc: {stage}", file=sys.stderr)


def _on_rank_zero(search: Callable[[], SymmetryGroup]) -> SymmetryGroup:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return search()
    if distributed.get_world_size() == 1:
        return search()
    answer: list[Any] = [None]
    failure: BaseException | None = None
    if distributed.get_rank() == 0:
        # The other ranks wait for the answer, whatever it is.
        try:
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

    A context; on leaving it, generators and buffers are as they were.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, is {type(model).__name__}")
        if not callable(loss):
            raise TypeError(f"loss must be a function of the model, is {type(loss).__name__}")
        self.model = unwrap(model)
        self.loss = loss
        self.parameters = parameters_of(model)
        if not any(tensor.requires_grad for _, tensor in self.parameters):
            raise ValueError("the model has no parameter that requires a gradient")
        self._all_double = all(tensor.dtype == torch.float64 for _, tensor in self.parameters)
        self._outputs: list[Tensor] = []
        self._has_outputs = True

    def __enter__(self) -> Evaluation:
        self._generators = _generator_states()
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in self.model.buffers()]
        self._hook = self.model.register_forward_hook(self._remember)
        try:
            self._check()
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
        _set_generator_states(self._generators)

    def __call__(self, batch: int) -> tuple[Tensor, Tensor | None]:
        self._restore_buffers()
        _seed_generators(batch)
        self._outputs = []
        with torch.enable_grad(), Float64() if self._all_double else nullcontext():
            loss = self.loss(self.model)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss(model) must return a scalar tensor, returned {what}")
        if not loss.requires_grad:
            raise ValueError(
                "loss(model) returned a tensor without a gradient: does it use the model it is given?"
            )
        return loss.reshape(()), self._joined_outputs() if self._has_outputs else None

    def _check(self) -> None:
        first, outputs = self(0)
        second, _ = self(0)
        difference = abs(first.item() - second.item())
        if difference > 1e-5 * abs(first.item()):
            raise ValueError(
                f"loss(model) returned {first.item():.8g} and then {second.item():.8g} with all random "
                "number generators seeded the same: draw batches from the generators of torch, numpy or "
                "random (for example from a list of batches), not from an iterator"
            )
        if outputs is None:
            self._has_outputs = False
        else:
            # Outputs that the loss does not use say nothing about it.
            (used,) = torch.autograd.grad(first, outputs, allow_unused=True, retain_graph=True)
            self._has_outputs = used is not None

    def _remember(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        tensor = _output_tensor(output)
        if tensor is not None:
            self._outputs.append(tensor)

    def _joined_outputs(self) -> Tensor | None:
        if len(self._outputs) == 1:
            return self._outputs[0]
        return None

    def _restore_buffers(self) -> None:
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)


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
