"""Lifted optimizers as torch.optim optimizers.

The step is made in C++ (``ddc._C.Core``). Param groups and state are torch's dictionaries, and they
are what counts: a core holds nothing that they do not, and is made anew whenever the parameters
change. Options, their defaults and their help are declared in C++, once; signatures are made from
there.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddc import _C
from ddc._model import check_whole, plain_name
from ddc._options import TREATMENT, Declaration, group_betas, split_betas, unknown_option
from ddc._progress import log, shown
from ddc.discovery import BatchLoss, Loss, discover
from ddc.symmetry import SymmetryGroup

Params = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
ParamGroups = list[dict[str, Any]]
StateDict = dict[str, Any]
Symmetries = SymmetryGroup | Sequence[_C.Gauge]

# Options of torch's optimizers that none here has.
_OF_TORCH = ("amsgrad", "capturable", "differentiable", "foreach", "fused")
# The version of state dicts, in each param group of them.
_FORMAT_KEY = "ddc_format"
_FORMAT = 1
# Decay is decoupled here, as torch's AdamW notes of itself.
_NOT_OPTIONS = frozenset(
    (
        "params",
        "param_names",
        "symmetries",
        _FORMAT_KEY,
        "initial_lr",
        "decoupled_weight_decay",
        *_OF_TORCH,
    )
)


class Lifted(Optimizer):
    """A base rule lifted to respect symmetries: what all optimizers of this package share.

    Subclasses are made by the package, one for each base rule of the C++ library, and by
    :func:`ddc.lifted` for a rule of one's own.
    """

    _rule: ClassVar[str]
    _declared: ClassVar[list[Declaration]]
    _python_rule: ClassVar[
        tuple[Callable[..., Tensor], Callable[[Tensor], dict[str, Tensor]]] | None
    ]
    _python_rule = None

    def __init__(
        self,
        params: Params,
        *args: Any,
        symmetries: Symmetries | None = None,
        recipe: str = "default",
        **options: Any,
    ) -> None:
        given = self._given(args, options)
        treatment = {name: given.pop(name) for name in TREATMENT if name in given}
        self._symmetries = _as_group(symmetries, params) if symmetries is not None else None
        params = self._symmetries[1] if self._symmetries else params
        self._group = self._symmetries[0] if self._symmetries else None
        del self._symmetries
        if self._group is not None and not self._group.gauges:
            warnings.warn(
                f"{type(self).__name__}: the symmetries have no gauge, so this is the plain optimizer",
                stacklevel=2,
            )
        self._recipe = recipe
        self._treatment = {name: value for name, value in treatment.items() if value is not None}
        if self._group is None and self._treatment:
            raise ValueError(
                f"{', '.join(self._treatment)}: no symmetries are given that could be treated so"
            )
        self._place: str | None = None
        self._core: _C.Core | None = None
        self._core_key: list[Any] = []
        self._stepped_with: dict[int, dict[str, Any]] = {}
        self._had_gradients = False
        defaults = {
            **{option.name: option.default for option in self._declared},
            **group_betas(_C.recipe_options(recipe, self._rule)),
            **given,
        }
        self._check_options(defaults)
        self._constructing = True
        super().__init__(params, {**defaults, "symmetries": None, _FORMAT_KEY: _FORMAT})
        self._constructing = False
        self._refresh()
        self._note_symmetries()
        self._core_of().push(self.state, self._parameters(), missing=True)

    @classmethod
    def _given(cls, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
        """The options of a call by name."""
        names = [option.name for option in cls._declared if option.positional]
        if len(args) > len(names):
            raise TypeError(
                f"{cls.__name__} takes at most {len(names) + 1} positional arguments "
                f"(params, {', '.join(names)}), got {len(args) + 1}"
            )
        given = dict(zip(names, args, strict=False))
        known = [option.name for option in cls._declared] + list(TREATMENT)
        for name, value in options.items():
            if name in given:
                raise TypeError(f"{cls.__name__} got the option {name} twice")
            if name not in known:
                raise TypeError(unknown_option(cls.__name__, name, known))
            given[name] = value
        return given

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        loss: Loss | BatchLoss | None = None,
        *,
        dataloader: Iterable[Any] | None = None,
        batches: Sequence[Any] | None = None,
        max_batches: int = 8,
        verbose: bool | None = None,
        **options: Any,
    ) -> Self:
        """Discover the symmetries of a model and construct the optimizer that respects them.

        Parameters
        ----------
        model, loss, dataloader, batches, max_batches
            As for :func:`ddc.discover`.
        verbose : bool or None
            As for :func:`ddc.discover`. True shows the group as well.
        **options
            Options of the optimizer.
        """
        group = discover(
            model,
            loss,
            dataloader=dataloader,
            batches=batches,
            max_batches=max_batches,
            verbose=verbose,
        )
        with shown(bool(verbose)):
            log.info("%s", group)
        return cls(model.named_parameters(), symmetries=group, **options)

    @property
    def symmetries(self) -> SymmetryGroup | None:
        """Symmetries that were given. (A recipe may bind fewer: see :meth:`report`.)"""
        return self._group

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return self._recipe

    @property
    def place(self) -> str:
        """Where the weights are trained: ``"canonical"`` or ``"in_place"``.

        Canonical unless told otherwise, or impossible: :meth:`report` says why then.
        """
        return self._refresh().report().place

    def treatment(self, gauge: str) -> dict[str, Any]:
        """Treatment of one gauge, with the defaults resolved."""
        return self._refresh().treatment(gauge)

    def report(self) -> _C.Report:
        """What is bound, and what the last step did: data, and a table when printed.

        ``report().gauges`` has for each gauge its coordinates, channels that are degenerate and what the
        last step had to correct or, at the canonical place, what the weights miss it by now. The last lines
        say where the weights are trained, and why in place if nobody said so; and what a step costs
        (``report().cost``: bytes, flops, seconds and share of a training step, of the last steps).
        """
        return self._refresh().report()

    def metrics(self, prefix: str = "ddc/") -> dict[str, float]:
        """Numbers for a logger (TensorBoard, wandb), flat: the report in sums and per kind of gauge."""
        report = self.report()
        values = {
            "gauges": float(len(report.gauges)),
            "dimension": float(report.dimension),
            "degenerate_channels": float(report.degenerate_channels),
            "imbalance": report.largest_imbalance,
            "frames_recomputed": float(sum(gauge.frames_recomputed for gauge in report.gauges)),
            "step_seconds": report.cost.seconds,
            "step_share": report.cost.share,
        }
        for gauge in report.gauges:
            key = f"imbalance/{gauge.kind.replace(' ', '_')}"
            values[key] = max(values.get(key, 0.0), gauge.imbalance)
        return {prefix + name: value for name, value in values.items()}

    def gauge_coordinate(self, gauge: str) -> Tensor:
        """Gauge coordinate, per channel, as measured on the weights now.

        It tells where on its orbit a gauge is. Constant in training, but for channels in a degenerate
        stratum (NaN). Empty for a rotation.
        """
        return self._refresh().gauge_coordinate(gauge)

    @contextmanager
    def original(self) -> Iterator[None]:
        """Put the weights to where they were found, for the time of a ``with``.

        Weights are trained at another place of their orbits than the one they were given at: the
        constructor moves them to their canonical place, unless :attr:`place` is ``"in_place"``. The
        function is the same; code that looks at weights may want the original ones:

        >>> with optimizer.original():                           # doctest: +SKIP
        ...     torch.save(model.state_dict(), "model.pt")

        A state dict of the optimizer that is taken inside says so, and goes with these weights.
        Nothing happens with ``placement="in_place"``.
        """
        self._refresh().move(self.state, self._parameters(), True)
        try:
            yield
        finally:
            self._refresh().move(self.state, self._parameters(), False)

    def settle(self) -> None:
        """Make the moves along orbits that the next step would make on its way in.

        A step finds by how much weights have left their canonical place, and the next one brings them
        back while it reads them: that costs no second pass over memory. In between they are one step's
        move off; the function is the same. Call this before you compare weights with those of another copy.
        Gradients that are there go along. Reports, coordinates and :meth:`original` need no call.
        """
        self._refresh().settle(self.state, self._parameters())

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
        changed = {}
        for index, values in enumerate(self._options(self.param_groups)):
            if self._stepped_with.get(index) != values:
                changed[index] = values
        core.step(changed, self.state, self._parameters())
        self._stepped_with.update(changed)
        if not self._had_gradients:
            self._had_gradients = warn_of_no_gradients(self, depth=6)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters.

        A gauge acts on parameters of the optimizer by name, so those of a gauge must all be there
        from the start; what is added later is trained as by the plain optimizer.
        """
        super().add_param_group(param_group)
        try:
            check_whole(chain.from_iterable(_named(self.param_groups[-1:])))
            self._set_missing_options(self.param_groups[-1])
            self._check_group(self.param_groups[-1])
            if not self._constructing:
                self._refresh()
                self._core_of().push(self.state, self._parameters(), missing=True)
        except Exception:
            self.param_groups.pop()
            self._core = None
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
            DDCAdam without symmetries.
        """
        _check_is_state_dict(state_dict)
        loaded: dict[Tensor, dict[str, Any]] = {}
        core = self._refresh()

        # torch would cast state to the type of its parameter. The last hook before it takes the
        # state away, in its own types, and the first one after it puts it in.
        def before(_: Optimizer, given: StateDict) -> StateDict | None:
            _check_is_state_dict(given)
            _check_format(given["param_groups"])
            given = self._upgraded(given)
            self._check_symmetries(given["param_groups"])
            if _sizes(given["param_groups"]) != _sizes(self.param_groups):
                return None  # torch says what is wrong
            groups = self._with_own_parameters(given["param_groups"])
            self._check_names(groups)
            for group in groups:
                self._check_group(group)
            loaded.update(self._own_state(given))
            core.check(self._options(groups), loaded, self._parameters())
            complete = [
                {**merged, "params": saved["params"]}
                for merged, saved in zip(groups, given["param_groups"], strict=True)
            ]
            return {**given, "param_groups": complete, "state": {}}

        def after(_: Optimizer) -> None:
            self.state.update(loaded)
            if core.is_placed and loaded:
                core.resume(self.state, self._parameters())

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
        return {
            **super().__getstate__(),
            "_group": self._group,
            "_recipe": self._recipe,
            "_treatment": self._treatment,
            "_place": self._place,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # torch adds it for optimizers of its own; here it would become an option of every group.
        del self.defaults["differentiable"]
        self._core = None
        self._stepped_with = {}
        self._had_gradients = False
        self._constructing = False
        for group in self.param_groups:
            self._set_missing_options(group)

    def _set_missing_options(self, group: dict[str, Any]) -> None:
        for option, value in self.defaults.items():
            group.setdefault(option, value)

    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuses options that are misspelled, or that torch's optimizers have and this one has not."""
        known = [option.name for option in self._declared]
        for name in _OF_TORCH:
            # False or None in the state dicts of torch's optimizers, which are read.
            if name not in known and group.get(name):
                raise ValueError(
                    f"param group: {type(self).__name__} has no option '{name}' as torch's optimizers do, "
                    f"got {group[name]!r}; leave it out"
                )
        if group.get("decoupled_weight_decay") is False and group.get("weight_decay"):
            raise ValueError(
                "param group: decoupled_weight_decay is False; the decay of "
                f"{type(self).__name__} is decoupled"
            )
        for name in group:
            if name not in known and name not in _NOT_OPTIONS and not name.startswith("_"):
                near = _C.nearest(name, known)
                if near:
                    raise ValueError(
                        f"param group: {unknown_option(type(self).__name__, name, known)}"
                    )

    def _check_options(self, group: dict[str, Any]) -> None:
        values = self._values(group)
        if self._python_rule is None:
            _C.check_options(self._rule, values)

    def _parameters(self) -> list[Tensor]:
        return list(chain.from_iterable(group["params"] for group in self.param_groups))

    def _options(self, groups: ParamGroups) -> list[dict[str, Any]]:
        return [self._values(group) for group in groups if group["params"]]

    def _values(self, group: dict[str, Any]) -> dict[str, Any]:
        """The options of a param group as the core takes them."""
        return {
            name: _number(name, value)
            for name, value in split_betas(
                {option.name: group[option.name] for option in self._declared}
            ).items()
        }

    def _core_rule(self) -> Any:
        return self._rule

    def _make_core(self, groups: ParamGroups) -> _C.Core:
        named = _named(groups)
        check_whole(chain.from_iterable(named))
        gauges: list[_C.Gauge] = []
        if self._group is not None:
            gauges = self._group._core.gauges()
            if gauges and not any("param_names" in group for group in groups):
                raise ValueError(
                    "parameters have no names, by which symmetries find them: "
                    "pass model.named_parameters() instead of model.parameters()"
                )
            self._check_gauges(dict(chain.from_iterable(named)))
        # An optimizer that has placed its weights already is being copied, moved or extended.
        placed = any(
            key.startswith("gauge.") and key.endswith(".element")
            for entry in self.state.values()
            for key in entry
        )
        treatment = self._treatment
        if self._place is not None:
            # Where it was made to be, whatever has been frozen since.
            treatment = {**treatment, "placement": self._place}
        core = _C.Core(
            self._core_rule(),
            named,
            self._options(groups),
            gauges,
            self._recipe,
            treatment,
            placed,
        )
        if gauges:
            self._place = core.report().place
        return core

    def _core_of(self) -> _C.Core:
        assert self._core is not None
        return self._core

    def _refresh(self) -> _C.Core:
        """The core for the parameters that are in the param groups now."""
        key = [
            (index, name, id(p), p.shape, p.dtype, p.device)
            for index, group in enumerate(_named(self.param_groups))
            for name, p in group
        ]
        if self._core is None or key != self._core_key:
            self._core = self._make_core(self.param_groups)
            self._core_key = key
            self._stepped_with = dict(enumerate(self._options(self.param_groups)))
            # Parameters may have another type now, or be elsewhere.
            parameters = self._parameters()
            for index, field, dtype, device in self._core.slots():
                entry = self.state.get(parameters[index], {})
                if isinstance(entry.get(field), Tensor):
                    entry[field] = entry[field].detach().to(device, dtype)
        return self._core

    def _note_symmetries(self) -> None:
        """Writes into the param groups which symmetries they are trained with, for checkpoints."""
        text = _describe(self._core_of(), self._group)
        self.defaults["symmetries"] = text
        for group in self.param_groups:
            group["symmetries"] = text

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
            kept = {option.name: own[option.name] for option in self._declared}
            merged = {**kept, "symmetries": None, **given, "params": own["params"]}
            if "param_names" in own:
                merged.setdefault("param_names", own["param_names"])
            merged.pop("adam_lr_at", None)  # of ddc 0.1
            merged[_FORMAT_KEY] = _FORMAT
            groups.append(merged)
        return groups

    def _check_symmetries(self, groups: ParamGroups) -> None:
        own = self.defaults["symmetries"]
        for index, group in enumerate(groups):
            text = group.get("symmetries")
            if text != own:
                raise ValueError(
                    f"state dict: param group {index} was trained with the symmetries {text}, "
                    f"the optimizer has {own}"
                )

    def _check_names(self, groups: ParamGroups) -> None:
        named = _named(groups)
        if self.defaults["symmetries"] is None:
            return
        for saved, present in zip(named, _named(self.param_groups), strict=True):
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
        parameters = self._parameters()
        kinds = {
            (index, field): (dtype, device)
            for index, field, dtype, device in self._core_of().slots()
        }
        names = [name for name, _ in chain.from_iterable(_named(self.param_groups))]
        result = {}
        for index, (number, parameter) in enumerate(zip(saved, parameters, strict=True)):
            if not given["state"].get(number):
                continue
            result[parameter] = {
                field: _own_value(names[index], field, value, kinds.get((index, field)))
                for field, value in given["state"][number].items()
            }
        return result

    def _upgraded(self, given: StateDict) -> StateDict:
        """A state dict of ddc 0.1 as this version writes it; others as they are."""
        legacy = [group.get("symmetries") for group in given["param_groups"]]
        if not any(isinstance(text, str) and _LEGACY.fullmatch(text) for text in legacy):
            return given
        if self._group is None or any(text != _legacy_digest(self._group) for text in legacy):
            return given  # of another group: refused like any other
        others = [name for name in self._treatment if name != "placement"]
        if self._recipe != "default" or others or self._place != "in_place":
            raise ValueError(
                "state dict: it was written by ddc 0.1, which trained weights in place and knew no "
                'other treatment; load it into an optimizer with placement="in_place" and without recipe '
                "and other treatments"
            )
        own = self.defaults["symmetries"]
        groups = [{**group, "symmetries": own} for group in given["param_groups"]]
        state = {
            number: {
                field: value
                for field, value in fields.items()
                if not (field.endswith(".vertical.step") and int(value) == 0)
            }
            for number, fields in given["state"].items()
        }
        return {**given, "param_groups": groups, "state": state}


