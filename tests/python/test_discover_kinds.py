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


class Experts(nn.Module):
    """Gated experts in two stacks, weighted by a router."""

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 2 * hidden, width))
        self.down = nn.Parameter(torch.randn(experts, width, hidden))
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = torch.einsum("ehw,bw->beh", self.up, x).chunk(2, -1)
        made = torch.einsum("ewh,beh->bew", self.down, nn.functional.silu(gate) * up)
        return self.out((made * self.router(x).softmax(-1)[..., None]).sum(1).tanh())


def regression(model: nn.Module) -> Tensor:
    outputs = model(torch.randn(48, 5, dtype=torch.float64))
    return (outputs - torch.randn(48, 4, dtype=torch.float64)).square().mean()


def counts(group: ddc.SymmetryGroup) -> tuple[int, int]:
    """Directions along gauges, and all that no batch sees."""
    assert group.completeness is not None
    return group.completeness.explained, round(group.completeness.kernel) - group.completeness.dead


def test_every_expert_of_a_stack_has_scales_of_its_own() -> None:
    torch.manual_seed(0)
    model = Experts(3, 5, 4).double()
    group = ddc.discover(model, regression, completeness=True)
    assert found(group)["glu rescale (R+)^12"] == 1
    assert counts(group) == (12 + 5, 12 + 5)
    assert difference_of_copies(model, regression, group) < 1e-11

    gauge = next(gauge.gauge for gauge in group.gauges if gauge.kind == "glu rescale")
    assert all(leg.stacked for leg in gauge.legs)
    report = ddc.testing.gauge_invariants(gauge, model, regression)
    assert report, str(report)


def test_only_scales_of_stacks_have_pairs_for_channels() -> None:
    model = Experts(3, 5, 4).double()
    legs = [ddc.Leg("up", 1, 1.0, stacked=True, channel_of=list(range(24)))]
    for action, block in (("shift", 1), ("linear", 3), ("rotation", 3), ("exchange", 1)):
        gauge = ddc.Gauge("stack", action, legs, channels=24, block=block)
        with pytest.raises(RuntimeError, match="stacked is for scales"):
            ddc.testing.gauge_invariants(gauge, model, regression)


class Recurrent(nn.Module):
    def __init__(self, cell: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.cell = cell(5, 6, batch_first=True)
        self.out = nn.Linear(6, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.cell(self.embed(tokens))[0])


def next_of_nine(model: nn.Module) -> Tensor:
    tokens = torch.randint(9, (32, 7))
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize(
    ("cell", "biases"), [(nn.RNN, 6), (nn.LSTM, 24), (nn.GRU, 12)], ids=lambda c: str(c)
)
def test_rows_of_a_table_are_exchanged_with_the_bias_behind_them(
    cell: Callable[..., nn.Module], biases: int
) -> None:
    torch.manual_seed(0)
    model = Recurrent(cell).double()
    group = ddc.discover(model, next_of_nine, completeness=True)
    kinds = found(group)
    assert kinds["embedding exchange R^5"] == 1
    # A GRU's third gate multiplies one of its two biases.
    assert kinds[f"bias exchange R^{biases}"] == 1
    explained, unseen = counts(group)
    assert explained == unseen
    assert difference_of_copies(model, next_of_nine, group) < 1e-11

    gauge = next(gauge.gauge for gauge in group.gauges if gauge.kind == "embedding exchange")
    report = ddc.testing.gauge_invariants(gauge, model, next_of_nine)
    assert report, str(report)


def test_means_of_groups_are_shifted_one_by_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 6),
        nn.Unflatten(1, (6, 1)),
        nn.GroupNorm(3, 6, eps=1e-2),
        nn.Flatten(),
        nn.Tanh(),
    )
    model.append(nn.Linear(6, 4)).double()
    group = ddc.discover(model, regression)
    assert found(group)["residual mean shift R^3"] == 1
    assert difference_of_copies(model, regression, group) < 1e-11


class Factors(nn.Module):
    """Factors before and behind a matrix that is frozen, as in VeRA."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.randn(4))
        self.outer = nn.Parameter(torch.randn(6))
        self.register_buffer("first", torch.randn(4, 5))
        self.register_buffer("second", torch.randn(6, 4))
        self.out = nn.Linear(6, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.outer * (self.second @ (self.inner * (x @ self.first.T)).T).T).tanh())


def test_factors_around_a_frozen_matrix_share_one_scale() -> None:
    torch.manual_seed(0)
    model = Factors().double()
    group = ddc.discover(model, regression, completeness=True)
    assert found(group) == {"pair scale R+": 1}
    assert counts(group) == (1, 1)
    assert difference_of_copies(model, regression, group) < 1e-11


class RoutedExperts(nn.Module):
    """Two of four experts for every token, gathered by their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(5, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, 5, 6))
        self.down = nn.Parameter(torch.randn(4, 6, 5))
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights, numbers = self.router(x).softmax(-1).topk(2, -1)
        for k in range(2):
            hidden = torch.einsum("bw,bwh->bh", x, self.up[numbers[:, k]])
            made = torch.einsum("bh,bhw->bw", nn.functional.gelu(hidden), self.down[numbers[:, k]])
            x = x + weights[:, k : k + 1] * made
        return self.out(x.tanh())


@pytest.mark.parametrize("z_loss", [False, True])
def test_a_z_loss_of_a_router_is_named(z_loss: bool) -> None:
    torch.manual_seed(0)
    model = RoutedExperts().double()

    def loss(model: nn.Module) -> Tensor:
        x = torch.randn(96, 5, dtype=torch.float64)
        out = model(x)
        value = (out - torch.randn(out.shape, dtype=out.dtype)).square().mean()
        logits = model.router(x)
        # What balances the load does not see what all logits have in common.
        value = value + 0.1 * logits.softmax(-1).mean(0).square().sum()
        return value + 0.01 * logits.logsumexp(-1).square().mean() if z_loss else value

    group = ddc.discover(model, loss)
    shifts = [each for each in group.gauges if each.legs[0][0] == "router.weight"]
    reasons = [each.reason for each in group.refusals if each.kind == "router shift"]
    if z_loss:
        assert not shifts
        assert len(reasons) == 1
        assert reasons[0].startswith("z-loss")
        assert "'router.weight'" in reasons[0]
    else:
        assert [each.group for each in shifts] == ["R^5"]
        assert not reasons
