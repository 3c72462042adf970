"""What torch.optim promises of an optimizer beyond test_optim.py, and what ours promise besides."""

from __future__ import annotations

import copy
import pickle
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import ddc
import pytest
import torch
import torch.distributed as dist
from optim_support import (
    backward,
    every_case,
    every_kind,
    group,
    grouped_case,
    loss,
    loss_on,
    network,
    same,
    saved_and_read,
    train,
    weights,
)
from torch import Tensor, nn
from torch.optim import lr_scheduler

# ------------------------------------------------------------------------------------------------
# Param groups


@every_case
def test_param_groups_may_be_dicts_with_names(case):
    model, reference = network(), network()
    named = list(model.named_parameters())
    groups = [{"params": named[:2]}, {"params": iter(named[2:])}]
    optimizer, plain = case.make(groups), case.make(reference)
    of_groups = [g["param_names"] for g in optimizer.param_groups]
    if not issubclass(case.kind, ddc.DDCMuon):  # it makes groups of its own
        assert of_groups == [[name for name, _ in part] for part in (named[:2], named[2:])]
    assert sorted(chain.from_iterable(of_groups)) == sorted(name for name, _ in named)
    train(model, optimizer, range(3))
    train(reference, plain, range(3))
    assert same(weights(model), weights(reference))


@every_case
def test_a_param_group_may_be_empty(case):
    """Recipes that sort parameters into decayed and not make such groups."""
    model, reference = network(), network()
    named = list(model.named_parameters())
    # torch itself wants empty groups to have no names explicitly, where others have some.
    optimizer = case.make([{"params": [], "param_names": []}, {"params": named}])
    plain = case.make(reference)
    train(model, optimizer, range(2))
    train(reference, plain, range(2))
    assert same(weights(model), weights(reference))


@every_case
def test_no_parameters_are_an_error(case):
    with pytest.raises(ValueError, match="empty parameter list"):
        case.make([])


@every_case
def test_an_added_group_is_trained_as_by_the_plain_optimizer(case):
    model, reference = network(), network()
    optimizer, untouched = case.make(model), case.make(reference)
    train(model, optimizer, range(2))
    train(reference, untouched, range(2))
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    added, plain = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer.add_param_group({"params": [("added", added)], "lr": 0.25})
    alone = case.kind([("added", plain)], lr=0.25)
    for batch in range(2, 5):
        added.grad, plain.grad = (start.sin() * batch).clone(), (start.sin() * batch).clone()
        alone.step()
        train(model, optimizer, range(batch, batch + 1))
        train(reference, untouched, range(batch, batch + 1))
    assert torch.equal(added, plain)
    assert same(weights(model), weights(reference))


@pytest.mark.parametrize("unpickled", [False, True], ids=["", "unpickled"])
@every_case
def test_a_group_that_cannot_be_added_leaves_no_trace(case, unpickled):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    if unpickled:
        optimizer = pickle.loads(pickle.dumps(optimizer))
    before = copy.deepcopy(optimizer.state_dict())
    new = nn.Parameter(torch.ones(3, 4))
    present = optimizer.param_groups[0]["params"][0]
    for bad, message in (
        ({"params": [("new", new)], "lr": -1}, "option lr must be finite"),
        ({"params": [("new", new)], "lr": "fast"}, "option lr must be a number"),
        ({"params": [("new", present)]}, "more than one parameter group"),
        ({"params": [("new", present.detach())]}, "already there as '0.weight'"),
        ({"params": [("0.weight", new)]}, "name '0.weight' is given twice"),
        ({"params": [new]}, "without names"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            optimizer.add_param_group(bad)
        assert same(optimizer.state_dict(), before)
    optimizer.step()


@every_case
def test_unusable_options_of_a_group_change_nothing(case):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    before = copy.deepcopy((weights(model), optimizer.state_dict()["state"]))
    optimizer.param_groups[0]["lr"] = -0.5
    with pytest.raises(ValueError, match="option lr must be finite and >= 0, got -0.5"):
        optimizer.step()
    assert same((weights(model), optimizer.state_dict()["state"]), before)


@every_kind
def test_a_group_is_a_symmetry_group(kind):
    named = list(network().named_parameters())
    for wrong in (group().gauges, group().to_json(), "model.symmetries.json", 0.001):
        with pytest.raises(TypeError, match="symmetries must be a ddc.SymmetryGroup, a list"):
            kind(named, symmetries=wrong)


@every_kind
def test_a_group_without_gauges_is_none(kind):
    model, reference = network(), network()
    nothing = group().only("no such gauge")
    with pytest.warns(UserWarning, match="have no gauge, so this is the plain optimizer"):
        optimizer = kind(model.parameters(), symmetries=nothing)
    plain = kind(reference.parameters())
    train(model, optimizer, range(2))
    plain.load_state_dict(optimizer.state_dict())
    optimizer.load_state_dict(plain.state_dict())


@every_kind
def test_from_model_discovers_and_constructs(kind, capsys, caplog):
    model = network()
    optimizer = kind.from_model(model, loss, lr=0.125)
    assert type(optimizer) is kind
    assert optimizer.symmetries == group()
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert "1.weight:rescale" in str(optimizer.report())
    assert "1.weight:rescale" in [gauge.name for gauge in optimizer.report().gauges]
    assert optimizer.gauge_coordinate("1.weight:rescale").shape == (6,)
    assert capsys.readouterr() == ("", "")
    kind.from_model(model, loss, verbose=True)
    assert "1.weight:rescale" in caplog.text


# ------------------------------------------------------------------------------------------------
# Schedules

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.75),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.25, 2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.5)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, step_size_up=2),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
}


