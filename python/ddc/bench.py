"""``python -m ddc bench``: what a step costs, beside the optimizers that it replaces.

Every figure is a ratio in one process: peer, own step, peer, again and again; medians and quartiles. The
peer against itself is the control. Models are those of transformers with random weights, gradients are random
and constant.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import functools
import importlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ddc
from ddc.optim import Lifted

Step = Callable[[], Any]
Record = dict[str, Any]

_PLAIN: dict[str, Any] = {
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "use_cache": False,
}
# Kinds of gauges that turn a whole residual stream.
_STREAM = "residual rotation"
# Models of the bars, which `--bars` measures alone.
BARS = ("llama-12.6m", "gpt2-124m")
_MANY = "DDCAdam, 1000 tensors of 1 KB"
# Rows that no bar is about.
_NO_BARS = (
    "DDCAdam, scales and shifts",
    "DDCAdam, everything placed, matrices not held",
    "hold(AdamW), everything every 10",
)


def _transformers() -> Any:
    """The package, which only this command needs; loosely typed."""
    return importlib.import_module("transformers")


def llama(
    layers: int = 6,
    width: int = 384,
    heads: int = 6,
    groups: int = 6,
    inner: int = 1024,
    vocabulary: int = 2560,
) -> Any:
    transformers = _transformers()
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            vocab_size=vocabulary,
            tie_word_embeddings=False,
            **_PLAIN,
        )
    )


def gpt2(layers: int, width: int, heads: int, vocabulary: int, **options: Any) -> Any:
    transformers = _transformers()
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=layers,
            n_embd=width,
            n_head=heads,
            vocab_size=vocabulary,
            **_PLAIN,
            **options,
        )
    )


def vit(layers: int = 12, width: int = 384, heads: int = 6) -> Any:
    """ViT-S of 64 x 64 pixels: the symmetries are those of 224 x 224, and are found in less time."""
    transformers = _transformers()
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            num_labels=1000,
            image_size=64,
        )
    )


def mod113() -> Any:
    """The block that learns (a + b) mod 113: three tokens, ReLU."""
    return gpt2(
        1, 128, 4, 114, n_positions=3, activation_function="relu", tie_word_embeddings=False
    )


def _small(**options: int) -> Callable[[], nn.Module]:
    shape = {"layers": 2, "width": 256, "heads": 4, "vocabulary": 512, **options}
    shape = {"groups": shape["heads"], "inner": 4 * shape["width"], **shape}
    return lambda: llama(**shape)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama-12.6m": llama,
    "llama-80m-gqa": lambda: llama(12, 768, 12, 4, 2048, 8192),
    "gpt2-124m": lambda: gpt2(12, 768, 12, 50257),
    "vit-s": vit,
    "mod-113": mod113,
}
# One thing is varied at a time.
SCALING: dict[str, Callable[[], nn.Module]] = {
    **{f"width {width}": _small(width=width) for width in (128, 256, 512)},
    **{f"layers {layers}": _small(layers=layers) for layers in (1, 2, 4, 8)},
    **{f"heads {heads}": _small(heads=heads) for heads in (2, 4, 8)},
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return {**MODELS, **SCALING}[name]().eval()


def inputs(model: nn.Module, tokens: int) -> tuple[dict[str, Tensor], Tensor, int]:
    """Random arguments of a model and labels, of about so many tokens; and of how many."""
    config: Any = model.config
    if config.model_type == "vit":
        each = (config.image_size // config.patch_size) ** 2 + 1
        count = max(1, tokens // each)
        images = torch.randn(count, 3, config.image_size, config.image_size)
        return {"pixel_values": images}, torch.randint(config.num_labels, (count,)), count * each
    length = min(128, tokens // 2, config.max_position_embeddings)
    drawn = torch.randint(config.vocab_size, (max(1, tokens // length), length + 1))
    return {"input_ids": drawn[:, :-1]}, drawn[:, 1:].flatten(), drawn[:, 1:].numel()


def loss(model: nn.Module, tokens: int = 32) -> Tensor:
    """Cross-entropy of a fresh random batch."""
    arguments, labels, _ = inputs(model, tokens)
    return nn.functional.cross_entropy(model(**arguments).logits.flatten(0, -2), labels)


def found(name: str, folder: Path) -> ddc.SymmetryGroup:
    """Symmetries of a model: read from a file, or searched for (minutes) and stored there."""
    model = made(name)
    file = folder / f"{name.replace(' ', '-')}.symmetries"
    if file.exists():
        return ddc.SymmetryGroup.load(file, model)
    group = ddc.discover(model, loss)
    folder.mkdir(parents=True, exist_ok=True)
    group.save(file)
    return group


def with_gradients(model: nn.Module) -> nn.Module:
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(2)
    for parameter in twin.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 1e-3
    return twin


class PlainMuon(torch.optim.Optimizer):
    """Muon as it is published, five Newton-Schulz steps, in float32. (torch.optim.Muon: bfloat16.)"""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.95, "weight_decay": 0.1})

    @staticmethod
    def orthogonalized(update: Tensor) -> Tensor:
        x = update.flatten(1)
        tall = x.size(0) > x.size(1)
        x = x.mT if tall else x
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = x @ x.mT
            x = torch.addmm(
                x, torch.addmm(gram, gram, gram, beta=-4.775, alpha=2.0315), x, beta=3.4445
            )
        return (x.mT if tall else x).view_as(update)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                buffer = state["momentum_buffer"]
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                update = self.orthogonalized(parameter.grad.lerp(buffer, group["momentum"]))
                scale = max(1, parameter.size(0) / parameter[0].numel()) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * scale)


def seconds(step: Step) -> float:
    """With one thread those of the CPU, which know little of other processes."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    step()
    return clock() - start


