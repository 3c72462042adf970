"""The study of benchmarks/quality.py: its arithmetic, and that it goes on where it stopped."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "quality.py"
RATES = {"Muon": (0.01, 0.02, 0.04)}
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def quality():
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("quality", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["quality"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["quality"]


def row(arm: str, rate: float, seed: int, loss: float) -> dict[str, object]:
    return {
        "arm": f"Muon: {arm}",
        "base": "Muon",
        "rate": rate,
        "seed": seed,
        "loss": loss,
    }


def made_up() -> list[dict[str, object]]:
    rows = [row("base", rate, 1, loss) for rate, loss in ((0.01, 2.0), (0.02, 1.0), (0.04, 3.0))]
    rows += [row("base", 0.02, 2, 1.2), row("base", 0.02, 3, 1.4)]
    for arm, losses in {
        "worse": (1.1, 1.31, 1.49),
        "noise": (1.1, 1.2, 1.42),
        "better": (0.9, 1.09, 1.31),
    }.items():
        rows += [row(arm, 0.02, 1, 9.0), row(arm, 0.04, 1, math.nan)]
        rows += [row(arm, 0.01, seed, loss) for seed, loss in zip(SEEDS, losses, strict=True)]
    return [*rows, row("one rate", 0.02, 1, 1.0), row("another rate", 0.01, 1, 1.0)]


def test_table_is_of_the_best_rate_and_of_paired_differences(quality):
    lines = {line.arm: line for line in quality.lines_of(made_up(), RATES, SEEDS)}
    names = ["base", "worse", "noise", "better", "one rate"]
    assert list(lines) == [f"Muon: {name}" for name in names]
    assert [line.is_own_rate for line in lines.values()] == [True, True, True, True, False]
    assert lines["Muon: one rate"].verdict == "one seed"
    base, worse = lines["Muon: base"], lines["Muon: worse"]
    assert (base.rate, base.at_edge, base.difference) == (0.02, False, 0)
    assert (worse.rate, worse.at_edge, worse.seeds) == (0.01, True, 3)
    assert base.loss == pytest.approx(1.2)
    assert worse.difference == pytest.approx(0.1)
    # The differences are 0.10, 0.11, 0.09.
    assert worse.error == pytest.approx(0.01 / math.sqrt(3))
    verdicts = [lines[f"Muon: {arm}"].verdict for arm in ("worse", "noise", "better")]
    assert verdicts == ["no", "yes", "yes, better"]
    text = quality.table(list(lines.values()))
    assert "| Muon: worse | 0.01* | 3 | 1.3000 | +0.1000 ± 0.0058 | no |" in text


def test_all_arms_can_be_shown_at_the_rate_of_their_base(quality):
    rows = [*made_up(), *(row("worse", 0.02, seed, 1.5) for seed in SEEDS[1:])]
    lines = {line.arm: line for line in quality.lines_of(rows, RATES, SEEDS, base_rates=True)}
    assert {line.rate for line in lines.values()} == {0.02}
    assert [name for name, line in lines.items() if line.is_own_rate] == ["Muon: base"]
    assert "Muon: another rate" not in lines
    worse = lines["Muon: worse"]
    assert (worse.seeds, worse.loss) == (3, pytest.approx(4.0))


def test_an_arm_that_diverges_is_worse(quality):
    rows = [*made_up(), *(row("diverged", rate, 1, math.nan) for rate in RATES["Muon"])]
    line = quality.lines_of(rows, RATES, SEEDS)[-1]
    assert (line.arm, line.verdict) == ("Muon: diverged", "no")


def test_a_stopped_study_goes_on_without_repeating_runs(quality):
    arms = [quality.Arm("Muon", name) for name in ("base", "one", "two")]
    best = {"base": 0.02, "one": 0.02, "two": 0.04}
    made: list[tuple[str, float, int]] = []

    class Stopped(Exception):
        pass

    def train(arm, rate, seed):
        if len(made) == stop_at:
            raise Stopped
        made.append((arm.name, rate, seed))
        return {"loss": abs(rate - best[arm.name]) + seed}

    rows: list[dict[str, object]] = []
    for stop_at in (5, 11, 14):  # noqa: B007, train looks at it
        with pytest.raises(Stopped):
            quality.study([arms], RATES, SEEDS, rows, train, lambda row: None)
    stop_at = -1
    quality.study([arms], RATES, SEEDS, rows, train, lambda row: None)
    # All rates of the base, all seeds at its best rate, all rates; then the seeds of what is better.
    assert len(made) == len(set(made)) == len(rows) == 3 + 3 * 2 + 2 + 2 * 2 + 2
    assert made[3:11] == [
        *((name, 0.02, 1) for name in ("one", "two")),
        *((name, 0.02, seed) for seed in (2, 3) for name in ("base", "one", "two")),
    ]
    assert made[-2:] == [("two", 0.04, 2), ("two", 0.04, 3)]
    quality.study([arms], RATES, SEEDS, rows, train, lambda row: None)
    assert len(made) == 17


def test_every_arm_is_one_of_its_base(quality):
    for base in ("Muon", "Adam"):
        arms = [arm for tier in quality.arms_of(base).values() for arm in tier]
        assert len({arm.key for arm in arms}) == len(arms)
        assert arms[0].name == "base"
        assert {arm.base for arm in arms} == {base}