def test_every_scheduler_of_torch_is_tested():
    assert {*SCHEDULERS, "LRScheduler"} == set(lr_scheduler.__all__)


@pytest.mark.parametrize("tensor_lr", [False, True], ids=["", "tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
@every_kind
def test_a_schedule_is_followed(kind, name, tensor_lr):
    """By Adam's rate within Muon too, which is that of a param group of its own."""
    start = 0.0625
    model, reference = network(), network()
    optimizer = kind(model.parameters(), lr=torch.tensor(start) if tensor_lr else start)
    by_hand = kind(reference.parameters(), lr=start)
    scheduler = SCHEDULERS[name](optimizer)
    rates = set()
    for batch in range(5):
        lr = float(optimizer.param_groups[0]["lr"])
        rates.add(lr)
        for options, scheduled in zip(by_hand.param_groups, optimizer.param_groups, strict=True):
            for cycled in {"lr", "betas", "momentum"} & options.keys():
                value = scheduled[cycled]
                options[cycled] = value.item() if isinstance(value, Tensor) else value
        train(model, optimizer, range(batch, batch + 1))
        train(reference, by_hand, range(batch, batch + 1))
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    assert len(rates) > 1
    assert same(weights(model), weights(reference))


def test_a_schedule_goes_on_where_it_was_saved():
    model = network()
    optimizer = ddc.DDCMuon(model.named_parameters(), lr=0.5)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    for batch in range(3):
        train(model, optimizer, range(batch, batch + 1))
        scheduler.step()
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    other = copy.deepcopy(model)
    resumed = ddc.DDCMuon(other.named_parameters(), lr=0.5)
    schedule = lr_scheduler.ExponentialLR(resumed, 0.5)
    schedule.load_state_dict(saved[1])
    resumed.load_state_dict(saved[0])
    for batch in range(3, 6):
        train(model, optimizer, range(batch, batch + 1))
        train(other, resumed, range(batch, batch + 1))
        scheduler.step()
        schedule.step()
    assert same(weights(model), weights(other))


def test_a_group_that_is_added_during_a_schedule_has_the_rates_it_is_given():
    model = network()
    optimizer = ddc.DDCMuon(model.named_parameters(), lr=0.5, adam={"lr": 0.25})
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    train(model, optimizer, range(1))
    scheduler.step()
    vectors = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer.add_param_group({"params": [("default", vectors[0])]})
    optimizer.add_param_group({"params": [("given", vectors[1])], "lr": 0.125})
    plain = ddc.DDCAdam([vectors[2]], lr=0.25)
    for vector in vectors:
        vector.grad = torch.full((3,), 0.5)
    optimizer.step()
    plain.step()
    assert torch.equal(vectors[0], vectors[2])
    assert torch.equal(vectors[1], vectors[2])


# ------------------------------------------------------------------------------------------------
# Mixed precision, clipping, closures


@every_case
def test_grad_scaler_skips_what_overflows(case):
    """Scales are powers of two, so a scaled step is the same to the bit."""
    model, reference = network(torch.float32), network(torch.float32)
    optimizer, plain = case.make(model), case.make(reference)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    for batch in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_on(model, batch)).backward()
        if batch == 2:
            model[1].weight.grad[0, 0] = torch.inf
            before = copy.deepcopy((weights(model), optimizer.state_dict()))
        else:
            train(reference, plain, range(batch, batch + 1))
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if batch == 2:
            assert same((weights(model), optimizer.state_dict()), before)
            assert scaler.get_scale() == scale / 2
    assert same(weights(model), weights(reference))


@every_case
def test_autocast(case):
    model = network(torch.float32)
    optimizer = case.make(model)
    before = loss_on(model, 0)
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss_on(model, 0)
            value.backward()
            # A step that is made within it is not cast.
            optimizer.step()
    assert loss_on(model, 0) < before
    for entries in optimizer.state.values():
        assert not {torch.bfloat16, torch.float16} & {value.dtype for value in entries.values()}


@every_case
def test_gradient_clipping(case):
    model, reference = network(), network()
    optimizer, plain = case.make(model), case.make(reference)
    for batch in range(3):
        backward(model, batch)
        backward(reference, batch)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        assert norm > 0.01
        for parameter in reference.parameters():
            parameter.grad *= 0.01 / (norm + 1e-6)
        optimizer.step()
        plain.step()
    assert same(weights(model), weights(reference))


@every_case
def test_a_closure_is_called_once_with_gradients_and_its_loss_returned(case):
    model, reference = network(), network()
    optimizer, plain = case.make(model), case.make(reference)
    losses = []

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        losses.append(backward(model, 0))
        return losses[-1]

    with torch.no_grad():
        returned = optimizer.step(closure)
        assert not torch.is_grad_enabled()
    assert len(losses) == 1
    assert returned is losses[0]
    train(reference, plain, range(1))
    assert same(weights(model), weights(reference))


@every_case
def test_maximize_climbs_by_the_steps_that_would_descend_the_negative(case):
    model, reference = network(), network()
    up, down = case.make(model, maximize=True), case.make(reference)
    for batch in range(3):
        backward(model, batch)
        backward(reference, batch)
        for parameter in reference.parameters():
            parameter.grad.neg_()
        up.step()
        down.step()
    assert same(weights(model), weights(reference))


@every_case
def test_zeroed_gradients_are_gradients_and_none_are_not(case):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(1))
    optimizer.zero_grad(set_to_none=False)
    before, value = weights(model), loss_on(model, 0)
    optimizer.step()  # moments go on
    moved = weights(model)
    if case.moment is not None:
        assert not same(moved, before)
    elif case.grouped:  # moves along orbits that were pending are made
        assert abs(loss_on(model, 0) - value) < 1e-12
    else:
        assert same(moved, before)
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())
    optimizer.step()
    assert same(weights(model), moved)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@every_case
