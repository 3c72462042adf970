"""Gauges that are wired by hand: makers, the identities they satisfy, what is measured of them."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import ddc
import pytest
import torch
from ddc import gauges, measure
from torch import Tensor, nn

# ---- Models, in float64 -----------------------------------------------------------------------------


def initialised(model: nn.Module, seed: int = 0) -> Any:
    """Generic weights: norms have gains, biases are not zero."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise / 2 + ("norm.weight" in name))
    return model


class Mlp(nn.Module):
    """embed, then what is asked for of: norm, activation; then classes."""

    def __init__(self, norm: str = "", activation: str = "relu") -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.norm = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}.get(norm, lambda _: None)(6)
        self.fc1 = nn.Linear(6, 5)
        self.gate = nn.Linear(6, 5) if activation == "glu" else None
        self.fc2 = nn.Linear(5, 3)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x.relu() if self.norm is None else self.norm(x)
        hidden = self.fc1(x)
        if self.gate is not None:
            return self.fc2(nn.functional.silu(self.gate(x)) * hidden)
        activations: dict[str, Callable[[Tensor], Tensor]] = {
            "relu": nn.functional.relu,
            "squared": lambda z: z.relu() ** 2,
            "gelu": nn.functional.gelu,
        }
        return self.fc2(activations[self.activation](hidden))


