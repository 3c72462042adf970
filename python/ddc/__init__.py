"""Optimizers that respect every symmetry of the network.

>>> group = ddc.discover(model, loss)                      # doctest: +SKIP
>>> optimizer = ddc.DDCAdam(model.named_parameters(), lr=1e-3, symmetries=group)   # doctest: +SKIP
"""

import torch

try:
    from ddc import _C

    if torch.__version__.split("+")[0] != _C.torch_version:
        raise ImportError(f"it was built with torch {_C.torch_version}")
except ImportError as error:
    raise ImportError(
        f"ddc's extension works only with the torch that it was built with, and cannot be used with torch "
        f"{torch.__version__}: {error}. Build it again with this torch, in the folder of ddc's sources: "
        "pip install --no-build-isolation --force-reinstall --no-deps ."
    ) from error

from ddc import gauges, geometry, huggingface, lightning, measure, testing
from ddc._C import (
    Completeness,
    Engagement,
    Finding,
    Gauge,
    GaugeReport,
    Leg,
    Reading,
    Refusal,
    Report,
    StepCost,
    Verdict,
)
from ddc.audit import Audit, audit
from ddc.compare import Difference, FunctionDifference, GaugeDifference, TensorDifference
from ddc.discovery import discover
from ddc.optim import Lifted, lifted
from ddc.optimizers import DDCAdam, DDCLion, DDCMuon, DDCSgd, DDCShampoo, DDCSoap, Muon
from ddc.permutations import Permutation, Permutations, permutations
from ddc.placement import Hold, hold
from ddc.symmetry import Element, SymmetryGroup

__version__ = _C.__version__

__all__ = [
    "Audit",
    "Completeness",
    "DDCAdam",
    "DDCLion",
    "DDCMuon",
    "DDCSgd",
    "DDCShampoo",
    "DDCSoap",
    "Difference",
    "Element",
    "Engagement",
    "Finding",
    "FunctionDifference",
    "Gauge",
    "GaugeDifference",
    "GaugeReport",
    "Hold",
    "Leg",
    "Lifted",
    "Muon",
    "Permutation",
    "Permutations",
    "Reading",
    "Refusal",
    "Report",
    "StepCost",
    "SymmetryGroup",
    "TensorDifference",
    "Verdict",
    "audit",
    "discover",
    "gauges",
    "geometry",
    "hold",
    "huggingface",
    "lifted",
    "lightning",
    "measure",
    "permutations",
    "testing",
]
