"""DDCAdam and DDCMuon as torch.optim optimizers.

The step is made in C++ (``ddc._C.Core``). Param groups and state are torch's dictionaries, and they are
what counts: a core holds nothing that they do not, and is made anew whenever the parameters change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddc import _C
from ddc._model import check_whole, plain_name
from ddc.discovery import Loss, discover
from ddc.symmetry import SymmetryGroup

Params = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
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
        _C.check_options(self._kind, self._values(defaults))
        super().__init__(params, {**defaults, "symmetries": _describe(group)})
        self._refresh()

    @classmethod
    def from_model(
        cls, model: nn.Module, loss: Loss, *, verbose: bool = False, **options: Any
    ) -> Any:
        """Discover the symmetries of a model and construct the optimizer that respects them.

        Parameters
        ----------
        model, loss
            As for :func:`ddc.discover`.
        verbose : bool
            Print the group.
        **options
            Of the optimizer.
        """
        group = discover(model, loss, verbose=verbose)
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

    @torch.compiler.disable
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
        core.step(self._options(), self.state, self._parameters())
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters.

        A gauge acts on parameters of the optimizer by name, so those of a gauge must all be there from
        the start; what is added later is trained as by the plain optimizer.
        """
        constructed = self._core is not None
        super().add_param_group(param_group)
        self._set_missing_options(self.param_groups[-1])
        if not constructed:
            return
        try:
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
            What :meth:`state_dict` returned. That of :class:`torch.optim.AdamW` will do for a DDCAdam
            without a group.
        """
        loaded: dict[Tensor, dict[str, Any]] = {}

        # torch casts state to the type of its parameter. These two, the last hook before and the first
        # one after it, put the state in its own types in place of what torch has made of it.
        def before(_: Optimizer, given: StateDict) -> None:
            self._check_symmetries(given)
            loaded.update(self._own_state(given))
            if loaded:  # an optimizer that made no step yet has no state
                self._make_core().check(loaded, self._parameters())

        def after(_: Optimizer) -> None:
            for parameter, entries in loaded.items():
                self.state[parameter] = entries

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
        self._core = None
        for group in self.param_groups:
            self._set_missing_options(group)

    def _set_missing_options(self, group: dict[str, Any]) -> None:
        for option, value in self.defaults.items():
            group.setdefault(option, value)

    def _parameters(self) -> list[Tensor]:
        return list(chain.from_iterable(group["params"] for group in self.param_groups))

    def _named(self) -> list[list[tuple[str, Tensor]]]:
        """Parameters by group, under the names that gauges use."""
        groups = []
        for index, group in enumerate(self.param_groups):
            names = group.get("param_names")
            if names is None:
                names = [f"group{index}.param{i}" for i in range(len(group["params"]))]
            groups.append(
                [(plain_name(n), p) for n, p in zip(names, group["params"], strict=True)]
            )
        return groups

    def _options(self) -> list[dict[str, float]]:
        return [self._values(group) for group in self.param_groups]

    def _values(self, group: dict[str, Any]) -> dict[str, float]:
        """The options of a param group as the core takes them."""
        raise NotImplementedError

    def _make_core(self) -> _C.Core:
        named = self._named()
        check_whole(chain.from_iterable(named))
        if self._group is not None:
            self._check_names()
        core = None if self._group is None else self._group._core
        return _C.Core(self._kind, named, self._options(), core)

    def _refresh(self) -> _C.Core:
        """The core for the parameters that are in the param groups now."""
        key = [(id(p), p.shape, p.dtype, p.device) for p in self._parameters()]
        if self._core is None or key != self._core_key:
            self._core = self._make_core()
            self._core_key = key
        return self._core

    def _check_names(self) -> None:
        """Gauges find their tensors by name and shape, or the optimizer is not made."""
        assert self._group is not None
        present = dict(chain.from_iterable(self._named()))
        if len(self._group) > 0 and not any("param_names" in g for g in self.param_groups):
            raise ValueError(
                "parameters have no names, by which a group finds them: "
                "pass model.named_parameters() instead of model.parameters()"
            )
        shapes = dict(self._group._core.parameters)
        for gauge in self._group.gauges:
            for tensor, _, _ in gauge.legs:
                if tensor not in present:
                    raise ValueError(
                        f"gauge '{gauge.name}' acts on the parameter '{tensor}', which is in no param "
                        "group. If it is not to be trained, set requires_grad to False before discovery; "
                        "if it is wrapped or renamed, pass the names that the model had then"
                    )
                if list(present[tensor].shape) != shapes[tensor]:
                    raise ValueError(
                        f"gauge '{gauge.name}' acts on the parameter '{tensor}' of shape "
                        f"{shapes[tensor]}, which has shape {list(present[tensor].shape)} here: it is "
                        "flattened, sharded or of another model"
                    )

    def _check_symmetries(self, given: StateDict) -> None:
        for index, saved in enumerate(given["param_groups"]):
            own = self.defaults["symmetries"]
            if "symmetries" in saved and saved["symmetries"] != own:
                raise ValueError(
                    f"state dict: param group {index} was trained with the symmetries "
                    f"{saved['symmetries']}, the optimizer has {own}"
                )

    def _own_state(self, given: StateDict) -> dict[Tensor, dict[str, Any]]:
        """The state of `given` by parameter, in types of our own and memory of its own."""
        saved = list(chain.from_iterable(group["params"] for group in given["param_groups"]))
        parameters = self._parameters()
        if len(saved) != len(parameters):
            return {}  # torch says what is wrong
        result: dict[Tensor, dict[str, Any]] = {}
        for number, parameter in zip(saved, parameters, strict=True):
            if number in given["state"]:
                result[parameter] = {
                    key: _own_value(key, value, parameter)
                    for key, value in given["state"][number].items()
                }
        return result


def _own_value(key: str, value: Any, parameter: Tensor) -> Any:
    if key == "step":
        # A float tensor in torch's optimizers, a number in old ones.
        return torch.tensor(int(value))
    if not isinstance(value, Tensor):
        return value
    of_gauge = key.startswith(("gauge.", "radial."))
    value = value.detach().to(device="cpu" if of_gauge else parameter.device, copy=True)
    if value.dtype in (torch.float16, torch.bfloat16):
        value = value.float()
    return value


def _describe(group: SymmetryGroup | None) -> str | None:
    """A line that tells groups apart, for checkpoints and for printing."""
    if group is None:
        return None
    what = repr([(g.name, g.legs, g.channels, g.block) for g in group.gauges])
    digest = hashlib.sha256(what.encode()).hexdigest()[:12]
    return f"{len(group)} gauges of dimension {group.dimension}, {digest}"


class DDCAdam(Lifted):
    r"""AdamW that respects the symmetries of the network.

    Two copies of a model that compute the same function, written down differently, stay the same
    function in training; plain AdamW takes them apart. Without a group it is :class:`torch.optim.AdamW`.

    Parameters
    ----------
    params : iterable
        ``model.named_parameters()``, or dicts of them that define param groups. Names are what a group
        finds its parameters by; without a group ``model.parameters()`` will do.
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
        beta1, beta2 = group["betas"]
        return {
            "lr": _number("lr", group["lr"]),
            "beta1": _number("betas", beta1),
            "beta2": _number("betas", beta2),
            "eps": _number("eps", group["eps"]),
            "weight_decay": _number("weight_decay", group["weight_decay"]),
            "maximize": float(group["maximize"]),
        }