def lifted(
    rule: Callable[..., Tensor],
    *,
    init: Callable[[Tensor], dict[str, Tensor]],
    name: str | None = None,
    **defaults: Any,
) -> type[Lifted]:
    """Make an optimizer class of a base rule that is a Python function.

    The rule sees coordinates that no symmetry changes, so the optimizer respects every gauge, whatever
    the rule does. Decay, param groups, checks, checkpoints and reports come with it.

    Parameters
    ----------
    rule : callable
        ``rule(gradient, state, step, **options)`` returns the displacement, without decay. It updates
        the tensors of the dictionary `state` in place and leaves `gradient` alone. `step` counts from 1.
        It is given those of the options that it has parameters for.
    init : callable
        ``init(parameter)`` returns the tensors of the state by name, for a tensor of the parameter's
        shape in the type to compute in.
    name : str, optional
        Name of the class; the rule's by default.
    **defaults
        Options and their defaults. ``lr`` is a must; ``weight_decay`` (decoupled, 0) and ``maximize``
        (False) are there in any case.

    Returns
    -------
    type
        A subclass of :class:`Lifted`.

    Examples
    --------
    >>> def lion(gradient, state, step, lr, betas):
    ...     update = state["exp_avg"].lerp(gradient, 1 - betas[0]).sign_()
    ...     state["exp_avg"].lerp_(gradient, 1 - betas[1])
    ...     return update.mul_(-lr)
    >>> Lion = ddc.lifted(
    ...     lion, init=lambda p: {"exp_avg": torch.zeros_like(p)}, lr=1e-4, betas=(0.9, 0.99))
    >>> optimizer = Lion(torch.nn.Linear(4, 3).parameters(), lr=1e-3)
    """
    if "lr" not in defaults:
        raise ValueError("lifted: a rule needs the option lr with its default")
    title = name or rule.__name__
    options = {**defaults, **{"weight_decay": 0.0, "maximize": False, **defaults}}
    parameters = inspect.signature(rule).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    wanted = [option for option in options if takes_all or option in parameters]
    missing = [
        p.name
        for p in list(parameters.values())[3:]
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in options
    ]
    if missing:
        raise ValueError(f"lifted: {title} has no default for its option {missing[0]}")

    class OwnRule(Lifted):
        _rule = title
        _declared: ClassVar = [Declaration.own(option, value) for option, value in options.items()]
        _python_rule: ClassVar = (rule, init)

        def _core_rule(self) -> Any:
            def step(gradient: Tensor, state: dict[str, Tensor], number: int, group: int) -> Tensor:
                values = [g for g in self.param_groups if g["params"]][group]
                return rule(
                    gradient, state, number, **{option: values[option] for option in wanted}
                )

            return (title, step, init)

        def _values(self, group: dict[str, Any]) -> dict[str, Any]:
            return {
                option: _number(option, group[option])
                for option in ("lr", "weight_decay", "maximize")
            }

        def _options(self, groups: ParamGroups) -> list[dict[str, Any]]:
            return [
                {**values, "group": index} for index, values in enumerate(super()._options(groups))
            ]

    OwnRule.__name__ = OwnRule.__qualname__ = title
    OwnRule.__module__ = rule.__module__
    OwnRule.__doc__ = rule.__doc__ or f"{title} that respects the symmetries of the network."
    return OwnRule


