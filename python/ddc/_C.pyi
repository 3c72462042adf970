from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

__version__: str
torch_version: str

_NamedTensors = Sequence[tuple[str, Tensor]]
_Evaluate = Callable[[int], tuple[Tensor, Tensor | None]]
_Loss = Callable[[Sequence[tuple[str, Tensor]], int], Tensor]
_State = MutableMapping[Tensor, dict[str, Any]]
_Readers = Sequence[tuple[str, str | None]]
# Gain, readers, shift, whether the gain is stored as an offset, layout.
_Norm = tuple[str, _Readers, str | None, bool, str]
# Rule, param groups (names and options), recipe, treatments (option, value, kind or name of a gauge).
_Description = tuple[
    str, Sequence[tuple[Sequence[str], dict[str, Any]]], str, Sequence[tuple[str, Any, str]]
]

# ---- Gauges --------------------------------------------------------------------------------------

class Reading:
    def __init__(
        self, *, gain: str = "", gain_offset: float = 0.0, shift: str = "", bias: str = ""
    ) -> None: ...
    @property
    def gain(self) -> str: ...
    @property
    def gain_offset(self) -> float: ...
    @property
    def shift(self) -> str: ...
    @property
    def bias(self) -> str: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> tuple[str]: ...
    def __setstate__(self, state: tuple[str], /) -> None: ...