def test_gradients_that_are_not_finite_are_refused_and_change_nothing(case, value):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    backward(model, 2)
    model[3].bias.grad[1] = value
    before = copy.deepcopy((weights(model), optimizer.state_dict()))
    with pytest.raises(RuntimeError, match="gradient of '3.bias' has NaN or Inf entries"):
        optimizer.step()
    assert same((weights(model), optimizer.state_dict()), before)
    train(model, optimizer, range(2, 3))


# Types with gradients that overflow, at once or when they are squared, and that vanish.
EXTREMES = [
    *((torch.float32, size) for size in (1e30, 3e38, 1e-40)),
    *((torch.float64, size) for size in (1e160, 1.7e308, 1e-310)),
]


@pytest.mark.parametrize("place", ["canonical", "in_place", None])
@pytest.mark.parametrize(
    "kind", [ddc.DDCAdam, ddc.DDCMuon, ddc.DDCSgd, ddc.DDCLion, ddc.DDCShampoo, ddc.DDCSoap]
)
def test_a_step_of_extreme_gradients_is_made_or_leaves_everything_as_it_was(kind, place):
    treated = {"symmetries": group(), "placement": place} if place else {}
    if kind is ddc.DDCSgd:
        treated["momentum"] = 0.9
    refused = 0
    for dtype, size in EXTREMES:
        model, undisturbed = network(dtype), network(dtype)
        optimizer = kind(model.named_parameters(), lr=1e-2, **treated)
        other = kind(undisturbed.named_parameters(), lr=1e-2, **treated)
        train(model, optimizer, range(2))
        train(undisturbed, other, range(2))
        for number in range(3):
            for parameter, twin in zip(model.parameters(), undisturbed.parameters(), strict=True):
                parameter.grad = torch.full_like(parameter, size).mul_(
                    torch.randn_like(parameter).sign()
                )
                twin.grad = parameter.grad.clone()
            before = copy.deepcopy(
                (weights(model), optimizer.state_dict(), str(optimizer.report()))
            )
            try:
                optimizer.step()
            except RuntimeError as error:
                assert re.match(f"{kind.__name__}: .*'[013]..*nothing was changed", str(error))
                assert same(
                    (weights(model), optimizer.state_dict(), str(optimizer.report())), before
                )
                refused += 1
                assert steps_of_small_gradients(model, optimizer) == steps_of_small_gradients(
                    undisturbed, other
                )
                assert same(weights(model), weights(undisturbed))
                assert same(optimizer.state_dict(), other.state_dict())
                break
            other.step()
            left = [*model.parameters(), *state_of(optimizer)]
            assert all(not tensor.isnan().any() for tensor in left), number
            assert all(tensor.isfinite().all() for tensor in model.parameters()), number
    assert refused > 0 or kind is not ddc.DDCSgd