class Attention(nn.Module):
    """Causal attention with grouped queries and rotary embedding, of a sequence of vectors.

    The loss sees a key bias only if there is a rotary embedding. Where it does not, there is one only if
    it is asked for: AdamW would make steps of the rounding of its gradient.
    """

    def __init__(
        self, heads: int = 2, kv_heads: int = 2, rotary: str = "none", key_bias: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size, self.rotary = heads, kv_heads, 4, rotary
        self.query = nn.Linear(6, heads * 4)
        self.key = nn.Linear(6, kv_heads * 4, bias=key_bias or rotary != "none")
        self.value = nn.Linear(6, kv_heads * 4)
        self.output = nn.Linear(heads * 4, 6)

    def turned(self, x: Tensor) -> Tensor:
        """The rotary embedding, written with complex numbers."""
        if self.rotary == "none":
            return x
        positions = torch.arange(x.shape[-2], dtype=x.dtype)
        angles = positions[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype)
        if self.rotary == "half_split":
            first, second = x.chunk(2, -1)
            planes = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
            return torch.cat([planes.real, planes.imag], -1)
        planes = torch.view_as_complex(x.unflatten(-1, (2, 2)).contiguous())
        planes = planes * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(planes).flatten(-2)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.query(x), self.key(x), self.value(x)

    def forward(self, x: Tensor) -> Tensor:
        def cut(y: Tensor, heads: int) -> Tensor:
            return y.unflatten(-1, (heads, self.size)).transpose(-2, -3)

        shared = self.heads // self.kv_heads
        query, key, value = self.projected(x)
        q = self.turned(cut(query, self.heads))
        k = self.turned(cut(key, self.kv_heads)).repeat_interleave(shared, -3)
        v = cut(value, self.kv_heads).repeat_interleave(shared, -3)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
        mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
        heads = scores.masked_fill(mask, -math.inf).softmax(-1) @ v
        return self.output(heads.transpose(-2, -3).flatten(-2))


class Stacked(Attention):
    """One weight for queries, keys and values, one after the other; rows are inputs, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        del self.query, self.key, self.value
        self.fused = nn.Parameter(torch.empty(6, 3 * 2 * 4))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (x @ self.fused).chunk(3, -1)
        return query, key, value


class PerHead(Attention):
    """One weight that has query, key and value of one head after the other, as in GPT-NeoX."""

    def __init__(self) -> None:
        super().__init__()
        del self.query, self.key, self.value
        self.fused = nn.Linear(6, 2 * 3 * 4, bias=False)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.fused(x).unflatten(-1, (2, 3, 4)).unbind(-2)
        return query.flatten(-2), key.flatten(-2), value.flatten(-2)


class Diagonal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.empty(6))
        self.v = nn.Parameter(torch.empty(6))
        self.unused = nn.Parameter(torch.empty(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.u * self.v) + 0 * self.unused.sum()


def classes_loss(model: nn.Module) -> Tensor:
    x, labels = torch.randn(16, 4, dtype=torch.float64), torch.randint(3, (16,))
    return nn.functional.cross_entropy(model(x), labels)


def sequence_loss(model: nn.Module) -> Tensor:
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    return nn.functional.mse_loss(model(x), torch.randn(3, 5, 6, dtype=torch.float64))


def vector_loss(model: nn.Module) -> Tensor:
    x = torch.randn(16, 6, dtype=torch.float64)
    return nn.functional.mse_loss(model(x), torch.randn(16, dtype=torch.float64))


def pair() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 3, bias=False), nn.Linear(3, 1), nn.Flatten(0))


# ---- One gauge of every maker -------------------------------------------------------------------------

QK = {"heads": 2, "bias_query": "query.bias"}
ROTARY = {"pairing": "half_split", "bias_key": "key.bias"}
VO = {"heads": 2, "bias_value": "value.bias"}
READERS = {"fc1.weight": "fc1.bias"}
NORM = gauges.Norm("norm.weight", READERS, shift="norm.bias")
WRITERS = {"embed.weight": 0, "embed.bias": 0}


def query_key(maker: Callable[..., ddc.Gauge], **options: Any) -> Callable[[nn.Module], ddc.Gauge]:
    return lambda m: maker(m, "query.weight", "key.weight", **{**QK, **options})


def value_output(
    maker: Callable[..., ddc.Gauge], **options: Any
) -> Callable[[nn.Module], ddc.Gauge]:
    return lambda m: maker(m, "value.weight", "output.weight", **{**VO, **options})


def of_fc1(maker: Callable[..., ddc.Gauge], **options: Any) -> Callable[[nn.Module], ddc.Gauge]:
    return lambda m: maker(m, "fc1.weight", "fc2.weight", **options)


RIGHT: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[nn.Module], Any], str]] = {
    "relu_rescale": (Mlp, classes_loss, of_fc1(gauges.relu_rescale, bias_in="fc1.bias"), "(R+)^5"),
    "relu_rescale, whole": (
        Mlp,
        classes_loss,
        of_fc1(gauges.relu_rescale, bias_in="fc1.bias", whole=True),
        "R+",
    ),
    "relu_rescale, squared": (
        lambda: Mlp(activation="squared"),
        classes_loss,
        of_fc1(gauges.relu_rescale, bias_in="fc1.bias", degree=2),
        "(R+)^5",
    ),
    "chained_rescale": (
        Mlp,
        classes_loss,
        lambda m: gauges.chained_rescale(
            m,
            ["embed.weight", "fc1.weight", "fc2.weight"],
            biases=["embed.bias", "fc1.bias", None],
        )[0],
        "(R+)^6",
    ),
    "glu_rescale": (
        lambda: Mlp("layer", "glu"),
        classes_loss,
        of_fc1(gauges.glu_rescale, bias_up="fc1.bias"),
        "(R+)^5",
    ),
    "diagonal_linear": (
        Diagonal,
        vector_loss,
        lambda m: gauges.diagonal_linear(m, "u", "v"),
        "(R+)^6",
    ),
    "linear_pair": (
        pair,
        vector_loss,
        lambda m: gauges.linear_pair(m, "0.weight", "1.weight"),
        "GL(3)",
    ),
    "norm_scale": (
        lambda: Mlp("layer"),
        classes_loss,
        lambda m: gauges.norm_scale(m, "norm.weight", "fc1.weight", shift="norm.bias"),
        "(R+)^6",
    ),
    "norm_kernel_shifts": (
        lambda: Mlp("layer"),
        classes_loss,
        lambda m: gauges.norm_kernel_shifts(m, "norm.weight", READERS, shift="norm.bias")[0],
        "R^5",
    ),
    "norm_shift_exchange": (
        lambda: Mlp("layer"),
        classes_loss,
        lambda m: gauges.norm_shift_exchange(m, "norm.weight", READERS, shift="norm.bias"),
        "R^6",
    ),
    "cross_entropy_shift": (
        Mlp,
        classes_loss,
        lambda m: gauges.cross_entropy_shift(m, "fc2.weight"),
        "R^5",
    ),
    "cross_entropy_shift, bias": (
        Mlp,
        classes_loss,
        lambda m: gauges.cross_entropy_shift(m, "fc2.bias"),
        "R",
    ),
    "null_shift": (Diagonal, vector_loss, lambda m: gauges.null_shift(m, "unused"), "R^6"),
    "residual_mean_shift": (
        lambda: Mlp("layer"),
        classes_loss,
        lambda m: gauges.residual_mean_shift(m, "embed.weight"),
        "R^4",
    ),
    "residual_rotation": (
        lambda: Mlp("layer"),
        classes_loss,
        lambda m: gauges.residual_rotation(m, WRITERS, [NORM]),
        "O(5)",
    ),
    "residual_rotation, RMSNorm": (
        lambda: Mlp("rms"),
        classes_loss,
        lambda m: gauges.residual_rotation(
            m, WRITERS, [gauges.Norm("norm.weight", READERS)], layer_norm=False
        ),
        "O(6)",
    ),
    "qk_scale": (Attention, sequence_loss, query_key(gauges.qk_scale), "(R+)^2"),
    "qk_scale, rotary": (
        lambda: Attention(rotary="half_split"),
        sequence_loss,
        query_key(gauges.qk_scale, **ROTARY),
        "(R+)^4",
    ),
    "qk_torus": (
        lambda: Attention(rotary="half_split"),
        sequence_loss,
        query_key(gauges.qk_torus, **ROTARY),
        "SO(2)^4",
    ),
    "qk_torus, interleaved": (
        lambda: Attention(rotary="interleaved"),
        sequence_loss,
        query_key(gauges.qk_torus, **{**ROTARY, "pairing": "interleaved"}),
        "SO(2)^4",
    ),
    "qk_rotation": (Attention, sequence_loss, query_key(gauges.qk_rotation), "O(4)^2"),
    "qk_rotation, grouped": (
        lambda: Attention(heads=4, kv_heads=2),
        sequence_loss,
        query_key(gauges.qk_rotation, heads=4, kv_heads=2),
        "O(4)^2",
    ),
    "qk_linear": (Attention, sequence_loss, query_key(gauges.qk_linear), "GL(4)^2"),
    "qk_rotation, stacked": (
        Stacked,
        sequence_loss,
        lambda m: gauges.qk_rotation(
            m, "fused", "fused", heads=2, packing="stacked", layout="in_out"
        ),
        "O(4)^2",
    ),
    "qk_linear, per head": (
        PerHead,
        sequence_loss,
        lambda m: gauges.qk_linear(m, "fused.weight", "fused.weight", heads=2, packing="per_head"),
        "GL(4)^2",
    ),
    "vo_rotation, per head": (
        PerHead,
        sequence_loss,
        lambda m: gauges.vo_rotation(
            m, "fused.weight", "output.weight", heads=2, packing="per_head"
        ),
        "O(4)^2",
    ),
    "key_bias_null": (
        lambda: Attention(key_bias=True),
        sequence_loss,
        lambda m: gauges.key_bias_null(
            m, "query.weight", "key.weight", heads=2, bias_key="key.bias"
        ),
        "R^8",
    ),
    "vo_scale": (Attention, sequence_loss, value_output(gauges.vo_scale), "(R+)^2"),
    "vo_rotation": (Attention, sequence_loss, value_output(gauges.vo_rotation), "O(4)^2"),
    "vo_linear": (Attention, sequence_loss, value_output(gauges.vo_linear), "GL(4)^2"),
    "vo_linear, grouped": (
        lambda: Attention(heads=4, kv_heads=2),
        sequence_loss,
        value_output(gauges.vo_linear, heads=4, kv_heads=2),
        "GL(4)^2",
    ),
    "value_bias_exchange": (
        Attention,
        sequence_loss,
        value_output(gauges.value_bias_exchange, bias_output="output.bias"),
        "R^8",
    ),
}

WRONG: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[nn.Module], Any]]] = {
    "an exponent that is not the activation's": (
        Mlp,
        classes_loss,
        of_fc1(gauges.relu_rescale, bias_in="fc1.bias", degree=2),
    ),
    "a bias that is left out": (Mlp, classes_loss, of_fc1(gauges.relu_rescale)),
    "an activation that is not homogeneous": (
        lambda: Mlp(activation="gelu"),
        classes_loss,
        of_fc1(gauges.relu_rescale, bias_in="fc1.bias"),
    ),
    "a norm's shift that is left out": (
        lambda: Mlp("layer"),
        classes_loss,
        lambda m: gauges.norm_scale(m, "norm.weight", "fc1.weight"),
    ),
    "the other pairing of planes": (
        lambda: Attention(rotary="half_split"),
        sequence_loss,
        query_key(gauges.qk_torus, **{**ROTARY, "pairing": "interleaved"}),
    ),
    "the other packing": (
        PerHead,
        sequence_loss,
        lambda m: gauges.vo_rotation(
            m, "fused.weight", "output.weight", heads=2, packing="stacked"
        ),
    ),
    "a rotary embedding that is not declared": (
        lambda: Attention(rotary="half_split"),
        sequence_loss,
        query_key(gauges.qk_rotation, bias_key="key.bias"),
    ),
    "a mean that RMSNorm does not subtract": (
        lambda: Mlp("rms"),
        classes_loss,
        lambda m: gauges.residual_mean_shift(m, "embed.weight"),
    ),
    "a bias that the loss sees": (
        Mlp,
        classes_loss,
        lambda m: gauges.null_shift(m, "fc1.bias"),
    ),
}


def test_every_maker_is_tried() -> None:
    makers = {name for name in gauges.__all__ if inspect.isfunction(getattr(gauges, name))}
    assert {name.split(",")[0] for name in RIGHT} == makers


@pytest.mark.parametrize("case", RIGHT)
def test_a_gauge_that_is_wired_right_satisfies_every_identity(case: str) -> None:
    make, loss, wire, group = RIGHT[case]
    model = initialised(make())
    before = copy.deepcopy(model.state_dict())
    gauge = wire(model)
    report = ddc.testing.gauge_invariants(gauge, model, loss, steps=5)
    assert report.ok, report
    assert {check.identity.split(":")[0] for check in report.checks} == {
        "group law",
        "invariance",
        "covariance",
        "equivariance",
        "horizontality",
    }
    assert ddc.measure.gate(gauge, model, loss).passed
    assert [found.group for found in ddc.SymmetryGroup.of(model, [gauge]).gauges] == [group]
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


@pytest.mark.parametrize("case", WRONG)
def test_a_gauge_that_is_wired_wrong_fails(case: str) -> None:
    make, loss, wire = WRONG[case]
    model = initialised(make())
    report = ddc.testing.gauge_invariants(wire(model), model, loss, steps=2)
    assert not report.ok
    assert not report
    assert "invariance" in {check.identity for check in report.failures}
    assert all(not check.passed for check in report.failures)
    assert f"of {len(report.checks)} checks passed\nFAILED: " in str(report)
    assert not ddc.measure.gate(wire(model), model, loss).passed


def test_invariants_name_the_tensor_with_the_largest_error() -> None:
    model = initialised(Mlp())
    gauge = of_fc1(gauges.relu_rescale, bias_in="fc1.bias", degree=2)(model)
    report = ddc.testing.gauge_invariants(gauge, model, classes_loss, steps=2)
    (worst,) = [
        check
        for check in report.failures
        if check.identity == "covariance" and check.regime == "random element, given weights"
    ]
    assert worst.where.split("[")[0] in dict(model.named_parameters())
    assert worst.difference > worst.tolerance
    assert worst.tolerance == pytest.approx(1e-10)
    assert worst.where in str(worst)


def test_a_leg_by_leg_gauge_is_the_makers() -> None:
    model = initialised(Mlp())
    made = gauges.relu_rescale(model, "fc1.weight", ["fc2.weight"], bias_in="fc1.bias", name="mlp")
    legs = [ddc.Leg("fc1.weight"), ddc.Leg("fc1.bias"), ddc.Leg("fc2.weight", 1, -1.0)]
    assert made == ddc.Gauge("mlp", "scale", legs, channels=5, kind="relu rescale")


@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(ddc.DDCSgd, lr=1e-2, momentum=0.9),
        functools.partial(ddc.DDCAdam, lr=1e-2, coordinates="polar"),
        functools.partial(ddc.DDCAdam, coordinates={"relu rescale": "standard"}, weight_decay=0.3),
        ddc.DDCShampoo,
    ],
    ids=["SGD", "polar", "standard", "Shampoo"],
)
def test_invariants_hold_for_other_optimizers(optimizer: Any) -> None:
    model = initialised(Mlp())
    bound = gauges.chained_rescale(
        model, ["embed.weight", "fc1.weight", "fc2.weight"], biases=["embed.bias", "fc1.bias", None]
    )
    report = ddc.testing.gauge_invariants(
        bound[1], model, classes_loss, optimizer=optimizer, others=bound[:1], steps=5
    )
    assert report.ok, report


def test_invariants_hold_for_muon_where_a_unit_is_dead() -> None:
    """Rounding of the polar factor would bring it to life, in another direction in every copy."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    batches = [(torch.randn(32, 4).double(), torch.randint(3, (32,))) for _ in range(4)]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    report = ddc.testing.gauge_invariants(
        gauges.relu_rescale(model, "0.weight", "2.weight", bias_in="0.bias"),
        model,
        loss,
        batches=batches,
        optimizer=functools.partial(ddc.DDCMuon, lr=2e-2),
        steps=4,
    )
    assert report.ok, report


