"""`timm` beside a torch for CPUs, for which PyPI has no torchvision."""

from __future__ import annotations

import functools
from types import ModuleType

import torch


@functools.cache
def mend_torchvision() -> torch.library.Library | None:
    """Make a torchvision importable whose compiled part belongs to another torch.

    ``pip install --no-deps torchvision==0.28.0 timm`` (and ``pillow``) brings one. It goes on without
    its compiled part, but for two operators that it describes to ``torch.compile`` without asking
    whether they are there. They are declared here; calling them remains an error.

    To be called before anything imports torchvision. `transformers` does where it finds one.

    Returns
    -------
    torch.library.Library or None
        The declarations, which live as long as it does; None where there is nothing to mend.
    """
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return None
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


def import_timm() -> ModuleType:
    """Import timm, with the Python part of torchvision only."""
    mend_torchvision()
    import timm

    return timm
