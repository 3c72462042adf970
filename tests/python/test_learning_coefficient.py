"""The order that a trajectory shows, against the learning coefficient that devinterp samples."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python"))
from learning_coefficient import expected, order, sampled


@pytest.mark.parametrize("power", [1, 2, 3])
def test_order_of_a_monomial_is_half_the_inverse_of_the_sampled_coefficient(power):
    torch.manual_seed(0)
    coefficient = 1 / (2 * power)
    mean, error = sampled([power], n_beta=1e4, steps=1500, localization=0.0)
    # Steps of Langevin dynamics have a size, which makes it some percent too large.
    assert mean == pytest.approx(coefficient, abs=4 * error + 0.05 * coefficient)
    rate = order([power])
    assert rate.verdict == "readable", rate.reason
    assert rate.learning_coefficient == pytest.approx(coefficient, rel=0.01)
    assert expected([power], 1e4, localization=0.0) == pytest.approx(coefficient, rel=0.01)


def test_two_parameters_are_sampled_at_a_temperature_and_read_along_a_way():
    """u^2 v^2 has coefficient 1/2 only as 1 / log(n beta) goes to zero; the balanced way has order 2."""
    torch.manual_seed(0)
    mean, error = sampled([1, 1], n_beta=100, steps=2000, localization=1.0)
    assert mean == pytest.approx(expected([1, 1], 100, localization=1.0), abs=4 * error)
    assert mean < 0.4
    assert order([1, 1]).order == pytest.approx(2, rel=0.01)
