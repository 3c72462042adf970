"""Who steps which tensor under Muon: matrices by Muon, the rest by Adam."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ddc._model import plain_name, unwrap


@dataclass(frozen=True)
class Route:
    """Decision on one tensor."""

    name: str
    shape: tuple[int, ...]
    use_adam: bool
    reason: str


class Routing(list[Route]):
    """Decisions on all tensors of an optimizer; a table when printed."""

    def __str__(self) -> str:
        rows = [
            (
                r.name,
                "x".join(map(str, r.shape)) or "scalar",
                "Adam" if r.use_adam else "Muon",
                r.reason,
            )
            for r in self
        ]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        return "\n".join(
            "  ".join([*(cell.ljust(w) for cell, w in zip(row[:3], widths, strict=True)), row[3]])
            for row in rows
        )


# Roles that discovery notes of parameters, and what they mean for Muon. Embeddings and output layers are
# stepped by Adam as in K. Jordan's post on Muon, https://kellerjordan.github.io/posts/muon.
ROLES = {
    "embedding": "embedding: a row is read for a token, not a matrix applied",
    "output": "output layer",
    "depthwise": "depthwise convolution: a filter for each channel, no matrix",
    "table": "table of positions or tokens",
}

_BY_NAME = (
    ("embedding", re.compile(r"embed|(^|\.)(wte|wpe|word_embeddings|tok_embeddings)(\.|$)")),
    ("output", re.compile(r"(^|\.)(lm_head|embed_out|output_projection|unembedding)(\.|$)")),
)


def route(
    name: str | None,
    tensor: Tensor,
    roles: Mapping[str, str],
    use_adam: Iterable[str] | Callable[[str, Tensor], bool] | bool | None,
) -> Route:
    """Decide who steps a tensor, from what is said, from its role, then from its name."""
    plain = plain_name(name) if name is not None else ""

    def decided(adam: bool, reason: str) -> Route:
        return Route(plain, tuple(tensor.shape), adam, reason)

    if tensor.dim() < 2:
        return decided(True, "vector" if tensor.dim() == 1 else "scalar")
    if isinstance(use_adam, bool):
        return decided(use_adam, "use_adam")
    if callable(use_adam):
        return decided(bool(use_adam(plain, tensor)), "use_adam")
    if use_adam is not None:
        patterns = list(use_adam)
        matched = any(fnmatch.fnmatchcase(plain, pattern) for pattern in patterns)
        return decided(matched, "use_adam" if matched else "not in use_adam")
    if plain in roles:
        if roles[plain] in ROLES:
            return decided(True, ROLES[roles[plain]])
    elif not roles:
        for role, pattern in _BY_NAME:
            if pattern.search(plain):
                return decided(True, f"named like an {role}")
    if tensor.dim() == 3 and tensor.shape[0] == 1:
        return decided(True, ROLES["table"])
    if tensor.dim() > 3:
        return decided(False, "convolution, as a matrix [out, rest]")
    return decided(False, "matrix" if tensor.dim() == 2 else "stack of matrices")


def roles_of(model: nn.Module, outputs: Iterable[Tensor] = ()) -> dict[str, str]:
    """Roles of the parameters of a model, by plain name; "" for one that plays none.

    Parameters
    ----------
    outputs : iterable of Tensor
        Weights of the layers whose output is the model's.
    """
    ends = {id(weight) for weight in outputs}
    head = _output_embeddings(unwrap(model))
    if head is not None:
        ends.add(id(head))
    roles: dict[str, str] = {}
    of_parameter: dict[int, str] = {}
    for prefix, module in unwrap(model).named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full = plain_name(f"{prefix}.{name}" if prefix else name)
            role = _role(module, name, parameter)
            # A tied parameter is what its first use makes of it, and the output layer besides.
            role = of_parameter.setdefault(id(parameter), role)
            if not role and id(parameter) in ends:
                role = "output"
            roles[full] = role
    return roles


def _role(module: nn.Module, name: str, parameter: Tensor) -> str:
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    if isinstance(module, nn.modules.conv._ConvNd):
        depthwise = module.groups > 1 and module.groups == module.in_channels
        return "depthwise" if depthwise and name == "weight" else ""
    if parameter.dim() == 3 and parameter.shape[0] == 1:
        return "table"
    return ""


def _output_embeddings(model: nn.Module) -> Any:
    getter = getattr(model, "get_output_embeddings", None)
    layer = getter() if callable(getter) else None
    return getattr(layer, "weight", None)
