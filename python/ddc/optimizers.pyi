# Written by scripts/stubs.py.

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from torch import Tensor

from ddc.optim import Lifted, Params, Symmetries
from ddc.routing import Routing

UseAdam = Iterable[str] | Callable[[str, Tensor], bool] | bool | None
Recipe = Literal["default", "paper"]
Heads = Literal["default", "cut", "whole"]
Placement = Literal["default", "canonical", "in_place"]
Coordinates = Literal["default", "folded", "balanced", "standard", "polar"]
Hold = Literal["default", "ratio", "unit"]
Vertical = Literal["frozen", "sgd", "adam"]
Radial = Literal["linear", "log"]
SecondMoment = Literal[
    "transported",
    "body_frame",
    "body_frame_topk",
    "per_head_scalar",
    "per_head_matrix",
    "none",
]
Project = Literal["default", "step", "momentum", "never"]
Method = Literal["exact", "fast", "sharpen", "newton_schulz"]
Scale = Literal["original", "match_rms_adamw", "frobenius"]

class DDCAdam(Lifted):
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.01,
        *,
        symmetries: Symmetries | None = None,
        recipe: Recipe = "default",
        maximize: bool = False,
        check_gradients: bool = True,
        bind: bool | dict[str, bool] | None = None,
        heads: Heads | dict[str, Heads] | None = None,
        placement: Placement | dict[str, Placement] | None = None,
        coordinates: Coordinates | dict[str, Coordinates] | None = None,
        hold: Hold | dict[str, Hold] | None = None,
        vertical: Vertical | dict[str, Vertical] | None = None,
        radial: Radial | dict[str, Radial] | None = None,
        max_log_step: float | dict[str, float] | None = None,
        second_moment: SecondMoment | dict[str, SecondMoment] | None = None,
        tau: float | dict[str, float] | None = None,
        frame_drift: float | dict[str, float] | None = None,
        frame_interval: int | dict[str, int] | None = None,
        procrustes: bool | dict[str, bool] | None = None,
        rebalance_above: float | dict[str, float] | None = None,
        project: Project | dict[str, Project] | None = None,
        every: int | dict[str, int] | None = None,
        decay_held: bool | dict[str, bool] | None = None,
    ) -> None: ...

class DDCSgd(Lifted):
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        symmetries: Symmetries | None = None,
        recipe: Recipe = "default",
        maximize: bool = False,
        check_gradients: bool = True,
        bind: bool | dict[str, bool] | None = None,
        heads: Heads | dict[str, Heads] | None = None,
        placement: Placement | dict[str, Placement] | None = None,
        coordinates: Coordinates | dict[str, Coordinates] | None = None,
        hold: Hold | dict[str, Hold] | None = None,
        vertical: Vertical | dict[str, Vertical] | None = None,
        radial: Radial | dict[str, Radial] | None = None,
        max_log_step: float | dict[str, float] | None = None,
        second_moment: SecondMoment | dict[str, SecondMoment] | None = None,
        tau: float | dict[str, float] | None = None,
        frame_drift: float | dict[str, float] | None = None,
        frame_interval: int | dict[str, int] | None = None,
        procrustes: bool | dict[str, bool] | None = None,
        rebalance_above: float | dict[str, float] | None = None,
        project: Project | dict[str, Project] | None = None,
        every: int | dict[str, int] | None = None,
        decay_held: bool | dict[str, bool] | None = None,
    ) -> None: ...

class DDCLion(Lifted):
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.0001,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-08,
        weight_decay: float = 0.01,
        *,
        symmetries: Symmetries | None = None,
        recipe: Recipe = "default",
        maximize: bool = False,
        check_gradients: bool = True,
        bind: bool | dict[str, bool] | None = None,
        heads: Heads | dict[str, Heads] | None = None,
        placement: Placement | dict[str, Placement] | None = None,
        coordinates: Coordinates | dict[str, Coordinates] | None = None,
        hold: Hold | dict[str, Hold] | None = None,
        vertical: Vertical | dict[str, Vertical] | None = None,
        radial: Radial | dict[str, Radial] | None = None,
        max_log_step: float | dict[str, float] | None = None,
        second_moment: SecondMoment | dict[str, SecondMoment] | None = None,
        tau: float | dict[str, float] | None = None,
        frame_drift: float | dict[str, float] | None = None,
        frame_interval: int | dict[str, int] | None = None,
        procrustes: bool | dict[str, bool] | None = None,
        rebalance_above: float | dict[str, float] | None = None,
        project: Project | dict[str, Project] | None = None,
        every: int | dict[str, int] | None = None,
        decay_held: bool | dict[str, bool] | None = None,
    ) -> None: ...

