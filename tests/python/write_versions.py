"""Write the files of this version of ddc that later versions must read: `data`, read by test_versions.py.

python tests/python/write_versions.py
"""

import copy
from pathlib import Path
from typing import Any

import ddc
import torch
from optim_support import group, loss_on, network
from torch import nn

DATA = Path(__file__).parent / "data"

OPTIMIZERS: dict[str, Any] = {"ddc_adam": ddc.DDCAdam, "ddc_muon": ddc.DDCMuon}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: range) -> None:
    for batch in batches:
        model.zero_grad()
        loss_on(model, batch).backward()
        optimizer.step()


def copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def main() -> None:
    group().save(DATA / f"symmetries_{ddc.__version__}.json")
    for kind, make in OPTIMIZERS.items():
        model = network()
        optimizer = make(model.named_parameters(), symmetries=group(), lr=1e-2)
        train(model, optimizer, range(3))
        saved = {"model": copied(model), "optimizer": copy.deepcopy(optimizer.state_dict())}
        train(model, optimizer, range(3, 6))
        saved["later"] = copied(model)
        torch.save(saved, DATA / f"{kind}_{ddc.__version__}.pt")


if __name__ == "__main__":
    main()