def _as_group(symmetries: Symmetries, params: Params) -> tuple[SymmetryGroup, Params]:
    """The symmetries as a group, and the parameters, which may be an iterator."""
    if isinstance(symmetries, SymmetryGroup):
        return symmetries, params
    if isinstance(symmetries, Sequence) and all(isinstance(g, _C.Gauge) for g in symmetries):
        kept = list(params)
        named: list[tuple[str, Tensor]] = []
        for entry in kept:
            inside = entry["params"] if isinstance(entry, dict) else [entry]
            named += [each for each in inside if isinstance(each, tuple)]
        return SymmetryGroup.of([(plain_name(n), p) for n, p in named], symmetries), kept  # type: ignore[return-value]
    raise TypeError(
        f"symmetries must be a ddc.SymmetryGroup, a list of gauges or None, is "
        f"{type(symmetries).__name__}; ddc.discover(model, loss) makes a group"
    )


def _number(option: str, value: Any) -> Any:
    """A tensor as the number that it holds: schedules change those of learning rates in place."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {option} must be 1-element, has shape {tuple(value.shape)}")
        return value.item()
    return value


def _check_is_state_dict(given: Any) -> None:
    """Refuses what is no state dict of an optimizer at all, as a model's is not."""
    for name, kind in (("state", dict), ("param_groups", list)):
        if not isinstance(given, Mapping) or not isinstance(given.get(name), kind):
            what = f"a {type(given).__name__}"
            if isinstance(given, Mapping):
                what = f"a dict with {', '.join(map(repr, list(given)[:3])) or 'nothing'}"
            raise ValueError(
                f"state dict: '{name}' is missing or no {kind.__name__}: this is {what}, and no "
                "state dict of an optimizer"
            )
    for index, group in enumerate(given["param_groups"]):
        if not isinstance(group, dict) or not isinstance(group.get("params"), list):
            raise ValueError(f"state dict: param group {index} has no list of params")
    for number, entry in given["state"].items():
        if not isinstance(entry, dict):
            raise ValueError(f"state dict: the state of parameter {number!r} is no dict")


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