def alternating(own: Step, peer: Step, repeats: int, budget: float, per_call: int = 1) -> Record:
    """Own steps in steps of the peer: median and quartiles. At least three rounds, and as many more as fit
    into `budget` seconds."""
    own()
    ratios: list[float] = []
    times: list[float] = []
    end = time.perf_counter() + budget
    before = seconds(peer)
    while len(ratios) < repeats and (len(ratios) < 3 or time.perf_counter() < end):
        times.append(sum(seconds(own) for _ in range(per_call)) / per_call)
        after = seconds(peer)
        ratios.append(2 * times[-1] / (before + after))
        before = after
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "ratio": middle,
        "quartiles": [low, high],
        "milliseconds": 1e3 * statistics.median(times),
        "rounds": len(ratios),
    }


def machine() -> Record:
    name = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return {
        "cpu": name,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "ddc": ddc.__version__,
        "torch": torch.__version__,
        "transformers": _transformers().__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


@functools.cache
def ceilings(threads: int) -> Record:
    """What memory and arithmetic can do on these threads: a copy, an update, products of two types."""
    assert threads == torch.get_num_threads()
    source = torch.randn(1 << 26)
    target = torch.empty_like(source)
    copying = min(seconds(lambda: target.copy_(source)) for _ in range(5))
    # In place: what is written has been read, as in a step.
    updating = min(seconds(lambda: target.add_(source)) for _ in range(5))
    rates = {}
    for type_ in (torch.float32, torch.float64):
        x = torch.randn(1024, 1024, dtype=type_)
        product = min(seconds(lambda: x @ x) for _ in range(10))  # noqa: B023
        rates[type_] = 2 * 1024**3 / product
    return {
        "copy bytes/s": 2 * source.nbytes / copying,
        "update bytes/s": 3 * source.nbytes / updating,
        "float32 flops/s": rates[torch.float32],
        "float64 flops/s": rates[torch.float64],
    }


def peak_memory(step: Step) -> int:
    """The most bytes of tensors that a step has at once beyond what there was before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    results: Any = profile.profiler
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def anchor_bytes(optimizer: torch.optim.Optimizer) -> int:
    """What an optimizer keeps of weights at their last turn."""
    return sum(
        value.nbytes
        for entry in optimizer.state.values()
        for key, value in entry.items()
        if ".anchor." in key
    )


class Bench:
    """The measurements of one model."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name = name
        self.options = options
        self.model = made(name)
        self.group = found(name, options.groups)
        self.limits = ceilings(torch.get_num_threads())
        self.rows: dict[str, Record] = {}

    def adamw(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(with_gradients(self.model).named_parameters(), lr=1e-4, fused=True)

    def lifted(self, group: ddc.SymmetryGroup | None, **options: Any) -> ddc.DDCAdam:
        named = with_gradients(self.model).named_parameters()
        return ddc.DDCAdam(named, lr=1e-4, symmetries=group, **options)

    def roofline(self, optimizer: Lifted) -> float:
        """Milliseconds that the plan of a step takes at the ceilings of this machine."""
        plan = optimizer.report().cost
        single = plan.flops - plan.double_flops
        memory = max(rate for kind, rate in self.limits.items() if kind.endswith("bytes/s"))
        seconds: float = (
            plan.bytes / memory
            + single / self.limits["float32 flops/s"]
            + plan.double_flops / self.limits["float64 flops/s"]
        )
        return 1e3 * seconds

    def held(self, group: ddc.SymmetryGroup, every: int) -> Step:
        optimizer = self.adamw()
        ddc.hold(optimizer, group, every=every)
        return optimizer.step

    def note(
        self,
        row: str,
        make: Callable[[], Step | Lifted],
        peer: Step,
        kind: str = "AdamW(fused=True)",
        per_call: int = 1,
    ) -> None:
        """Measures a row: of a step, or of an optimizer, whose plan gives a bound."""
        if not fnmatch.fnmatch(row, self.options.rows):
            return
        own = make()
        step = own.step if isinstance(own, Lifted) else own
        record = alternating(step, peer, self.options.repeats, self.options.budget, per_call)
        bound = self.roofline(own) if isinstance(own, Lifted) else None
        if bound is not None:
            record["roofline milliseconds"] = bound
        self.rows[row] = {**record, "peer": kind}
        low, high = record["quartiles"]
        of_bound = "" if bound is None else f"{bound:.1f} / {record['milliseconds']:.1f}"
        print(
            f"| {row} | {record['ratio']:.2f} ({low:.2f} to {high:.2f}) "
            f"| {record['milliseconds']:.1f} | {of_bound} | {record['rounds']} |",
            flush=True,
        )

    def adam(self) -> None:
        everything = self.group
        scales = everything.only("*scale*", "*rescale*", "CE*", "*shift*")
        heads = everything.without(_STREAM)
        linear = {g.kind for g in everything.gauges if g.action == "linear"}
        # Scales, shifts, exchanges, shifts of kernels, rotary planes: all that one pass makes.
        in_pass = heads.without(*linear) if linear else heads
        mixing = {g.kind for g in everything.gauges if g.action in ("rotation", "linear")}
        peer = self.adamw().step
        peer()
        each = {"placement": "canonical", "every": 1}
        unturned = {"project": dict.fromkeys(mixing, "never")} if mixing else {}
        unchecked = {"check_gradients": False}
        rows: dict[str, tuple[Callable[[], Step | Lifted], int]] = {
            "AdamW(fused=True) again": (lambda: self.adamw().step, 1),
            "DDCAdam, no group": (lambda: self.lifted(None), 1),
            "DDCAdam, no group, check_gradients=False": (
                lambda: self.lifted(None, **unchecked),
                1,
            ),
            "DDCAdam, scales and shifts": (lambda: self.lifted(scales, **each), 1),
            "DDCAdam, scales to torus, every step": (lambda: self.lifted(in_pass, **each), 1),
            "DDCAdam, scales to torus, every step, check_gradients=False": (
                lambda: self.lifted(in_pass, **each, **unchecked),
                1,
            ),
            "DDCAdam, everything placed, matrices not held": (
                lambda: self.lifted(everything, **each, **unturned),
                1,
            ),
            "DDCAdam, everything": (lambda: self.lifted(everything), 10),
            "DDCAdam, all head gauges every 10": (lambda: self.lifted(heads), 10),
            "DDCAdam, all head gauges, every step": (lambda: self.lifted(heads, **each), 1),
            "hold(AdamW), scales and shifts": (lambda: self.held(scales, 1), 1),
            "hold(AdamW), scales and shifts every 10": (lambda: self.held(scales, 10), 10),
            "hold(AdamW), everything every 10": (lambda: self.held(everything, 10), 10),
        }
        of_bars = [row for row in rows if row not in _NO_BARS]
        for row in of_bars if self.options.bars else rows:
            make, per_call = rows[row]
            self.note(row, make, peer, per_call=per_call)

    def many(self) -> None:
        """1000 tensors of 1 KB, which say what a tensor costs whatever its size."""

        def tensors() -> list[nn.Parameter]:
            generator = torch.Generator().manual_seed(3)
            drawn = [nn.Parameter(torch.randn(256, generator=generator)) for _ in range(1000)]
            for parameter in drawn:
                parameter.grad = torch.randn(256, generator=generator) * 1e-3
            return drawn

        def plain() -> Step:
            return torch.optim.AdamW(tensors(), lr=1e-4, fused=True).step

        def own() -> Step:
            named = [(str(i), parameter) for i, parameter in enumerate(tensors())]
            return ddc.DDCAdam(named, lr=1e-4).step

        peer = plain()
        peer()
        self.note(f"{_MANY}: AdamW again", plain, peer)
        self.note(_MANY, own, peer)

    def muon(self) -> None:
        named = list(with_gradients(self.model).named_parameters())
        own = ddc.DDCMuon(named, lr=1e-3, symmetries=self.group)
        by_adam = {id(p) for g in own.param_groups if g["use_adam"] for p in g["params"]}
        adam_places = [i for i, (_, p) in enumerate(named) if id(p) in by_adam]

        def beside(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Step:
            parameters: list[Tensor] = list(with_gradients(self.model).parameters())
            matrices = [p for i, p in enumerate(parameters) if i not in adam_places]
            rest = torch.optim.AdamW([parameters[i] for i in adam_places], fused=True)
            optimizer = make(matrices)

            def step() -> None:
                optimizer.step()
                rest.step()

            return step

        peer = beside(PlainMuon)
        peer()
        kind = "Muon, float32"
        self.note("Muon, float32, again", lambda: beside(PlainMuon), peer, kind)
        self.note("DDCMuon, everything", lambda: own, peer, kind)
        if all(p.dim() == 2 for i, (_, p) in enumerate(named) if i not in adam_places):
            self.note("torch.optim.Muon, bfloat16", lambda: beside(torch.optim.Muon), peer, kind)

    def training(self) -> None:
        """What everything costs of a training step at 4096 tokens."""
        twin = copy.deepcopy(self.model)
        arguments, labels, count = inputs(twin, 512)

        def pass_() -> None:
            logits = twin(**arguments).logits.flatten(0, -2)
            nn.functional.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
            twin.zero_grad()

        row = self.rows.get("DDCAdam, everything")
        if row is None:
            return
        pass_()
        whole = statistics.median(seconds(pass_) for _ in range(3)) * 4096 / count
        peer = row["milliseconds"] / row["ratio"] / 1e3
        row["of a training step"] = (whole + row["ratio"] * peer) / (whole + peer)
        print(
            f"training step at 4096 tokens {whole + peer:.2f} s; with everything "
            f"{row['of a training step']:.3f}"
        )

    def cost(self) -> Record:
        """Construction, memory, and bytes and flops of the plan."""
        constructed: list[ddc.DDCAdam] = []
        construction = seconds(lambda: constructed.append(self.lifted(self.group)))
        (optimizer,) = constructed
        optimizer.step()
        largest = max(p.nbytes for p in self.model.parameters())
        every = 10
        memory = max(peak_memory(optimizer.step) for _ in range(every))
        anchors = anchor_bytes(optimizer)
        plan = optimizer.report().cost
        record = {
            "construction seconds": construction,
            # Weights as they were at the last turn are kept between steps, beyond AdamW's state.
            "peak bytes of a step": memory + anchors,
            "bytes of anchors": anchors,
            "largest tensor bytes": largest,
            "plan bytes": plan.bytes,
            "plan flops": plan.flops,
            "plan flops in float64": plan.double_flops,
            "roofline milliseconds": self.roofline(optimizer),
        }
        print(", ".join(f"{key} {value:.4g}" for key, value in record.items()), flush=True)
        return record


def bench(name: str, options: argparse.Namespace) -> Record:
    own = Bench(name, options)
    count = sum(p.numel() for p in own.model.parameters())
    print(
        f"\n{name}: {count / 1e6:.1f}M parameters, {len(own.group)} gauges of dimension "
        f"{own.group.dimension}, {torch.get_num_threads()} threads\n\n"
        "| | in steps of the peer (quartiles) | ms | bound / measured, ms | rounds |\n"
        "| --- | --- | --- | --- | --- |"
    )
    if "adam" in options.parts:
        own.adam()
        if name == BARS[0]:
            own.many()
        own.training()
    # The bar of Muon is one on matrices, of which one model has enough.
    if "muon" in options.parts and not (options.bars and name != BARS[0]):
        own.muon()
    record: Record = {"rows": own.rows}
    if "cost" in options.parts:
        record["cost"] = own.cost()
    return {
        "model": name,
        "threads": torch.get_num_threads(),
        "parameters": count,
        "gauges": len(own.group),
        "dimension": own.group.dimension,
        "ceilings": own.limits,
        **record,
    }


def scaling(options: argparse.Namespace) -> Record:
    """The cost of everything against width, depth, heads and number of gauges."""
    print(
        "\n| | in steps of AdamW (quartiles) | ms | bound / measured, ms | rounds |\n"
        "| --- | --- | --- | --- | --- |"
    )
    rows = {}
    for name in SCALING:
        own = Bench(name, options)
        peer = own.adamw().step
        peer()
        own.note(name, lambda: own.lifted(own.group), peer, per_call=10)  # noqa: B023
        rows[name] = {**own.rows[name], "gauges": len(own.group)}
    own = Bench("layers 4", options)
    peer = own.adamw().step
    kinds = sorted({gauge.kind for gauge in own.group.gauges})
    for count in range(1, len(kinds) + 1):
        part = own.group.only(*kinds[:count])
        name = f"gauges {len(part)}"
        own.note(name, lambda: own.lifted(part), peer, per_call=10)  # noqa: B023
        rows[name] = {**own.rows[name], "gauges": len(part)}
    return {"model": "scaling", "threads": torch.get_num_threads(), "rows": rows}


def store(file: Path, record: Record) -> None:
    """Puts a record into the file, in the place of one of the same model and threads.

    What other versions have stored goes.
    """
    stored = json.loads(file.read_text()) if file.exists() else []
    version = record["machine"]["ddc"]
    records = [old for old in stored if old["machine"]["ddc"] == version]
    key = ("model", "threads")
    for old in records:
        if all(old[k] == record[k] for k in key):
            # Parts that were not run again stay.
            record = {**old, **record, "rows": {**old["rows"], **record["rows"]}}
    records = [old for old in records if any(old[k] != record[k] for k in key)] + [record]
    records.sort(key=lambda r: ([*MODELS, "scaling"].index(r["model"]), r["threads"]))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(records, indent=1) + "\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}, scaling (default: all)"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    parser.add_argument("--repeats", type=int, default=15, help="rounds at most (default: 15)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of each row (default: 15)")
    parser.add_argument(
        "--bars",
        action="store_true",
        help=f"only rows that have a bar, of {' and '.join(BARS)}, 6 seconds each unless --budget says "
        "otherwise (less than 20 minutes)",
    )
    parser.add_argument(
        "--parts", nargs="+", choices=("adam", "muon", "cost"), default=["adam", "muon", "cost"]
    )
    parser.add_argument(
        "--rows", default="*", metavar="PATTERN", help="rows to measure (default: all)"
    )
    parser.add_argument(
        "--groups", type=Path, default=Path("out/bench"), help="folder to keep symmetries in"
    )
    parser.add_argument("--out", type=Path, help="JSON file to put the results into")


def run(options: argparse.Namespace) -> None:
    for name in options.models:
        if name not in [*MODELS, "scaling"]:
            raise ValueError(f"there is no model '{name}'; there are {', '.join(MODELS)}, scaling")
    if options.budget is None:
        options.budget = 6 if options.bars else 15
    models = options.models or (list(BARS) if options.bars else [*MODELS, "scaling"])
    about = machine()
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name in models:
            record = scaling(options) if name == "scaling" else bench(name, options)
            if options.out is not None:
                store(options.out, {**record, "machine": about})