def test_invariants_see_an_optimizer_that_drifts() -> None:
    """So the optimizer that is asked for is the one that is followed, with its treatment."""
    model = initialised(Mlp())
    gauge = of_fc1(gauges.relu_rescale, bias_in="fc1.bias")(model)
    report = ddc.testing.gauge_invariants(
        gauge, model, classes_loss, optimizer=functools.partial(ddc.DDCAdam, project="never")
    )
    assert {check.identity for check in report.failures} == {"horizontality"}


def lion(
    gradient: Tensor, state: dict[str, Tensor], step: int, lr: float, betas: tuple[float, float]
) -> Tensor:
    update = state["exp_avg"].lerp(gradient, 1 - betas[0]).sign_()
    state["exp_avg"].lerp_(gradient, 1 - betas[1])
    return update.mul_(-lr)


LION = ddc.lifted(lion, init=lambda p: {"exp_avg": torch.zeros_like(p)}, lr=1e-2, betas=(0.9, 0.99))


@pytest.mark.parametrize("groups", [1, 2])
def test_invariants_hold_for_a_rule_in_python(groups: int) -> None:
    def make(params: Any, *, symmetries: Any) -> ddc.Lifted:
        named = list(params)
        split = [named] if groups == 1 else [named[:2], named[2:]]
        options = [{"lr": 1e-2, "weight_decay": 0.1}, {"lr": 3e-3}]
        of_groups = [{"params": part, **each} for part, each in zip(split, options, strict=False)]
        return LION(of_groups, symmetries=symmetries)

    model = initialised(Mlp())
    gauge = of_fc1(gauges.relu_rescale, bias_in="fc1.bias")(model)
    report = ddc.testing.gauge_invariants(gauge, model, classes_loss, optimizer=make, steps=5)
    assert report.ok, report


