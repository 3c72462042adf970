"""Prints docs/reference/options.md: the options of optimizers and treatments, from their only declaration.

python scripts/options_table.py > docs/reference/options.md
"""

from ddc import _C

HEAD = """# Options

Written by `scripts/options_table.py` from the declarations in C++ (`include/ddc/options.h`); a test
compares. In Python `beta1, beta2` are the pair `betas`, and None stands for `default`. In the command line
tool ([how it is built](../howto/experiments.md)) all of them are settings: `ddc run ... --set NAME=VALUE`,
listed by `ddc list optimizers NAME`.
"""


def shown(value: object) -> str:
    if value is None:
        return "default"
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def table(options: list[dict]) -> str:
    rows = ["| option | default | values | |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{o['name']}` | {shown(o['default'])} | {o['rule']} | {o['help']} |" for o in options
    ]
    return "\n".join(rows)


def main() -> None:
    print(HEAD)
    for rule in _C.rules():
        print(f"## {rule['name']}\n\n{rule['help'][:1].upper()}{rule['help'][1:]}.\n")
        print(table(rule["options"]) + "\n")
    print("## Treatment of symmetries\n")
    print(
        "Given to an optimizer for all gauges, or by kind or name of a gauge. What is said for all is "
        "meant where it\napplies; what is said of one kind and cannot be is refused.\n"
    )
    print(table(_C.treatment_options()) + "\n")
    print("## Recipes\n")
    for name, help_text in _C.recipes():
        print(f"- `{name}`: {help_text}")


if __name__ == "__main__":
    main()
