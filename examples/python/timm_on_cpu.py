"""`timm` beside a torch for CPUs, for which PyPI has no torchvision."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType

import torch

# The declarations live as long as this does.
_LIBRARIES: list[torch.library.Library] = []


@functools.cache
def import_timm() -> ModuleType:
    """Import timm, with the Python part of torchvision only.

    ``requirements-test-timm.txt`` brings both, into a folder of their own: whoever finds this torchvision
    imports it, and fails, since its compiled part belongs to another torch. It would go on without
    that part, but for two operators that it describes to ``torch.compile`` without asking whether
    they are there. They are declared here; calling them remains an error.
    """
    sys.path.append(str(Path(sys.prefix) / "timm"))
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
    import timm

    return timm