def test_invariants_see_a_rule_in_python_that_drifts() -> None:
    model = initialised(Mlp())
    gauge = of_fc1(gauges.relu_rescale, bias_in="fc1.bias")(model)
    report = ddc.testing.gauge_invariants(
        gauge, model, classes_loss, optimizer=functools.partial(LION, project="never"), steps=5
    )
    assert {check.identity for check in report.failures} == {"horizontality"}


def test_invariants_refuse_what_is_no_optimizer() -> None:
    model = initialised(Mlp())
    gauge = gauges.cross_entropy_shift(model, "fc2.bias")
    with pytest.raises(TypeError, match="must make an optimizer of ddc, made a NoneType"):
        ddc.testing.gauge_invariants(
            gauge,
            model,
            classes_loss,
            optimizer=lambda params, symmetries: None,  # type: ignore
        )


def test_invariants_take_batches() -> None:
    model = initialised(Mlp())
    gauge = of_fc1(gauges.relu_rescale, bias_in="fc1.bias")(model)
    batches = [(torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,))) for _ in range(3)]
    seen = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(batch[1])
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    report = ddc.testing.gauge_invariants(gauge, model, loss, batches=batches, steps=3)
    assert report.ok, report
    assert all(any(torch.equal(labels, each) for each in seen) for _, labels in batches)


