"""Cost of a step of DDCAdam and of hold, beside torch's fused AdamW: ratios taken in one run, alternating.

    python benchmarks/step_cost.py [--threads 2] [--repeats 15] [--group FILE]

The model is an unmodified Hugging Face Llama of 12.6M parameters (6 layers of width 384, 6 heads), float32.
Gradients are random and constant. The peer against itself is the control.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import ddc
import torch
from transformers import LlamaConfig, LlamaForCausalLM

Variant = Callable[[], None]


def llama(
    width: int = 384, layers: int = 6, heads: int = 6, vocabulary: int = 2560
) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=width,
            intermediate_size=1024,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            vocab_size=vocabulary,
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    )


def found(model: LlamaForCausalLM, file: Path | None) -> ddc.SymmetryGroup:
    """Symmetries of the model: read from a file, or searched for (minutes) and stored there."""
    if file is not None and file.exists():
        return ddc.SymmetryGroup.load(file, model)
    tokens = torch.randint(
        model.config.vocab_size, (2, 16), generator=torch.Generator().manual_seed(1)
    )
    group = ddc.discover(model, lambda m: m(input_ids=tokens, labels=tokens).loss)
    if file is not None:
        group.save(file)
    return group


def with_gradients(model: LlamaForCausalLM) -> LlamaForCausalLM:
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(2)
    for parameter in twin.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 1e-3
    return twin


def seconds(step: Variant) -> float:
    """With one thread seconds of the CPU, which know nothing of other processes."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    step()
    return clock() - start


def training_step(model: LlamaForCausalLM, tokens: int) -> float:
    """Seconds of forward and backward over so many tokens, measured in pieces of 1024."""
    twin = copy.deepcopy(model)
    batch = torch.randint(twin.config.vocab_size, (8, 128))

    def pass_() -> None:
        twin(input_ids=batch, labels=batch).loss.backward()
        twin.zero_grad()

    pass_()
    return statistics.median(seconds(pass_) for _ in range(3)) * tokens / batch.numel()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--group", type=Path, help="file to keep the symmetries in")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = llama()
    count = sum(p.numel() for p in model.parameters())
    everything = found(model, options.group)
    scales = everything.only("*scale*", "*rescale*", "CE*", "*shift*")
    heads = everything.without("residual rotation")
    print(
        f"{count / 1e6:.1f}M parameters, float32, {options.threads} threads, {torch.__version__}; "
        f"{len(everything)} gauges of dimension {everything.dimension}"
    )

    def adamw() -> torch.optim.AdamW:
        return torch.optim.AdamW(with_gradients(model).named_parameters(), lr=1e-4, fused=True)

    def lifted(group: ddc.SymmetryGroup | None, **treatment: object) -> Variant:
        named = with_gradients(model).named_parameters()
        return ddc.DDCAdam(named, lr=1e-4, symmetries=group, **treatment).step

    def held(group: ddc.SymmetryGroup, every: int) -> Variant:
        optimizer = adamw()
        ddc.hold(optimizer, group, every=every)
        return optimizer.step

    placed = {"placement": "canonical", "every": 1}
    kinds = {g.kind for g in everything.gauges if g.action in ("rotation", "linear")}
    unturned = {"project": {kind: "never" for kind in kinds}}
    variants: dict[str, Callable[[], Variant]] = {
        "AdamW(fused=True) again": lambda: adamw().step,
        "DDCAdam, no group": lambda: lifted(None),
        "DDCAdam, scales and shifts": lambda: lifted(scales, **placed),
        "DDCAdam, all head gauges": lambda: lifted(heads, **placed),
        "DDCAdam, everything": lambda: lifted(everything, **placed),
        "DDCAdam, everything by default, every 10": lambda: lifted(everything),
        "DDCAdam, everything placed, matrices not held": lambda: lifted(
            everything, **placed, **unturned
        ),
        "hold(AdamW), scales and shifts": lambda: held(scales, 1),
        "hold(AdamW), everything every 10": lambda: held(everything, 10),
    }
    peer = adamw().step
    for _ in range(3):
        peer()
    step_seconds = statistics.median(seconds(peer) for _ in range(options.repeats))
    whole = training_step(model, 4096)
    print(
        f"a step of AdamW takes {step_seconds * 1e3:.1f} ms, a training step at 4096 tokens {whole:.2f} s\n"
    )
    print(
        "| | in steps of fused AdamW (quartiles) | of a training step at 4096 tokens with AdamW |"
    )
    print("| --- | --- | --- |")
    for name, make in variants.items():
        step = make()
        per_call = 10 if "every 10" in name else 1
        step()
        ratios = []
        for _ in range(options.repeats):
            before = seconds(peer)
            own = sum(seconds(step) for _ in range(per_call)) / per_call
            after = seconds(peer)
            ratios.append(2 * own / (before + after))
        low, middle, high = statistics.quantiles(ratios, n=4)
        share = (whole + middle * step_seconds) / (whole + step_seconds)
        print(f"| {name} | {middle:.2f} ({low:.2f} to {high:.2f}) | {share:.3f} |", flush=True)


if __name__ == "__main__":
    main()
