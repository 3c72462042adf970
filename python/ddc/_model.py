"""What the package knows of models: their parameters under lasting names."""

import sys
from collections.abc import Iterable

from torch import Tensor, nn

# What wrappers put before or into the names of parameters: DistributedDataParallel and DataParallel,
# torch.compile, activation checkpointing.
_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module")


def plain_name(name: str) -> str:
    """The name that the parameter has in the model nobody wrapped."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS[:1]:
        parts = parts[1:]
    return ".".join(part for part in parts if part not in _WRAPPERS[1:])


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile."""
    # Nobody has compiled a model if the compiler, which takes seconds to import, is not there.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif compiler is not None and isinstance(model, compiler.OptimizedModule):
            model = model._orig_mod
        else:
            return model


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor holds a part of a parameter, or several."""
    kind = type(tensor)
    return (
        hasattr(tensor, "placements")  # DTensor: FSDP2, tensor parallelism
        or hasattr(tensor, "_is_flat_param")  # FSDP
        or hasattr(tensor, "ds_id")  # DeepSpeed ZeRO 3
        or kind.__name__ in ("FlatParameter", "DTensor")
    )


def check_whole(named: Iterable[tuple[str, Tensor]]) -> None:
    """Refuses parameters that have no values, or only a part of them."""
    for name, tensor in named:
        if isinstance(tensor, nn.UninitializedParameter):
            raise RuntimeError(
                f"parameter '{name}' is lazy and has no shape yet: call the model on a batch first"
            )
        if tensor.is_meta:
            raise RuntimeError(
                f"parameter '{name}' is on the meta device and has no values: materialise the model "
                "first, for example with to_empty and load_state_dict"
            )
        if is_sharded(tensor):
            raise RuntimeError(
                f"parameter '{name}' is sharded or flattened ({type(tensor).__name__}): the shape that "
                "symmetries act on is lost; use DistributedDataParallel, which keeps parameters whole"
            )


def parameters_of(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters of the model by their plain names, each once."""
    named: list[tuple[str, Tensor]] = [
        (plain_name(name), tensor) for name, tensor in unwrap(model).named_parameters()
    ]
    check_whole(named)
    return named


def buffers_of(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers of the model by their plain names, each once."""
    return [(plain_name(name), buffer) for name, buffer in unwrap(model).named_buffers()]
