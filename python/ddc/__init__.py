"""Optimizers that respect every symmetry of the network.

>>> group = ddc.discover(model, loss)                      # doctest: +SKIP
>>> optimizer = ddc.DDCAdam(model.named_parameters(), group, lr=1e-3)   # doctest: +SKIP
"""

import torch

try:
    from ddc import _C
except ImportError as error:
    raise ImportError(
        f"ddc's extension cannot be loaded with torch {torch.__version__}: it is built for one version "
        f"of torch, see the dependencies of the package ({error})"
    ) from error

if torch.__version__.split("+")[0] != _C.torch_version:
    raise ImportError(
        f"ddc was built for torch {_C.torch_version}, but torch {torch.__version__} is installed; "
        f"run: pip install torch=={_C.torch_version}"
    )

from ddc import huggingface, lightning
from ddc.audit import Audit, audit
from ddc.discovery import discover
from ddc.optim import DDCAdam, DDCMuon, Lifted
from ddc.symmetry import Element, SymmetryGroup

__version__ = _C.__version__

__all__ = [
    "Audit",
    "DDCAdam",
    "DDCMuon",
    "Element",
    "Lifted",
    "SymmetryGroup",
    "audit",
    "discover",
    "huggingface",
    "lightning",
]
