"""Any optimizer of torch on weights that are held at their canonical place."""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddc import _C
from ddc._model import check_whole, parameters_of, plain_name
from ddc._options import TREATMENT, unknown_option
from ddc.optim import Lifted, warn_of_no_gradients
from ddc.symmetry import Element, SymmetryGroup, digest, touched

_KEY = "ddc"
_FORMAT = 1
# Names of state that is a second set of weights, which moves along orbits would have to move as well.
_COPIES_OF_WEIGHTS = ("z", "slow_buffer", "slow_params", "slow_weights")
# How well sums over weights are met again after a move there and back.
_ACCURACY = {torch.float32: 1e-4, torch.float64: 1e-9}

Named = list[tuple[str, Tensor]]

# For the moment in which a thread takes an optimizer for its step.
_taking = threading.Lock()


class Hold:
    """Weights held at their canonical place while any optimizer steps them. Made by :func:`hold`.

    It is registered at the optimizer by hooks, and lives as long as that does. Copies and pickles of the
    optimizer bring a `Hold` of their own, and those of a `Hold` its optimizer; copy the model with them.

    Attributes
    ----------
    optimizer : Optimizer
    symmetries : SymmetryGroup
    """

    # The parameters of the optimizer as they were when it was held, whichever group they are in now.
    _known: Named | None = None
    # The thread of the step that is under way, and what its writes are counted from.
    _stepping: tuple[int, int] | None = None
    # Steps within steps: the class of the optimizer, and the one that it was made from, both call hooks.
    _depth = 0
    _had_gradients = False

    def __init__(
        self,
        optimizer: Optimizer,
        symmetries: SymmetryGroup,
        names: list[list[str]],
        treatment: dict[str, Any],
    ) -> None:
        self.optimizer = optimizer
        self.symmetries = symmetries
        self._names = names
        self._treatment = treatment
        self._gauges = symmetries._core.gauges()
        self._digest = digest(self._gauges, treatment)
        self._away: _Away | None = None
        self._handles: list[Any] = []
        self._pending: tuple[dict[str, Tensor], Named] | None = None
        parameters = self._parameters()
        # Until the first step, so that a checkpoint of these weights can be gone on with exactly.
        self._found: Named | None = _copies(parameters)
        self._placement = _C.Placement(parameters, self._gauges, treatment)
        self._placed_at = _sums(parameters)
        self._register()

    @property
    def element(self) -> Element:
        """The move from the original place of the weights to the canonical one.

        ``hold.element.inverse().apply_(average)`` takes an average of held weights to the original place.
        """
        return Element.of(self.symmetries, self._placement.elements()).inverse()

    @property
    def place(self) -> str:
        """Where the weights are now: ``"canonical"``, or ``"original"``."""
        return "original" if self._placement.is_original else "canonical"

    @contextmanager
    def original(self) -> Iterator[None]:
        """Put the weights at their original place for the time of a ``with``.

        The function is the same. No step can be made there. What is changed of the weights in the
        meantime comes along to the canonical place; if nothing is, they are the same to the last bit
        afterwards.
        """
        self._check_alone()
        if self._placement.is_original:
            raise RuntimeError("hold: the weights are at their original place already")
        parameters = self._parameters()
        canonical = _copies(parameters)
        self._placement.to_original()
        self._away = _Away(canonical, _sums(parameters))
        try:
            yield
        finally:
            away, self._away = self._away, None
            if away.weights is not None and _sums(parameters) == away.original:
                _write(away.weights, parameters)
                self._placement.loaded(at_original=False)
            else:
                self._placement.to_canonical()

    def distance_to_section(self) -> float:
        """By how much the weights miss their canonical place.

        The largest log-ratio of two sides, mean, or relative difference of Gram matrices.
        """
        return self._placement.distance_to_section()

    def remove(self) -> None:
        """Let go: the optimizer is as it was, the weights stay at their canonical place."""
        if self._placement.is_original:
            raise RuntimeError(
                "hold: the weights are at their original place; leave the with first"
            )
        for handle in self._handles:
            handle.remove()
        self._handles = []
        del self.optimizer.__dict__["__reduce_ex__"]

    def __repr__(self) -> str:
        held = "" if self._handles else ", removed"
        return f"<Hold: {type(self.optimizer).__name__}, {self._digest}{held}>"

    # ---- Hooks -----------------------------------------------------------------------------------

    def _register(self) -> None:
        optimizer = self.optimizer
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._before_load),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]
        # torch leaves hooks out of copies and pickles, which look for this at the object.
        optimizer.__dict__["__reduce_ex__"] = self._reduce_optimizer

    def _before_step(self, *_: Any) -> None:
        with _taking:
            self._check_alone()
            if self._stepping is not None and self._steps_on_stack(sys._getframe()) > 1:
                self._depth += 1
                return
            unfinished, self._stepping = self._stepping, (threading.get_ident(), self._writes())
            self._depth = 1
        try:
            self._check_step(unfinished)
        except BaseException:
            self._stepping = None
            raise

    def _check_step(self, unfinished: tuple[int, int] | None) -> None:
        if unfinished is not None and unfinished[1] != self._writes():
            warnings.warn(
                f"hold: a step of {type(self.optimizer).__name__} before this one was interrupted or has "
                "failed after it had begun to write: some parameters, or their state, may be a step "
                "ahead of others. Load a checkpoint of both if that matters",
                RuntimeWarning,
                stacklevel=4,
            )
        present = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        for name, parameter in self._parameters():
            if id(parameter) not in present:
                raise RuntimeError(
                    f"hold: the parameter '{name}' is not in the optimizer's param groups any more; if "
                    "it was replaced, remove() the hold and hold the optimizer anew, with "
                    "optimizer.state.clear()"
                )
        if self._placement.is_original:
            raise RuntimeError(
                "hold: the weights are at their original place; make steps outside of the with"
            )
        if self._found is not None:
            if _sums(self._parameters()) != self._placed_at:
                raise RuntimeError(
                    "hold: the weights have been changed since they were placed, and are not at "
                    "their canonical place: load or initialise them before ddc.hold, or load the "
                    "optimizer's state dict after them"
                )
            self._found = None

    def _after_step(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._stepping = None
        if not self._had_gradients:
            self._had_gradients = warn_of_no_gradients(self.optimizer, depth=4)
        self._placement.restore()

    def _check_alone(self) -> None:
        """Refuses what would happen in the middle of another thread's step."""
        owner = self._stepping[0] if self._stepping is not None else None
        if owner in (None, threading.get_ident()):
            return
        # A step that has failed has left its thread's name here: only the thread itself tells.
        frame = sys._current_frames().get(owner)
        if self._steps_on_stack(frame) > 0:
            raise RuntimeError("another thread is in the middle of a step of this optimizer")

    def _steps_on_stack(self, frame: FrameType | None) -> int:
        """How many calls of a step, as torch wraps it with its hooks, are under way in a thread."""
        steps = 0
        while frame is not None:
            is_step = (
                frame.f_code.co_name == "wrapper"
                and os.path.join("torch", "optim") in frame.f_code.co_filename
            )
            steps += is_step and frame.f_locals.get("self") is self.optimizer
            frame = frame.f_back
        return steps

    def _writes(self) -> int:
        """How often parameters and state have been written to."""
        optimizer = self.optimizer
        count: int = sum(p._version for group in optimizer.param_groups for p in group["params"])
        for entry in optimizer.state.values():
            if isinstance(entry, dict):
                count += sum(v._version for v in entry.values() if isinstance(v, Tensor))
        return count

    def _save(self, _: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        self._check_alone()
        weights = self._canonical()
        state = {
            name: tensor.clone()
            for name, tensor in self._placement.state().items()
            if not _is_copy(name, tensor, dict(weights))
        }
        return {
            **state_dict,
            _KEY: {
                "format": _FORMAT,
                "symmetries": self._digest,
                "place": self.place,
                "sums": _sums(weights),
                "state": state,
            },
        }

    def _before_load(self, _: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        """Refuses what does not fit before anything is changed; `_after_load` changes it."""
        self._check_alone()
        self._pending = None
        given = state_dict.get(_KEY)
        if given is None:
            raise ValueError(
                "state dict: it was saved without ddc.hold, by an optimizer of weights at another "
                "place; load it before ddc.hold"
            )
        _check_layout(given)
        if given["symmetries"] != self._digest:
            raise ValueError(
                f"state dict: it was saved with the symmetries {given['symmetries']} (and their "
                f"treatment), these are {self._digest}"
            )
        if [len(group["params"]) for group in state_dict["param_groups"]] != [
            len(group["params"]) for group in self.optimizer.param_groups
        ]:
            return None  # torch says what is wrong
        sums, parameters = len(given["sums"]), len(self._parameters())
        if sums != parameters:
            raise ValueError(
                f"state dict: its 'sums' are of {sums} tensors, gauges act on {parameters} here"
            )
        own = self._placement.state()
        state = dict(given["state"])
        for name, tensor in own.items():
            if name in state:
                state[name] = state[name].detach().to(tensor.device)
        omitted = [name for name in own if name not in state and _anchored(name)]
        self._placement.check_state({**state, **{name: own[name] for name in omitted}})
        weights = self._weights_of(state, given["sums"])
        by_name = dict(weights)
        for name in omitted:
            state[name] = by_name[_anchored(name)]
        self._pending = state, weights
        return {key: value for key, value in state_dict.items() if key != _KEY}

    def _after_load(self, _: Optimizer) -> None:
        if self._pending is None:
            return
        (state, weights), self._pending = self._pending, None
        self._stepping = None
        was_original = self._placement.is_original
        # Some load an optimizer's own state into it, to move it to another device.
        if self._found is not None and _sums(weights) != self._placed_at:
            self._found = None
        _write(weights, self._parameters())
        self._placement.load(state, at_original=False)
        if was_original:
            assert self._away is not None
            self._placement.to_original()
            self._away.weights = None

    def _weights_of(self, state: dict[str, Tensor], sums: list[list[float]]) -> Named:
        """The weights that are in the model, at the canonical place of a checkpoint.

        They may have been loaded before `hold`, which has moved them, or after it; and saved at the
        canonical place or at the original one. Sums over them tell which.
        """
        present = self._parameters()
        starts = [_copies(present)]
        if self._away is not None:
            starts.append(self._canonical())
        if self._found is not None and _sums(self._canonical()) == self._placed_at:
            starts.insert(0, self._found)
        to_canonical = Element.of(
            self.symmetries,
            [(name, state[f"{name}/element"]) for name, _ in self._placement.elements()],
        ).inverse()
        for start in starts:
            if _met(_sums(start), sums, start):
                return start
        for start in starts:
            moved = _copies(start)
            to_canonical._act_(moved)
            if _met(_sums(moved), sums, moved):
                return moved
        raise ValueError(
            "state dict: the weights of the model are not those that it was saved with, at the "
            "canonical place or at the original one: load the model's state dict before the "
            "optimizer's"
        )

    # ---- What it looks at ------------------------------------------------------------------------

    def _parameters(self) -> Named:
        """The parameters that gauges move, or look at."""
        if self._known is None:
            self._known = []
            for names, group in zip(self._names, self.optimizer.param_groups, strict=False):
                self._known += zip(names, group["params"], strict=True)
        return touched(self._gauges, self._known)

    def _names_now(self) -> list[list[str]]:
        """Names by param group, between which parameters may have been moved, and others added."""
        self._parameters()
        known = {id(parameter): name for name, parameter in self._known or []}
        return [
            [known.get(id(p), f"added{g}.{i}") for i, p in enumerate(group["params"])]
            for g, group in enumerate(self.optimizer.param_groups)
        ]

    def _canonical(self) -> Named:
        """Weights at their canonical place, wherever they are now."""
        if self._away is None:
            return self._parameters()
        if self._away.weights is not None:
            return self._away.weights
        moved = _copies(self._parameters())
        self.element._act_(moved)
        return moved

    # ---- Copies ----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if self._away is not None:
            raise RuntimeError(
                "hold: it cannot be copied while its weights are at their original place"
            )
        return {
            "optimizer": self.optimizer,
            "symmetries": self.symmetries,
            "names": self._names_now(),
            "treatment": self._treatment,
            "state": {name: tensor.clone() for name, tensor in self._placement.state().items()},
            "found": self._found,
            "placed_at": self._placed_at,
            "held": bool(self._handles),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.optimizer = state["optimizer"]
        self._copied: dict[str, Any] | None = state
        if "__setstate__" not in self.optimizer.__dict__:
            self._complete()  # Else it comes first, is not made up yet, and sees to it.

    def _complete(self) -> None:
        state, self._copied = self._copied, None
        assert state is not None
        self.symmetries = state["symmetries"]
        self._names = state["names"]
        self._treatment = state["treatment"]
        self._gauges = self.symmetries._core.gauges()
        self._digest = digest(self._gauges, self._treatment)
        self._away = self._pending = None
        parameters = self._parameters()
        weights = _copies(parameters)
        self._placement = _C.Placement(parameters, self._gauges, self._treatment)
        _write(weights, parameters)
        self._placement.load(state["state"], at_original=False)
        self._found = state["found"]
        self._placed_at = state["placed_at"]
        self._handles = []
        if state["held"]:
            self._register()

    def _reduce_optimizer(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """What a copy or a pickle of the held optimizer is made of: what it would be, and the hold."""
        optimizer = self.optimizer
        plain = type(optimizer).__reduce_ex__(optimizer, protocol)
        if isinstance(plain, str) or any(part is not None for part in plain[3:]):
            raise TypeError(f"hold: {type(optimizer).__name__} is copied in a way of its own")
        state = plain[2] if len(plain) > 2 else None
        if isinstance(state, dict):
            state = {key: value for key, value in state.items() if key != "__reduce_ex__"}
        return _empty_optimizer, plain[:2], {"optimizer": state, "hold": self}


def _empty_optimizer(make: Callable[..., Optimizer], arguments: tuple[Any, ...]) -> Optimizer:
    """The copy of a held optimizer before it has a state."""
    optimizer = make(*arguments)
    optimizer.__dict__["__setstate__"] = functools.partial(_fill_optimizer, optimizer)
    return optimizer


def _fill_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    hold = state["hold"]
    other = hold.__dict__.get("optimizer")
    if other is not None and other is not optimizer:
        raise TypeError(
            "hold: a shallow copy (copy.copy) of a held optimizer would step the same weights and "
            "not move them back; use copy.deepcopy, with the model"
        )
    del optimizer.__dict__["__setstate__"]
    if state["optimizer"] is not None:
        optimizer.__setstate__(state["optimizer"])
    if other is not None:
        hold._complete()  # Else it comes first, and does so when it has its state.


class _Away:
    """Weights that are at their original place: what they were, and what to know them by."""

    def __init__(self, weights: Named, original: list[list[float]]) -> None:
        self.weights: Named | None = weights
        self.original = original


def hold(
    optimizer: Optimizer,
    symmetries: SymmetryGroup | Sequence[_C.Gauge],
    every: int | dict[str, int] | None = None,
    *,
    model: nn.Module | None = None,
    **treatment: Any,
) -> Hold:
    """Make any optimizer of torch respect symmetries, by holding the weights at their canonical place.

    Moves the weights along their orbits, once, to where two copies of one function have the same numbers:
    what a deterministic optimizer does there it does to all copies alike. After its steps a hook moves the
    weights back there, again along orbits. The optimizer, its state, schedulers, ``GradScaler``, clipping
    and averages of weights (EMA, SWA) need not know of it, and are invariant with it.

    The optimizer makes its own step, and a move that changes no function follows: gains that are held at
    one, or vectors that are held empty, do take steps, which are then folded into the weights that read
    them.

    Tensors that rotations and linear groups turn are kept as they were at the last move, which takes their
    memory once more. The rotation of a residual stream is placed and not held, unless `every` or
    ``project={"residual rotation": "step"}`` says so.

    Parameters
    ----------
    optimizer : Optimizer
        Before its first step. Constructed with ``model.named_parameters()``, or else `model` must be
        given.
    symmetries : SymmetryGroup, or sequence of Gauge
    every : int, or dict from kinds or names of gauges to int
        Steps between two moves back. By default 10 for rotations and linear groups, 1 for others.
    model : Module, optional
        Gives the parameters their names.
    **treatment
        Treatment of gauges, as for the optimizers of this package: ``coordinates="standard"``, or
        ``project={"VO linear": "never"}``.

    Returns
    -------
    Hold

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Before anything is moved: for parameters of 16 bits, frozen or sharded ones, or such as the
        optimizer does not have; for optimizers that are held already, have made steps, or keep copies of
        weights.

    Examples
    --------
    >>> optimizer = torch.optim.AdamW(model.named_parameters(), fused=True)   # doctest: +SKIP
    >>> hold = ddc.hold(optimizer, ddc.discover(model, loss))   # doctest: +SKIP
    >>> with hold.original():   # doctest: +SKIP
    ...     torch.save(model.state_dict(), "model.pt")
    """
    _check_optimizer(optimizer)
    for name in treatment:
        if name not in TREATMENT:
            raise TypeError(unknown_option("ddc.hold", name, list(TREATMENT)))
    options = {name: value for name, value in treatment.items() if value is not None}
    names = _names_of(optimizer, model)
    named: Named = []
    for own, group in zip(names, optimizer.param_groups, strict=True):
        named += zip(own, group["params"], strict=True)
    if not isinstance(symmetries, SymmetryGroup):
        if not all(isinstance(gauge, _C.Gauge) for gauge in symmetries):
            raise TypeError(
                f"symmetries must be a ddc.SymmetryGroup or a list of gauges, is "
                f"{type(symmetries).__name__}; ddc.discover(model, loss) makes a group"
            )
        symmetries = SymmetryGroup.of(named, symmetries)
    _check_parameters(symmetries, dict(named))
    if every is not None:
        options["every"] = every
    return Hold(optimizer, symmetries, names, options)


def _check_optimizer(optimizer: Optimizer) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"hold: a torch.optim.Optimizer is needed, got {type(optimizer).__name__}")
    kind = type(optimizer).__name__
    hooks = getattr(optimizer, "_optimizer_step_post_hooks", None)
    if hooks is None:
        raise TypeError(f"hold: {kind} wraps another optimizer; hold the one that is inside")
    if any(isinstance(getattr(hook, "__self__", None), Hold) for hook in hooks.values()):
        raise ValueError(f"hold: this {kind} is held already; remove() the first hold")
    if isinstance(optimizer, Lifted) and optimizer.symmetries is not None:
        raise ValueError(f"hold: this {kind} respects symmetries itself")
    ancestors = [cls.__name__ for cls in type(optimizer).__mro__]
    stored = {key for entry in optimizer.state.values() if isinstance(entry, dict) for key in entry}
    copies = [key for key in _COPIES_OF_WEIGHTS if key in stored]
    if copies or any("ScheduleFree" in name or "Lookahead" in name for name in ancestors):
        where = f" ('{copies[0]}')" if copies else ""
        raise ValueError(
            f"hold: {kind} keeps copies of the weights in its state{where}, which would stay behind "
            "when weights are moved along their orbits"
        )
    if any(_has_stepped(entry) for entry in optimizer.state.values()):
        raise ValueError(
            f"hold: this {kind} has made steps, and its state is of the weights where they are: hold "
            "it before its first step, or start afresh with optimizer.state.clear()"
        )


def _has_stepped(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    if "step" in entry:
        return float(entry["step"]) > 0
    return any(isinstance(v, Tensor) and bool(v.detach().count_nonzero()) for v in entry.values())


def _names_of(optimizer: Optimizer, model: nn.Module | None) -> list[list[str]]:
    groups = optimizer.param_groups
    if model is not None:
        known = {id(tensor): name for name, tensor in parameters_of(model)}
        for index, group in enumerate(groups):
            for place, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    raise ValueError(
                        f"hold: parameter {place} of param group {index}, of shape "
                        f"{list(parameter.shape)}, is none of the model's"
                    )
        return [[known[id(parameter)] for parameter in group["params"]] for group in groups]
    if not all("param_names" in group for group in groups):
        raise ValueError(
            "hold: parameters have no names, by which symmetries find them: construct the optimizer "
            "with model.named_parameters(), or pass model=model"
        )
    return [[plain_name(name) for name in group["param_names"]] for group in groups]


def _check_parameters(symmetries: SymmetryGroup, present: dict[str, Tensor]) -> None:
    check_whole(present.items())
    shapes = dict(symmetries._core.parameters)
    for gauge in symmetries._core.gauges():
        for leg in gauge.legs:
            through = leg.through
            for name in filter(None, (leg.tensor, through.gain, through.shift, through.bias)):
                where = f"hold: gauge '{gauge.name}' acts on the parameter '{name}'"
                if name not in present:
                    raise ValueError(
                        f"{where}, which the optimizer does not have. If it is not to be trained, "
                        "set requires_grad to False before discovery"
                    )
                tensor = present[name]
                if list(tensor.shape) != shapes[name]:
                    raise ValueError(
                        f"{where} of shape {shapes[name]}, which has shape {list(tensor.shape)}: it "
                        "is flattened, or of another model"
                    )
                if not tensor.requires_grad:
                    raise ValueError(
                        f"{where}, which is frozen (requires_grad=False): holding would move it. "
                        "Freeze before discovery, or leave the gauge out with symmetries.without"
                    )
                if tensor.dtype not in _ACCURACY:
                    raise ValueError(
                        f"{where} of type {tensor.dtype}: factors near one round to one there, and "
                        "the function would change; holding needs float32 or float64"
                    )


def _check_layout(given: Any) -> None:
    """Refuses what is not what `Hold._save` writes."""
    where = f"state dict: what it has under '{_KEY}'"
    if not isinstance(given, dict):
        raise ValueError(f"{where} is a {type(given).__name__}, must be a dict")
    if given.get("format") != _FORMAT:
        raise ValueError(
            f"{where} is not of this version of ddc: it is of format {given.get('format')!r}, this one "
            f"reads {_FORMAT}"
        )
    for key, kind in (("symmetries", str), ("sums", list), ("state", dict)):
        if not isinstance(given.get(key), kind):
            found = f"is a {type(given[key]).__name__}" if key in given else "is missing"
            raise ValueError(f"{where}: '{key}' {found}, must be a {kind.__name__}")
    for name, value in given["state"].items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{where}: '{name}' of its state is a {type(value).__name__}, must be a tensor"
            )
    for sums in given["sums"]:
        numbers = isinstance(sums, list) and all(isinstance(each, float) for each in sums)
        if not numbers or len(sums) != 4 or any(map(math.isnan, sums)):
            raise ValueError(
                f"{where}: 'sums' must hold four numbers for each tensor of weights, one of which has {sums}"
            )


def _copies(named: Named) -> Named:
    return [(name, tensor.detach().clone()) for name, tensor in named]


def _write(weights: Named, parameters: Named) -> None:
    with torch.no_grad():
        for (_, value), (_, parameter) in zip(weights, parameters, strict=True):
            parameter.copy_(value)


def _sums(named: Named) -> list[list[float]]:
    """Sums that tell weights from others: of entries, of sizes, of squares, and of entries by place."""
    with torch.no_grad():
        return [_sums_of(tensor.detach().double().flatten()) for _, tensor in named]


def _sums_of(entries: Tensor) -> list[float]:
    places = torch.arange(entries.numel(), dtype=entries.dtype, device=entries.device)
    by_place = entries.dot(places.mul_(0.6180339887498949).frac_())
    sums = entries.sum(), entries.abs().sum(), entries.square().sum(), by_place
    return [float(each) for each in sums]


def _met(sums: list[list[float]], saved: list[list[float]], named: Named) -> bool:
    """Whether weights have the sums of others, but for rounding."""
    if len(sums) != len(saved):
        return False
    mean = sum(each[1] for each in saved) / max(sum(tensor.numel() for _, tensor in named), 1)
    for (_, tensor), own, other in zip(named, sums, saved, strict=True):
        # Some tensors are held empty, but for rounding errors of the others' size.
        size = max(other[1], tensor.numel() * mean)
        scales = size, size, max(other[2], size * mean), size
        for mine, theirs, scale in zip(own, other, scales, strict=True):
            if abs(mine - theirs) > _ACCURACY[tensor.dtype] * scale:
                return False
    return True


def _anchored(name: str) -> str:
    """The parameter that an entry of the state is a copy of: "NAME/anchor5"."""
    stem, _, field = name.rpartition("/")
    return stem if field.startswith("anchor") else ""


def _is_copy(name: str, tensor: Tensor, weights: dict[str, Tensor]) -> bool:
    weight = weights.get(_anchored(name))
    return weight is not None and torch.equal(tensor, weight.detach())