class DDCShampoo(Lifted):
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-12,
        max_dim: int = 8192,
        precondition_every: int = 1,
        weight_decay: float = 0.0,
        *,
        symmetries: Symmetries | None = None,
        recipe: Recipe = "default",
        maximize: bool = False,
        check_gradients: bool = True,
        bind: bool | dict[str, bool] | None = None,
        heads: Heads | dict[str, Heads] | None = None,
        placement: Placement | dict[str, Placement] | None = None,
        coordinates: Coordinates | dict[str, Coordinates] | None = None,
        hold: Hold | dict[str, Hold] | None = None,
        vertical: Vertical | dict[str, Vertical] | None = None,
        radial: Radial | dict[str, Radial] | None = None,
        max_log_step: float | dict[str, float] | None = None,
        second_moment: SecondMoment | dict[str, SecondMoment] | None = None,
        tau: float | dict[str, float] | None = None,
        frame_drift: float | dict[str, float] | None = None,
        frame_interval: int | dict[str, int] | None = None,
        procrustes: bool | dict[str, bool] | None = None,
        rebalance_above: float | dict[str, float] | None = None,
        project: Project | dict[str, Project] | None = None,
        every: int | dict[str, int] | None = None,
        decay_held: bool | dict[str, bool] | None = None,
    ) -> None: ...

class DDCSoap(Lifted):
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.003,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float | None = None,
        eps: float = 1e-08,
        max_dim: int = 8192,
        precondition_every: int = 10,
        precondition_vectors: bool = False,
        weight_decay: float = 0.0,
        *,
        symmetries: Symmetries | None = None,
        recipe: Recipe = "default",
        maximize: bool = False,
        check_gradients: bool = True,
        bind: bool | dict[str, bool] | None = None,
        heads: Heads | dict[str, Heads] | None = None,
        placement: Placement | dict[str, Placement] | None = None,
        coordinates: Coordinates | dict[str, Coordinates] | None = None,
        hold: Hold | dict[str, Hold] | None = None,
        vertical: Vertical | dict[str, Vertical] | None = None,
        radial: Radial | dict[str, Radial] | None = None,
        max_log_step: float | dict[str, float] | None = None,
        second_moment: SecondMoment | dict[str, SecondMoment] | None = None,
        tau: float | dict[str, float] | None = None,
        frame_drift: float | dict[str, float] | None = None,
        frame_interval: int | dict[str, int] | None = None,
        procrustes: bool | dict[str, bool] | None = None,
        rebalance_above: float | dict[str, float] | None = None,
        project: Project | dict[str, Project] | None = None,
        every: int | dict[str, int] | None = None,
        decay_held: bool | dict[str, bool] | None = None,
    ) -> None: ...

class DDCMuon(Lifted):
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.02,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        method: Method = "exact",
        scale: Scale = "original",
        *,
        symmetries: Symmetries | None = None,
        recipe: Recipe = "default",
        adam: Mapping[str, Any] | None = None,
        use_adam: UseAdam = None,
        maximize: bool = False,
        check_gradients: bool = True,
        bind: bool | dict[str, bool] | None = None,
        heads: Heads | dict[str, Heads] | None = None,
        placement: Placement | dict[str, Placement] | None = None,
        coordinates: Coordinates | dict[str, Coordinates] | None = None,
        hold: Hold | dict[str, Hold] | None = None,
        vertical: Vertical | dict[str, Vertical] | None = None,
        radial: Radial | dict[str, Radial] | None = None,
        max_log_step: float | dict[str, float] | None = None,
        second_moment: SecondMoment | dict[str, SecondMoment] | None = None,
        tau: float | dict[str, float] | None = None,
        frame_drift: float | dict[str, float] | None = None,
        frame_interval: int | dict[str, int] | None = None,
        procrustes: bool | dict[str, bool] | None = None,
        rebalance_above: float | dict[str, float] | None = None,
        project: Project | dict[str, Project] | None = None,
        every: int | dict[str, int] | None = None,
        decay_held: bool | dict[str, bool] | None = None,
    ) -> None: ...
    def add_param_group(self, param_group: dict[str, Any]) -> None: ...
    def routing(self) -> Routing: ...

class Muon(DDCMuon):
    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.001,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        method: Method = "newton_schulz",
        scale: Scale = "original",
        *,
        adam: Mapping[str, Any] | None = None,
        use_adam: UseAdam = None,
        maximize: bool = False,
        check_gradients: bool = True,
    ) -> None: ...
