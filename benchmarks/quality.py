"""Quality of lifted optimizers beside their bases: a character language model, paired over seeds.

    python benchmarks/quality.py --results FILE            # makes the runs that are missing
    python benchmarks/quality.py --results FILE --table    # prints what there is
    python benchmarks/quality.py --results FILE --table --base-rates

The model is an unmodified Hugging Face Llama (4 layers, 4 heads, --width) on the King James text, which
`scripts/setup.sh data` writes. A seed fixes the initialisation and the batches, so that arms of one
seed are paired. A learning rate is the best of three with the first seed. A finished run is one line
of the results file; a study that was stopped goes on with what is not in it. The symmetries are
searched for once, and kept beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import ddc
import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import LlamaConfig, LlamaForCausalLM

KING_JAMES = Path("out/data/king_james.txt")
# Quantiles of Student's distribution that one value of twenty exceeds, by degrees of freedom.
STUDENT = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 7: 1.895, 8: 1.860, 9: 1.833}

SCALES = ("glu rescale", "norm scale", "QK plane scale", "CE row shift")
TORUS = (*SCALES, "QK torus")
HEADS = (*TORUS, "VO linear")
EVERYTHING = (*HEADS, "residual rotation")
SPLIT = (*TORUS, "VO rotation", "VO scale")
CANONICAL = {"placement": "canonical"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What all arms share; runs of other settings are not compared."""

    steps: int = 400
    batch: int = 8
    context: int = 64
    warmup: int = 20
    final_rate: float = 0.1
    width: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int = 4
    intermediate: int = 128
    windows: int = 256


@dataclass(frozen=True)
class Arm:
    """A way to train.

    ``how`` is one of
      base    the base rule alone
      cut     Muon's polar factors per head, no gauge bound
      placed  the base rule on weights that were moved to their canonical place once
      lifted  the lifted optimizer, with ``treatment``
      hold    ddc.hold behind the base rule: as lifted at the canonical place, heads not cut
    """

    base: str
    name: str
    how: str = "base"
    kinds: tuple[str, ...] = ()
    treatment: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    output_rate: float = 1.0  # of Muon's steps of output projections, relative to the others

    @property
    def key(self) -> str:
        return f"{self.base}: {self.name}"


