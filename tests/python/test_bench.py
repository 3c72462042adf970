"""``python -m ddc bench``: what it stores, the chart of it, and the Muon that it compares with."""

import json
import runpy
import xml.etree.ElementTree
from pathlib import Path

import ddc
import pytest
import torch
from ddc import bench
from ddc.__main__ import main

ROOT = Path(__file__).parents[2]
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    file = folder / "steps.json"
    arguments = ["--budget", "0", "--groups", str(folder), "--out", str(file)]
    threads = torch.get_num_threads()
    for part in ("adam", "muon", "cost"):
        assert main(["bench", "mod-113", "--threads", "1", "--parts", part, *arguments]) == 0
    torch.set_num_threads(threads)
    return file


def test_bench_stores_ratios_with_controls_and_what_they_were_taken_on(stored):
    (record,) = json.loads(stored.read_text())
    assert (record["model"], record["threads"]) == ("mod-113", 1)
    assert record["machine"]["torch"] == torch.__version__
    assert {"AdamW(fused=True) again", "DDCAdam, everything", "DDCMuon, everything"} <= set(
        record["rows"]
    )
    for row in record["rows"].values():
        low, high = row["quartiles"]
        assert 0 < low <= row["ratio"] <= high
    assert 1 < record["rows"]["DDCAdam, everything"]["of a training step"]
    cost = record["cost"]
    assert cost["plan bytes"] > 28 * record["parameters"]
    assert cost["peak bytes of a step"] > 0
    assert cost["construction seconds"] > 0


def test_the_chart_is_drawn_from_the_results(stored, tmp_path):
    draw = runpy.run_path(str(ROOT / "benchmarks" / "chart.py"))["chart"]
    picture = draw(json.loads(stored.read_text()))
    words = [element.text for element in xml.etree.ElementTree.fromstring(picture).iter()]
    assert "mod-113" in words
    assert "DDCMuon, everything" in words


def test_the_plain_muon_is_the_librarys_without_symmetries():
    shapes = {"wide": (5, 8), "tall": (9, 4)}

    def fresh(seed):
        generator = torch.Generator().manual_seed(seed)
        return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    twins = [{n: torch.nn.Parameter(p) for n, p in fresh(0).items()} for _ in range(2)]
    plain = bench.PlainMuon(twins[0].values(), lr=0.05)
    own = ddc.Muon(
        twins[1].items(), lr=0.05, weight_decay=0.1, method="newton_schulz", use_adam=False
    )
    for step in range(1, 4):
        for parameters in twins:
            for name, gradient in fresh(step).items():
                parameters[name].grad = gradient
        plain.step()
        own.step()
    for name in shapes:
        assert torch.allclose(twins[0][name], twins[1][name], atol=1e-5)


def test_an_unknown_model_is_refused_by_name(capsys):
    assert main(["bench", "llama-1t"]) == 1
    assert "llama-1t" in capsys.readouterr().err


def test_a_rows_bound_counts_products_by_their_type():
    own = bench.Bench.__new__(bench.Bench)
    own.limits = {"copy bytes/s": 1e3, "float32 flops/s": 2e3, "float64 flops/s": 1e3}
    weight = torch.nn.Parameter(torch.ones(4, 4))
    exact = ddc.Muon([("w", weight)], use_adam=False, method="exact")
    cost = exact.report().cost
    assert cost.flops == cost.double_flops > 0
    assert own.roofline(exact) == pytest.approx(cost.bytes + cost.flops)
    plain = ddc.Muon([("w", weight)], use_adam=False, method="newton_schulz")
    cost = plain.report().cost
    assert cost.flops > 0
    assert cost.double_flops == 0
    assert own.roofline(plain) == pytest.approx(cost.bytes + cost.flops / 2)


def test_results_of_other_versions_are_dropped(tmp_path):
    file = tmp_path / "steps.json"

    def record(version, row):
        return {
            "model": "mod-113",
            "threads": 1,
            "rows": {row: 1},
            "machine": {"ddc": version},
        }

    bench.store(file, record("0.1.0", "old"))
    bench.store(file, record("0.2.0", "new"))
    bench.store(file, record("0.2.0", "more"))
    (kept,) = json.loads(file.read_text())
    assert set(kept["rows"]) == {"new", "more"}
