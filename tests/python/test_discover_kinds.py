"""Kinds of symmetry that families of the table do not have: several streams, lengths of single tensors."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import ddc
import pytest
import torch
from torch import Tensor, nn

VOCABULARY = 13


def found(group: ddc.SymmetryGroup) -> dict[str, int]:
    return dict(Counter(f"{gauge.kind} {gauge.group}" for gauge in group.gauges))


def difference_of_copies(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], group: ddc.SymmetryGroup
) -> float:
    """Difference of losses in training a model, and its copy somewhere else on the orbit."""
    losses = []
    for moved in (False, True):
        each = copy.deepcopy(model)
        if moved:
            group.random_element(seed=1, size=0.5).apply_(each)
        optimizer = ddc.DDCAdam(each.named_parameters(), symmetries=group, lr=1e-2)
        torch.manual_seed(0)
        values = []
        for _ in range(10):
            optimizer.zero_grad()
            value = loss(each)
            value.backward()
            optimizer.step()
            values.append(value.detach())
        losses.append(torch.stack(values))
    return float((losses[0] - losses[1]).abs().max())


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


class LatentAttention(nn.Module):
    """Queries, and keys and values, are made of latent vectors behind norms of their own.

    The latent of keys and values is a part of what one layer makes, as in DeepSeek's; the rest of it, which
    would be the rotary key, is a key that all heads share.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.norm = RMSNorm(8)
        self.kv_down = nn.Linear(8, 4 + 2, bias=False)
        self.kv_norm = RMSNorm(4)
        self.kv_up = nn.Linear(4, 2 * 3, bias=False)
        self.q_down = nn.Linear(8, 5, bias=False)
        self.q_norm = RMSNorm(5)
        self.q_up = nn.Linear(5, 2 * 2, bias=False)
        self.out = nn.Linear(2 * 3, 8, bias=False)
        self.last = RMSNorm(8)
        self.head = nn.Linear(8, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        batch, time, _ = x.shape
        inner = self.norm(x)
        latent, key = self.kv_down(inner).split([4, 2], -1)
        values = self.kv_up(self.kv_norm(latent)).view(batch, time, 2, 3)
        queries = self.q_up(self.q_norm(self.q_down(inner))).view(batch, time, 2, 2)
        scores = torch.einsum("bthd,bsd->bhts", queries, key)
        scores = scores + torch.full((time, time), -1e9, dtype=x.dtype).triu(1)
        read = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), values)
        return self.head(self.last(x + self.out(read.reshape(batch, time, 6))))


def next_token(model: nn.Module) -> Tensor:
    tokens = torch.randint(VOCABULARY, (32, 7))
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_latent_vectors_turn_beside_the_residual_stream(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = LatentAttention().to(dtype)
    group = ddc.discover(model, next_token)

    rotations = {what for what in found(group) if what.startswith("residual rotation")}
    assert rotations == {f"residual rotation O({size})" for size in (4, 5, 8)}
    assert group.residual <= group.tolerance
    if dtype == torch.float64:
        assert difference_of_copies(model, next_token, group) < 1e-9


def test_weight_normalisation_forgets_lengths() -> None:
    torch.manual_seed(0)
    normed = torch.nn.utils.parametrizations.weight_norm
    model = nn.Sequential(normed(nn.Linear(5, 6)), nn.Tanh(), normed(nn.Linear(6, 3))).double()

    def loss(model: nn.Module) -> Tensor:
        outputs = model(torch.randn(64, 5, dtype=torch.float64))
        return (outputs - torch.randn(64, 3, dtype=torch.float64)).square().mean()

    group = ddc.discover(model, loss, completeness=True)
    assert found(group) == {"length (R+)^6": 1, "length (R+)^3": 1}
    assert group.completeness is not None
    assert (group.completeness.explained, round(group.completeness.kernel)) == (9, 9)
    assert difference_of_copies(model, loss, group) < 1e-9


def test_a_length_that_is_forgotten_but_for_eps_is_none() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6, bias=False), nn.RMSNorm(6, eps=1e-5), nn.Linear(6, 3))
    model = model.double()

    def loss(model: nn.Module) -> Tensor:
        outputs = model(torch.randn(64, 5, dtype=torch.float64))
        return nn.functional.cross_entropy(outputs, torch.randint(3, (64,)))

    group = ddc.discover(model, loss)
    assert not any(gauge.kind == "length" for gauge in group.gauges)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_of_16_bits_are_searched_in_float32_and_left_as_they_were(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    gradients = [torch.ones_like(parameter) for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient

    def loss(model: nn.Module) -> Tensor:
        inputs = torch.randn(32, 5, dtype=next(model.parameters()).dtype)
        return nn.functional.cross_entropy(model(inputs).float(), torch.randint(3, (32,)))

    group = ddc.discover(model, loss)

    assert found(group) == {
        "relu rescale (R+)^6": 1,
        "CE row shift R^6": 1,
        "CE bias shift R": 1,
    }
    assert any("as float32" in note for note in group.notes)
    for parameter, was, gradient in zip(model.parameters(), before, gradients, strict=True):
        assert parameter.dtype == dtype
        assert torch.equal(parameter, was)
        assert parameter.grad is gradient