def arms_of(base: str) -> dict[str, list[Arm]]:
    """Arms of a base by tier: the main ones, and others to explain them."""

    def arm(name: str, how: str = "base", kinds: Sequence[str] = (), **rest: Any) -> Arm:
        return Arm(base, name, how, tuple(kinds), **rest)

    held_always: Mapping[str, Any] = {"every": 1, "project": "step"}
    cut: Mapping[str, Any] = {"heads": "cut"}

    def lifted(name: str, kinds: Sequence[str], **treatment: Any) -> Arm:
        """Held in every step; `treatment` says otherwise."""
        return arm(name, "lifted", kinds, treatment={**CANONICAL, **held_always, **treatment})

    def held(name: str, kinds: Sequence[str], **treatment: Any) -> Arm:
        return arm(name, "hold", kinds, treatment={**held_always, **treatment})

    loose = {"residual rotation": "never"}
    if base == "Muon":
        main = [
            arm("base"),
            arm("heads cut, nothing bound", "cut", EVERYTHING, treatment=cut),
            lifted("all head gauges held", HEADS, **cut),
            arm("heads cut, half rate of O", "cut", EVERYTHING, treatment=cut, output_rate=0.5),
            replace(lifted("all head gauges held, half rate of O", HEADS, **cut), output_rate=0.5),
            held("all head gauges held, heads not cut", HEADS),
            lifted("scales, shifts and QK torus held", TORUS),
            arm("everything placed once, not held", "placed", EVERYTHING),
        ]
        other = [
            arm("heads of Q and K cut, nothing bound", "cut", TORUS),
            lifted("all head gauges held, V and O whole", HEADS),
            arm("everything, by default", "lifted", EVERYTHING),
            arm("everything, by default, heads not cut", "hold", EVERYTHING),
            arm("VO as rotation and scale, by default", "lifted", SPLIT),
            arm("VO as rotation and scale, by default, heads not cut", "hold", SPLIT),
            arm("scales and shifts, by default", "lifted", SCALES),
            arm("QK torus and CE shift, by default", "lifted", ("QK torus", "CE row shift")),
            held("all head gauges held every 10, heads not cut", HEADS, every=10),
            held(
                "all but the residual rotation held every 10, heads not cut",
                EVERYTHING,
                every=10,
                project=loose,
            ),
            held("everything held, heads not cut", EVERYTHING),
            held("everything held every 10, heads not cut", EVERYTHING, every=10),
            lifted("everything held", EVERYTHING),
        ]
    elif base != "Adam":
        main, other = [arm("base"), arm("everything, by default", "lifted", EVERYTHING)], []
    else:
        main = [
            arm("base"),
            lifted("all head gauges held", HEADS),
            arm("everything placed once, not held", "placed", EVERYTHING),
            lifted("scales, shifts and QK torus held", TORUS),
            lifted("all head gauges held every 10", HEADS, every=10),
            lifted("residual rotation not held", EVERYTHING, project=loose),
            lifted("everything held", EVERYTHING),
        ]
        other = [
            arm("everything, by default", "lifted", EVERYTHING),
            arm("VO as rotation and scale, by default", "lifted", SPLIT),
            lifted(
                "all but the residual rotation held every 10", EVERYTHING, every=10, project=loose
            ),
            lifted("scales and shifts held", SCALES),
            lifted("scales in standard coordinates, shifts held", SCALES, coordinates="standard"),
            lifted("everything held every 10", EVERYTHING, every=10),
        ]
    return {"main": main, "other": other}


RATES = {
    "Muon": (0.01, 0.02, 0.04),
    "Adam": (0.00125, 0.0025, 0.005),
    "Sgd": (0.1, 0.3, 1.0),
    "Soap": (0.0025, 0.005, 0.01),
    "Shampoo": (0.0025, 0.005, 0.01),
}
TIERS = (
    ("Muon", "main"),
    ("Adam", "main"),
    ("Muon", "other"),
    ("Adam", "other"),
    ("Sgd", "main"),
    ("Soap", "main"),
    ("Shampoo", "main"),
)
# Bases that are lifted optimizers without symmetries, and options of theirs.
OTHERS: dict[str, tuple[type[ddc.Lifted], dict[str, Any]]] = {
    "Sgd": (ddc.DDCSgd, {"momentum": 0.9}),
    "Soap": (ddc.DDCSoap, {}),
    "Shampoo": (ddc.DDCShampoo, {}),
}


# ---- Text and model ------------------------------------------------------------------------------


def king_james(path: Path = KING_JAMES) -> str:
    if not path.exists():
        raise FileNotFoundError(
            f"no King James text at {path}: write it (scripts/setup.sh data), or name a file (--text)"
        )
    return path.read_text()


