"""The package in one page: find the symmetries of a model, and train two copies of one function.

Run: python examples/python/quickstart.py [--out FOLDER]
"""

import argparse
import copy
from pathlib import Path

import ddc
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A transformer block with LayerNorm and ReLU on sequences of 8 tokens."""

    def __init__(self, width: int = 16, heads: int = 2, vocabulary: int = 17) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.final_norm = nn.LayerNorm(width)
        self.unembedding = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        x = x + self.down(F.relu(self.up(self.mlp_norm(x))))
        return self.unembedding(self.final_norm(x))


def loss(model: nn.Module) -> torch.Tensor:
    """Next token of sequences in which every token is the sum of the two before it."""
    tokens = torch.randint(17, (64, 2))
    for _ in range(7):
        tokens = torch.cat([tokens, (tokens[:, -1:] + tokens[:, -2:-1]) % 17], dim=1)
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 100) -> float:
    for step in range(steps):
        torch.manual_seed(step)  # the same batches for every model
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        optimizer.step()
    return value.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="where to write the symmetries, as a page and as a file"
    )
    out = parser.parse_args().out
    torch.set_num_threads(1)  # the network is too small for more
    torch.manual_seed(0)
    model = Block().double()
    group = ddc.discover(model, loss)
    print(group)

    moved = group.random_element(seed=1, size=0.5).apply_(copy.deepcopy(model))
    print("two copies of one function, after 100 steps of training:")
    print("  optimizer     loss of the first   loss of the second   difference")
    for name in ("AdamW", "DDCAdam", "DDCMuon"):
        ends = []
        for start in (model, moved):
            copied = copy.deepcopy(start)
            optimizer: torch.optim.Optimizer
            if name == "AdamW":
                optimizer = torch.optim.AdamW(copied.parameters(), lr=3e-3)
            elif name == "DDCAdam":
                optimizer = ddc.DDCAdam(copied.named_parameters(), symmetries=group, lr=3e-3)
            else:
                optimizer = ddc.DDCMuon(
                    copied.named_parameters(), lr=0.02, adam={"lr": 3e-3}, symmetries=group
                )
            ends.append(train(copied, optimizer))
        print(f"  {name:10s} {ends[0]:20.12f} {ends[1]:20.12f}   {abs(ends[0] - ends[1]):10.1e}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        group.save(out / "symmetries.json")
        group.show(out / "symmetries.html", title="A transformer block")
        print(f"wrote {out / 'symmetries.html'}: the network with its symmetries, for a browser")
        print(f"wrote {out / 'symmetries.json'}: the symmetries, for ddc.SymmetryGroup.load")


if __name__ == "__main__":
    main()
