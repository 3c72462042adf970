"""``python -m ddc``: the audit of a model in a file of one's own, the difference of two checkpoints, and what
steps cost."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

import ddc
from ddc import _checkpoint, bench
from ddc._model import parameters_of
from ddc.compare import function_difference


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ddc",
        description="Symmetries of networks, and optimizers that respect them.",
    )
    parser.add_argument("--version", action="version", version=ddc.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    audit = commands.add_parser(
        "audit",
        help="find the symmetries of a model, verify them, and say what is left unexplained",
        description="Find the symmetries of a model, verify them, and say what is left unexplained.",
    )
    audit.add_argument(
        "factory",
        metavar="MODULE:FACTORY",
        help="a function without arguments that returns (model, loss), where loss(model) is a scalar "
        "tensor; MODULE is a module (my.package) or a file (models/mine.py)",
    )
    audit.add_argument("--json", action="store_true", help="print JSON instead of a table")
    audit.add_argument("--out", metavar="FILE", help="also store the result in this file, as JSON")
    audit.add_argument("--seed", type=_count, default=0, metavar="N", help="seed of the search")
    audit.add_argument(
        "--engagement",
        type=_count,
        default=10,
        metavar="STEPS",
        help="steps over which to measure how far AdamW and DDCAdam move each gauge (default: 10)",
    )
    audit.add_argument(
        "--no-completeness",
        action="store_true",
        help="do not count the directions that no batch sees",
    )
    diff = commands.add_parser(
        "diff",
        help="say how far two checkpoints are apart: in weights, along orbits, and modulo symmetry",
        description="Say how far two checkpoints are apart: per tensor in weights and modulo symmetry, per "
        "gauge along its orbit (root mean squares of log-scales, angles and shifts), and, with a model to "
        "evaluate them in, as functions. Names may differ by one prefix: wte.weight, model.wte.weight.",
    )
    diff.add_argument(
        "first",
        metavar="A",
        help="a checkpoint: a file of safetensors, an index (model.safetensors.index.json), or their folder",
    )
    diff.add_argument("second", metavar="B", help="another")
    diff.add_argument(
        "--symmetries",
        required=True,
        metavar="FILE",
        help="the symmetries of the model, as SymmetryGroup.save writes them",
    )
    diff.add_argument(
        "--permutations",
        nargs="?",
        const="",
        metavar="FILE",
        help="bring units and heads of the first into the order of the second, by the permutations in this "
        "file (Permutations.save); without a file they are searched for, which takes --model",
    )
    diff.add_argument(
        "--model",
        metavar="MODULE:FACTORY",
        help="a function without arguments that returns (model, loss): both checkpoints are evaluated in "
        "this model, and losses and outputs compared",
    )
    diff.add_argument("--json", action="store_true", help="print JSON instead of tables")
    measured = commands.add_parser(
        "bench",
        help="measure what a step costs, beside the optimizers that it replaces",
        description="Measure what a step costs, beside the optimizers that it replaces: ratios in one "
        "process, alternating, on models of transformers.",
    )
    bench.add_arguments(measured)
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


_count.__name__ = "whole number"  # argparse: "invalid whole number value"


def _load(target: str) -> Callable[[], Any]:
    """The function that `target`, as in MODULE:FACTORY, names."""
    module_name, colon, name = target.rpartition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"'{target}' must be of the form MODULE:FACTORY")
    if module_name.endswith(".py"):
        path = Path(module_name)
        if not path.is_file():
            raise ValueError(f"there is no file '{module_name}'")
        # So that it can import its neighbours, as if it were run.
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # A module that is there but lacks one of its own imports says so itself.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise ValueError(f"there is no module '{module_name}' here") from None
    factory: Any = getattr(module, name, None)
    if not callable(factory):
        what = "nothing" if factory is None else f"no function but {type(factory).__name__}"
        raise ValueError(f"'{name}' in '{module_name}' is {what}")
    return cast(Callable[[], Any], factory)


def _make(target: str) -> tuple[nn.Module, Callable[[nn.Module], Any]]:
    made = _load(target)()
    if (
        not isinstance(made, tuple)
        or len(made) != 2
        or not isinstance(made[0], nn.Module)
        or not callable(made[1])
    ):
        raise ValueError(
            f"'{target}' must return (model, loss): a torch.nn.Module and a function of it, "
            f"returned {type(made).__name__}"
        )
    return made


def _audit(options: argparse.Namespace) -> None:
    model, loss = _make(options.factory)
    audit = ddc.audit(
        model,
        loss,
        seed=options.seed,
        steps=options.engagement,
        completeness=not options.no_completeness,
    )
    print(audit.to_json() if options.json else audit)
    if options.out is not None:
        audit.group.save(options.out)


def _diff(options: argparse.Namespace) -> None:
    group = ddc.SymmetryGroup.load(options.symmetries)
    read = [_checkpoint.read(path) for path in (options.first, options.second)]
    shapes = group._core.parameters
    first, second = (_checkpoint.named_as(shapes, each) for each in read)
    made = None if options.model is None else _make(options.model)
    permutations = None
    if options.permutations == "":
        if made is None:
            raise ValueError(
                "--permutations without a file searches for them in a model: name it by --model"
            )
        permutations = ddc.permutations(*made, group)
    elif options.permutations is not None:
        if not Path(options.permutations).is_file():
            raise ValueError(f"there is no file '{options.permutations}'")
        permutations = ddc.Permutations.load(options.permutations)
    if permutations is not None:
        permutations.check(shapes)
    difference = group.difference(first, second, permutations)
    if made is not None:
        own = [(name, tensor.shape) for name, tensor in parameters_of(made[0])]
        one, two = (_checkpoint.named_as(own, each) for each in read)
        function = function_difference(group, *made, one, two)
        difference = replace(difference, function=function)
    print(difference.to_json() if options.json else difference)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        {"audit": _audit, "diff": _diff, "bench": bench.run}[options.command](options)
    except Exception as error:
        if not isinstance(error, (RuntimeError, TypeError, ValueError)) or _is_of_others(error):
            # An error of the user's model or loss: type, file and line say what to mend.
            traceback.print_exc()
        else:
            print(f"ddc: {error}", file=sys.stderr)
        return 1
    return 0


def _is_of_others(error: BaseException) -> bool:
    """Whether the error came up in code that is neither of this package, nor of torch or Python."""
    own, of_torch, python = (
        Path(module.__file__ or "").resolve().parent for module in (ddc, torch, traceback)
    )
    for frame in traceback.extract_tb(error.__traceback__):
        folders = Path(frame.filename).resolve().parents
        # Packages are installed in a folder of Python's.
        is_python = python in folders and python / "site-packages" not in folders
        if not (own in folders or of_torch in folders or is_python or frame.filename[0] == "<"):
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
