"""A pretrained model, moved along its orbit and fine-tuned: examples/python/fine_tune.py, small."""

import sys
from copy import deepcopy
from pathlib import Path

import ddc
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python"))
from fine_tune import PACKAGES, chart, gap, load_batches, load_model, placing, train

LR = 1e-4


@pytest.fixture(scope="module")
def batches():
    return load_batches(size=4, length=12, seed=0)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return load_model(layers=1, dtype=torch.float64)


@pytest.fixture(scope="module")
def group(model, batches):
    return ddc.discover(model, ddc.huggingface.loss_fn(batches))


@pytest.fixture(scope="module")
def moved(model, group):
    return group.random_element(seed=1, size=0.3).apply_(deepcopy(model))


def test_the_task_is_made_of_every_package(batches):
    labels = torch.cat([batch["labels"] for batch in batches])
    assert all((labels == label).sum() > 100 for label in range(len(PACKAGES)))


def test_the_symmetries_of_a_pretrained_layer(group):
    assert group.residual < group.tolerance
    found = {(gauge.kind, gauge.group) for gauge in group.gauges}
    assert found >= {
        ("QK linear", "GL(32)^12"),
        ("VO linear", "GL(32)^12"),
        ("norm scale", "(R+)^384"),
        ("norm kernel shift", "R^1536"),
    }


def test_the_pretrained_weights_are_placed_canonically(model, group, batches):
    changes = placing(model, group, batches[:2])
    assert changes["weights"] > 0.1
    assert changes["outputs"] < 1e-12
    assert changes["twice"] < 1e-11
    assert changes["related copies"] < 1e-11
    assert placing(deepcopy(model).float(), group, batches[:2])["outputs"] < 1e-5


def test_the_moved_copy_is_the_same_function_elsewhere(model, moved, batches):
    with torch.no_grad():
        # Logits themselves may move by a constant, to which the loss is blind.
        first, second = (copy(**batches[0]).logits.log_softmax(-1) for copy in (model, moved))
    assert (first - second).abs().max() < 1e-12
    value = "bert.encoder.layer.0.attention.self.value.weight"
    weights = [dict(copy.named_parameters())[value] for copy in (model, moved)]
    assert (weights[0] - weights[1]).norm() > 0.1 * weights[0].norm()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str
)
def test_the_canonical_place_of_a_pretrained_layer(model, moved, group, batches, dtype, tolerance):
    start, first = deepcopy(model).to(dtype), deepcopy(model).to(dtype)
    move = group.canonicalize_(first)
    with torch.no_grad():
        before, after = (copy(**batches[0]).logits.log_softmax(-1) for copy in (start, first))
    assert (before - after).abs().max() < tolerance * before.abs().max()

    def apart(one, other):
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        return max(((a - b).norm() / b.norm().clamp_min(1e-3)).item() for a, b in pairs)

    assert apart(first, start) > 0.1
    if dtype == torch.float64:
        second = deepcopy(moved)
        group.canonicalize_(second)
        assert apart(second, first) < 1e-11
        again = deepcopy(first)
        group.canonicalize_(again)
        assert apart(again, first) < 1e-9
        assert apart(move.inverse().apply_(first), model) < 1e-11


def test_both_copies_fine_tune_alike_under_ddc_adam_only(model, moved, group, batches):
    def both(make):
        return [train(deepcopy(copy), make, batches[:12]) for copy in (model, moved)]

    ours = both(lambda m: ddc.DDCAdam(m.named_parameters(), symmetries=group, lr=LR))
    assert gap(*ours) < 1e-9
    assert gap(*both(lambda m: torch.optim.AdamW(m.parameters(), lr=LR))) > 1e-3


def test_both_copies_fine_tune_alike_under_torchs_adamw_if_it_is_held(model, moved, group, batches):
    def make(copy):
        optimizer = torch.optim.AdamW(copy.named_parameters(), lr=LR, fused=True)
        ddc.hold(optimizer, group)
        return optimizer

    curves = [train(deepcopy(copy), make, batches[:6]) for copy in (model, moved)]
    assert gap(*curves) < 1e-11


def test_the_chart_needs_nothing_but_its_file(tmp_path):
    path = tmp_path / "out" / "chart.html"
    assert chart({"AdamW": ([1.0, 0.5], [1.0, 0.6]), "DDCAdam": ([1.0, 0.5], [1.0, 0.5])}, path)
    text = path.read_text()
    assert "AdamW, difference" in text and "DDCAdam, moved" in text
    assert "<script src=" not in text
