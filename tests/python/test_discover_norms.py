"""Norms that take means and variances of a batch, behind layers with biases."""

from __future__ import annotations

import ddc
import pytest
import torch
from torch import Tensor, nn


def classify_vectors(model: nn.Module) -> Tensor:
    out = model(torch.randn(64, 5, dtype=torch.float64))
    return nn.functional.cross_entropy(out, torch.randint(3, (64,)))


def classify_images(model: nn.Module) -> Tensor:
    out = model(torch.randn(32, 3, 8, 8, dtype=torch.float64))
    return nn.functional.cross_entropy(out, torch.randint(4, (32,)))


def perceptron(*widths: int, bias: bool) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 3))


def cnn(bias: bool) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=bias),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, bias=bias),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("make", "loss", "scales", "last"),
    [
        (lambda bias: perceptron(5, 6, 7, bias=bias), classify_vectors, [6, 7], 7),
        (cnn, classify_images, [6, 8], 8),
    ],
    ids=["perceptron", "cnn"],
)
def test_all_is_found_behind_biases_that_a_norm_takes_out(make, loss, scales, last, bias) -> None:
    torch.manual_seed(0)
    group = ddc.discover(make(bias).double().train(), loss, completeness=True)
    expected = [("norm scale", n) for n in scales] + [("CE row shift", last), ("CE bias shift", 1)]
    assert sorted((each.kind, each.dimension) for each in group.gauges) == sorted(expected)
    # Biases are null, but running means follow them: they are left out, and are no gap in what is known.
    assert [each.kind for each in group.refusals].count("null shift") == (
        len(scales) if bias else 0
    )
    dimension = sum(size for _, size in expected) + (sum(scales) if bias else 0)
    assert group.completeness is not None
    assert group.completeness.method == "exact"
    assert (group.completeness.explained, group.completeness.kernel) == (dimension, dimension)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_bias_before_a_norm_is_null_wherever_weights_are(seed: int) -> None:
    torch.manual_seed(seed)
    group = ddc.discover(perceptron(5, 6, bias=True).double().train(), classify_vectors)
    assert "null shift" in [each.kind for each in group.refusals]


@pytest.mark.parametrize(("training", "mean"), [(True, 0.0), (True, 1e4), (False, 0.0)])
def test_a_null_bias_that_running_means_follow_is_left_out(training: bool, mean: float) -> None:
    torch.manual_seed(0)
    model = perceptron(5, 6, 7, bias=True).double().train(training)
    model[1].running_mean.fill_(mean)
    model(torch.randn(64, 5, dtype=torch.float64))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    group = ddc.discover(model, classify_vectors)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    reasons = [each.reason for each in group.refusals if "running_mean" in each.reason]
    assert len(reasons) == (2 if training else 0)
    if training:
        assert "'0.bias'" in reasons[0] and "'1.running_mean'" in reasons[0]
        assert "'3.bias'" in reasons[1] and "'4.running_mean'" in reasons[1]
    inputs = torch.randn(9, 5, dtype=torch.float64)
    predictions = model.eval()(inputs).log_softmax(-1)
    group.canonicalize_(model)
    assert torch.allclose(model(inputs).log_softmax(-1), predictions, rtol=0, atol=1e-12)


class Attention(nn.Module):
    """Attention to embedded tokens, with no norm or residual connection around it."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(23, 8)
        self.positions = nn.Parameter(torch.randn(5, 8))
        self.query, self.key, self.value, self.mix = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.out = nn.Linear(8, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out(self.mix(mixed.transpose(1, 2).flatten(2)))


def classify_tokens(model: nn.Module) -> Tensor:
    out = model(torch.randint(23, (32, 5))).flatten(0, 1)
    return nn.functional.cross_entropy(out, torch.randint(9, (160,)))


@pytest.mark.parametrize(("heads", "dimension"), [(1, 273), (2, 209)])
def test_gauges_that_cut_a_tensor_into_other_heads_go_together(heads: int, dimension: int) -> None:
    torch.manual_seed(0)
    model = Attention(heads).double()
    group = ddc.discover(model, classify_tokens, completeness=True)
    assert not [each for each in group.refusals if "left out" in each.reason]
    assert group.completeness is not None
    assert (group.completeness.explained, group.completeness.kernel) == (dimension, dimension)

    losses = []
    for moved in (False, True):
        torch.manual_seed(0)
        each = Attention(heads).double()
        if moved:
            group.random_element(seed=1, size=0.5).apply_(each)
        optimizer = ddc.DDCMuon(each.named_parameters(), symmetries=group, lr=1e-2)
        torch.manual_seed(1)
        for _ in range(10):
            optimizer.zero_grad()
            loss = classify_tokens(each)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
