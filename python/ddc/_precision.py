"""Float64 arithmetic in models whose code asks for float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


class Float64(TorchFunctionMode):
    """A context in which whoever asks for float32 gets float64.

    The models of transformers compute norms, rotary angles and losses in float32 whatever the type of
    their weights, for the sake of half precision. A float64 model they round to 1e-7, and what is equal
    to 1e-15 by mathematics does not look equal any more. Their code stays as it is here, as under
    autocast; only the type is another.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function is Tensor.float:
            function = Tensor.double
        named = {key: _wider(value) for key, value in (kwargs or {}).items()}
        return function(*map(_wider, args), **named)
