"""Symmetries of networks drawn at random, counted exactly.

    python benchmarks/random_networks.py [--networks 500] [--write docs/results/random_networks.md]

A network is an input (tokens, vectors or images), a few blocks of random kinds and sizes, of which some
share their weights and some tensors are frozen, and a loss. Its gauges are tried on batches that the
search has not seen, each alone and all together, and counted against the null space of the Jacobian over
many batches. No layer is narrower than what it reads, and no table smaller than what follows can tell
apart: else directions would be unseen that depend on the weights. What is missing is tabulated by the
blocks whose tensors it is in, and by mechanism: networks are changed, one change on top of the other, until
nothing is missing, and what a change saves is put down to what it took away. Results are kept beside the
table as JSON lines, and a run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import ddc
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

SEEN = 1 << 20
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "tanh": torch.tanh,
    "leaky relu": lambda x: nn.functional.leaky_relu(x, 0.2),
    "squared relu": lambda x: torch.relu(x).square(),
}


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)


class Residual(nn.Module):
    """A block behind a norm, beside which the stream goes on."""

    def __init__(self, norm: nn.Module, inner: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


class Feedforward(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int, bias: bool, act: str) -> None:
        super().__init__()
        self.up = nn.Linear(inputs, hidden, bias=bias)
        self.down = nn.Linear(hidden, outputs, bias=bias)
        self.act = ACTIVATIONS[act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class Gated(Feedforward):
    def __init__(self, inputs: int, hidden: int, outputs: int, bias: bool, act: str) -> None:
        super().__init__(inputs, hidden, outputs, bias, act)
        self.gate = nn.Linear(inputs, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    def __init__(self, inputs: int, heads: int, shared: int, size: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads, shared
        self.query = nn.Linear(inputs, heads * size, bias=bias)
        self.key = nn.Linear(inputs, heads // shared * size, bias=bias)
        self.value = nn.Linear(inputs, heads // shared * size, bias=bias)
        self.out = nn.Linear(heads * size, inputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        heads, shared = self.heads
        query = self.query(x).unflatten(-1, (heads, -1)).transpose(1, 2)
        key, value = (
            made(x)
            .unflatten(-1, (heads // shared, -1))
            .transpose(1, 2)
            .repeat_interleave(shared, 1)
            for made in (self.key, self.value)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    def __init__(self, kind: str, inputs: int, outputs: int) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(inputs, outputs, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


class Convolution(nn.Module):
    """Over time, and an activation."""

    def __init__(self, inputs: int, outputs: int, bias: bool, act: str) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, 3, padding=1, bias=bias)
        self.act = ACTIVATIONS[act]

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x.transpose(1, 2)).transpose(1, 2))


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int, bias: bool, act: str | None) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.act = ACTIVATIONS[act] if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x))


class Pixels(nn.Module):
    """A convolution, a norm over channels and an activation, on images; they leave as a row of pixels."""

    def __init__(self, inputs: int, outputs: int, norm: str, bias: bool, act: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 2, bias=bias)
        self.norm = {
            "none": nn.Identity(),
            "batch": nn.BatchNorm2d(outputs),
            "group": nn.GroupNorm(1, outputs, eps=1e-3),
        }[norm]
        self.act = ACTIVATIONS[act]

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x))).flatten(2).transpose(1, 2)


class Normed(nn.Module):
    """A linear layer, BatchNorm over all tokens, and an activation."""

    def __init__(self, inputs: int, outputs: int, bias: bool, act: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.norm = nn.BatchNorm1d(outputs)
        self.act = ACTIVATIONS[act]

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2))


class Network(nn.Module):
    """The network of a seed; perhaps with all tensors trainable, with all biases, or with other weights."""

    def __init__(
        self, seed: int, trainable: bool = False, biases: bool = False, weights: int = 0
    ) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed + weights)
        self.biases = biases
        self.task = draw.choice(["tokens", "vectors", "images"])
        width = draw.randint(3, 5)
        self.size = draw.randint(24, 30) if self.task == "tokens" else draw.randint(6, 9)
        self.squared = draw.random() < 0.25
        if self.task == "tokens":
            # Without positions a table would contain whatever treats tokens one by one.
            self.embedding = nn.Embedding(self.size, width)
            self.positions = nn.Parameter(torch.randn(5, width))
        elif self.task == "images":
            norm, act = draw.choice(["none", "batch", "group"]), draw.choice(list(ACTIVATIONS))
            self.pixels = Pixels(2, width, norm, self.draws_bias(draw, 0.5) or norm == "none", act)
        else:
            self.first = Linear(self.size, width, self.draws_bias(draw, 0.7), None)
        blocks: list[tuple[str, nn.Module]] = []
        for _ in range(draw.randint(1, 3)):
            shared = [pair for pair in blocks if getattr(pair[1], "keeps", 0) == width]
            if shared and draw.random() < 0.2:
                blocks.append(draw.choice(shared))
                continue
            kind, block, width = self.block(draw, width)
            blocks.append((kind, block))
        self.order = []
        self.blocks = nn.ModuleDict()
        for kind, block in blocks:
            known = [name for name, other in self.blocks.items() if other is block]
            name = known[0] if known else f"{len(self.blocks)} {kind}"
            self.blocks[name] = block
            self.order.append(name)
        last = draw.choice(["none", "layer norm", "rms norm"])
        self.norm = self.make_norm(last, width)
        self.classes = width + draw.randint(1, 2)
        self.out = nn.Linear(width, self.classes, bias=self.draws_bias(draw, 0.5))
        self.mean = draw.random() < 0.5
        self.batch_statistics = draw.random() < 0.5
        for parameter in self.parameters():
            if parameter.dim() < 2:
                nn.init.normal_(parameter, 1.0 if (parameter == 1).all() else 0.0, 0.3)
            # Biases that were added are no draw of their own.
            parameter.requires_grad_(trainable or draw.random() > 0.04)
        for module in self.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2.0)

    def draws_bias(self, draw: random.Random, share: float) -> bool:
        return draw.random() < share or self.biases

    @staticmethod
    def make_norm(kind: str, width: int) -> nn.Module:
        norms = {
            "layer norm": lambda: nn.LayerNorm(width, eps=1e-3),
            "rms norm": lambda: RMSNorm(width),
        }
        return norms[kind]() if kind in norms else nn.Identity()

    def block(self, draw: random.Random, width: int) -> tuple[str, nn.Module, int]:
        """The kind of a block, the block, and how wide its output is."""
        kind = draw.choice(
            [
                "linear",
                "feedforward",
                "gated",
                "attention",
                "recurrent",
                "convolution",
                "batch norm",
            ]
        )
        bias, act = self.draws_bias(draw, 0.6), draw.choice(list(ACTIVATIONS))
        hidden, outputs = width + draw.randint(0, 3), width + draw.randint(0, 2)
        made: nn.Module
        if kind in ("feedforward", "gated", "attention"):
            if kind == "attention":
                heads = draw.choice([1, 2])
                size = max(2, -(-width // heads)) + draw.randint(0, 1)
                made = Attention(width, heads, draw.choice([1, heads]), size, bias)
            else:
                made = (Gated if kind == "gated" else Feedforward)(width, hidden, width, bias, act)
            norm = draw.choice(["none", "layer norm", "rms norm"])
            if draw.random() < 0.7:
                made, kind = Residual(self.make_norm(norm, width), made), f"{kind} behind {norm}"
            made.keeps = width
            return kind.replace(" behind none", ", residual"), made, width
        if kind == "recurrent":
            cell = draw.choice(["RNN", "GRU", "LSTM"])
            return cell, Recurrent(cell, width, outputs), outputs
        if kind == "convolution":
            return kind, Convolution(width, outputs, bias, act), outputs
        if kind == "batch norm":
            return f"linear before {kind}", Normed(width, outputs, bias, act), outputs
        plain = draw.random() < 0.2
        return kind, Linear(width, outputs, bias, None if plain else act), outputs

    def forward(self, x: Tensor) -> Tensor:
        for name in ("embedding", "pixels", "first"):
            if hasattr(self, name):
                x = getattr(self, name)(x)
        if self.task == "tokens":
            x = x + self.positions
        for name in self.order:
            x = self.blocks[name](x)
        x = self.norm(x)
        return self.out(x.mean(1) if self.mean else x)

    def loss(self) -> Tensor:
        return self.losses().mean()

    def losses(self) -> Tensor:
        """Losses of every row of a batch."""
        if self.task == "tokens":
            x = torch.randint(self.size, (24, 5))
        else:
            shape = (24, 2, 3, 3) if self.task == "images" else (24, 4, self.size)
            x = torch.randn(shape, dtype=torch.float64)
        out = self(x).flatten(0, -2)
        if self.squared:
            return (out - torch.randn(out.shape, dtype=out.dtype)).square().mean(-1)
        return cross_entropy(out, torch.randint(self.classes, out.shape[:1]), reduction="none")


def build(seed: int, statistics: bool = False, **changes: Any) -> Network:
    """A network in the mode that was drawn, or with statistics of batches."""
    network = Network(seed, **changes).double()
    return network.train(statistics or network.batch_statistics)


# What takes a mechanism away, on top of the changes before.
CHANGES: dict[str, dict[str, Any]] = {
    "a frozen tensor would have to move as well, or make up for what does": {"trainable": True},
    "a shift of a norm whose reader has no bias": {"biases": True},
    "BatchNorm in eval mode: running means and variances would have to move": {"statistics": True},
    "depends on the point: not there at other weights": {"weights": 100_000},
}
NOT_TRACED = "not traced"


def missing_of(network: Network) -> int | None:
    counted = ddc.discover(network, Network.loss, completeness=True).completeness
    return None if counted is None else round(counted.kernel) - counted.dead - counted.explained


def mechanisms(seed: int, missing: int) -> dict[str, int]:
    """Missing directions that each of the changes saves, and the rest."""
    result: dict[str, int] = {}
    changes: dict[str, Any] = {}
    for name, change in CHANGES.items():
        if missing == 0:
            break
        before = [tuple(p.shape) for p in build(seed, **changes).parameters() if p.requires_grad]
        same = build(seed, **changes).training
        changes |= change
        network = build(seed, **changes)
        after = [tuple(p.shape) for p in network.parameters() if p.requires_grad]
        norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())
        if before == after and "weights" not in change and (same == network.training or not norms):
            continue
        left = missing_of(network)
        if left is not None and left < missing:
            result[name] = missing - left
            missing = left
    return result | ({NOT_TRACED: missing} if missing else {})


def change_of_losses(network: Network, group: Any, seeds: range) -> float:
    """How much an element of the group changes losses of unseen batches, relative to the largest."""
    losses = []
    for moved in (False, True):
        if moved:
            group.random_element(seed=7, size=0.5).apply_(network)
        values = []
        for seed in seeds:
            torch.manual_seed(seed)
            values.append(network.losses().detach())
        losses.append(torch.stack(values))
    return ((losses[0] - losses[1]).abs().max() / losses[0].abs().max()).item()


def audit(seed: int) -> dict[str, Any]:
    """What is found in one network, and what is missing."""
    network = build(seed)
    start = time.process_time()
    group = ddc.discover(network, Network.loss, completeness=True)
    result: dict[str, Any] = {
        "seed": seed,
        "blocks": [network.task, *(name.split(" ", 1)[1] for name in network.order)],
        "gauges": len(group.gauges),
        "dimension": group.dimension,
        "seconds": round(time.process_time() - start, 2),
    }
    result["change"] = max(
        (
            change_of_losses(build(seed), part, range(SEEN, SEEN + 2))
            for part in [group, *(group.only(gauge.name) for gauge in group.gauges)]
        ),
        default=0.0,
    )
    counted = group.completeness
    if counted is None:
        return result | {"not counted": " ".join(group.notes)}
    kernel = round(counted.kernel) - counted.dead
    if kernel > counted.explained:
        result["mechanisms"] = mechanisms(seed, kernel - counted.explained)
    missing: dict[str, float] = defaultdict(float)
    for name, share in counted.per_tensor:
        parts = name.split(".")
        block = parts[1].split(" ", 1)[1] if parts[0] == "blocks" else parts[0]
        missing[f"{block}: {'.'.join(parts[2:] if parts[0] == 'blocks' else parts[1:])}"] += share
    return result | {
        "parameters": counted.parameters,
        "kernel": kernel,
        "explained": counted.explained,
        "missing": {name: round(share, 2) for name, share in missing.items()},
    }


def table(results: list[dict[str, Any]]) -> str:
    counted = [each for each in results if "kernel" in each]
    whole = [each for each in counted if each["explained"] == each["kernel"]]
    directions = sum(each["kernel"] for each in counted)
    explained = sum(each["explained"] for each in counted)
    failed = [each for each in results if "error" in each]
    wrong = [each for each in results if each.get("change", 0) > 1e-9]
    seconds = sum(each.get("seconds", 0) for each in results) / max(len(results), 1)
    of_block: dict[str, float] = Counter()
    networks: Counter[str] = Counter()
    for each in counted:
        if each["explained"] == each["kernel"]:
            continue
        for name, share in each["missing"].items():
            of_block[name] += share
            networks[name] += 1
    of_mechanism: Counter[str] = Counter()
    of_networks: Counter[str] = Counter()
    for each in counted:
        for name, count in each.get("mechanisms", {}).items():
            of_mechanism[name] += count
            of_networks[name] += 1
    point = next(name for name in CHANGES if name.startswith("depends on the point"))
    seen = max(directions - of_mechanism[point], 1)
    lines = [
        "# Networks drawn at random",
        "",
        "Written by `python benchmarks/random_networks.py --write docs/results/random_networks.md`.",
        "",
        "| | |",
        "| --- | --: |",
        f"| networks | {len(results)} |",
        f"| crashes | {len(failed)} |",
        f"| false positives (loss of unseen batches changed by more than 1e-9) | {len(wrong)} |",
        f"| largest change of a loss | {max((r.get('change', 0) for r in results), default=0):.0e} |",
        f"| counted exactly | {len(counted)} |",
        f"| complete | {len(whole)} |",
        f"| directions that no batch sees | {directions} |",
        f"| of these along gauges | {explained} ({100 * explained / max(directions, 1):.1f}%) |",
        f"| the same without those that depend on the point | {100 * explained / seen:.1f}% |",
        f"| processor time of a search, mean | {seconds:.1f} s |",
        "",
        "What is missing, by mechanism. A network is changed, one change on top of the other, and counted",
        "again: nothing frozen, biases everywhere, BatchNorm with statistics of the batch, other weights.",
        "What a change saves is put down to what it took away; the rest was not traced.",
        "",
        "| mechanism | directions | networks |",
        "| --- | --: | --: |",
        *(
            f"| {name} | {of_mechanism[name]} | {of_networks[name]} |"
            for name in (*CHANGES, NOT_TRACED)
        ),
        "",
        "What is missing, by the tensors that it is in:",
        "",
        "| block: tensor | directions | networks |",
        "| --- | --: | --: |",
        *(
            f"| {name} | {share:.1f} | {networks[name]} |"
            for name, share in sorted(of_block.items(), key=lambda item: -item[1])
            if share >= 0.5
        ),
        "",
    ]
    if failed:
        lines += ["Crashes:", "", *(f"- {r['seed']}: {r['error']}" for r in failed), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument(
        "--write", metavar="FILE", help="the table goes there, and FILE.jsonl beside it"
    )
    arguments = parser.parse_args()
    store = pathlib.Path(arguments.write).with_suffix(".jsonl") if arguments.write else None
    results: list[dict[str, Any]] = []
    if store is not None and store.exists():
        results = [json.loads(line) for line in store.read_text().splitlines()]
    known = {each["seed"] for each in results}
    for seed in range(arguments.first, arguments.first + arguments.networks):
        if seed in known:
            continue
        try:
            results.append(audit(seed))
        except Exception as error:  # a crash is a row of the table
            results.append({"seed": seed, "error": str(error).splitlines()[0][:300]})
        print(json.dumps(results[-1]), file=sys.stderr)
        if store is not None:
            with store.open("a") as out:
                out.write(json.dumps(results[-1]) + "\n")
            pathlib.Path(arguments.write).write_text(table(results))
    if store is None:
        print(table(results))


if __name__ == "__main__":
    main()
