"""``python -m ddc audit module:factory``: the audit of a model in a file of one's own."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from torch import nn

import ddc


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


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        model, loss = _make(options.factory)
        audit = ddc.audit(
            model,
            loss,
            seed=options.seed,
            steps=options.engagement,
            completeness=not options.no_completeness,
            verbose=sys.stderr.isatty(),
        )
        print(audit.to_json() if options.json else audit)
        if options.out is not None:
            audit.group.save(options.out)
    except (RuntimeError, TypeError, ValueError) as error:
        print(f"ddc: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