def _own_value(
    name: str, field: str, value: Any, kind: tuple[torch.dtype, torch.device] | None
) -> Any:
    """A value of the state in the type and the place that the core wants it in, in its own memory."""
    if field == "step":
        return torch.tensor(_step_number(name, value), device="cpu")
    if not isinstance(value, Tensor):
        return value
    if kind is None:
        return value.detach().clone()
    dtype, device = kind
    # What counts or is true or false is not for casting; it is refused if it is something else.
    if not (dtype.is_floating_point and value.is_floating_point()):
        dtype = value.dtype
    return value.detach().to(device, dtype, copy=True)


def _step_number(name: str, value: Any) -> int:
    """The number of steps of a parameter: a float tensor in torch's optimizers, a number in old ones."""
    if not isinstance(value, (int, float, Tensor)):
        raise TypeError(f"state dict: step of '{name}' must be a number, is {value!r}")
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.layout != torch.strided:
            raise ValueError(
                f"state dict: step of '{name}' must be one number, is a tensor of shape "
                f"{list(value.shape)} and type {value.dtype}"
            )
        value = value.item()
    if not math.isfinite(value) or value != int(value) or abs(value) >= 2**63:
        raise ValueError(
            f"state dict: step of '{name}' must be a whole number of 64 bits, is {value}"
        )
    return int(value)


