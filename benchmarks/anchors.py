"""Copies of weights that holding takes: entries of anchors, relative to those of the model.

    python benchmarks/anchors.py [FAMILY ...]

Tensors that linear groups and rotations turn are kept as they were when they were last turned back. Models
are those of `examples/python/families.py`, which are small and in the proportions of the families.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ddc
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "python"))

import families  # noqa: E402

FAMILIES = ("GPT-2", "Llama", "ViT")


def anchors(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Anchors in the state of a placement, by "TENSOR/anchorSTEPS" or "...anchor.STEPS.TENSOR"."""
    return {name: tensor for name, tensor in state.items() if "anchor" in name}


def of_hold(model: torch.nn.Module, group: ddc.SymmetryGroup, **treatment: Any) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.named_parameters())
    return anchors(ddc.hold(optimizer, group, **treatment)._placement.state())


def of_adam(model: torch.nn.Module, group: ddc.SymmetryGroup, **treatment: Any) -> dict[str, Any]:
    optimizer = ddc.DDCAdam(
        model.named_parameters(), symmetries=group, placement="canonical", **treatment
    )
    return anchors(dict(_tensors(optimizer.state_dict())))


def _tensors(state: Any, name: str = "") -> Any:
    if isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from _tensors(value, f"{name}/{key}")


def main() -> None:
    wanted = sys.argv[1:] or FAMILIES
    print("| | `hold` | `hold`, `every=1` | DDCAdam | DDCAdam, `every=1` |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for family in families.FAMILIES:
        if family.name not in wanted:
            continue
        group = ddc.discover(families.build(family), family.loss)
        cells = []
        for kept_by in (of_hold, of_adam):
            for treatment in ({}, {"every": 1}):
                model = families.build(family).float()
                kept = sum(each.numel() for each in kept_by(model, group, **treatment).values())
                cells.append(f"{100 * kept / sum(p.numel() for p in model.parameters()):.0f} %")
        print(f"| {family.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
