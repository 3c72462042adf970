"""DDCAdam in a LightningModule: symmetries are discovered where the optimizer is configured.

Two copies of a small network that are one function learn to tell two spirals apart.
Needs lightning.

    python examples/python/lightning_example.py
"""

from __future__ import annotations

import argparse
import logging
import math
import warnings
from copy import deepcopy

import ddc
import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def spirals(count: int) -> TensorDataset:
    """Points of two spirals in random order, and which of the two they are on."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    turn = torch.rand(count, generator=generator, dtype=torch.float64).sqrt() * 3 * math.pi
    angle = turn + math.pi * labels
    points = turn.unsqueeze(1) / 10 * torch.stack([angle.cos(), angle.sin()], dim=1)
    return TensorDataset(points, labels)


class Classifier(lightning.LightningModule):
    """A network that trains itself with DDCAdam, or with AdamW for comparison."""

    def __init__(self, width: int = 32, lr: float = 1e-2, plain: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        ).double()
        self.losses: list[float] = []

    def forward(self, points: Tensor) -> Tensor:
        return self.layers(points)

    def loss(self, batch: list[Tensor]) -> Tensor:
        points, labels = batch
        return cross_entropy(self(points), labels)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        return loss

    def train_dataloader(self) -> DataLoader:
        return DataLoader(spirals(512), batch_size=32)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.hparams.plain:
            return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return ddc.DDCAdam(
            self.named_parameters(), symmetries=self.symmetries(), lr=self.hparams.lr
        )

    def symmetries(self) -> ddc.SymmetryGroup:
        return ddc.lightning.discover(self)


def trainer(epochs: int, **options: object) -> lightning.Trainer:
    """A Trainer of Lightning, on the CPU and quiet."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
    defaults = dict(accelerator="cpu", devices=1, enable_checkpointing=False, **quiet)
    return lightning.Trainer(max_epochs=epochs, **{**defaults, **options})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    network = Classifier()
    group = network.symmetries()
    print(group)
    for plain in (True, False):
        network.hparams.plain = plain
        moved = group.random_element(options.seed).apply_(deepcopy(network))
        copies = deepcopy(network), moved
        for copy in copies:
            trainer(options.epochs).fit(copy)
        first, second = (copy.losses for copy in copies)
        apart = max(abs(a - b) / a for a, b in zip(first, second, strict=True))
        print(
            f"{'AdamW' if plain else 'DDCAdam'}: loss {first[0]:.4f} -> {first[-1]:.6f} and "
            f"{second[0]:.4f} -> {second[-1]:.6f}; curves differ by at most {apart:.1e}"
        )


if __name__ == "__main__":
    main()