class Leg:
    def __init__(
        self,
        tensor: str,
        axis: int = 0,
        exponent: float = 1.0,
        *,
        channel_of: Sequence[int] = ...,
        offset: float = 0.0,
        through: Reading | None = None,
        head_size: int = 0,
    ) -> None: ...
    @property
    def tensor(self) -> str: ...
    @property
    def axis(self) -> int: ...
    @property
    def exponent(self) -> float: ...
    @property
    def channel_of(self) -> list[int]: ...
    @property
    def offset(self) -> float: ...
    @property
    def through(self) -> Reading: ...
    @property
    def head_size(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> tuple[str]: ...
    def __setstate__(self, state: tuple[str], /) -> None: ...

class Gauge:
    def __init__(
        self,
        name: str,
        action: str,
        legs: Sequence[Leg],
        *,
        channels: int,
        block: int = 1,
        kind: str = "custom",
        fixes_ones: bool = False,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def block(self) -> int: ...
    @property
    def fixes_ones(self) -> bool: ...
    @property
    def legs(self) -> list[Leg]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getstate__(self) -> tuple[str]: ...
    def __setstate__(self, state: tuple[str], /) -> None: ...
    def to_json(self) -> str: ...
    def __repr__(self) -> str: ...

# ---- Symmetries ----------------------------------------------------------------------------------

class Engagement:
    @property
    def plain(self) -> float: ...
    @property
    def lifted(self) -> float: ...
    @property
    def engaged(self) -> bool: ...

class Finding:
    @property
    def gauge(self) -> Gauge: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def block(self) -> int: ...
    @property
    def legs(self) -> list[tuple[str, int, float]]: ...
    @property
    def group(self) -> str: ...
    @property
    def dimension(self) -> int: ...
    @property
    def residual(self) -> float: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def engagement(self) -> Engagement | None: ...

class Refusal:
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def tensors(self) -> list[str]: ...
    @property
    def residual(self) -> float: ...
    @property
    def reason(self) -> str: ...

class Completeness:
    @property
    def method(self) -> str: ...
    @property
    def parameters(self) -> int: ...
    @property
    def kernel(self) -> float: ...
    @property
    def explained(self) -> int: ...
    @property
    def dead(self) -> int: ...
    @property
    def unexplained(self) -> float: ...
    @property
    def per_tensor(self) -> list[tuple[str, float]]: ...

class Verdict:
    @property
    def passed(self) -> bool: ...
    @property
    def residual(self) -> float: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def worst(self) -> str: ...
    @property
    def shifts_logits(self) -> bool: ...

class SymmetryGroup:
    @staticmethod
    def parse(json: str, /) -> SymmetryGroup: ...
    @staticmethod
    def of(parameters: _NamedTensors, gauges: Sequence[Gauge]) -> SymmetryGroup: ...
    @staticmethod
    def load(path: str, /) -> SymmetryGroup: ...
    def gauges(self) -> list[Gauge]: ...
    def to_json(self) -> str: ...
    def save(self, path: str, /) -> None: ...
    def text(self) -> str: ...
    def check(self, parameters: _NamedTensors, /) -> None: ...
    def act_random_(self, parameters: _NamedTensors, size: float, seed: int, /) -> None: ...
    def gate(self, parameters: _NamedTensors, evaluate: _Evaluate, seed: int, /) -> Verdict: ...
    def keep(self, names: Sequence[str], /) -> SymmetryGroup: ...
    def with_notes(self, notes: Sequence[str]) -> SymmetryGroup: ...
    def with_roles(self, roles: dict[str, str]) -> SymmetryGroup: ...
    @property
    def roles(self) -> dict[str, str]: ...
    @property
    def findings(self) -> list[Finding]: ...
    @property
    def refusals(self) -> list[Refusal]: ...
    @property
    def joint_residual(self) -> float: ...
    @property
    def joint_tolerance(self) -> float: ...
    @property
    def completeness(self) -> Completeness | None: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def dimension(self) -> int: ...
    @property
    def parameters(self) -> list[tuple[str, list[int]]]: ...

def discover(
    parameters: _NamedTensors,
    evaluate: _Evaluate,
    *,
    seed: int,
    head_sizes: Sequence[int],
    engagement_steps: int,
    completeness: bool,
    exact_up_to: int,
    progress: Callable[[str], None] | None,
) -> SymmetryGroup: ...

# ---- Optimizers ----------------------------------------------------------------------------------

class GaugeReport:
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def coordinates(self) -> str: ...
    @property
    def tensors(self) -> list[str]: ...
    @property
    def channels(self) -> int: ...
    @property
    def dimension(self) -> int: ...
    @property
    def degenerate_channels(self) -> int: ...
    @property
    def imbalance(self) -> float: ...
    @property
    def frames_recomputed(self) -> int: ...

class Report:
    @property
    def gauges(self) -> list[GaugeReport]: ...
    @property
    def tensors(self) -> int: ...
    @property
    def gauged_tensors(self) -> int: ...
    @property
    def dimension(self) -> int: ...
    @property
    def degenerate_channels(self) -> int: ...
    @property
    def largest_imbalance(self) -> float: ...
    def __str__(self) -> str: ...

class Core:
    def __init__(
        self,
        rule: str | tuple[str, Callable[..., Tensor], Callable[[Tensor], dict[str, Tensor]]],
        groups: Sequence[_NamedTensors],
        options: Sequence[dict[str, Any]],
        gauges: Sequence[Gauge],
        recipe: str,
        treatment: dict[str, Any],
    ) -> None: ...
    def step(
        self, options: dict[int, dict[str, Any]], state: _State, parameters: list[Tensor]
    ) -> None: ...
    def check(
        self, options: Sequence[dict[str, Any]], state: _State, parameters: list[Tensor]
    ) -> None: ...
    def push(self, state: _State, parameters: list[Tensor], missing: bool) -> None: ...
    def slots(self) -> list[tuple[int, str, torch.dtype, torch.device]]: ...
    def symmetries(self) -> str: ...
    def gauges(self) -> list[Gauge]: ...
    def treatment(self, gauge: str) -> dict[str, Any]: ...
    def gauge_coordinate(self, gauge: str) -> Tensor: ...
    def report(self) -> Report: ...

def rules() -> list[dict[str, Any]]: ...
def treatment_options() -> list[dict[str, Any]]: ...
def recipes() -> list[tuple[str, str]]: ...
def recipe_options(recipe: str, rule: str) -> dict[str, Any]: ...
def check_options(rule: str, values: dict[str, Any]) -> None: ...
def nearest(name: str, names: Sequence[str]) -> str: ...

# ---- Makers of gauges ----------------------------------------------------------------------------

def relu_rescale(
    parameters: _NamedTensors,
    weight_in: str,
    weights_out: Sequence[str],
    *,
    bias_in: str | None = None,
    degree: float = 1.0,
    whole: bool = False,
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def chained_rescale(
    parameters: _NamedTensors,
    weights: Sequence[str],
    *,
    biases: Sequence[str | None] = ...,
    degree: float = 1.0,
    whole: bool = False,
    layout: str = "out_in",
) -> list[Gauge]: ...
def glu_rescale(
    parameters: _NamedTensors,
    weight_up: str,
    weights_down: Sequence[str],
    *,
    bias_up: str | None = None,
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def diagonal_linear(
    parameters: _NamedTensors,
    u: str,
    v: str,
    *,
    name: str | None = None,
) -> Gauge: ...
def linear_pair(
    parameters: _NamedTensors,
    weight_first: str,
    weight_second: str,
    *,
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def norm_scale(
    parameters: _NamedTensors,
    gain: str,
    weights_out: Sequence[str],
    *,
    shift: str | None = None,
    gain_is_offset: bool = False,
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def norm_kernel_shifts(
    parameters: _NamedTensors,
    gain: str,
    readers: _Readers,
    *,
    shift: str | None = None,
    gain_is_offset: bool = False,
    layout: str = "out_in",
) -> list[Gauge]: ...
def norm_shift_exchange(
    parameters: _NamedTensors,
    gain: str,
    readers: _Readers,
    *,
    shift: str,
    bias_added_next: str | None = None,
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def cross_entropy_shift(
    parameters: _NamedTensors,
    tensor: str,
    *,
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def null_shift(parameters: _NamedTensors, tensor: str, *, name: str | None = None) -> Gauge: ...
def residual_mean_shift(
    parameters: _NamedTensors,
    writer: str,
    *,
    axis: int = 0,
    name: str | None = None,
) -> Gauge: ...
def residual_rotation(
    parameters: _NamedTensors,
    writers: Sequence[tuple[str, int]],
    norms: Sequence[_Norm],
    *,
    layer_norm: bool = True,
    name: str | None = None,
) -> Gauge: ...
def qk_scale(
    parameters: _NamedTensors,
    weight_query: str,
    weight_key: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_query: str | None = None,
    bias_key: str | None = None,
    pairing: str = "none",
    rotary_size: int | None = None,
    packing: str = "separate",
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def qk_torus(
    parameters: _NamedTensors,
    weight_query: str,
    weight_key: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_query: str | None = None,
    bias_key: str | None = None,
    pairing: str = "none",
    rotary_size: int | None = None,
    packing: str = "separate",
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def qk_rotation(
    parameters: _NamedTensors,
    weight_query: str,
    weight_key: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_query: str | None = None,
    bias_key: str | None = None,
    pairing: str = "none",
    rotary_size: int | None = None,
    packing: str = "separate",
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def qk_linear(
    parameters: _NamedTensors,
    weight_query: str,
    weight_key: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_query: str | None = None,
    bias_key: str | None = None,
    pairing: str = "none",
    rotary_size: int | None = None,
    packing: str = "separate",
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def key_bias_null(
    parameters: _NamedTensors,
    weight_query: str,
    weight_key: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_query: str | None = None,
    bias_key: str | None = None,
    pairing: str = "none",
    rotary_size: int | None = None,
    packing: str = "separate",
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def vo_scale(
    parameters: _NamedTensors,
    weight_value: str,
    weight_output: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_value: str | None = None,
    bias_output: str | None = None,
    packing: str = "separate",
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def vo_rotation(
    parameters: _NamedTensors,
    weight_value: str,
    weight_output: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_value: str | None = None,
    bias_output: str | None = None,
    packing: str = "separate",
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def vo_linear(
    parameters: _NamedTensors,
    weight_value: str,
    weight_output: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_value: str | None = None,
    bias_output: str | None = None,
    packing: str = "separate",
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...
def value_bias_exchange(
    parameters: _NamedTensors,
    weight_value: str,
    weight_output: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_value: str | None = None,
    bias_output: str | None = None,
    packing: str = "separate",
    layout: str = "out_in",
    name: str | None = None,
) -> Gauge: ...

# ---- Measures ------------------------------------------------------------------------------------

def engagement(
    gauges: Sequence[Gauge],
    parameters: _NamedTensors,
    evaluate: _Evaluate,
    *,
    steps: int,
    lr: float,
    weight_decay: float,
) -> list[Engagement]: ...
def gate(
    gauges: Sequence[Gauge], parameters: _NamedTensors, evaluate: _Evaluate, *, seed: int
) -> Verdict: ...

class GaugeCoordinates:
    def __init__(self, parameters: _NamedTensors, gauges: Sequence[Gauge]) -> None: ...
    def measure(self) -> list[Tensor]: ...

class AdamWMoments:
    def __init__(self, *, beta1: float, beta2: float, eps: float) -> None: ...
    def update(self, gradients: _NamedTensors) -> None: ...
    @property
    def direction(self) -> dict[str, Tensor]: ...
    @property
    def preconditioner(self) -> dict[str, Tensor]: ...
    @property
    def momentum(self) -> dict[str, Tensor]: ...

class Leakage:
    @property
    def mean(self) -> Tensor: ...
    @property
    def covariance(self) -> Tensor: ...
    @property
    def total(self) -> Tensor: ...

def leakage(
    gauge: Gauge, parameters: _NamedTensors, preconditioner: _NamedTensors, momentum: _NamedTensors
) -> Leakage: ...

class PredictedDrift:
    @property
    def first_order(self) -> Tensor: ...
    @property
    def second_order(self) -> Tensor: ...

def predicted_drift(
    gauge: Gauge,
    parameters: _NamedTensors,
    direction: _NamedTensors,
    *,
    lr: float,
    weight_decay: float,
) -> PredictedDrift: ...

# ---- Invariants ----------------------------------------------------------------------------------

class Check:
    @property
    def identity(self) -> str: ...
    @property
    def regime(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def expected(self) -> float: ...
    @property
    def actual(self) -> float: ...
    @property
    def difference(self) -> float: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def passed(self) -> bool: ...
    def __str__(self) -> str: ...
    def __repr__(self) -> str: ...

class InvariantReport:
    @property
    def ok(self) -> bool: ...
    @property
    def checks(self) -> list[Check]: ...
    @property
    def failures(self) -> list[Check]: ...
    def __bool__(self) -> bool: ...
    def __str__(self) -> str: ...
    def __repr__(self) -> str: ...

def gauge_invariants(
    gauge: Gauge,
    parameters: _NamedTensors,
    loss: _Loss,
    *,
    optimizer: _Description | None,
    others: Sequence[Gauge],
    seed: int,
    steps: int,
) -> InvariantReport: ...
