"""Options as the C++ library declares them, in torch's spelling: ``betas`` for ``beta1, beta2``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ddc import _C


@dataclass(frozen=True)
class Declaration:
    """Declaration of one option."""

    name: str
    default: Any
    type: str
    rule: str
    help: str
    positional: bool = True

    @staticmethod
    def own(name: str, default: Any) -> Declaration:
        """The declaration of an option of a rule that was written in Python."""
        return Declaration(name, default, type(default).__name__, "", "", name != "maximize")


def declarations(declared: Iterable[dict[str, Any]], positional: bool = True) -> list[Declaration]:
    """Declarations of the C++ library, with pairs of betas in one."""
    result: list[Declaration] = []
    may_be_positional = positional
    values: dict[str, Any] = {}
    for each in declared:
        name = each["name"]
        values[name] = each["default"]
        may_be_positional = may_be_positional and name != "maximize"
        if name.endswith("beta2"):
            first = result.pop()
            name = f"{name[:-1]}s"
            result.append(
                Declaration(
                    name,
                    (first.default, each["default"]),
                    "tuple[float, float]",
                    f"each {each['rule']}",
                    f"{first.help}, and {each['help'].split(': ')[-1]}",
                    may_be_positional,
                )
            )
            continue
        kind = each["type"] if each["type"] != "choice" else "str"
        if each["optional"]:
            kind += " | None"
        result.append(
            Declaration(name, each["default"], kind, each["rule"], each["help"], may_be_positional)
        )
    return result


TREATMENT = {each.name: each for each in declarations(_C.treatment_options(), positional=False)}


def split_betas(values: dict[str, Any]) -> dict[str, Any]:
    """``betas`` as the C++ library has them."""
    result = {}
    for name, value in values.items():
        if not name.endswith("betas"):
            result[name] = value
            continue
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise ValueError(f"option {name} must be a pair of numbers, got {value!r}")
        result[f"{name[:-1]}1"], result[f"{name[:-1]}2"] = value
    return result


def group_betas(values: dict[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`split_betas`."""
    result = dict(values)
    for name in values:
        if name.endswith("beta1"):
            stem = name[:-1]
            result[f"{stem}s"] = (result.pop(f"{stem}1"), result.pop(f"{stem}2"))
    return result


def unknown_option(owner: str, name: str, known: list[str]) -> str:
    near = _C.nearest(name, known)
    hint = f"; did you mean '{near}'?" if near else f"; it has {', '.join(known)}"
    return f"{owner} has no option '{name}'{hint}"


def signature(
    declared: list[Declaration], more: Iterable[str] = (), symmetries: bool = True
) -> inspect.Signature:
    """The signature of an optimizer's constructor.

    Parameters
    ----------
    more
        Keyword arguments beside the options, with None as default.
    symmetries
        Whether it takes symmetries and their treatment.
    """
    parameter = inspect.Parameter
    keyword = parameter.KEYWORD_ONLY
    parts = [parameter("params", parameter.POSITIONAL_OR_KEYWORD)]
    parts += [
        parameter(each.name, parameter.POSITIONAL_OR_KEYWORD, default=each.default)
        for each in declared
        if each.positional
    ]
    if symmetries:
        parts += [parameter("symmetries", keyword, default=None)]
        parts += [parameter("recipe", keyword, default="default")]
    parts += [parameter(name, keyword, default=None) for name in more]
    parts += [
        parameter(each.name, keyword, default=each.default)
        for each in declared
        if not each.positional
    ]
    if symmetries:
        parts += [parameter(each.name, keyword, default=None) for each in TREATMENT.values()]
    return inspect.Signature(parts)


def numpydoc(declared: Iterable[Declaration]) -> str:
    """Lines of a docstring's list of parameters."""
    lines = []
    for each in declared:
        lines.append(f"    {each.name} : {each.type}, default {each.default!r}")
        rule = "" if each.type == "bool" or not each.rule else f" Must be {each.rule}."
        lines.append(f"        {each.help[:1].upper()}{each.help[1:]}.{rule}")
    return "\n".join(lines)