def _check_format(groups: ParamGroups) -> None:
    """Refuses states of later versions. Those of ddc 0.1 and of torch's optimizers have no number."""
    for group in groups:
        found = group.get(_FORMAT_KEY, _FORMAT)
        if type(found) is not int or not 1 <= found <= _FORMAT:
            raise ValueError(
                f"state dict: it is of format {found!r} ('{_FORMAT_KEY}' of its param groups), this version "
                f"of ddc ({_C.__version__}) reads formats up to {_FORMAT}"
            )


def warn_of_no_gradients(optimizer: Optimizer, depth: int) -> bool:
    """Warn if a first step found no gradient because parameters have been replaced. Always True.

    Steps before the first gradient are made to start schedules, and are nothing to warn of; so modules are
    asked whether they have any of the parameters that came with names. `depth` is that of the call that made
    the step.
    """
    groups = optimizer.param_groups
    if any(parameter.grad is not None for group in groups for parameter in group["params"]):
        return True
    named = {id(p) for group in groups if "param_names" in group for p in group["params"]}
    # type(): isinstance would ask proxies for their class, which may do anything.
    modules = (each for each in gc.get_objects() if issubclass(type(each), nn.Module))
    present = (id(p) for module in modules for p in module.__dict__.get("_parameters", {}).values())
    if named and not any(each in named for each in present):
        warnings.warn(
            f"{type(optimizer).__name__}: nothing was stepped: no parameter has a gradient, and no module "
            "has any of these parameters now. Make the optimizer after fully_shard, and after whatever else "
            "replaces the parameters of a model",
            stacklevel=depth,
        )
    return True


def _describe(core: _C.Core, group: SymmetryGroup | None) -> str | None:
    """A line that tells symmetries and their treatment apart, for checkpoints and for printing."""
    gauges = core.gauges()
    if group is None or not gauges:
        return None
    digest = hashlib.sha256(core.symmetries().encode()).hexdigest()[:16]
    report = core.report()
    place = "in place" if report.place == "in_place" else "at their canonical place"
    return f"{len(gauges)} gauges of dimension {report.dimension}, {place}; {digest}"


# What ddc 0.1 wrote into param groups.
_LEGACY = re.compile(r"\d+ gauges of dimension \d+, [0-9a-f]{12}")


def _legacy_digest(group: SymmetryGroup) -> str:
    what = repr([(g.name, g.action, g.legs, g.channels, g.block) for g in group.gauges])
    digest = hashlib.sha256(what.encode()).hexdigest()[:12]
    return f"{len(group)} gauges of dimension {group.dimension}, {digest}"


def declared_rules() -> Mapping[str, dict[str, Any]]:
    """Base rules of the library by name: ``name``, ``help``, ``options``."""
    return {rule["name"]: rule for rule in _C.rules()}