class DDCMuon(Lifted):
    r"""Muon that respects the symmetries of the network.

    Matrices are stepped by the polar factor of their momentum, taken in coordinates that no symmetry
    changes (per head of attention projections); vectors, and groups with ``use_adam=True`` (embeddings and
    the unembedding usually), by DDCAdam.

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
        # The learning rate that adam_lr stands beside: schedules change `lr` alone.
        group.setdefault("adam_lr_at", _number("lr", group["lr"]))

    def _values(self, group: dict[str, Any]) -> dict[str, float]:
        lr = _number("lr", group["lr"])
        at = group.get("adam_lr_at", lr)
        beta1, beta2 = group["adam_betas"]
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
            "adam_beta1": _number("adam_betas", beta1),
            "adam_beta2": _number("adam_betas", beta2),
            "adam_eps": _number("adam_eps", group["adam_eps"]),
            "adam_weight_decay": _number("adam_weight_decay", group["adam_weight_decay"]),
        }


# In the order of the C++ enumerations.
_METHODS = ("exact", "fast", "sharpen", "newton_schulz")
_SCALES = ("original", "match_rms_adamw", "frobenius")


def _number(option: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"option {option} must be one number, is a tensor of shape {tuple(value.shape)}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"option {option} must be a number, got {value!r}") from None


def _index(option: str, value: str, names: tuple[str, ...]) -> float:
    if value not in names:
        raise ValueError(f"option {option} must be one of {', '.join(names)}, got {value!r}")
    return float(names.index(value))
