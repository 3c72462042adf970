"""`timm` beside a torch for CPUs, for which PyPI has no torchvision."""

from __future__ import annotations

from types import ModuleType

import torch

_library: torch.library.Library | None = None


def import_timm() -> ModuleType:
    """Import timm with the Python part of torchvision only.

    ``pip install timm`` brings a torchvision that is compiled against another torch. Its compiled
    part cannot be loaded then, which it takes silently, but for two operators that it describes
    to ``torch.compile`` without asking whether they exist. They are declared here; calling them
    remains an error. Install with ``pip install --no-deps timm torchvision==0.28.0`` and
    ``pip install pillow huggingface_hub pyyaml safetensors``.

    Returns
    -------
    module
        timm.
    """
    global _library
    if _library is None and not hasattr(torch.ops.torchvision, "nms"):
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import timm

    return timm
