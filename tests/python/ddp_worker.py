"""Trains a small network on this rank's share of every batch, and stores the weights it ends with.

Run by torchrun with several processes, or alone: then with the joined batches. Argument: folder.
"""

import os
import sys
from pathlib import Path

import ddc
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 32
STEPS = 20


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 16)
        self.norm = nn.LayerNorm(16)
        self.hidden = nn.Linear(16, 24)
        self.leave = nn.Linear(24, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.leave(torch.relu(self.hidden(self.norm(self.enter(inputs)))))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(BATCH, 6, generator=generator)
    return inputs, (inputs[:, :4] * 3).sin().argmax(-1)


def vit_group() -> str:
    """The symmetries of a vision transformer, whose class token is one row of a table (axis -1)."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python"))
    import families

    family = next(f for f in families.FAMILIES if f.make is families.hf_vit)
    return ddc.discover(families.build(family), family.loss).to_json()


def main(folder: Path) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if ranks > 1:
        dist.init_process_group("gloo")
    # Other weights on every rank until DistributedDataParallel broadcasts those of rank 0.
    torch.manual_seed(rank)
    model = Network()
    if ranks > 1:
        model = DistributedDataParallel(model)

    calls = 0

    def discovery_loss(model: nn.Module) -> torch.Tensor:
        nonlocal calls
        calls += 1
        inputs, targets = batch(int(torch.randint(1000, ())))
        return nn.functional.cross_entropy(model(inputs), targets)

    group = ddc.discover(model, discovery_loss)
    optimizer = ddc.DDCAdam(model.named_parameters(), symmetries=group, lr=1e-2)
    share = BATCH // ranks
    for step in range(STEPS):
        inputs, targets = batch(step)
        mine = slice(rank * share, (rank + 1) * share)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[mine]), targets[mine]).backward()
        optimizer.step()
    weights = getattr(model, "module", model).state_dict()
    found = {
        "weights": weights,
        "calls": calls,
        "group": group.to_json(),
        "vit": vit_group(),
    }
    torch.save(found, folder / f"rank{rank}of{ranks}.pt")
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