def steps_of_small_gradients(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """What is said to them: weights may be huge by now."""
    said = []
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = (
                torch.linspace(-1, 1, parameter.numel()).to(parameter).view_as(parameter)
            )
        try:
            optimizer.step()
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
    return said


def state_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return chain.from_iterable(entry.values() for entry in optimizer.state.values())


# ------------------------------------------------------------------------------------------------
# Parameters that are not what they were


@every_case
def test_frozen_parameters_stay(case):
    model = network()
    model[3].bias.requires_grad_(False)
    optimizer = case.make(model)
    before = model[3].bias.clone()
    train(model, optimizer, range(2))
    assert torch.equal(model[3].bias, before)
    assert not {"exp_avg", "momentum_buffer"} & optimizer.state[model[3].bias].keys()


@every_case
def test_a_parameter_without_a_gradient_is_left_alone(case):
    """Though others of its gauges have one. (At the canonical place it moves along with them.)"""
    case = case.in_place()
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    before = weights(model)
    backward(model, 2)
    model[1].weight.grad = None
    optimizer.step()
    for was, (name, now) in zip(before, model.named_parameters(), strict=True):
        assert torch.equal(now, was) == (name == "1.weight"), name
    assert optimizer.state[model[1].weight]["step"] == 2
    assert optimizer.state[model[1].bias]["step"] == 3
    train(model, optimizer, range(3, 4))


@every_case
def test_data_may_be_exchanged(case):
    model, reference = network(), network()
    optimizer, plain = case.make(model), case.make(reference)
    for batch in range(3):
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        train(model, optimizer, range(batch, batch + 1))
        train(reference, plain, range(batch, batch + 1))
    assert same(weights(model), weights(reference))


@pytest.mark.parametrize(
    "path",
    [
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.float32, torch.float64, torch.float32),
        (torch.float64, torch.float32),
    ],
    ids=str,
)
@every_case
def test_a_model_may_change_its_type_in_training(case, path):
    model = network(path[0])
    optimizer = case.make(model)
    for number, dtype in enumerate(path):
        model.to(dtype)
        before = weights(model)
        if case.placed and dtype == torch.bfloat16:
            with pytest.raises(ValueError, match="needs float32 or float64.*placement = in_place"):
                train(model, optimizer, range(1))
            assert same(weights(model), before)
            return
        train(model, optimizer, range(number, number + 1))
        assert not same(weights(model), before)
        first = optimizer.state[model[0].weight]
        assert first["step"] == number + 1
        if case.moment is None:
            continue
        assert first[case.moment].dtype == (
            torch.float64 if dtype == torch.float64 else torch.float32
        )


@grouped_case
def test_parameters_without_names_are_an_error_with_a_group(case):
    with pytest.raises(
        ValueError, match="pass model.named_parameters.. instead of model.parameters"
    ):
        case.make(network().parameters())