class Text:
    """Characters as numbers: nine tenths to train on, the rest to validate."""

    def __init__(self, text: str) -> None:
        self.characters = sorted(set(text))
        number = {c: i for i, c in enumerate(self.characters)}
        tokens = torch.tensor([number[c] for c in text])
        cut = len(tokens) * 9 // 10
        self.train, self.rest = tokens[:cut], tokens[cut:]

    def batches(self, settings: Settings, seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(1000 + seed)
        span = torch.arange(settings.context + 1)
        while True:
            last = len(self.train) - settings.context - 1
            starts = torch.randint(last, (settings.batch, 1), generator=generator)
            yield self.train[starts + span]

    def validation(self, settings: Settings) -> Tensor:
        """Windows spread evenly over the rest; the same for all arms and seeds."""
        last = len(self.rest) - settings.context - 1
        starts = torch.linspace(0, last, settings.windows).long()[:, None]
        return self.rest[starts + torch.arange(settings.context + 1)]


def llama(settings: Settings, vocabulary: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=settings.width,
            intermediate_size=settings.intermediate,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.kv_heads,
            max_position_embeddings=settings.context,
            vocab_size=vocabulary,
            tie_word_embeddings=False,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )


def loss_of(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    logits = model(input_ids=batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def found(settings: Settings, vocabulary: int, file: Path) -> ddc.SymmetryGroup:
    """Symmetries of the model: read from a file, or searched for in float64 and stored there."""
    model = llama(settings, vocabulary, 0)
    if file.exists():
        return ddc.SymmetryGroup.load(file, model)
    model = model.double()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(vocabulary, (2, 17), generator=generator)
    group = ddc.discover(model, lambda m: loss_of(m, tokens))
    group.save(file)
    return group


# ---- Arms ----------------------------------------------------------------------------------------


def gauges_of(
    arm: Arm, model: LlamaForCausalLM, group: ddc.SymmetryGroup
) -> ddc.SymmetryGroup | None:
    """Gauges of an arm. VO's rotation and scale are made by hand: discovery finds GL instead."""
    if not arm.kinds:
        return None
    if "VO rotation" not in arm.kinds:
        return group.only(*arm.kinds)
    gauges = group.only(*arm.kinds)._core.gauges()
    config = model.config
    sizes = {"heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}.self_attn."
        pair = prefix + "v_proj.weight", prefix + "o_proj.weight"
        for make in (ddc.gauges.vo_rotation, ddc.gauges.vo_scale):
            gauges.append(make(model, *pair, **sizes))
    return ddc.SymmetryGroup.of(model, gauges)._with_roles(group.roles)


def parameters_of(arm: Arm, model: LlamaForCausalLM, rate: float, decay: float) -> Any:
    """Parameters, with output projections apart if their rate is another; their decay is not."""
    named = list(model.named_parameters())
    if arm.output_rate == 1:
        return named
    outputs = [entry for entry in named if entry[0].endswith("o_proj.weight")]
    others = [entry for entry in named if not entry[0].endswith("o_proj.weight")]
    own = {"lr": rate * arm.output_rate, "weight_decay": decay / arm.output_rate}
    return [{"params": others}, {"params": outputs, **own}]


def optimizer_of(
    arm: Arm, model: LlamaForCausalLM, group: ddc.SymmetryGroup, rate: float
) -> Optimizer:
    symmetries = gauges_of(arm, model, group)
    if arm.how == "placed":
        assert symmetries is not None
        symmetries.canonicalize_(model)
    treatment = {**arm.treatment, **({"bind": False} if arm.how == "cut" else {})}
    options: dict[str, Any] = {"lr": rate, **arm.options}
    if arm.how in ("cut", "lifted"):
        options.update(symmetries=symmetries, **treatment)
    optimizer: Optimizer
    if arm.base == "Muon":
        named = parameters_of(arm, model, rate, decay=0.1)
        optimizer = ddc.DDCMuon(named, adam={"lr": rate}, **options)
    elif arm.base in OTHERS:
        kind, others = OTHERS[arm.base]
        optimizer = kind(model.named_parameters(), **{**others, **options})
    elif arm.how == "lifted":
        optimizer = ddc.DDCAdam(model.named_parameters(), **options)
    else:
        optimizer = torch.optim.AdamW(model.named_parameters(), fused=True, **options)
    if arm.how == "hold":
        assert symmetries is not None
        ddc.hold(optimizer, symmetries, **treatment)
    return optimizer


def run(
    arm: Arm, rate: float, seed: int, settings: Settings, text: Text, group: ddc.SymmetryGroup
) -> Row:
    """Train once. A loss that is not finite ends the run, and is noted as such."""
    begin = time.perf_counter()
    model = llama(settings, len(text.characters), seed)
    optimizer = optimizer_of(arm, model, group, rate)

    def factor(step: int) -> float:
        if step < settings.warmup:
            return (step + 1) / settings.warmup
        past = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
        return 1 - (1 - settings.final_rate) * past

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    batches = text.batches(settings, seed)
    recent: list[float] = []
    in_steps = 0.0
    for _ in range(settings.steps):
        loss = loss_of(model, next(batches))
        recent = [*recent[-49:], loss.item()]
        if not math.isfinite(recent[-1]):
            break
        optimizer.zero_grad()
        loss.backward()
        start = time.perf_counter()
        optimizer.step()
        in_steps += time.perf_counter() - start
        schedule.step()
    with torch.no_grad():
        parts = [loss_of(model, part).item() for part in text.validation(settings).split(64)]
    return {
        "loss": statistics.fmean(parts),
        "train_loss": statistics.fmean(recent),
        "seconds": round(time.perf_counter() - begin, 1),
        "step_ms": round(1e3 * in_steps / settings.steps, 2),
    }


# ---- Study ---------------------------------------------------------------------------------------


def read_rows(file: Path) -> list[Row]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line]


@dataclass(frozen=True)
class Choice:
    """A learning rate, and whether it was chosen for the arm itself; else it is its base's."""

    rate: float
    is_own: bool


def chosen_rate(
    rows: Iterable[Row], arm: str, base: str, rates: Sequence[float], seed: int
) -> Choice | None:
    """The rate with the least validation loss at one seed; the base's until all have been tried."""
    rows = list(rows)
    for name in (arm, f"{base}: base"):
        losses = {r["rate"]: r["loss"] for r in rows if (r["arm"], r["seed"]) == (name, seed)}
        if set(rates) <= set(losses):
            best = min(rates, key=lambda rate: (not math.isfinite(losses[rate]), losses[rate]))
            return Choice(best, name == arm)
    return None


def study(
    tiers: Iterable[Sequence[Arm]],
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    rows: list[Row],
    train: Callable[[Arm, float, int], Row],
    note: Callable[[Row], None],
    base_rates: bool = False,
) -> None:
    """Make the runs that `rows` has not.

    First all rates of the bases, and all seeds of the arms at their base's best rate, so that there is
    a table early. Then, unless `base_rates` are enough, the other rates of the arms, and all seeds
    again where another rate is better.
    """

    def once(arm: Arm, rate: float, seed: int) -> None:
        place = {"arm": arm.key, "base": arm.base, "rate": rate, "seed": seed}
        if any(place.items() <= row.items() for row in rows):
            return
        row = {**place, **train(arm, rate, seed)}
        rows.append(row)
        note(row)

    tiers = list(tiers)
    for rates_of_all in (False,) if base_rates else (False, True):
        for arms in tiers:
            for arm in arms:
                if rates_of_all or arm.name == "base":
                    for rate in rates[arm.base]:
                        once(arm, rate, seeds[0])
            for seed in seeds:
                for arm in arms:
                    choice = chosen_rate(rows, arm.key, arm.base, rates[arm.base], seeds[0])
                    if choice is None:
                        raise ValueError(f"{arm.key}: there are no runs of its base")
                    once(arm, choice.rate, seed)


@dataclass(frozen=True)
class Line:
    """One arm of the table. `difference` is to the base, over the seeds that both have."""

    arm: str
    rate: float
    is_own_rate: bool
    at_edge: bool
    seeds: int
    loss: float
    difference: float
    error: float

    @property
    def verdict(self) -> str:
        """Whether it is no worse than its base beyond the paired noise, at 1 in 20 (one-sided)."""
        if self.arm.endswith(": base"):
            return ""
        if not math.isfinite(self.difference):
            return "no"
        if self.seeds < 2:
            return "one seed"
        noise = STUDENT[self.seeds - 1] * self.error
        if self.difference > noise:
            return "no"
        return "yes, better" if self.difference < -noise else "yes"


def lines_of(
    rows: Sequence[Row],
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    base_rates: bool = False,
) -> list[Line]:
    """Lines of the table, in the order in which arms occur; all at their base's rate, if that is wanted."""

    def by_seed(arm: str, rate: float) -> dict[int, Row]:
        own = [row for row in rows if (row["arm"], row["rate"]) == (arm, rate)]
        return {row["seed"]: row for row in own if row["seed"] in seeds}

    lines = []
    for arm, base in dict.fromkeys((row["arm"], row["base"]) for row in rows):
        choice = chosen_rate(rows, arm, base, rates[base], seeds[0])
        peer_choice = chosen_rate(rows, f"{base}: base", base, rates[base], seeds[0])
        if choice is None or peer_choice is None:
            continue
        if base_rates:
            choice = Choice(peer_choice.rate, is_own=arm == f"{base}: base")
        own, peer = by_seed(arm, choice.rate), by_seed(f"{base}: base", peer_choice.rate)
        both = sorted(own.keys() & peer.keys())
        if not both:
            continue
        differences = [own[seed]["loss"] - peer[seed]["loss"] for seed in both]
        spread = statistics.stdev(differences) if len(both) > 1 else math.nan
        lines.append(
            Line(
                arm=arm,
                rate=choice.rate,
                is_own_rate=choice.is_own,
                at_edge=choice.rate in (min(rates[base]), max(rates[base])),
                seeds=len(both),
                loss=statistics.fmean(own[seed]["loss"] for seed in both),
                difference=statistics.fmean(differences),
                error=spread / math.sqrt(len(both)),
            )
        )
    return lines


def table(lines: Sequence[Line]) -> str:
    text = [
        "| arm | rate | seeds | validation loss | difference to the base | no worse? |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for line in lines:
        is_base = line.arm.endswith(": base")
        error = "" if math.isnan(line.error) else f" ± {line.error:.4f}"
        difference = "" if is_base else f"{line.difference:+.4f}{error}"
        mark = "" if line.is_own_rate else " (base's)"
        mark += "*" if line.at_edge else ""
        text.append(
            f"| {line.arm} | {line.rate:g}{mark} | {line.seeds} | {line.loss:.4f} "
            f"| {difference} | {line.verdict} |"
        )
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("docs/results/quality.jsonl"))
    parser.add_argument("--text", type=Path, default=KING_JAMES)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--width", type=int, default=Settings.width)
    parser.add_argument("--kv-heads", type=int, default=Settings.kv_heads)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="names of the arms to run, as in the table")
    parser.add_argument(
        "--base-rates", action="store_true", help="no rates but the bases' best, in the table too"
    )
    parser.add_argument("--table", action="store_true", help="print the table and run nothing")
    options = parser.parse_args()
    width = options.width
    settings = Settings(
        options.steps, width=width, intermediate=2 * width, kv_heads=options.kv_heads
    )
    seeds = range(1, options.seeds + 1)
    rows = read_rows(options.results)
    rows = [row for row in rows if row["settings"] == asdict(settings)]
    if not options.table:
        torch.set_num_threads(1)
        text = Text(king_james(options.text))
        stem = f"{options.results.stem}-{width}x{settings.kv_heads}"
        file = options.results.with_name(f"{stem}.symmetries")
        group = found(settings, len(text.characters), file)
        versions = {"torch": torch.__version__, "ddc": ddc.__version__}

        def train(arm: Arm, rate: float, seed: int) -> Row:
            return run(arm, rate, seed, settings, text, group)

        def note(row: Row) -> None:
            with options.results.open("a") as out:
                out.write(json.dumps({**row, "settings": asdict(settings), **versions}) + "\n")
            place = f"{row['arm']}, rate {row['rate']:g}, seed {row['seed']}"
            print(f"{place}: {row['loss']:.4f}", flush=True)

        def wanted(arm: Arm) -> bool:
            return not options.only or arm.key in options.only

        tiers = [list(filter(wanted, arms_of(base)[tier])) for base, tier in TIERS]
        study(tiers, RATES, seeds, rows, train, note, options.base_rates)
    print(table(lines_of(rows, RATES, seeds, options.base_rates)))


if __name__ == "__main__":
    main()