# ---- Training ---------------------------------------------------------------------------------------


def mlp_gauges(model: nn.Module) -> list[ddc.Gauge]:
    return [
        *gauges.chained_rescale(
            model,
            ["embed.weight", "fc1.weight", "fc2.weight"],
            biases=["embed.bias", "fc1.bias", None],
        ),
        gauges.cross_entropy_shift(model, "fc2.weight"),
        gauges.cross_entropy_shift(model, "fc2.bias"),
    ]


def norm_gauges(model: nn.Module) -> list[ddc.Gauge]:
    return [
        gauges.norm_scale(model, "norm.weight", "fc1.weight", shift="norm.bias"),
        gauges.norm_shift_exchange(model, "norm.weight", READERS, shift="norm.bias"),
        gauges.residual_mean_shift(model, "embed.weight"),
        gauges.residual_mean_shift(model, "embed.bias"),
        gauges.relu_rescale(model, "fc1.weight", "fc2.weight", bias_in="fc1.bias"),
    ]


def attention_gauges(model: nn.Module) -> list[ddc.Gauge]:
    return [
        query_key(gauges.qk_rotation)(model),
        query_key(gauges.qk_scale)(model),
        value_output(gauges.vo_linear)(model),
        value_output(gauges.value_bias_exchange, bias_output="output.bias")(model),
    ]