@grouped_case
def test_a_gauge_whose_tensor_is_not_there_is_an_error(case):
    named = dict(network().named_parameters())
    missing = [(name, tensor) for name, tensor in named.items() if name != "1.bias"]
    renamed = [(name.replace("1.", "second."), tensor) for name, tensor in named.items()]
    for params in (missing, renamed):
        with pytest.raises(
            ValueError, match="acts on the parameter '1..*', which is in no param group"
        ):
            case.make(params)
    for reshape in (Tensor.t, Tensor.flatten, lambda w: w[:3]):
        changed = [
            (name, nn.Parameter(reshape(tensor.detach())) if name == "1.weight" else tensor)
            for name, tensor in named.items()
        ]
        with pytest.raises(
            ValueError, match="'1.weight' of shape \\[6, 3\\], which has shape .* here"
        ):
            case.make(changed)


@grouped_case
def test_a_parameter_that_loses_its_shape_later_is_an_error(case):
    """FSDP does this to the parameters of a model that it wraps."""
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(1))
    model[1].weight.grad = None
    model[1].weight.data = model[1].weight.data.flatten()
    with pytest.raises(ValueError, match="flattened, sharded or of another model"):
        optimizer.step()


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@every_case
def test_sharded_parameters_are_an_error(case, one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network()
    optimizer = case.make(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(RuntimeError, match="'0.weight' is sharded or flattened .DTensor."):
        case.make(model)
    sharded = dict(model.named_parameters())
    for param_group in optimizer.param_groups:
        param_group["params"] = [sharded[name] for name in param_group["param_names"]]
    with pytest.raises(RuntimeError, match="'0.weight' is sharded or flattened .DTensor."):
        optimizer.step()


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.parametrize("originals", [False, True], ids=["flat", "originals"])
@grouped_case
def test_flattened_parameters_are_an_error(case, originals, one_process):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(
        network(), use_orig_params=originals, device_id=torch.device("cpu")
    )
    message = "'0.weight', which is in no param group" if originals else "is sharded or flattened"
    with pytest.raises((RuntimeError, ValueError), match=message):
        case.make(model)


# ------------------------------------------------------------------------------------------------
# Threads and the compiler


@every_case
def test_steps_in_other_threads_are_the_same(case):
    reference = network()
    optimizer = case.make(reference)
    gradients = []
    for batch in range(2):
        backward(reference, batch)
        gradients.append([parameter.grad.clone() for parameter in reference.parameters()])
        optimizer.step()

    models = [network() for _ in range(3)]
    optimizers = [case.make(model) for model in models]

    def run(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for values in gradients:
            for parameter, gradient in zip(model.parameters(), values, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()

    threads = [
        threading.Thread(target=run, args=pair) for pair in zip(models, optimizers, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model in models:
        assert same(weights(model), weights(reference))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@every_case
def test_compiled_models_are_trained_as_others(case, backend):
    torch.compiler.reset()
    model, reference = network(), network()
    compiled = torch.compile(model, backend=backend)
    assert next(iter(compiled.named_parameters()))[0] == "_orig_mod.0.weight"
    optimizer, plain = case.make(compiled), case.make(reference)
    train(compiled, optimizer, range(2))
    train(reference, plain, range(2))
    for a, b in zip(weights(model), weights(reference), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_symmetries_of_a_compiled_model_are_found():
    torch.compiler.reset()
    compiled = torch.compile(network(), backend="eager")
    found = ddc.discover(compiled, loss)
    assert [g.name for g in found.gauges] == [g.name for g in group().gauges]
    ddc.DDCAdam(compiled.named_parameters(), symmetries=found)


@every_case
def test_a_step_within_a_compiled_function(case):
    torch.compiler.reset()
    model, reference = network(), network()
    optimizer, plain = case.make(model), case.make(reference)
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(3)).double()

    def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        value = model(inputs).square().mean()
        value.backward()
        optimizer.step()
        return value

    compiled = torch.compile(update, backend="eager")
    for _ in range(3):
        a, b = compiled(model, optimizer), update(reference, plain)
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    assert optimizer.state[model[0].weight]["step"] == 3


# ------------------------------------------------------------------------------------------------
# What the steps are


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 0.0625, "betas": (0.5, 0.75), "eps": 1e-3, "weight_decay": 0.5},
        {"weight_decay": 0.0, "maximize": True},
    ],
    ids=["default", "all", "maximize"],
)
def test_without_a_group_ddc_adam_is_adamw(options, dtype):
    """Steps from the same weights, given the same gradients, are one to the last place."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(40, 30, generator=generator, dtype=dtype)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = ddc.DDCAdam([ours], **options)
    adamw = torch.optim.AdamW([theirs], foreach=False, **options)
    for _ in range(10):
        gradient = torch.randn(40, 30, generator=generator, dtype=dtype)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        adamw.step()
        moments, expected = optimizer.state[ours], adamw.state[theirs]
        assert torch.equal(moments["exp_avg_sq"], expected["exp_avg_sq"])
        # AdamW in Python computes m + (1 - beta1) (g - m); in LibTorch, and here, it is
        # beta1 m + (1 - beta1) g.
        unit = torch.finfo(dtype).eps * gradient.abs().max()
        assert (moments["exp_avg"] - expected["exp_avg"]).abs().max() <= unit
        assert (ours - theirs).abs().max() <= torch.finfo(dtype).eps * start.abs().max()
        ours.data.copy_(theirs)


def newton_schulz_in_type_of_input(
    gradient: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """What torch.optim.Muon iterates, which does it in bfloat16 always."""
    a, b, c = coefficients
    x = gradient / gradient.norm().clamp(min=eps)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False], ids=["nesterov", "plain"])
def test_without_a_group_ddc_muon_is_torchs_muon(scale, nesterov, monkeypatch):
    monkeypatch.setattr(
        torch.optim._muon, "_zeropower_via_newtonschulz", newton_schulz_in_type_of_input
    )
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(12, 20, generator=generator, dtype=torch.float64)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.2, "nesterov": nesterov}
    optimizer = ddc.DDCMuon([ours], method="newton_schulz", scale=scale, **options)
    muon = torch.optim.Muon([theirs], adjust_lr_fn=scale, **options)
    for _ in range(10):
        gradient = torch.randn(12, 20, generator=generator, dtype=torch.float64)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        muon.step()
    buffers = optimizer.state[ours]["momentum_buffer"], muon.state[theirs]["momentum_buffer"]
    assert torch.equal(*buffers)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


def test_vectors_within_ddc_muon_are_adams():
    model, reference = network(), network()
    muon = ddc.DDCMuon(
        model.named_parameters(), adam={"lr": 0.03, "betas": (0.8, 0.9), "weight_decay": 0.5}
    )
    adam = ddc.DDCAdam(reference.named_parameters(), lr=0.03, betas=(0.8, 0.9), weight_decay=0.5)
    for batch in range(3):
        backward(model, batch)
        for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
            other.grad = parameter.grad.clone()
        muon.step()
        adam.step()
    # DDCAdam steps many tensors in one pass, which rounds otherwise.
    torch.testing.assert_close(model[1].bias, reference[1].bias, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(model[3].bias, reference[3].bias, rtol=1e-14, atol=1e-15)
    assert not torch.equal(model[1].weight, reference[1].weight)


def outputs(model: nn.Module) -> Tensor:
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(9)).double()
    with torch.no_grad():
        return model(inputs).log_softmax(-1)


@grouped_case
def test_two_writings_of_one_function_stay_one_through_a_checkpoint(case):
    """One is saved, loaded into a new optimizer and goes on; the other never stopped."""

    def distance(make: Callable[[nn.Module], Any], through_checkpoint: bool) -> float:
        model, moved = network(), network()
        group().random_element(seed=1, size=0.3).apply_(moved)
        assert not torch.allclose(model[1].weight, moved[1].weight, atol=0.1)
        a, b = make(model), make(moved)
        for batch in range(8):
            if batch == 4 and through_checkpoint:
                saved = saved_and_read((moved.state_dict(), b.state_dict()))
                moved = network(seed=3)
                b = make(moved)
                moved.load_state_dict(saved[0])
                b.load_state_dict(saved[1])
            train(model, a, range(batch, batch + 1))
            train(moved, b, range(batch, batch + 1))
        return float((outputs(model) - outputs(moved)).abs().max())

    def adamw(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    assert distance(case.make, through_checkpoint=True) < 1e-12
    assert distance(adamw, through_checkpoint=False) > 1e-2


# ------------------------------------------------------------------------------------------------
# What is not here


@every_kind
@pytest.mark.parametrize("name", ["amsgrad", "capturable", "differentiable", "foreach", "fused"])
def test_options_that_only_torch_has_are_refused_wherever_they_are_said(kind, name):
    model = network()
    with pytest.raises(TypeError, match=f"has no option '{name}'"):
        kind(model.named_parameters(), **{name: True})
    group = {"params": list(model.named_parameters()), name: True}
    with pytest.raises(ValueError, match=f"{kind.__name__} has no option '{name}'"):
        kind([group])
    # As torch's own optimizers write them where they are not used.
    optimizer = kind([{**group, name: None}])
    state = optimizer.state_dict()
    state["param_groups"][0][name] = True
    with pytest.raises(ValueError, match=f"has no option '{name}'"):
        optimizer.load_state_dict(state)


@every_case
def test_parameters_without_values_are_refused_for_what_they_are(case):
    with pytest.raises(RuntimeError, match="'0.weight' is on the meta device"):
        case.make(network().to("meta"))
    lazy = nn.Sequential(nn.LazyLinear(3)).double()
    for make in (case.make, lambda model: ddc.discover(model, loss)):
        with pytest.raises(RuntimeError, match="'0.weight' is lazy and has no shape yet"):
            make(lazy)
    with pytest.raises(RuntimeError, match="'0.weight' is on the meta device"):
        ddc.discover(network().to("meta"), loss)
    with pytest.raises(RuntimeError, match="'0.weight' is on the meta device"):
        ddc.hold(torch.optim.SGD(network().to("meta").named_parameters(), lr=0.1), group())


@every_case
def test_a_parameter_that_is_given_twice_is_refused(case):
    """torch warns, and would step it twice."""
    model = network()
    named = list(model.named_parameters())
    with (
        pytest.warns(UserWarning, match="duplicate"),
        pytest.raises(RuntimeError, match="once|twice"),
    ):
        case.make(named + named[:1])


def test_a_learning_rate_of_zero_leaves_what_muon_steps_alone():
    """Adam's part has a rate of its own."""
    model = network()
    optimizer = ddc.DDCMuon(model.named_parameters(), lr=0.0, adam={"lr": 0.0})
    before = weights(model)
    train(model, optimizer, range(2))
    assert same(weights(model), before)
    optimizer = ddc.DDCMuon(model.named_parameters(), lr=0.0)
    train(model, optimizer, range(2))
    moved = {
        n for (n, p), b in zip(model.named_parameters(), before, strict=True) if not same(p, b)
    }
    adams = {route.name for route in optimizer.routing() if route.use_adam}
    assert moved == adams


def test_a_loss_under_autocast_is_refused_and_autocast_around_discovery_is_off():
    def mixed(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model)

    with pytest.raises(ValueError, match="under autocast .torch.bfloat16."):
        ddc.discover(network(torch.float32), mixed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ddc.discover(network(torch.float32), loss)
    alone = ddc.discover(network(torch.float32), loss)
    assert len(alone) > 0
    assert [each.name for each in found.gauges] == [each.name for each in alone.gauges]


@every_case
def test_a_step_under_autocast_is_the_same(case):
    models = network(torch.float32), network(torch.float32)
    optimizers = [case.make(model) for model in models]
    for batch in range(3):
        for model in models:
            backward(model, batch)
        optimizers[0].step()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            optimizers[1].step()
    assert same(weights(models[0]), weights(models[1]))


# ------------------------------------------------------------------------------------------------
# Threads, and interruptions


@every_case
def test_a_second_thread_in_one_optimizer_gets_an_error_and_nothing_breaks(case):
    model = network()
    optimizer = case.make(model)
    backward(model, 0)
    start = threading.Barrier(3)
    said: set[str] = set()

    def repeat(*calls: Any) -> None:
        start.wait()
        for _ in range(40):
            for call in calls:
                try:
                    call()
                except RuntimeError as error:
                    said.add(str(error))

    def reload() -> None:
        optimizer.load_state_dict(optimizer.state_dict())

    threads = [
        threading.Thread(target=repeat, args=calls)
        for calls in ((optimizer.step,), (optimizer.step,), (optimizer.report, reload))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # torch's own dictionaries may say so too.
    assert all("another thread" in text or "mutated" in text for text in said), said
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("place", ["canonical", "in_place", None])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_rule_in_python_that_is_interrupted_leaves_everything_as_it_was(place, error):
    calls = [0]

    def rule(gradient: Tensor, state: dict[str, Tensor], step: int, lr: float) -> Tensor:
        calls[0] += 1
        if calls[0] == 8:
            raise error
        state["sum"].add_(gradient)
        return state["sum"] * -lr

    made = ddc.lifted(rule, init=lambda p: {"sum": torch.zeros_like(p)}, lr=1e-2)
    treated = {"symmetries": group(), "placement": place} if place else {}
    model = network()
    optimizer = made(model.named_parameters(), **treated)
    train(model, optimizer, range(1))  # five parameters
    before = weights(model), copy.deepcopy(optimizer.state_dict())
    backward(model, 1)
    with pytest.raises(error):
        optimizer.step()
    assert calls[0] == 8
    assert same(weights(model), before[0])
    assert same(optimizer.state_dict(), before[1])
    optimizer.step()
    assert calls[0] == 13


# ------------------------------------------------------------------------------------------------
# Parameters that are others


def sharded_afterwards(make: Callable[[nn.Module], torch.optim.Optimizer]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network()
    optimizer = make(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    loss(model).backward()
    return optimizer


@every_case
def test_an_optimizer_that_was_made_before_fully_shard_says_that_it_steps_nothing(
    case, one_process
):
    optimizer = sharded_afterwards(case.make)
    with pytest.warns(UserWarning, match="nothing was stepped.*Make the optimizer after fully"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()  # once


def test_a_held_optimizer_that_was_made_before_fully_shard_says_that_it_steps_nothing(one_process):
    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(model.named_parameters())
        ddc.hold(optimizer, group())
        return optimizer

    optimizer = sharded_afterwards(make)
    with pytest.warns(UserWarning, match="AdamW: nothing was stepped.*no module has any of"):
        optimizer.step()


@every_case
def test_steps_without_gradients_that_start_a_schedule_say_nothing(case):
    """TestLRScheduler makes them by the dozen, and asks for no warning."""
    model = network()
    bare = nn.Parameter(torch.ones(2, 2))
    optimizers = [case.make(model)] + ([] if case.grouped else [case.kind([bare])])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for optimizer in optimizers:
            scheduler = lr_scheduler.StepLR(optimizer, 3)
            for _ in range(3):
                optimizer.step()
                scheduler.step()


@every_case
def test_steps_that_have_had_gradients_say_nothing(case):
    model = network()
    optimizer = case.make(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(lambda: backward(model, 0))  # they come with the closure
        optimizer.zero_grad()
        optimizer.step()
        model[1].weight.grad = torch.ones_like(model[1].weight)
        optimizer.step()


@pytest.mark.parametrize("size", [1e30, 3e38])
@pytest.mark.parametrize("place", ["canonical", "in_place", None])
def test_a_rule_in_python_with_extreme_gradients_is_refused_or_finite(size, place):
    def lion(gradient, state, step, lr, betas):
        update = state["exp_avg"].lerp(gradient, 1 - betas[0]).sign_()
        state["exp_avg"].lerp_(gradient, 1 - betas[1])
        return update.mul_(-lr)

    made = ddc.lifted(
        lion, init=lambda p: {"exp_avg": torch.zeros_like(p)}, lr=1e-2, betas=(0.9, 0.99)
    )
    treated = {"symmetries": group(), "placement": place} if place else {}
    model = network(torch.float32)
    optimizer = made(model.named_parameters(), **treated)
    train(model, optimizer, range(2))
    before = copy.deepcopy((weights(model), optimizer.state_dict()))
    for sign in (1, -1):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, sign * size)
        try:
            optimizer.step()
        except RuntimeError as error:
            assert "NaN or infinite" in str(error)
            if sign == 1:
                assert same((weights(model), optimizer.state_dict()), before)
    tensors = [*weights(model)]
    tensors += [value for entry in optimizer.state.values() for value in entry.values()]
    assert all(tensor.isfinite().all() for tensor in tensors)
