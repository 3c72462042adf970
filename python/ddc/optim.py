"""DDCAdam and DDCMuon as torch.optim optimizers.

The step is made in C++ (``ddc._C.Core``). Param groups and state are torch's dictionaries, and they
are what counts: a core holds nothing that they do not, and is made anew whenever the parameters
change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddc import _C
from ddc._model import check_whole, plain_name
from ddc.discovery import BatchLoss, Loss, discover
from ddc.symmetry import SymmetryGroup

Params = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
ParamGroups = list[dict[str, Any]]
StateDict = dict[str, Any]


class Lifted(Optimizer):
    """What DDCAdam and DDCMuon share: a base rule lifted to respect a symmetry group."""

    _kind: ClassVar[str]

    def __init__(
        self, params: Params, group: SymmetryGroup | None, defaults: dict[str, Any]
    ) -> None:
        if group is not None and not isinstance(group, SymmetryGroup):
            raise TypeError(
                f"group must be a ddc.SymmetryGroup or None, is {type(group).__name__}; "
                "ddc.discover(model, loss) makes one"
            )
        self._group = group
        self._core: _C.Core | None = None
        self._core_key: list[Any] = []
        _C.check_options(self._kind, self._values(defaults))
        self._constructing = True
        super().__init__(params, {**defaults, "symmetries": _describe(group)})
        self._constructing = False
        self._refresh()

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        loss: Loss | BatchLoss | None = None,
        *,
        dataloader: Iterable[Any] | None = None,
        batches: Sequence[Any] | None = None,
        max_batches: int = 8,
        verbose: bool = False,
        **options: Any,
    ) -> Self:
        """Discover the symmetries of a model and construct the optimizer that respects them.

        Parameters
        ----------
        model, loss, dataloader, batches, max_batches
            As for :func:`ddc.discover`.
        verbose : bool
            Print the group.
        **options
            Of the optimizer.
        """
        group = discover(
            model,
            loss,
            dataloader=dataloader,
            batches=batches,
            max_batches=max_batches,
            verbose=verbose,
        )
        if verbose:
            print(group)
        return cls(model.named_parameters(), group, **options)

    @property
    def group(self) -> SymmetryGroup | None:
        """The symmetry group that steps respect."""
        return self._group

    def report(self) -> str:
        """A table of the gauges: coordinates, channels that are degenerate, what the last step
        corrected."""
        return self._refresh().report()

    def gauge_coordinate(self, gauge: str) -> Tensor:
        """Where on its orbit a gauge is now, per channel, as measured on the weights.

        Constant in training, but for channels in a degenerate stratum (NaN). Empty for a rotation.
        """
        return self._refresh().gauge_coordinate(gauge)

    # torch.compiler.disable would do the same, and import the compiler (2 s) with this module.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step.

        Raises, with parameters and state as they were, if a gradient is NaN, Inf or sparse or an
        option is unusable. (With :class:`torch.amp.GradScaler` steps with such gradients are
        skipped before they get here.)

        Parameters
        ----------
        closure : callable, optional
            Evaluates the model again and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        core = self._refresh()
        core.step(self._options(self.param_groups), self.state, self._parameters())
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters.

        A gauge acts on parameters of the optimizer by name, so those of a gauge must all be there
        from the start; what is added later is trained as by the plain optimizer.
        """
        super().add_param_group(param_group)
        try:
            self._set_missing_options(self.param_groups[-1])
            if not self._constructing:
                self._refresh()
        except Exception:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load the optimizer state, as :meth:`torch.optim.Optimizer.load_state_dict` does.

        All or nothing: a state that does not fit is refused, naming what does not, and leaves the
        optimizer as it was. State keeps its types: float32 moments of bfloat16 parameters, float64
        frames and units, integers.

        Parameters
        ----------
        state_dict : dict
            What :meth:`state_dict` returned. That of :class:`torch.optim.AdamW` will do for a
            DDCAdam without a group.
        """
        loaded: dict[Tensor, dict[str, Any]] = {}

        # torch would cast state to the type of its parameter. The last hook before it takes the
        # state away, in its own types, and the first one after it puts it in.
        def before(_: Optimizer, given: StateDict) -> StateDict | None:
            if _sizes(given["param_groups"]) != _sizes(self.param_groups):
                return None  # torch says what is wrong
            groups = self._with_own_parameters(given["param_groups"])
            self._check_symmetries(groups)
            loaded.update(self._own_state(given))
            core = self._make_core(groups)
            if loaded:
                core.check(loaded, self._parameters())
            return {**given, "state": {}}

        def after(_: Optimizer) -> None:
            self.state.update(loaded)

        handles = [
            self.register_load_state_dict_pre_hook(before),
            self.register_load_state_dict_post_hook(after, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_group": self._group}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # torch adds it for optimizers of its own; here it would become an option of every group.
        del self.defaults["differentiable"]
        self._core = None
        self._constructing = False
        for group in self.param_groups:
            self._set_missing_options(group)

    def _set_missing_options(self, group: dict[str, Any]) -> None:
        for option, value in self.defaults.items():
            group.setdefault(option, value)

    def _parameters(self) -> list[Tensor]:
        return list(chain.from_iterable(group["params"] for group in self.param_groups))

    def _options(self, groups: ParamGroups) -> list[dict[str, float]]:
        return [self._values(group) for group in groups if group["params"]]

    def _values(self, group: dict[str, Any]) -> dict[str, float]:
        """The options of a param group as the core takes them."""
        raise NotImplementedError

    def _make_core(self, groups: ParamGroups) -> _C.Core:
        named = _named(groups)
        check_whole(chain.from_iterable(named))
        if self._group is None:
            return _C.Core(self._kind, named, self._options(groups), None)
        if len(self._group) > 0 and not any("param_names" in group for group in groups):
            raise ValueError(
                "parameters have no names, by which a group finds them: "
                "pass model.named_parameters() instead of model.parameters()"
            )
        self._check_gauges(dict(chain.from_iterable(named)))
        return _C.Core(self._kind, named, self._options(groups), self._group._core)

    def _refresh(self) -> _C.Core:
        """The core for the parameters that are in the param groups now."""
        key = [(id(p), p.shape, p.dtype, p.device) for p in self._parameters()]
        if self._core is None or key != self._core_key:
            self._core = self._make_core(self.param_groups)
            self._core_key = key
            # Parameters may have another type now, or be elsewhere.
            for parameter in self._parameters():
                for field, value in self.state.get(parameter, {}).items():
                    self.state[parameter][field] = _own_value(field, value, parameter)
        return self._core

    def _check_gauges(self, present: dict[str, Tensor]) -> None:
        """Gauges find their tensors by name and shape, or the optimizer is not made."""
        assert self._group is not None
        shapes = dict(self._group._core.parameters)
        for gauge in self._group.gauges:
            for tensor, _, _ in gauge.legs:
                if tensor not in present:
                    raise ValueError(
                        f"gauge '{gauge.name}' acts on the parameter '{tensor}', which is in no "
                        "param group. If it is not to be trained, set requires_grad to False "
                        "before discovery; if it is wrapped or renamed, pass the name it had then"
                    )
                if list(present[tensor].shape) != shapes[tensor]:
                    raise ValueError(
                        f"gauge '{gauge.name}' acts on the parameter '{tensor}' of shape "
                        f"{shapes[tensor]}, which has shape {list(present[tensor].shape)} here: "
                        "it is flattened, sharded or of another model"
                    )

    def _with_own_parameters(self, saved: ParamGroups) -> ParamGroups:
        """The param groups of a state dict as they will be once loaded."""
        groups = []
        for own, given in zip(self.param_groups, saved, strict=True):
            merged = {"symmetries": None, **given, "params": own["params"]}
            if "param_names" in own:
                merged.setdefault("param_names", own["param_names"])
            self._set_missing_options(merged)
            groups.append(merged)
        return groups

    def _check_symmetries(self, groups: ParamGroups) -> None:
        own = self.defaults["symmetries"]
        for index, group in enumerate(groups):
            if group["symmetries"] != own:
                raise ValueError(
                    f"state dict: param group {index} was trained with the symmetries "
                    f"{group['symmetries']}, the optimizer has {own}"
                )
        if own is None:
            return
        for saved, present in zip(_named(groups), _named(self.param_groups), strict=True):
            for (name, _), (own_name, _) in zip(saved, present, strict=True):
                if name != own_name:
                    raise ValueError(
                        f"state dict: what it has for the parameter '{name}' would be loaded for "
                        f"'{own_name}', which stands in the same place"
                    )

    def _own_state(self, given: StateDict) -> dict[Tensor, dict[str, Any]]:
        """The state of `given` by parameter, in types of our own and memory of its own."""
        saved = list(chain.from_iterable(group["params"] for group in given["param_groups"]))
        for number in given["state"]:
            if number not in saved:
                raise ValueError(f"state dict: state of {number!r}, which is in no param group")
        return {
            parameter: {
                key: _own_value(key, value, parameter, copy=True)
                for key, value in given["state"][number].items()
            }
            for number, parameter in zip(saved, self._parameters(), strict=True)
            if given["state"].get(number)
        }


def _sizes(groups: ParamGroups) -> list[int]:
    return [len(group["params"]) for group in groups]


def _named(groups: ParamGroups) -> list[list[tuple[str, Tensor]]]:
    """Parameters by group that has any, under the names that gauges use."""
    result = []
    for index, group in enumerate(groups):
        params = group["params"]
        names = group.get("param_names", [f"group{index}.param{i}" for i in range(len(params))])
        if len(names) != len(params):
            raise ValueError(
                f"param group {index} has {len(params)} parameters and {len(names)} param_names"
            )
        if params:
            result.append([(plain_name(n), p) for n, p in zip(names, params, strict=True)])
    return result


def _own_value(key: str, value: Any, parameter: Tensor, copy: bool = False) -> Any:
    """A value of the state in the type and the place that the core wants it in."""
    if key == "step":
        # A float tensor in torch's optimizers, a number in old ones.
        if not isinstance(value, (int, float, Tensor)):
            raise TypeError(f"state dict: step of a parameter must be a number, is {value!r}")
        known = isinstance(value, Tensor) and value.dtype == torch.int64 and not copy
        return value if known else torch.tensor(int(value), device="cpu")
    if not isinstance(value, Tensor):
        return value
    if key.startswith(("gauge.", "radial.")):
        return value.detach().to("cpu", copy=copy)
    # Moments are never narrower than float32, whatever the parameter is.
    dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    return value.detach().to(parameter.device, dtype, copy=copy)


def _describe(group: SymmetryGroup | None) -> str | None:
    """A line that tells groups apart, for checkpoints and for printing."""
    if group is None or len(group) == 0:
        return None
    what = repr([(g.name, g.action, g.legs, g.channels, g.block) for g in group.gauges])
    digest = hashlib.sha256(what.encode()).hexdigest()[:12]
    return f"{len(group)} gauges of dimension {group.dimension}, {digest}"


class DDCAdam(Lifted):
    r"""AdamW that respects the symmetries of the network.

    Two copies of a model that compute the same function, written down differently, stay the same
    function in training; plain AdamW takes them apart. Without a group it is
    :class:`torch.optim.AdamW`.

    Parameters
    ----------
    params : iterable
        ``model.named_parameters()``, or dicts of them that define param groups. Names are what a
        group finds its parameters by; without a group ``model.parameters()`` will do.
    group : SymmetryGroup, optional
        From :func:`ddc.discover`.
    lr : float or Tensor, default 1e-3
    betas : tuple of float, default (0.9, 0.999)
    eps : float, default 1e-8
    weight_decay : float, default 1e-2
        Decoupled, as AdamW's.
    maximize : bool, default False

    Examples
    --------
    >>> group = ddc.discover(model, loss)                                   # doctest: +SKIP
    >>> optimizer = ddc.DDCAdam(model.named_parameters(), group, lr=1e-3)   # doctest: +SKIP
    """

    _kind = "adam"

    def __init__(
        self,
        params: Params,
        group: SymmetryGroup | None = None,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, group, defaults)

    def _values(self, group: dict[str, Any]) -> dict[str, float]:
        beta1, beta2 = _pair("betas", group["betas"])
        return {
            "lr": _number("lr", group["lr"]),
            "beta1": beta1,
            "beta2": beta2,
            "eps": _number("eps", group["eps"]),
            "weight_decay": _number("weight_decay", group["weight_decay"]),
            "maximize": float(group["maximize"]),
        }


class DDCMuon(Lifted):
    r"""Muon that respects the symmetries of the network.

    Matrices are stepped by the polar factor of their momentum, taken in coordinates that no
    symmetry changes (per head of attention projections); vectors, and groups with
    ``use_adam=True`` (embeddings and the unembedding usually), by DDCAdam.

    Parameters
    ----------
    params : iterable
        ``model.named_parameters()``, or dicts of them that define param groups.
    group : SymmetryGroup, optional
        From :func:`ddc.discover`.
    lr : float or Tensor, default 0.02
        Of matrices. A schedule of it scales Adam's learning rate alike.
    momentum : float, default 0.95
    nesterov : bool, default True
    weight_decay : float, default 0.1
    adam : dict, optional
        Options of what Adam steps: ``lr``, ``betas``, ``eps``, ``weight_decay``.
    use_adam : bool, default False
        Step matrices by Adam too; for param groups.
    method : {"exact", "fast", "sharpen", "newton_schulz"}
        How the polar factor is computed.
    scale : {"original", "match_rms_adamw", "frobenius"}
        What the polar factor is multiplied by.
    maximize : bool, default False

    Examples
    --------
    >>> tables = [n for n, _ in model.named_parameters() if "embed" in n]   # doctest: +SKIP
    >>> named = dict(model.named_parameters())                               # doctest: +SKIP
    >>> optimizer = ddc.DDCMuon(
    ...     [{"params": [(n, p) for n, p in named.items() if n not in tables]},
    ...      {"params": [(n, named[n]) for n in tables], "use_adam": True}],
    ...     group, lr=0.02, adam=dict(lr=1e-3))                              # doctest: +SKIP
    """

    _kind = "muon"

    def __init__(
        self,
        params: Params,
        group: SymmetryGroup | None = None,
        lr: float | Tensor = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        adam: dict[str, Any] | None = None,
        *,
        use_adam: bool = False,
        method: str = "exact",
        scale: str = "original",
        maximize: bool = False,
    ) -> None:
        known = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
        for option in adam or {}:
            if option not in known:
                raise ValueError(f"adam has no option '{option}'; it has {', '.join(known)}")
        defaults: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "use_adam": use_adam,
            "method": method,
            "scale": scale,
            "maximize": maximize,
        }
        for option, value in {**known, **(adam or {})}.items():
            defaults[f"adam_{option}"] = value
        super().__init__(params, group, defaults)

    def _set_missing_options(self, group: dict[str, Any]) -> None:
        super()._set_missing_options(group)
        # The learning rate that adam_lr stands beside: schedules change `lr` alone, and leave what
        # it was in `initial_lr`.
        group.setdefault("adam_lr_at", _number("lr", group.get("initial_lr", group["lr"])))

    def _values(self, group: dict[str, Any]) -> dict[str, float]:
        lr = _number("lr", group["lr"])
        at = group.get("adam_lr_at", lr)
        beta1, beta2 = _pair("adam_betas", group["adam_betas"])
        return {
            "lr": lr,
            "momentum": _number("momentum", group["momentum"]),
            "nesterov": float(group["nesterov"]),
            "weight_decay": _number("weight_decay", group["weight_decay"]),
            "method": _index("method", group["method"], _METHODS),
            "scale": _index("scale", group["scale"], _SCALES),
            "maximize": float(group["maximize"]),
            "use_adam": float(group["use_adam"]),
            "adam_lr": _number("adam_lr", group["adam_lr"]) * (lr / at if at > 0 else 1),
            "adam_beta1": beta1,
            "adam_beta2": beta2,
            "adam_eps": _number("adam_eps", group["adam_eps"]),
            "adam_weight_decay": _number("adam_weight_decay", group["adam_weight_decay"]),
        }


# In the order of the C++ enumerations.
_METHODS = ("exact", "fast", "sharpen", "newton_schulz")
_SCALES = ("original", "match_rms_adamw", "frobenius")


def _number(option: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"Tensor {option} must be 1-element, has shape {tuple(value.shape)}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"option {option} must be a number, got {value!r}") from None


def _pair(option: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"option {option} must be a pair of numbers, got {value!r}")
    return _number(option, value[0]), _number(option, value[1])


def _index(option: str, value: str, names: tuple[str, ...]) -> float:
    if value not in names:
        raise ValueError(f"option {option} must be one of {', '.join(names)}, got {value!r}")
    return float(names.index(value))
