"""Draws the figures of the documentation from runs of the optimizers: docs/explanation/figures/*.svg.

All are of the smallest network with a symmetry, y = u v x: the factors (c u, v / c) are the same function.

python scripts/figures.py
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import ddc
import torch
from torch import Tensor, nn

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "figures"
Point = tuple[float, float]


class Product(nn.Module):
    def __init__(self, u: float, v: float) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.tensor([u], dtype=torch.float64))
        self.v = nn.Parameter(torch.tensor([v], dtype=torch.float64))

    @property
    def point(self) -> Point:
        return self.u.item(), self.v.item()


def optimizer_of(
    name: str, model: Product, lr: float, **treatment: object
) -> torch.optim.Optimizer:
    if name == "AdamW":
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0)
    gauge = ddc.gauges.diagonal_linear(model, "u", "v")
    return ddc.DDCAdam(
        model.named_parameters(),
        lr=lr,
        weight_decay=0,
        symmetries=[gauge],
        placement="in_place",
        **treatment,
    )


def steps(
    name: str, start: Point, lr: float, targets: Iterable[Tensor], **treatment: object
) -> list[Point]:
    """The weights after every step on the loss (u v - target)^2, averaged over the targets of a batch."""
    model = Product(*start)
    optimizer = optimizer_of(name, model, lr, **treatment)
    points = [model.point]
    for target in targets:
        optimizer.zero_grad()
        (model.u * model.v - target).square().mean().backward()
        optimizer.step()
        points.append(model.point)
    return points


# ---- Drawing ----------------------------------------------------------------------------------------

STYLE = """
  .paper { fill: #fbfbfd } .ink { fill: #22243a } .soft { fill: #6a6d85 }
  .axis { stroke: #9a9db5; stroke-width: 1; fill: none }
  .orbit { stroke: #c3c6da; stroke-width: 1.2; fill: none }
  .floor { stroke: #8d91b5; stroke-width: 2.4; fill: none }
  .section { stroke: #2f855a; stroke-width: 1.6; fill: none }
  .valley { stroke: #dfe2f2; fill: none } .adam { stroke: #d1495b } .ours { stroke: #2b59c3 }
  .path { fill: none; stroke-width: 1.6; stroke-linejoin: round }
  .dot { stroke: #fbfbfd; stroke-width: 1.5 } .dash { stroke-dasharray: 5 4 }
  .fadam { fill: #d1495b } .fours { fill: #2b59c3 } .fsection { fill: #2f855a }
  text { font: 14px system-ui, sans-serif } .small { font-size: 12px }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #262836 } .ink { fill: #e6e7f0 } .soft { fill: #a5a8bf } .axis { stroke: #6d7088 }
    .orbit { stroke: #474a61 } .floor { stroke: #8f93b8 } .valley { stroke: #343749 }
    .adam { stroke: #ff7b8a }
    .ours { stroke: #7da2ff } .section { stroke: #68c39a } .fadam { fill: #ff7b8a } .fours { fill: #7da2ff }
    .fsection { fill: #68c39a } .dot { stroke: #262836 }
  }
"""


class Plane:
    """A part of the picture with axes: takes points of the data to places in it."""

    def __init__(
        self, left: float, top: float, size: tuple[float, float], x: Point, y: Point
    ) -> None:
        self.left, self.top, (self.width, self.height), self.x, self.y = left, top, size, x, y

    def __call__(self, point: Point) -> Point:
        across = (point[0] - self.x[0]) / (self.x[1] - self.x[0])
        up = (point[1] - self.y[0]) / (self.y[1] - self.y[0])
        return self.left + across * self.width, self.top + (1 - up) * self.height

    def line(self, points: Sequence[Point], classes: str, extra: str = "") -> str:
        return f'<path class="{classes}" d="{self.path(points)}"{extra}/>'

    def path(self, points: Sequence[Point]) -> str:
        return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in map(self, points))

    def curve(self, product: float, classes: str, extra: str = "") -> str:
        """The orbit u v = product, as far as it is in the picture."""
        low, high = (
            max(self.x[0], product / self.y[1]),
            min(self.x[1], product / max(self.y[0], 1e-9)),
        )
        places = [low * (high / low) ** (i / 80) for i in range(81)]
        return self.line([(u, product / u) for u in places], classes, extra)

    def dot(self, point: Point, classes: str, radius: float = 5.5, inside: str = "") -> str:
        x, y = self(point)
        return f'<circle class="dot {classes}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{inside}</circle>'

    def text(
        self,
        point: Point,
        text: str,
        by: Point = (8, -8),
        classes: str = "ink",
        anchor: str = "start",
    ) -> str:
        x, y = (place + moved for place, moved in zip(self(point), by, strict=True))
        return (
            f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
        )

    def arrow(self, start: Point, end: Point, classes: str) -> str:
        (x0, y0), (x1, y1) = self(start), self(end)
        length = math.hypot(x1 - x0, y1 - y0)
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        tip = f"M{x1 - 9 * dx + 4 * dy:.1f} {y1 - 9 * dy - 4 * dx:.1f} L{x1:.1f} {y1:.1f} "
        tip += f"L{x1 - 9 * dx - 4 * dy:.1f} {y1 - 9 * dy + 4 * dx:.1f}"
        return f'<path class="path {classes}" d="M{x0:.1f} {y0:.1f} L{x1:.1f} {y1:.1f} {tip}"/>'

    def frame(self, x: str, y: str) -> str:
        right, bottom = self.left + self.width, self.top + self.height
        return (
            f'<path class="axis" d="M{self.left} {self.top} V{bottom} H{right}"/>'
            f'<text class="soft" x="{right}" y="{bottom + 20}" text-anchor="end">{x}</text>'
            f'<text class="soft" x="{self.left}" y="{self.top - 8}">{y}</text>'
        )


def write(name: str, width: int, height: int, title: str, parts: Sequence[str]) -> None:
    body = "\n".join(parts)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n"
        f'<rect class="paper" width="{width}" height="{height}" rx="8"/>\n{body}\n</svg>\n'
    )
    print(f"{FOLDER / name}: {title}")


# ---- The figures ------------------------------------------------------------------------------------


def valley() -> None:
    """AdamW drifts along the floor of a valley, in the noise of its batches; DDCAdam does not."""
    torch.manual_seed(0)
    count, start = 1500, (1.9, 1 / 1.9)
    targets = 1 + 0.3 * torch.randn(count, 1, dtype=torch.float64)
    runs = {name: steps(name, start, 4e-2, targets) for name in ("AdamW", "DDCAdam")}
    plane = Plane(50, 40, (330, 330), (0, 2.4), (0, 2.4))
    drift = Plane(455, 40, (290, 330), (0, count), (-0.4, 1.6))
    parts = [plane.curve(1, "valley", f' stroke-width="{w}"') for w in (46, 30, 15)]
    parts += [
        plane.curve(1, "floor"),
        plane.frame("u", "v"),
        drift.frame("step", "log u/v: where on the floor"),
    ]
    parts.append(plane.text((1.55, 1.75), "loss (u v - 1)²,", (0, 0), "soft"))
    parts.append(plane.text((1.55, 1.75), "noisy batches", (0, 18), "soft"))
    zero = drift.line([(0, 0), (count, 0)], "axis dash")
    parts += [zero, drift.text((count, 0), "both factors equal", (0, -6), "soft small", "end")]
    for name, classes in (("AdamW", "adam"), ("DDCAdam", "ours")):
        points = runs[name]
        parts.append(plane.line(points[::6], f"path {classes}", ' stroke-opacity=".55"'))
        moves = plane.path(points[::30])
        motion = f'<animateMotion dur="9s" repeatCount="indefinite" path="{moves}"/>'
        parts.append(f'<circle class="dot f{classes}" r="6" cx="0" cy="0">{motion}</circle>')
        ratios = [(i, math.log(u / v)) for i, (u, v) in enumerate(points)][::6]
        parts.append(drift.line(ratios, f"path {classes}"))
        parts.append(
            drift.text(
                ratios[-1], name, (0, -10 if name == "DDCAdam" else 26), f"f{classes}", "end"
            )
        )
        print(
            f"{name}: log u/v from {ratios[0][1]:.6f} to {math.log(points[-1][0] / points[-1][1]):.6f}"
        )
    write("valley.svg", 770, 410, "AdamW drifts along the floor of a valley; DDCAdam stays", parts)


def orbits() -> None:
    """One step from two copies of a function: AdamW makes two functions of them, DDCAdam one."""
    copies, lr, target = [(2.0, 0.5), (0.8, 1.25)], 0.3, [torch.zeros(1, dtype=torch.float64)]
    parts = []
    for column, (name, classes) in enumerate((("AdamW", "adam"), ("DDCAdam", "ours"))):
        plane = Plane(45 + 375 * column, 50, (310, 310), (0, 2.3), (0, 2.3))
        ends = [
            steps(
                name, start, lr, target, **({} if name == "AdamW" else {"coordinates": "balanced"})
            )[-1]
            for start in copies
        ]
        parts += [plane.curve(c, "orbit") for c in (0.25, 2.0, 3.0)]
        parts += [plane.curve(1, "floor"), plane.line([(0, 0), (2.2, 2.2)], "section dash")]
        parts += [plane.frame("u", "v"), plane.text((0, 2.3), name, (40, -10), f"f{classes}")]
        parts.append(plane.text((2.2, 2.2), "section u = v", (0, -6), "fsection small", "end"))
        for label, start, end in zip("AB", copies, ends, strict=True):
            parts += [
                plane.curve(end[0] * end[1], f"{classes} dash", ' fill="none" stroke-opacity=".7"')
            ]
            parts += [plane.arrow(start, end, classes), plane.dot(start, f"f{classes}")]
            parts.append(plane.text(start, label, (9, -7)))
        products = [u * v for u, v in ends]
        text = " and ".join(f"{p:.3f}" for p in products)
        parts.append(plane.text((0, 0), f"u v after one step: {text}", (0, 22), "soft small"))
        print(f"{name}: u v after a step {products[0]!r}, {products[1]!r}")
    write("orbits.svg", 770, 400, "One step from two copies of a function", parts)


def one_step() -> None:
    """The parts of a step in folded coordinates, checked against the step of the optimizer."""
    (u, v), lr = (1.9, 0.7), 0.35
    coordinates = (1.0, u * v)
    stepped = (1.0 - lr, u * v - lr)  # Adam's first step: the sign of the gradient
    folded = (1.0, stepped[0] * stepped[1])
    shrink = math.sqrt(folded[1] / (u * v))
    lifted = (u * shrink, v * shrink)  # the ratio is kept
    real = steps(
        "DDCAdam",
        (u, v),
        lr,
        [torch.zeros(1, dtype=torch.float64)],
        coordinates="folded",
        hold="ratio",
    )[-1]
    assert all(abs(a - b) < 1e-6 for a, b in zip(lifted, real, strict=True)), (lifted, real)

    plane = Plane(60, 40, (430, 340), (0, 2.3), (0, 1.75))
    parts = [plane.curve(c, "orbit") for c in (0.2, 2.0)]
    parts += [plane.curve(u * v, "floor"), plane.curve(folded[1], "floor dash")]
    parts += [
        plane.line([(1, 0), (1, 1.75)], "section dash"),
        plane.frame("u (a gain)", "v (what reads it)"),
    ]
    parts.append(plane.text((1, 1.75), "section u = 1", (6, 8), "fsection small"))
    places = {"W": (u, v), "X": coordinates, "X - step": stepped, "X'": folded, "W'": lifted}
    parts += [
        plane.line(
            [(u + (1 - u) * t, u * v / (u + (1 - u) * t)) for t in (i / 20 for i in range(21))],
            "path ours dash",
        ),
        plane.arrow(coordinates, stepped, "adam"),
        plane.line(
            [(s, folded[1] / s) for s in (stepped[0] + lr * i / 20 for i in range(21))], "path ours"
        ),
        plane.line(
            [
                (1 + (lifted[0] - 1) * i / 20, folded[1] / (1 + (lifted[0] - 1) * i / 20))
                for i in range(21)
            ],
            "path ours dash",
        ),
    ]
    offsets = {"W": (10, -8), "X": (8, -10), "X - step": (-12, 6), "X'": (8, 22), "W'": (10, 4)}
    for name, place in places.items():
        parts.append(plane.dot(place, "fadam" if name == "X - step" else "fours"))
        anchor = "end" if name == "X - step" else "start"
        parts.append(plane.text(place, name, offsets[name], "ink", anchor))
    legend = [
        ("1", "W to X: to the section, along the orbit"),
        ("2", "X to X - step: the base rule (Adam)"),
        ("3", "X - step to X': back to the section,"),
        ("", "along the new orbit"),
        ("4", "X' to W': lifted to the old place,"),
        ("", "the ratio of both factors kept"),
    ]
    for row, (number, text) in enumerate(legend):
        y = 110 + 24 * row
        parts.append(f'<text class="soft" x="500" y="{y}">{number}</text>')
        parts.append(f'<text class="ink small" x="518" y="{y}">{text}</text>')
    write("step.svg", 770, 420, "One step in folded coordinates", parts)


if __name__ == "__main__":
    valley()
    orbits()
    one_step()
