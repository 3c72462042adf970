"""What holding rotations and linear groups every K steps leaves of drift, and what it costs.

    python benchmarks/horizontality.py [--steps 200] [--lr 3e-4]

A small Hugging Face Llama in float64 is trained by DDCAdam at its canonical place. Drift is how far the
steps and the moves after them have gone along the orbits, over the whole run: the largest entry of the sum
of the generators (angles) of their orbit parts.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import ddc
import torch
from ddc import _C
from transformers import LlamaConfig, LlamaForCausalLM

Named = list[tuple[str, torch.Tensor]]
EVERY: dict[str, dict[str, Any]] = {
    "1": {"every": 1, "project": "step"},
    "10": {"every": 10, "project": "step"},
    "100": {"every": 100, "project": "step"},
    "never": {"project": "never"},
    "default": {},
}


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    ).double()


def named(model: torch.nn.Module) -> Named:
    return [(name, p.detach().clone()) for name, p in model.named_parameters()]


def generator_of(gauge: Any, before: Named, after: Named) -> torch.Tensor:
    """Skew A, per block, with A x the part along the orbit of what takes `before` to `after`.

    It solves M A + A M = D x^T - x D^T (docs/explanation/construction.md), in the eigenbasis of M.
    """
    product = _C.overlap(gauge, before, after)
    values, vectors = torch.linalg.eigh(_C.overlap(gauge, before, before))
    sums = values.unsqueeze(-1) + values.unsqueeze(-2)
    inside = vectors.mT @ (product - product.mT) @ vectors
    fixed = sums > 1e-12 * sums.amax((-2, -1), keepdim=True)
    return vectors @ torch.where(fixed, inside / sums, 0.0) @ vectors.mT


def train(
    model: LlamaForCausalLM, group: Any, treatment: dict[str, Any], steps: int, lr: float
) -> tuple[dict[str, float], float, float]:
    """Drift by kind, the last loss, and the CPU seconds of a step."""
    model = copy.deepcopy(model)
    optimizer = ddc.DDCAdam(
        model.named_parameters(), lr=lr, symmetries=group, placement="canonical", **treatment
    )
    gauges = [g for g in group._core.gauges() if g.action in ("rotation", "linear")]
    turned = {g.name: torch.zeros((), dtype=torch.float64) for g in gauges}
    before = named(model)
    generator = torch.Generator().manual_seed(1)
    spent = []
    for _ in range(steps):
        tokens = torch.randint(64, (8, 16), generator=generator)
        tokens[:, 1::2] = tokens[:, ::2]  # something to learn
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        start = time.process_time()
        optimizer.step()
        spent.append(time.process_time() - start)
        after = named(model)
        for gauge in gauges:
            turned[gauge.name] = turned[gauge.name] + generator_of(gauge, before, after)
        before = after
    drift: dict[str, float] = {}
    for gauge in gauges:
        drift[gauge.kind] = max(drift.get(gauge.kind, 0.0), float(turned[gauge.name].abs().max()))
    return drift, float(loss.detach()), statistics.mean(spent)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=3e-4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = llama()
    tokens = torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(2))
    group = ddc.discover(model, lambda m: m(input_ids=tokens, labels=tokens).loss)
    kinds = sorted({g.kind for g in group.gauges if g.action in ("rotation", "linear")})
    print(
        f"{options.steps} steps at lr {options.lr}, float64, 1 thread, torch {torch.__version__}\n\n"
        f"| held every | {' | '.join(f'{kind}: angle' for kind in kinds)} | last loss | "
        "ms of a step |\n| --- |" + " ---: |" * (len(kinds) + 2)
    )
    for name, treatment in EVERY.items():
        by_kind: dict[str, Any] = {
            option: {kind: value for kind in kinds} for option, value in treatment.items()
        }
        drift, loss, seconds = train(model, group, by_kind, options.steps, options.lr)
        angles = " | ".join(f"{drift[kind]:.1e}" for kind in kinds)
        print(f"| {name} | {angles} | {loss:.4f} | {seconds * 1e3:.1f} |", flush=True)


if __name__ == "__main__":
    main()
