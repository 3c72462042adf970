"""What discovery costs on decoders of the sizes that people train: time and memory, by size and by depth.

    python benchmarks/discovery_sizes.py [gpt2-124m ...] [--threads 2] [--write FILE]

The page is docs/results/discovery_sizes.md.

Each model has a process of its own. What libraries need once, however small the model, is there before the
measurement begins: a small model of the same kind is searched first.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import ddc
import torch
import transformers
from torch import Tensor, nn

TOKENS = (2, 33)
COMMON: dict[str, Any] = dict(
    bos_token_id=None, eos_token_id=None, pad_token_id=None, use_cache=False
)


def gpt2(layers: int, width: int, vocabulary: int = 50257) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=width // 64, **COMMON
    )
    return transformers.GPT2LMHeadModel(config)


def llama(layers: int, width: int, inner: int, heads: int, groups: int) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        **COMMON,
    )
    return transformers.LlamaForCausalLM(config)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2-12x128": lambda: gpt2(12, 128, 512),
    "gpt2-25x128": lambda: gpt2(25, 128, 512),
    "gpt2-50x128": lambda: gpt2(50, 128, 512),
    "gpt2-100x128": lambda: gpt2(100, 128, 512),
    "gpt2-30m": lambda: gpt2(8, 512, 8000),
    "gpt2-124m": lambda: gpt2(12, 768),
    "llama-1.1b": lambda: llama(22, 2048, 5632, 32, 4),
}
BFLOAT16 = ["llama-1.1b"]


def loss(model: nn.Module) -> Tensor:
    tokens = torch.randint(model.config.vocab_size, TOKENS)
    logits = model(input_ids=tokens[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def memory(field: str) -> float:
    """In bytes: VmRSS now, or VmHWM at its peak since `forget_peak`."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return 1024.0 * int(line.split()[1])


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as references:
        references.write("5")


def small(name: str) -> nn.Module:
    """A model of the same kind, with layers enough that they are searched in the same way."""
    return llama(8, 128, 128, 2, 1) if name.startswith("llama") else gpt2(8, 128, 512)


def measure(name: str, threads: int, verbose: bool) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    ddc.discover(small(name).eval(), loss, verbose=False)
    torch.set_default_dtype(torch.bfloat16 if name in BFLOAT16 else torch.float32)
    model = MODELS[name]().eval()
    torch.set_default_dtype(torch.float32)
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    count = sum(each.numel() for each in model.parameters())
    forget_peak()
    before = memory("VmRSS")
    start, cpu = time.monotonic(), time.process_time()
    group = ddc.discover(model, loss, verbose=verbose)
    wall, used = time.monotonic() - start, time.process_time() - cpu
    cells = [
        name,
        f"{count / 1e6:.1f}M",
        f"{wall:.0f}",
        f"{used:.0f}",
        str(len(group.gauges)),
        str(group.dimension),
        f"{(memory('VmHWM') - before) / size:.2f}",
        f"{memory('VmHWM') / 2**30:.1f}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)
    if verbose:
        for what, number in sorted(Counter(f"{g.kind} {g.group}" for g in group.gauges).items()):
            print(number, what)
        for refused in group.refusals:
            print("refused:", refused.name, refused.kind, refused.reason)
        for note in group.notes:
            print("note:", note)


PAGE = """# What discovery costs

Written by `python benchmarks/discovery_sizes.py --write docs/results/discovery_sizes.md`: {machine}.

Decoders of transformers with random weights, float32 ({narrow} in bfloat16, searched in float32), on batches
of {tokens} tokens. **memory** is the most that the process had during discovery beyond what there was
before, with the model loaded, as a multiple of the model's own; **peak** is all of the process.

{table}
"""
HEADER = """| model | parameters | wall s | CPU s | gauges | dimension | memory | peak GB |
| --- | --: | --: | --: | --: | --: | --: | --: |"""


def machine(threads: int) -> str:
    """The processor, how much of it is used, and versions."""
    with open("/proc/cpuinfo") as info:
        names = [line.split(":")[1].strip() for line in info if line.startswith("model name")]
    processor = names[0] if names else platform.machine()
    return (
        f"{threads} threads on {os.cpu_count()} cores ({processor}), Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}, ddc {ddc.__version__}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", action="store_true", help="in this process, with all it finds")
    parser.add_argument("--write", metavar="FILE", help="the page goes there")
    arguments = parser.parse_args()
    names = arguments.names or list(MODELS)
    if arguments.one:
        for name in names:
            measure(name, arguments.threads, verbose=True)
        return
    print(machine(arguments.threads))
    print(HEADER, flush=True)
    rows = []
    for name in names:
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); import discovery_sizes as d; "
            "d.measure(sys.argv[2], int(sys.argv[3]), False)"
        )
        folder = str(pathlib.Path(__file__).parent)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, folder, name, str(arguments.threads)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        rows.append(next(line for line in done.stdout.splitlines() if line.startswith("| ")))
        print(rows[-1], flush=True)
        if arguments.write:
            page = PAGE.format(
                machine=machine(arguments.threads),
                narrow=", ".join(BFLOAT16),
                tokens=f"{TOKENS[0]} x {TOKENS[1]}",
                table="\n".join([HEADER, *rows]),
            )
            pathlib.Path(arguments.write).write_text(page)


if __name__ == "__main__":
    main()