def grouped_gauges(model: nn.Module) -> list[ddc.Gauge]:
    heads = {"heads": 4, "kv_heads": 2}
    return [
        query_key(gauges.qk_linear, bias_key="key.bias", **heads)(model),
        gauges.key_bias_null(model, "query.weight", "key.weight", bias_key="key.bias", **heads),
        value_output(gauges.vo_linear, **heads)(model),
    ]


def rotary_gauges(model: nn.Module) -> list[ddc.Gauge]:
    return [
        query_key(gauges.qk_torus, **ROTARY)(model),
        query_key(gauges.qk_scale, **ROTARY)(model),
        value_output(gauges.vo_rotation)(model),
        value_output(gauges.vo_scale)(model),
    ]


TRAINED: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[nn.Module], Any]]] = {
    "ReLU": (Mlp, classes_loss, mlp_gauges),
    "LayerNorm": (lambda: Mlp("layer"), classes_loss, norm_gauges),
    "attention": (Attention, sequence_loss, attention_gauges),
    "grouped attention": (
        lambda: Attention(heads=4, kv_heads=2, key_bias=True),
        sequence_loss,
        grouped_gauges,
    ),
    "rotary attention": (lambda: Attention(rotary="half_split"), sequence_loss, rotary_gauges),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


@pytest.mark.parametrize("case", TRAINED)
def test_two_copies_on_one_orbit_stay_the_same_function(case: str) -> None:
    """Under DDCAdam with gauges that were wired by hand; AdamW takes them apart."""
    make, loss, wire = TRAINED[case]
    start = initialised(make())
    wired = wire(start)
    element = ddc.SymmetryGroup.of(start, wired).random_element(seed=1, size=0.5)

    def distance(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> float:
        model, image = copy.deepcopy(start), element.apply_(copy.deepcopy(start))
        with ExitStack() as original:
            for each in (model, image):
                trained = optimizer(each)
                train(each, trained, loss, 50)
                if isinstance(trained, ddc.Lifted):
                    original.enter_context(trained.original())
            # Where the copy is on the orbit of the other, it differs by the element alone.
            related = element.apply_(copy.deepcopy(model))
            return max(
                ((a - b).norm() / b.norm()).item()
                for a, b in zip(image.parameters(), related.parameters(), strict=True)
            )

    options = {"lr": 1e-2, "weight_decay": 0.01}
    for place in ("canonical", "in_place"):
        lifted = distance(
            lambda m, place=place: ddc.DDCAdam(
                m.named_parameters(), symmetries=wired, placement=place, **options
            )
        )
        assert lifted < 1e-11, place
    assert distance(lambda m: torch.optim.AdamW(m.parameters(), **options)) > 1e-3


# ---- Measures ---------------------------------------------------------------------------------------


@pytest.fixture
def mlp() -> Any:
    return initialised(Mlp())


@pytest.fixture
def rescale(mlp: nn.Module) -> ddc.Gauge:
    return of_fc1(gauges.relu_rescale, bias_in="fc1.bias")(mlp)


def log_ratio(model: Any) -> Tensor:
    plus = torch.cat([model.fc1.weight, model.fc1.bias[:, None]], 1)
    return (plus.norm(dim=1).log() - model.fc2.weight.norm(dim=0).log()).detach()


def test_engagement_is_rounding_under_ddc_adam_and_not_under_adamw(mlp: nn.Module) -> None:
    group = ddc.SymmetryGroup.of(mlp, mlp_gauges(mlp))
    before = copy.deepcopy(mlp.state_dict())
    measured = measure.engagement(mlp, classes_loss, group, steps=5, lr=1e-3)
    assert list(measured) == [found.name for found in group.gauges]
    for each in measured.values():
        assert isinstance(each, ddc.Engagement)
        assert each.engaged
        assert each.lifted < 1e-12 < 1e-4 < each.plain < 0.1
    larger = measure.engagement(mlp, classes_loss, group, steps=5, lr=1e-2)
    assert all(larger[name].plain > 3 * each.plain for name, each in measured.items())
    assert all(torch.equal(before[name], now) for name, now in mlp.state_dict().items())


def test_engagement_says_what_the_loss_does_not_move() -> None:
    model = initialised(Diagonal())
    null, moved = gauges.null_shift(model, "unused"), gauges.diagonal_linear(model, "u", "v")
    measured = measure.engagement(model, vector_loss, [null, moved], steps=3)
    assert not measured[null.name].engaged
    assert measured[moved.name].engaged


def test_gauge_coordinates_are_the_log_ratio_of_both_sides(
    mlp: nn.Module, rescale: ddc.Gauge
) -> None:
    observer = measure.GaugeCoordinates(mlp, rescale)
    torch.testing.assert_close(observer.measure()[rescale.name], log_ratio(mlp), rtol=0, atol=1e-13)
    ddc.SymmetryGroup.of(mlp, [rescale]).random_element(seed=0).apply_(mlp)
    moved = log_ratio(mlp)
    torch.testing.assert_close(observer.measure()[rescale.name], moved, rtol=0, atol=1e-13)


def test_gauge_coordinates_of_a_rotation_are_none() -> None:
    model = initialised(Attention())
    rotation = query_key(gauges.qk_rotation)(model)
    assert measure.GaugeCoordinates(model, [rotation]).measure()[rotation.name].numel() == 0


def test_moments_are_those_of_adamw(mlp: nn.Module) -> None:
    moments = measure.AdamWMoments(betas=(0.8, 0.99), eps=1e-6)
    optimizer = torch.optim.AdamW(
        mlp.parameters(), lr=1e-3, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.0
    )
    for step in range(3):
        torch.manual_seed(step)
        optimizer.zero_grad()
        classes_loss(mlp).backward()
        moments.update(mlp)
        before = {name: p.detach().clone() for name, p in mlp.named_parameters()}
        optimizer.step()
    direction, preconditioner = moments.direction, moments.preconditioner
    for name, parameter in mlp.named_parameters():
        made = (before[name] - parameter.detach()) / 1e-3
        torch.testing.assert_close(direction[name], made, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(direction[name], preconditioner[name] * moments.momentum[name])


def test_leakage_is_the_part_of_the_direction_along_the_orbit(mlp: Any, rescale: ddc.Gauge) -> None:
    moments = measure.AdamWMoments()
    torch.manual_seed(0)
    classes_loss(mlp).backward()
    moments.update(mlp)
    leaked = measure.leakage(rescale, mlp, moments)
    direction, momentum = moments.direction, moments.momentum

    def along(d: dict[str, Tensor]) -> Tensor:
        product = (d["fc1.weight"] * mlp.fc1.weight).sum(1) + d["fc1.bias"] * mlp.fc1.bias
        product = product - (d["fc2.weight"] * mlp.fc2.weight).sum(0)
        squares = mlp.fc1.weight.square().sum(1) + mlp.fc1.bias.square()
        return (product / (squares + mlp.fc2.weight.square().sum(0)).sqrt()).detach()

    torch.testing.assert_close(leaked.total, along(direction), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(leaked.mean + leaked.covariance, leaked.total)
    assert along(momentum).abs().max() < 1e-14 < 1e-2 < leaked.total.abs().max()


def test_predicted_drift_is_what_a_step_of_adamw_does(mlp: nn.Module, rescale: ddc.Gauge) -> None:
    lr = 1e-2
    optimizer = torch.optim.AdamW(mlp.parameters(), lr=lr, weight_decay=0.1)
    moments = measure.AdamWMoments()
    torch.manual_seed(0)
    classes_loss(mlp).backward()
    moments.update(mlp)
    predicted = measure.predicted_drift(rescale, mlp, moments, lr=lr, weight_decay=0.1)
    given = measure.predicted_drift(rescale, mlp, moments.direction, lr=lr, weight_decay=0.1)
    assert torch.equal(predicted.first_order, given.first_order)
    before = log_ratio(mlp)
    optimizer.step()
    made = log_ratio(mlp) - before
    first = (predicted.first_order - made).norm() / made.norm()
    second = (predicted.second_order - made).norm() / made.norm()
    assert second < 1e-2
    assert second < first / 3


def test_a_gate_takes_a_group_a_list_or_a_finding(mlp: nn.Module) -> None:
    wired = mlp_gauges(mlp)
    group = ddc.SymmetryGroup.of(mlp, wired)
    for given in (group, wired, wired[0], group.gauges[0]):
        verdict = measure.gate(given, mlp, classes_loss)
        assert isinstance(verdict, ddc.Verdict)
        assert verdict.passed
        assert verdict.residual < verdict.tolerance < 1e-10
    wrong = of_fc1(gauges.relu_rescale, bias_in="fc1.bias", degree=2)(mlp)
    verdict = measure.gate([wired[0], wrong], mlp, classes_loss)
    assert not verdict.passed
    assert verdict.residual > 1e-3 > verdict.tolerance
    with pytest.raises(TypeError, match=r"a gauge must be a ddc\.Gauge, is str"):
        measure.gate(["fc1.weight:rescale"], mlp, classes_loss)  # type: ignore[list-item]


# ---- Errors, copies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (
            lambda m: gauges.relu_rescale(m, "fc1.wieght", "fc2.weight"),
            "unknown tensor 'fc1.wieght'; did you mean 'fc1.weight'?",
        ),
        (
            lambda m: gauges.relu_rescale(m, "fc1.weight", ["fc2.weight", "fc3.weight"]),
            "unknown tensor 'fc3.weight'; did you mean 'fc1.weight'?",
        ),
        (
            lambda m: gauges.norm_kernel_shifts(m, "norm.weight", {"fc1.weight": "fc1.bais"}),
            "unknown tensor 'fc1.bais'; did you mean 'fc1.bias'?",
        ),
        (
            lambda m: gauges.residual_rotation(m, {"embd.weight": 0}, [NORM]),
            "unknown tensor 'embd.weight'; did you mean 'embed.weight'?",
        ),
        (
            lambda m: gauges.cross_entropy_shift(m, "fc2.weight", layout="in-out"),
            "unknown layout 'in-out'; did you mean 'in_out'?",
        ),
        (
            lambda m: gauges.vo_scale(m, "fc1.weight", "fc2.weight", heads=1, packing="stackd"),
            "unknown packing 'stackd'; did you mean 'stacked'?",
        ),
        (
            lambda m: gauges.qk_torus(m, "fc1.weight", "fc1.weight", heads=1, pairing="halves"),
            "unknown pairing 'halves'; there are none, half_split, interleaved",
        ),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(wire: Any, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        wire(initialised(Mlp("layer")))
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (
            lambda m: gauges.relu_rescale(m, "fc1.weight", "embed.weight"),
            "leg 1 ('embed.weight'): axis 1 has 4 indices, the gauge has 5 channels",
        ),
        (
            lambda m: gauges.qk_scale(m, "fc1.weight", "fc1.weight", heads=2),
            "'fc1.weight' (query) has 5 indices along axis 0, which 2 heads do not divide",
        ),
        (
            lambda m: gauges.norm_shift_exchange(
                m, "norm.weight", ["fc1.weight"], shift="norm.bias"
            ),
            "the reader 'fc1.weight' has no bias",
        ),
        (
            lambda m: gauges.chained_rescale(m, ["fc1.weight"]),
            "needs at least two weights, got 1",
        ),
        (
            lambda m: gauges.linear_pair(m, "fc1.weight", "embed.weight"),
            "'fc1.weight' writes 5 values, 'embed.weight' reads 4",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(wire: Any, said: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        wire(initialised(Mlp("layer")))
    assert said in str(raised.value)


def test_names_are_those_of_the_model_nobody_wrapped(mlp: nn.Module, rescale: ddc.Gauge) -> None:
    wrapped = nn.DataParallel(mlp)
    assert of_fc1(gauges.relu_rescale, bias_in="fc1.bias")(wrapped) == rescale
    named = list(mlp.named_parameters())
    assert gauges.relu_rescale(named, "fc1.weight", "fc2.weight", bias_in="fc1.bias") == rescale


@pytest.mark.parametrize(
    "case", ["norm_kernel_shifts", "qk_rotation, grouped", "residual_rotation"]
)
def test_gauges_can_be_copied_pickled_and_put_into_sets(case: str) -> None:
    make, _, wire, _ = RIGHT[case]
    gauge = wire(initialised(make()))
    for same in (pickle.loads(pickle.dumps(gauge)), copy.deepcopy(gauge)):
        assert same == gauge
        assert hash(same) == hash(gauge)
        assert same.to_json() == gauge.to_json()
    leg = gauge.legs[-1]
    assert pickle.loads(pickle.dumps(leg)) == leg
    assert pickle.loads(pickle.dumps(leg.through)) == leg.through
    other = wire(initialised(make()))
    assert len({gauge, other}) == len({leg, other.legs[-1]}) == 1
    assert gauge != leg
    assert leg != ddc.Leg(leg.tensor, leg.axis, 7.0)
