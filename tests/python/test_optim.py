"""PyTorch's own tests of optimizers (TestOptimRenewed of its test/test_optim.py), for ours.

A test here has the name of the one whose counterpart it is. These have none:

- there is one implementation, without `foreach`: test_foreach_matches_forloop,
  test_foreach_large_tensor, test_peak_memory_foreach, test_defaults_changed_to_foreach;
- nor `fused`: test_fused_matches_forloop, test_fused_large_tensor, test_fused_cpu_matches_device,
  test_fused_error_on_params_on_meta, test_fused_does_not_step_if_foundinf, and
  test_fused_mixed_precision_{state_init,hook_skips_existing_state,numerics};
- nor `differentiable`: TestDifferentiableOptimizer;
- CUDA: test_forloop_goes_right_direction_multigpu, test_state_dict_with_cuda_params, and what
  others do with `capturable`;
- LBFGS alone: test_second_order_optims_return_consistent_types, test_step_iteration;
- schedulers and averages: TestLRScheduler, TestSWAUtils. test_torch_suites.py has them by name.

Complex parameters and sparse gradients are refused, and their tests check that this is said.
"""

from __future__ import annotations

import copy
import io
import warnings
from contextlib import nullcontext
from typing import Any

import ddc
import pytest
import torch
from optim_support import (
    EVERY,
    Case,
    Lion,
    backward,
    every_case,
    every_case_and_hold,
    every_kind,
    loss_on,
    network,
    same,
    train,
    weights,
    with_marks,
)
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
    optim_db,
)


def _inputs(options: dict[str, dict[str, Any]]) -> list[OptimizerInput]:
    return [
        OptimizerInput(params=None, kwargs=kwargs, desc=desc) for desc, kwargs in options.items()
    ]


def adam_inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    return _inputs(
        {
            "default": {},
            "non-default lr": {"lr": 0.01},
            "Tensor lr": {"lr": torch.tensor(0.001)},
            "non-default betas and eps": {"betas": (0.8, 0.95), "eps": 1e-6},
            "nonzero weight_decay": {"weight_decay": 0.1},
            "maximize": {"weight_decay": 0.1, "maximize": True},
        }
    )


def muon_inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    return _inputs(
        {
            "default": {},
            "non-default lr": {"lr": 0.01, "adam": {"lr": 0.002, "betas": (0.8, 0.95)}},
            "Tensor lr": {"lr": torch.tensor(0.001)},
            "no nesterov": {"nesterov": False, "momentum": 0.8},
            "fast, matched to AdamW": {"method": "fast", "scale": "match_rms_adamw"},
            "nonzero weight_decay": {"weight_decay": 0.2, "adam": {"weight_decay": 0.1}},
            "all by Adam": {"use_adam": True},
            "maximize": {"maximize": True},
        }
    )


def sgd_inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    return _inputs(
        {
            "default": {},
            "non-default lr": {"lr": 0.01},
            "Tensor lr": {"lr": torch.tensor(0.001)},
            "momentum": {"momentum": 0.9, "dampening": 0.5},
            "nesterov": {"momentum": 0.9, "nesterov": True},
            "nonzero weight_decay": {"weight_decay": 0.1},
            "maximize": {"weight_decay": 0.1, "maximize": True},
        }
    )


def factored_inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    return _inputs(
        {
            "default": {},
            "Tensor lr": {"lr": torch.tensor(0.001)},
            "non-default betas and eps": {"lr": 0.002, "betas": (0.8, 0.95), "eps": 1e-6},
            "maximize": {"weight_decay": 0.1, "maximize": True},
        }
    )


def plain_muon_inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    wanted = ("default", "Tensor lr", "no nesterov", "maximize")
    return [given for given in muon_inputs(device, dtype) if given.desc in wanted]


def lion_inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    return _inputs(
        {
            "default": {},
            "Tensor lr": {"lr": torch.tensor(0.001)},
            "non-default betas": {"lr": 0.002, "betas": (0.8, 0.95)},
            "maximize": {"weight_decay": 0.1, "maximize": True},
        }
    )


