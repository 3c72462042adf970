"""Networks drawn at random: no gauge that is none, and the directions that no batch sees."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import random_networks  # noqa: E402


@pytest.mark.parametrize("seed", range(8))
def test_what_is_found_in_a_random_network_is_a_symmetry(seed: int) -> None:
    found = random_networks.audit(seed)
    assert found["change"] < 1e-10
    assert found["gauges"] > 0
    assert found["explained"] <= found["kernel"]
    missing = sum(found["missing"].values())
    assert missing == pytest.approx(found["kernel"] - found["explained"], abs=0.5)
