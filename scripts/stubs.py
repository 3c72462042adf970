#!/usr/bin/env python3
"""Write python/ddc/optimizers.pyi: the signatures of the optimizers, for type checkers.

At run time they are made from what the C++ library declares, which type checkers do not see. Needs ddc
installed. A test compares the file with what this script writes.
"""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import Any

import torch
from ddc import _C, optimizers
from ddc._options import TREATMENT, Declaration
from ddc.optim import Lifted

FILE = Path(__file__).resolve().parent.parent / "python" / "ddc" / "optimizers.pyi"
WIDTH = 100

HEAD = """# Written by scripts/stubs.py.

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from torch import Tensor

from ddc.optim import Lifted, Params, Symmetries
from ddc.routing import Routing

UseAdam = Iterable[str] | Callable[[str, Tensor], bool] | bool | None
"""


def choices() -> dict[str, list[str]]:
    """Words of the options that take a word, by option."""
    result: dict[str, list[str]] = {"recipe": [name for name, _ in _C.recipes()]}
    declared = [*_C.treatment_options()]
    for rule in _C.rules():
        declared += rule["options"]
    for option in declared:
        if option["type"] == "choice":
            words = result.setdefault(option["name"], option["choices"])
            assert words == option["choices"], f"two options are called {option['name']}"
    return result


def alias(option: str) -> str:
    """Name of the type of an option that takes a word."""
    return "".join(part.capitalize() for part in option.split("_"))


def alias_line(option: str, words: list[str]) -> str:
    line = f"{alias(option)} = Literal[{', '.join(map(quoted, words))}]"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{alias(option)} = Literal[", *(f"    {quoted(w)}," for w in words), "]"])


def quoted(value: Any) -> str:
    """The value in source, with double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def kind(declared: Declaration) -> str:
    if declared.name in WORDS:
        return alias(declared.name) + (" | None" if declared.type.endswith(" | None") else "")
    return "float | Tensor" if declared.name == "lr" else declared.type


def takes(cls: type[Lifted], option: str, value: Any) -> bool:
    """Whether the constructor takes the option by name."""
    try:
        cls([torch.nn.Parameter(torch.zeros(2, 2))], **{option: value})
    except TypeError:
        return False
    return True


def own_keywords(cls: type[Lifted]) -> dict[str, str]:
    """Keywords that constructors below Lifted take beside what is declared, as source."""
    result: dict[str, str] = {}
    for each in cls.__mro__[: cls.__mro__.index(Lifted)]:
        init = vars(each).get("__init__")
        for p in inspect.signature(init).parameters.values() if init else ():
            if p.kind is p.KEYWORD_ONLY and p.name != "symmetries":
                result.setdefault(p.name, f"{p.name}: {p.annotation} = {quoted(p.default)}")
    return result


def constructor(cls: type[Lifted]) -> list[str]:
    own = own_keywords(cls)
    positional: list[str] = []
    keyword: list[str] = []
    may_be_positional = True
    for each in cls._declared:
        refused = each.name in own or not takes(cls, each.name, each.default)
        may_be_positional = may_be_positional and each.positional and not refused
        if not refused:
            line = f"{each.name}: {kind(each)} = {quoted(each.default)}"
            (positional if may_be_positional else keyword).append(line)
    common = []
    if takes(cls, "symmetries", None):
        common.append("symmetries: Symmetries | None = None")
    if takes(cls, "recipe", "default"):
        common.append(f"recipe: {alias('recipe')} = {quoted('default')}")
    treatments = []
    for each in TREATMENT.values():
        if takes(cls, each.name, None):
            plain = kind(each).removesuffix(" | None")
            treatments.append(f"{each.name}: {plain} | dict[str, {plain}] | None = None")
    lines = ["self", "params: Params", *positional, "*"]
    lines += [*common, *own.values(), *keyword, *treatments]
    return ["def __init__(", *(f"    {line}," for line in lines), ") -> None: ..."]


def methods(cls: type[Lifted]) -> list[str]:
    """Public methods that the class has of its own."""
    return [
        f"def {name}{str(inspect.signature(function)).replace(chr(39), '')}: ..."
        for name, function in vars(cls).items()
        if inspect.isfunction(function)
        and function.__qualname__ == f"{cls.__name__}.{name}"  # torch puts `step` into every class
        and not name.startswith("_")
    ]


def text() -> str:
    parts = [HEAD + "\n".join(alias_line(*each) for each in WORDS.items())]
    for cls in vars(optimizers).values():
        if inspect.isclass(cls) and cls.__module__ == optimizers.__name__:
            (base,) = cls.__bases__
            body = [*constructor(cls), *methods(cls)]
            parts.append("\n".join([f"class {cls.__name__}({base.__name__}):", *indented(body)]))
    return "\n\n".join(parts) + "\n"


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


WORDS = choices()

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--to", type=Path, default=FILE, help="file to write (default: %(default)s)"
    )
    arguments = parser.parse_args()
    arguments.to.write_text(text())
