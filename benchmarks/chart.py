"""Chart of what steps cost, from what `python -m ddc bench --out` has stored; prints the same as tables.

python benchmarks/chart.py benchmarks/results/steps.json benchmarks/results/steps.svg
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

COLOURS = ("#4269d0", "#d1790b", "#2a9d5c", "#a463f2", "#c23b4b")
LABELS, WIDTH, ROW, TOP = 320, 960, 30, 58
LOW, HIGH = 0.2, 500.0
TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256)
PEERS = {
    "AdamW(fused=True)": "in steps of torch's fused AdamW",
    "Muon, float32": "in steps of Muon",
}


def x_of(ratio: float) -> float:
    share = math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return LABELS + share * (WIDTH - LABELS - 20)


def chart(records: list[dict[str, Any]]) -> str:
    models = list(dict.fromkeys(r["model"] for r in records))
    rows = {peer: list(dict.fromkeys(
        row for r in records for row, value in r["rows"].items() if value["peer"] == peer
    )) for peer in PEERS}  # fmt: skip
    parts: list[str] = []

    def text(x: float, y: float, words: str, more: str = "") -> None:
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>')

    def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> None:
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="{colour}" stroke-width="{width}"/>'
        )

    x = 12.0
    for model, colour in zip(models, COLOURS, strict=False):
        parts.append(f'<circle cx="{x}" cy="18" r="4" fill="{colour}"/>')
        text(x + 8, 22, model)
        x += 30 + 7 * len(model)
    text(x, 22, "filled: 1 thread, hollow: 2; lines: quartiles", 'fill="#666"')
    y = float(TOP)
    for peer, names in rows.items():
        if not names:
            continue
        bottom = y + ROW * len(names)
        for tick in TICKS:
            line(x_of(tick), y - 6, x_of(tick), bottom, "#999" if tick == 1 else "#e4e4e4")
            text(x_of(tick), bottom + 14, f"{tick:g}", 'text-anchor="middle" fill="#666"')
        text(12, bottom + 14, PEERS[peer], 'fill="#666"')
        for name in names:
            text(12, y + ROW / 2 + 4, name)
            marks = [(r, r["rows"][name]) for r in records if name in r["rows"]]
            for k, (record, value) in enumerate(marks):
                colour = COLOURS[models.index(record["model"]) % len(COLOURS)]
                height = y + 5 + (ROW - 8) * k / max(1, len(marks) - 1)
                line(
                    *(x_of(value["quartiles"][0]), height),
                    *(x_of(value["quartiles"][1]), height),
                    colour,
                )
                fill = colour if record["threads"] == 1 else "white"
                parts.append(
                    f'<circle cx="{x_of(value["ratio"]):.1f}" cy="{height:.1f}" r="3" fill="{fill}" '
                    f'stroke="{colour}" stroke-width="1.3"/>'
                )
            y += ROW
            line(12, y, WIDTH - 12, y, "#f0f0f0")
        y += 44
    about = records[0]["machine"]
    text(12, y - 8, f"{about['cpu']}, torch {about['torch']}, float32", 'fill="#666"')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{y:.0f}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def tables(records: list[dict[str, Any]]) -> str:
    """Markdown: ratios with quartiles, and what everything costs beside the ceilings of the machine."""
    heads = [f"{r['model']}, {r['threads']}" for r in records]
    lines = [f"| model, threads | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(heads)]
    for row in dict.fromkeys(row for r in records for row in r["rows"]):
        cells = []
        for record in records:
            value = record["rows"].get(row)
            low, high = value["quartiles"] if value else (0, 0)
            cells.append(f"{value['ratio']:.2f} ({low:.2f}-{high:.2f})" if value else "")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    share = [r["rows"].get("DDCAdam, everything", {}).get("of a training step") for r in records]
    cells = ["" if each is None else f"{each:.3f}" for each in share]
    lines.append(f"| everything, of a training step at 4096 tokens | {' | '.join(cells)} |")
    costs = {
        "MB of the plan, everything": lambda r, c: c["plan bytes"] / 1e6,
        "GFlop of the plan": lambda r, c: c["plan flops"] / 1e9,
        "roofline, ms": lambda r, c: c["roofline milliseconds"],
        "measured, ms": lambda r, c: (
            r["rows"].get("DDCAdam, everything", {}).get("milliseconds", float("nan"))
        ),
        "copy, GB/s": lambda r, c: r["ceilings"]["copy bytes/s"] / 1e9,
        "products in float32, GFlop/s": lambda r, c: r["ceilings"]["float32 flops/s"] / 1e9,
        "products in float64, GFlop/s": lambda r, c: r["ceilings"]["float64 flops/s"] / 1e9,
        "peak of a step / largest tensor": lambda r, c: (
            c["peak bytes of a step"] / c["largest tensor bytes"]
        ),
        "construction, s": lambda r, c: c["construction seconds"],
    }
    lines += ["", f"| model, threads | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(heads)]
    for name, value_of in costs.items():
        cells = [f"{value_of(r, r['cost']):.3g}" if "cost" in r else "" for r in records]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def scaling_table(records: list[dict[str, Any]]) -> str:
    rows = dict.fromkeys(row for r in records for row in r["rows"])
    lines = [
        "| | gauges | " + " | ".join(f"{r['threads']} threads" for r in records) + " |",
        "| --- | ---: |" + " ---: |" * len(records),
    ]
    for row in rows:
        values = [r["rows"][row] for r in records if row in r["rows"]]
        cells = " | ".join(f"{v['ratio']:.2f}" for v in values)
        lines.append(f"| {row} | {values[0]['gauges']} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    stored = json.loads(options.results.read_text())
    records = [r for r in stored if r["model"] != "scaling"]
    options.out.write_text(chart(records))
    print(tables(records))
    scaling = [r for r in stored if r["model"] == "scaling"]
    if scaling:
        print("\n" + scaling_table(scaling))


if __name__ == "__main__":
    main()