def _bad(message: str, **kwargs: Any) -> ErrorOptimizerInput:
    return ErrorOptimizerInput(
        OptimizerInput(params=[nn.Parameter(torch.ones(1, 1))], kwargs=kwargs, desc=message),
        error_type=ValueError,
        error_regex=message,
    )


def adam_errors(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
    return get_error_inputs_for_all_optims(device, dtype) + [
        _bad("option lr must be finite and >= 0, got -1", lr=-1),
        _bad("option lr must be a number, got 'fast'", lr="fast"),
        _bad(r"option beta1 must be in \[0, 1\), got 1", betas=(1.0, 0.9)),
        _bad(r"option beta2 must be in \[0, 1\), got -1", betas=(0.9, -1)),
        _bad("option betas must be a pair of numbers, got 0.9", betas=0.9),
        _bad("option eps must be finite and >= 0, got -1", eps=-1),
        _bad("option weight_decay must be finite and >= 0, got nan", weight_decay=float("nan")),
    ]


def muon_errors(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
    return get_error_inputs_for_all_optims(device, dtype) + [
        _bad("option lr must be finite and >= 0, got inf", lr=float("inf")),
        _bad(r"option momentum must be in \[0, 1\), got 1", momentum=1),
        _bad("option weight_decay must be finite and >= 0, got -1", weight_decay=-1),
        _bad("option method must be one of exact, fast, .*got 'slow'", method="slow"),
        _bad("option scale must be one of original, .*got 'none'", scale="none"),
        _bad("adam: option lr must be finite and >= 0, got -1", adam={"lr": -1}),
        _bad("adam has no option 'momentum'; it has lr, betas", adam={"momentum": 0.9}),
        _bad("adam: option betas must be a pair of numbers", adam={"betas": (0.9,)}),
    ]


def errors_of_all(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
    return get_error_inputs_for_all_optims(device, dtype) + [
        _bad("option lr must be finite and >= 0, got -1", lr=-1),
        _bad("option weight_decay must be finite and >= 0, got -1", weight_decay=-1),
    ]


INFOS = {
    kind: OptimizerInfo(
        kind,
        optim_inputs_func=inputs,
        optim_error_inputs_func=errors,
        supported_impls=(),
        not_og_supported_flags=("maximize",),
        supports_sparse=False,
        supports_complex=False,
        supports_fused_on=(),
    )
    for kind, inputs, errors in (
        (ddc.DDCAdam, adam_inputs, adam_errors),
        (ddc.DDCMuon, muon_inputs, muon_errors),
        (ddc.DDCSgd, sgd_inputs, errors_of_all),
        (ddc.DDCShampoo, factored_inputs, errors_of_all),
        (ddc.DDCSoap, factored_inputs, errors_of_all),
        (ddc.Muon, plain_muon_inputs, errors_of_all),
        (Lion, lion_inputs, get_error_inputs_for_all_optims),
    )
}
optim_db.extend(INFOS.values())


def inputs_of(case: Case) -> list[tuple[Case, OptimizerInput]]:
    """All options there are; the default ones with all gauges, others without the slow one."""
    return [
        (case if given.desc == "default" else case.light(), given)
        for given in INFOS[case.kind].optim_inputs_func("cpu")
    ]


every_input = pytest.mark.parametrize(
    ("case", "options"),
    [
        pytest.param(
            case, given.kwargs, id=f"{case}-{given.desc}", marks=with_marks(kind_and_group).marks
        )
        for kind_and_group in EVERY
        for case, given in inputs_of(kind_and_group)
    ],
)


def without_decay(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    options = {**options, "weight_decay": 0.0}
    if issubclass(case.kind, ddc.DDCMuon):
        options["adam"] = {**options.get("adam", {}), "weight_decay": 0.0}
    return options


def direction(options: dict[str, Any]) -> int:
    return -1 if options.get("maximize") else 1


@every_kind
def test_optim_infos_do_not_specify_global_cliquey_kwargs(kind):
    assert INFOS[kind] in optim_db
    for given in INFOS[kind].optim_inputs_func("cpu"):
        assert not {"foreach", "fused", "differentiable"} & given.kwargs.keys()
        kind([nn.Parameter(torch.ones(2, 2))], **given.kwargs)


@every_case
def test_errors(case):
    for error in INFOS[case.kind].optim_error_inputs_func("cpu", torch.float32):
        given = error.optimizer_error_input
        if error.error_type is UserWarning:
            # torch only warns of duplicates. A parameter that is stepped twice is an error here.
            with (
                pytest.warns(UserWarning, match=error.error_regex),
                pytest.raises((RuntimeError, ValueError), match="already there|no names"),
            ):
                case.make(given.params, **given.kwargs)
            continue
        if error.error_type is FutureWarning:
            # Parameters in a set, of which torch warns from 2.15 on. They have no names.
            refused = pytest.raises(ValueError, match="no names") if case.grouped else nullcontext()
            with pytest.warns(FutureWarning, match=error.error_regex), refused:
                case.make(given.params, **given.kwargs)
            continue
        with pytest.raises(error.error_type, match=error.error_regex):
            case.make(given.params, **given.kwargs)


@every_input
def test_param_groups_weight_decay(case, options):
    """Per group, and as if the groups were trained by optimizers of their own."""
    model = network()
    named = list(model.named_parameters())
    given = without_decay(case, options)
    decay = {"weight_decay": 0.7}
    if issubclass(case.kind, ddc.DDCMuon):
        decay["adam"] = {"weight_decay": 0.7}
    groups = [{"params": named[::2], **decay}, {"params": named[1::2]}]
    optimizer = case.make(groups, **given)
    for group in optimizer.param_groups:
        decayed = any(group["params"][0] is parameter for _, parameter in named[::2])
        assert group["weight_decay"] == (0.7 if decayed else 0.0)
    train(model, optimizer, range(3))
    if case.grouped:
        # Parameters of a gauge are stepped together, so decay of one is seen in all of them.
        reference = network()
        train(reference, case.make(reference, **given), range(3))
        assert not same(weights(model), weights(reference))
        return
    reference = network()
    named = list(reference.named_parameters())
    decayed = case.make([{"params": named[::2], **decay}], **given)
    kept = case.make(named[1::2], **given)
    for batch in range(3):
        backward(reference, batch)
        decayed.step()
        kept.step()
    assert same(weights(model), weights(reference))


@every_input
def test_param_groups_lr(case, options):
    model = network()
    named = list(model.named_parameters())
    groups = [{"params": named[:2]}, {"params": named[2:], "lr": 0.0}]
    if issubclass(case.kind, ddc.DDCMuon):
        groups[1]["adam"] = {"lr": 0.0}
    before = weights(model)
    optimizer = case.make(groups, **options)
    train(model, optimizer, range(3))
    after = weights(model)
    assert not any(map(torch.equal, before[:2], after[:2]))
    if not case.grouped:
        assert all(map(torch.equal, before[2:], after[2:]))


def goes_right_direction(case, model, options, schedulers=(), params=None):
    optimizer = case.light().make(model if params is None else params, **options)
    schedulers = [make(optimizer) for make in schedulers]
    before = backward(model, 0)
    for _ in range(15):
        value = optimizer.step(lambda: backward(model, 0))
        for scheduler in schedulers:
            metrics = (
                [value] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []
            )
            scheduler.step(*metrics)
    after = loss_on(model, 0)
    assert direction(options) * (before - after) > 0


@pytest.mark.parametrize("with_lrsched", [False, True], ids=["", "schedulers"])
@pytest.mark.parametrize("contiguous", [True, False], ids=["", "strided"])
@every_case
def test_forloop_goes_right_direction(case, contiguous, with_lrsched):
    info = INFOS[case.kind]
    for given in info.optim_inputs_func("cpu"):
        model = network()
        if not contiguous:
            for parameter in model.parameters():
                parameter.data = torch.stack([parameter.data] * 2, -1)[..., 0]
                assert not parameter.is_contiguous()
        for schedulers in info.scheduler_inputs if with_lrsched else [()]:
            goes_right_direction(case, model, given.kwargs, schedulers)


@every_input
def test_param_group_with_lrscheduler_goes_right_direction(case, options):
    for schedulers in INFOS[case.kind].scheduler_inputs:
        model = network()
        named = list(model.named_parameters())
        params = [{"params": named[:1]}, {"params": named[1:], "lr": 0.003}]
        goes_right_direction(case, model, options, schedulers, params)


@pytest.mark.parametrize("shape", [(), (1,)], ids=["0d", "1d"])
@every_case
def test_tensor_lr(case, shape):
    """The same as a number, and may be changed in place; a step leaves it alone."""
    for given in INFOS[case.kind].optim_inputs_func("cpu"):
        options = {key: value for key, value in given.kwargs.items() if key != "lr"}
        if "use_adam" in options:
            continue  # the learning rate is Muon's, which has nothing to step
        model, reference = network(), network()
        lr = torch.full(shape, 0.0078125)
        optimizer = case.light().make(model, lr=lr, **options)
        number = case.light().make(reference, lr=0.0078125, **options)
        train(model, optimizer, range(2))
        train(reference, number, range(2))
        assert lr.item() == 0.0078125
        lr.fill_(0.015625)
        number.param_groups[0]["lr"] = 0.015625
        train(model, optimizer, range(2, 4))
        train(reference, number, range(2, 4))
        assert same(weights(model), weights(reference))


@every_case
def test_rosenbrock_sparse(case):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    backward(model, 2)
    before = copy.deepcopy((weights(model), optimizer.state_dict()))
    model[1].weight.grad = model[1].weight.grad.to_sparse()
    with pytest.raises(
        RuntimeError, match="gradient of '1.weight' is sparse; only dense gradients"
    ):
        optimizer.step()
    assert same((weights(model), optimizer.state_dict()), before)


@every_kind
def test_complex(kind):
    parameter = nn.Parameter(torch.randn(2, 2, dtype=torch.complex64))
    with pytest.raises(RuntimeError, match="'w' must be of a floating-point type, is ComplexFloat"):
        kind([("w", parameter)])


@every_case
def test_complex_2d(case):
    """Also in a group that is added later."""
    model = network()
    optimizer = case.make(model)
    parameter = nn.Parameter(torch.randn(2, dtype=torch.complex128))
    with pytest.raises(RuntimeError, match="'z' must be of a floating-point type"):
        optimizer.add_param_group({"params": [("z", parameter)]})
    assert len(optimizer.param_groups) == (2 if issubclass(case.kind, ddc.DDCMuon) else 1)
    train(model, optimizer, range(1))


@every_case
def test_set_default_dtype_works_with_foreach(case):
    """What the default type is does not matter. (There is no foreach.)"""
    model, reference = network(torch.float32), network(torch.float32)
    optimizer, other = case.make(model), case.make(reference)
    train(reference, other, range(2))
    for batch in range(2):
        backward(model, batch)
        torch.set_default_dtype(torch.float64)
        try:
            optimizer.step()
        finally:
            torch.set_default_dtype(torch.float32)
    assert same(weights(model), weights(reference))
    assert same(optimizer.state_dict(), other.state_dict())


@every_input
def test_step_is_noop_when_params_have_no_grad(case, options):
    model = network()
    optimizer = case.make(model, **options)
    before = weights(model)
    optimizer.step()
    assert same(weights(model), before)


@every_case
def test_step_is_noop_for_zero_grads(case):
    """Without decay, and to rounding where coordinates are gone through."""
    for light, given in inputs_of(case):
        model = network()
        optimizer = light.make(model, **without_decay(case, given.kwargs))
        before = weights(model)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        for was, now in zip(before, weights(model), strict=True):
            torch.testing.assert_close(now, was, rtol=1e-14, atol=1e-14 if case.grouped else 0)


@every_input
def test_optimizer_can_be_printed(case, options):
    text = repr(case.make(network(), **options))
    assert text.startswith(f"{case.kind.__name__} (\nParameter Group 0\n")
    symmetries = f"{len(case.group)} gauges of dimension" if case.grouped else "None"
    assert f"symmetries: {symmetries}" in text
    assert f"maximize: {options.get('maximize', False)}" in text


def named_or_not(model: nn.Module, named: bool) -> list[Any]:
    return list(model.named_parameters() if named else model.parameters())


every_naming = pytest.mark.parametrize(
    ("case", "named0", "named1"),
    [
        pytest.param(
            case, named0, named1, id=f"{case}-{named0}-{named1}", marks=with_marks(case).marks
        )
        for case in EVERY
        for named0 in (True, False)
        for named1 in (True, False)
        if not case.grouped or (named0 and named1)
    ],
)


@every_naming
def test_state_dict_deterministic(case, named0, named1):
    for light, given in inputs_of(case):
        model = network()
        optimizer = light.make(named_or_not(model, named0), **given.kwargs)
        train(model, optimizer, range(2))
        saved = copy.deepcopy(optimizer.state_dict())
        assert same(optimizer.state_dict(), saved)

        other = copy.deepcopy(model)
        twin = light.make(named_or_not(other, named1), **given.kwargs)
        given_state = copy.deepcopy(saved)
        twin.load_state_dict(given_state)
        train(model, optimizer, range(2, 4))
        train(other, twin, range(2, 4))
        assert same(weights(model), weights(other))
        # What was loaded is the caller's still.
        assert same(given_state, saved)
        mine, its = optimizer.state_dict(), twin.state_dict()
        if named0 != named1:
            for packed in mine["param_groups"] + its["param_groups"]:
                packed.pop("param_names", None)
        assert same(mine, its)


@every_input
def test_can_load_older_state_dict(case, options):
    """Options that are newer than the state dict are the optimizer's."""
    model = network()
    optimizer = case.make(model, **options)
    train(model, optimizer, range(2))
    older = copy.deepcopy(optimizer.state_dict())
    for flag in INFOS[case.kind].not_og_supported_flags:
        del older["param_groups"][0][flag]
    other = copy.deepcopy(model)
    resumed = case.make(other, **options)
    resumed.load_state_dict(older)
    assert same(resumed.state_dict(), optimizer.state_dict())
    train(model, optimizer, range(2, 4))
    train(other, resumed, range(2, 4))
    assert same(weights(model), weights(other))


@every_naming
def test_can_load_from_to_named_state_dict(case, named0, named1):
    model = network()
    optimizer = case.make(named_or_not(model, named0))
    train(model, optimizer, range(2))
    other = copy.deepcopy(model)
    twin = case.make(named_or_not(other, named1))
    twin.load_state_dict(optimizer.state_dict())
    names = [name for name, _ in model.named_parameters()]
    if named0 or named1:
        groups = twin.state_dict()["param_groups"]
        assert sorted(name for group in groups for name in group["param_names"]) == sorted(names)
    train(model, optimizer, range(2, 3))
    train(other, twin, range(2, 3))
    assert same(weights(model), weights(other))


@every_input
def test_load_nontensor_step(case, options):
    model = network()
    optimizer = case.make(model, **options)
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    for step_of in (float, int, lambda step: step.float()):
        old = copy.deepcopy(saved)
        for entries in old["state"].values():
            entries["step"] = step_of(entries["step"])
        other = copy.deepcopy(model)
        resumed = case.make(other, **options)
        resumed.load_state_dict(old)
        assert same(resumed.state_dict(), saved)
        resumed.step()


@every_input
def test_deepcopy_copies_all_public_attrs(case, options):
    def public(optimizer: Any) -> set[str]:
        return {name for name in vars(optimizer) if not name.startswith("_")}

    model = network()
    optimizer = case.make(model, **options)
    train(model, optimizer, range(2))
    twin = copy.deepcopy(optimizer)
    assert public(twin) == public(optimizer)
    assert same(twin.state_dict(), optimizer.state_dict())
    assert same(twin.defaults, optimizer.defaults)
    assert twin.symmetries == optimizer.symmetries


@every_case_and_hold
def test_step_post_hook(case):
    model = network()
    optimizer = case.make(model)
    seen = []
    handle = optimizer.register_step_post_hook(
        lambda opt, args, kwargs: seen.append((opt, args, kwargs, model[0].weight.detach().clone()))
    )
    backward(model, 0)
    optimizer.step()
    assert seen[0][0] is optimizer
    assert torch.equal(seen[0][3], model[0].weight)
    handle.remove()
    optimizer.step()
    assert len(seen) == 1


@every_case_and_hold
def test_step_pre_hook(case):
    model = network()
    optimizer = case.make(model)
    before = weights(model)
    seen = []

    def hook(opt, args, kwargs):
        seen.append(weights(model))
        return args, {**kwargs, "closure": lambda: 7.0}

    handle = optimizer.register_step_pre_hook(hook)
    backward(model, 0)
    assert optimizer.step() == 7.0
    assert same(seen, [before])
    handle.remove()
    assert optimizer.step() is None
    assert len(seen) == 1


@every_case_and_hold
def test_step_all_hooks(case):
    optimizer = case.make(network())
    seen = []

    def note(what):
        return lambda opt, args, kwargs: seen.append(what)

    handles = [
        register_optimizer_step_pre_hook(note("global before")),
        register_optimizer_step_post_hook(note("global after")),
        optimizer.register_step_pre_hook(note("before")),
        optimizer.register_step_post_hook(note("after")),
    ]
    order = ["global before", "before", "after", "global after"]
    try:
        optimizer.step()
        assert seen == order
        optimizer.step()
        assert seen == order * 2
    finally:
        for handle in handles:
            handle.remove()
    optimizer.step()
    assert seen == order * 2


@every_case_and_hold
def test_state_dict_pre_hook(case):
    optimizer = case.make(network(), lr=0.5)

    def hook(opt):
        opt.param_groups[0]["lr"] = 0.25

    handle = optimizer.register_state_dict_pre_hook(hook)
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.25
    handle.remove()
    optimizer.param_groups[0]["lr"] = 0.5
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.5


@every_case_and_hold
def test_state_dict_post_hook(case):
    optimizer = case.make(network())
    optimizer.register_state_dict_post_hook(lambda opt, state: state.update(mark=1))
    optimizer.register_state_dict_post_hook(lambda opt, state: {**state, "mark": state["mark"] + 1})
    assert optimizer.state_dict()["mark"] == 2


@every_case_and_hold
def test_state_dict_pre_post_hook(case):
    optimizer = case.make(network(), lr=0.5)
    optimizer.register_state_dict_pre_hook(lambda opt: opt.param_groups[0].update(lr=0.25))

    def after(opt, state):
        state["lr_seen"] = state["param_groups"][0]["lr"]

    optimizer.register_state_dict_post_hook(after)
    assert optimizer.state_dict()["lr_seen"] == 0.25


@every_case_and_hold
def test_load_state_dict_pre_hook_and_prepend(case):
    model = network()
    optimizer = case.make(model, lr=0.5)
    train(model, optimizer, range(2))
    saved = optimizer.state_dict()
    seen = []

    def halve(opt, state):
        seen.append("halve")
        state = copy.deepcopy(state)
        state["param_groups"][0]["lr"] /= 2
        return state

    def first(opt, state):
        seen.append("first")

    optimizer.register_load_state_dict_pre_hook(halve)
    handle = optimizer.register_load_state_dict_pre_hook(first, prepend=True)
    optimizer.load_state_dict(saved)
    assert seen == ["first", "halve"]
    assert optimizer.param_groups[0]["lr"] == 0.25
    handle.remove()
    optimizer.load_state_dict(saved)
    assert seen == ["first", "halve", "halve"]
    assert saved["param_groups"][0]["lr"] == 0.5


@every_case
def test_load_state_dict_post_hook(case):
    """Sees the state as it will stay."""
    model = network(torch.bfloat16)
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    seen = []
    handle = optimizer.register_load_state_dict_post_hook(
        lambda opt: seen.append(copy.deepcopy(opt.state_dict()))
    )
    optimizer.load_state_dict(saved)
    assert same(seen, [saved])
    handle.remove()
    optimizer.load_state_dict(saved)
    assert len(seen) == 1


@every_case_and_hold
def test_load_state_dict_pre_post_hook(case):
    model = network()
    optimizer = case.make(model, lr=0.5)
    train(model, optimizer, range(2))

    def before(opt, state):
        return {**state, "param_groups": [{**g, "lr": 0.125} for g in state["param_groups"]]}

    optimizer.register_load_state_dict_pre_hook(before)
    seen = []
    optimizer.register_load_state_dict_post_hook(lambda opt: seen.append(opt.param_groups[0]["lr"]))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == [0.125]


@every_input
def test_save_load_equality_with_weights_only(case, options):
    model = network()
    optimizer = case.make(model, **options)
    train(model, optimizer, range(2))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert same(loaded, optimizer.state_dict())
    twin = case.make(copy.deepcopy(model), **options)
    twin.load_state_dict(loaded)
    assert same(twin.state_dict(), optimizer.state_dict())


@every_case
def test_cpu_load_state_dict(case):
    """What is kept on the CPU stays there though parameters are elsewhere, and so do its types."""
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    twin = case.make(copy.deepcopy(model))
    with torch.device("meta"):
        twin.load_state_dict(saved)
    for entries in twin.state_dict()["state"].values():
        assert {value.device.type for value in entries.values()} == {"cpu"}
    assert same(twin.state_dict(), saved)


@every_input
def test_grads_are_never_inplaced_into(case, options):
    model = network()
    optimizer = case.make(model, **options)
    for batch in range(2):
        backward(model, batch)
        gradients = [parameter.grad for parameter in model.parameters()]
        values = [gradient.clone() for gradient in gradients]
        versions = [gradient._version for gradient in gradients]
        optimizer.step()
        assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
        assert [gradient._version for gradient in gradients] == versions
        assert same(gradients, values)


@every_case
def test_mixed_device_dtype(case):
    """Parameters of several types in one param group. (There is one device.)"""
    model, reference = network(torch.float64), network(torch.float64)
    types = [torch.float64, torch.float32, torch.bfloat16, torch.float32, torch.float64]
    for parameter, dtype in zip(model.parameters(), types, strict=True):
        parameter.data = parameter.data.to(dtype)
    case = case.in_place()  # where all types can be
    optimizer, other = case.make(model), case.make(reference)
    with torch.no_grad():
        for parameter, own in zip(reference.parameters(), model.parameters(), strict=True):
            parameter.copy_(own)
    for batch in range(3):
        backward(reference, batch)
        for parameter, own in zip(reference.parameters(), model.parameters(), strict=True):
            own.grad = parameter.grad.to(own.dtype)
        optimizer.step()
        other.step()
    for own, parameter in zip(model.parameters(), reference.parameters(), strict=True):
        # Weights are of order 1, so the rounding of bfloat16 is the largest error.
        torch.testing.assert_close(own.double(), parameter, rtol=0, atol=0.01)
        moments = [
            v for k, v in optimizer.state[own].items() if k in ("exp_avg", "momentum_buffer")
        ]
        wide = own.dtype == torch.float64
        expected = {torch.float64 if wide else torch.float32}
        assert {m.dtype for m in moments} == (expected if case.moment else set())


@every_case
def test_non_empty_state(case):
    for light, given in inputs_of(case):
        model = network()
        optimizer = light.make(model, **given.kwargs)
        backward(model, 0)
        optimizer.step()
        assert len(optimizer.state) == len(list(model.parameters()))
        assert all(len(entries) > 0 for entries in optimizer.state.values())


def test_adamw_serialization():
    """State moves between AdamW and DDCAdam, both ways, and training goes on as it would."""
    for first, second in ((torch.optim.AdamW, ddc.DDCAdam), (ddc.DDCAdam, torch.optim.AdamW)):
        model = network(torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer = first(model.parameters(), lr=0.01, weight_decay=0.1)
            train(model, optimizer, range(3))
            other = copy.deepcopy(model)
            resumed = second(other.parameters(), lr=0.5)
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(model, optimizer, range(3, 6))
        train(other, resumed, range(3, 6))
        for a, b in zip(weights(model), weights(other), strict=True):
            # Seen: one unit in the last place.
            torch.testing.assert_close(a, b, rtol=2**-22, atol=0)
