"""Picture of a network with its gauges: one HTML page that asks nothing of the network."""

from __future__ import annotations

import html
import json
import sys
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddc._C import Finding, Leg
    from ddc.symmetry import SymmetryGroup


def page(group: SymmetryGroup, title: str) -> str:
    """The page: modules as boxes, tensors as rectangles, and what a gauge moves when it is chosen."""
    shapes = group._core.parameters
    tensors = [{"name": name, "shape": list(shape)} for name, shape in shapes]
    data = {
        "title": title,
        "summary": summary(group),
        "tensors": tensors,
        "gauges": [described(finding) for finding in group.gauges],
        "refused": [{"name": each.name, "reason": each.reason} for each in group.refusals],
    }
    # Names are the user's: nothing in them may end the script that they are in.
    text = json.dumps(data).replace("<", "\\u003c")
    return files("ddc").joinpath("picture.html").read_text("utf-8").replace("DATA", text)


def embedded(group: SymmetryGroup, title: str) -> str:
    """The page as an element of another one, from which it keeps its styles apart."""
    inside = html.escape(page(group, title), quote=True)
    style = "width: 100%; height: 640px; border: 0"
    return f'<iframe title="{html.escape(title)}" style="{style}" srcdoc="{inside}"></iframe>'


def in_notebook() -> bool:
    """Whether what is displayed ends up in a notebook."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def summary(group: SymmetryGroup) -> str:
    moved = {leg[0] for finding in group.gauges for leg in finding.legs}
    text = (
        f"{len(group)} gauges of dimension {group.dimension} "
        f"on {len(moved)} of {len(group._core.parameters)} tensors; "
        f"residual {group.residual:.1e} (passes up to {group.tolerance:.1e})"
    )
    if (counted := group.completeness) is not None:
        text += (
            f"; explains {counted.explained} of {counted.kernel:g} directions that no batch sees"
        )
    return text


def described(finding: Finding) -> dict[str, Any]:
    measured = f"residual {finding.residual:.1e}, passes up to {finding.tolerance:.1e}"
    if (engagement := finding.engagement) is not None:
        measured += f"; AdamW moves its coordinate by {engagement.plain:.1e}, "
        measured += f"DDCAdam by {engagement.lifted:.1e}"
    legs = finding.gauge.legs
    reads = {
        name for leg in legs for name in (leg.through.gain, leg.through.shift, leg.through.bias)
    }
    return {
        "name": finding.name,
        "kind": finding.kind,
        "group": finding.group,
        "dimension": finding.dimension,
        "measured": measured,
        "legs": [
            {
                "tensor": leg.tensor,
                "axis": max(leg.axis, 0),
                "move": move(finding.action, leg, first=leg is legs[0]),
                "minus": leg.exponent < 0 or (finding.action == "exchange" and leg is not legs[0]),
            }
            for leg in legs
        ],
        "reads": sorted(reads - {""}),
    }


def move(action: str, leg: Leg, first: bool) -> str:
    """What a group element does to a tensor along an axis, in a few signs."""
    if action == "scale":
        return f"×c^{leg.exponent:+g}" if leg.exponent != 1 else "×c"
    if action == "shift":
        return "+s" if leg.exponent == 1 else f"{leg.exponent:+g}s"
    if action == "rotation":
        return "R·"
    if action == "linear":
        return "A·" if leg.exponent > 0 else "A⁻ᵀ·"
    if first:
        return "+s"
    return "bias −W s" if leg.through.bias else "−s"
