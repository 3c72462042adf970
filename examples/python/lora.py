"""Trains two sets of LoRA adapters that are the same update, factored differently.

An adapter adds B A to a frozen weight, and so does (B G^-1)(G A) for every invertible G: the gauge
GL(r) of each pair. It is discovered on adapters that `peft` put on a pretrained model (see
fine_tune.py), and a copy of them is moved along it. AdamW makes two different models of the two,
DDCAdam one.

    python examples/python/lora.py --steps 80 --layers 2
"""

from __future__ import annotations

import argparse
from copy import deepcopy

import ddc
import peft
import torch
from fine_tune import MakeOptimizer, gap, load_batches, load_model, train
from torch import nn


def add_adapters(model: nn.Module, rank: int, targets: list[str], zero: bool = False) -> nn.Module:
    """The model, frozen, with adapters.

    `peft` starts them with B = 0 (`zero`), where the place on the orbit is not defined: every G
    leaves B alone, and copies differ by G A only. Discovery moves to a generic point first, and
    finds the gauge all the same. DDCAdam measures A against a usual initialisation until B has
    grown, on which copies agree too.
    """
    config = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,
        target_modules=targets,
        init_lora_weights=zero,
    )
    return peft.get_peft_model(model, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--layers", type=int, default=2, help="keep the first so many of 6")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--targets", nargs="+", default=["query", "value"])
    parser.add_argument("--zero", action="store_true", help="start with B = 0, as peft does")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    base = load_model(options.layers, getattr(torch, options.dtype))
    model = add_adapters(base, options.rank, options.targets, options.zero)
    batches = load_batches(size=8, length=24, seed=options.seed)
    group = ddc.discover(model, ddc.huggingface.loss_fn(batches))
    print(group)

    moved = group.random_element(options.seed).apply_(deepcopy(model))
    optimizers: dict[str, MakeOptimizer] = {
        "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=options.lr),
        "DDCAdam": lambda m: ddc.DDCAdam(m.named_parameters(), symmetries=group, lr=options.lr),
    }
    for name, make in optimizers.items():
        first, second = (train(deepcopy(m), make, batches[: options.steps]) for m in (model, moved))
        ends = [sum(losses[-10:]) / len(losses[-10:]) for losses in (first, second)]
        print(
            f"{name}: loss {first[0]:.4f}, and {ends[0]:.6f} or {ends[1]:.6f} on average over the "
            f"last ten steps; curves differ by at most {gap(first, second):.1e}"
        )


if __name__ == "__main__":
    main()
