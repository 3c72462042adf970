"""What torch's own tests ask of optimizers, of every optimizer here, and of torch's own under `hold`.

The helpers of those tests (`torch.testing._internal.common_optimizers`) give torch's optimizers with all
their options. test_optim.py has the tests of TestOptimRenewed one by one.

From TestLRScheduler (test/optim/test_lrscheduler.py) and TestSWAUtils (test_swa_utils.py) these are here or
elsewhere:

| torch's | here |
| --- | --- |
| test_{step,multi_step,exp,poly,cos_anneal}_lr, test_{constantlr,linearlr}, test_lambda_lr, | |
| test_multiplicative_lr, test_sequentiallr*, test_chained_lr*, test_compound_*, test_cycle_lr_*, | |
| test_onecycle_lr*, test_CosineAnnealingWarmRestarts*, test_reduce_lr_on_plateau*: rates of a | |
| schedule are what they are meant to be, and (ours) what the steps are made by | |
| | test_every_scheduler_sets_rates_that_are_followed |
| the same with tensors as rates: test_reduce_lr_on_plateau_preserves_lr_type, | |
| test_constant_initial_lr | test_optim_contract.py: test_a_schedule_is_followed |
| test_*_state_dict, test_lr_scheduler_state_dict_load, test_cos_anneal_lr_continue | |
| | test_a_schedule_is_saved_with_the_optimizer |
| test_new_pattern_no_warning*, test_sequentiallr_no_warnings | test_optim_contract.py: |
| | test_steps_without_gradients_that_start_a_schedule_say_nothing |
| test_add_param_group_*_reduce_lr_on_plateau | test_optim_contract.py: |
| | test_a_group_that_is_added_during_a_schedule_has_the_rates_it_is_given |
| test_averaged_model_all_devices, test_averaged_model_exponential, | |
| test_averaged_model_state_dict, test_update_bn_dnn, test_swa_lr_state_dict | |
| | test_averages_and_their_schedule |

These look at a schedule or an average alone, whatever optimizer there is, and have none:
test_get_last_lr_*, test_closed_form_*, test_*_with_epoch, test_*_is_constant_for_constant_epoch,
test_linearlr_start_factor_limits*, test_cycle_lr_invalid_mode, test_error_when_getlr_has_epoch,
test_raise_error_when_last_epoch_is_greater_than_0_*, test_no_cyclic_references*, test_old_pattern_warning*,
test_averaged_model_mixed_device, test_averaged_model_default_avg_fn_picklable, test_update_bn_cnn,
test_bn_update_eval_momentum.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import ddc
import pytest
import torch
from optim_support import (
    Lion,
    backward,
    group,
    loss_on,
    network,
    same,
    saved_and_read,
    train,
    weights,
)
from test_optim_contract import SCHEDULERS
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

Made = Callable[[nn.Module, float], Optimizer]


def lifted(kind: Any, grouped: bool) -> Made:
    def make(model: nn.Module, lr: float) -> Optimizer:
        return kind(model.named_parameters(), lr=lr, **({"symmetries": group()} if grouped else {}))

    return make


def held(kind: Any) -> Made:
    def make(model: nn.Module, lr: float) -> Optimizer:
        optimizer = kind(model.named_parameters(), lr=lr)
        ddc.hold(optimizer, group())
        return optimizer

    return make


KINDS = [ddc.DDCAdam, ddc.DDCMuon, ddc.DDCSgd, ddc.DDCShampoo, ddc.DDCSoap, ddc.Muon, Lion]
MADE: dict[str, Made] = {
    **{kind.__name__: lifted(kind, False) for kind in KINDS},
    **{f"{kind.__name__}-group": lifted(kind, True) for kind in KINDS if kind is not ddc.Muon},
    **{f"{k.__name__}-held": held(k) for k in (torch.optim.AdamW, torch.optim.SGD, ddc.DDCSgd)},
}
every_made = pytest.mark.parametrize("made", MADE.values(), ids=MADE)


@every_made
def test_every_scheduler_sets_rates_that_are_followed(made):
    for name, schedule in SCHEDULERS.items():
        model, reference = network(), network()
        optimizer, by_hand = made(model, 0.0625), made(reference, 0.0625)
        options = optimizer.param_groups[0].keys()
        if name in ("CyclicLR", "OneCycleLR") and not {"momentum", "betas"} & options:
            continue  # torch refuses: there is no momentum to cycle
        scheduler = schedule(optimizer)
        rates = set()
        for batch in range(4):
            rates.add(float(optimizer.param_groups[0]["lr"]))
            for own, other in zip(by_hand.param_groups, optimizer.param_groups, strict=True):
                own.update({k: other[k] for k in ("lr", "betas", "momentum") if k in other})
            train(model, optimizer, range(batch, batch + 1))
            train(reference, by_hand, range(batch, batch + 1))
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        assert len(rates) > 1, name
        assert same(weights(model), weights(reference)), name


@every_made
def test_a_schedule_is_saved_with_the_optimizer(made):
    def start(model: nn.Module) -> tuple[Optimizer, Any]:
        optimizer = made(model, 0.0625)
        return optimizer, lr_scheduler.StepLR(optimizer, 2, 0.5)

    def run(model: nn.Module, optimizer: Optimizer, schedule: Any, batches: range) -> None:
        for batch in batches:
            train(model, optimizer, range(batch, batch + 1))
            schedule.step()

    model = network()
    pair = start(model)
    run(model, *pair, range(3))
    saved = saved_and_read([model.state_dict(), *(each.state_dict() for each in pair)])
    other = network(seed=5)
    other.load_state_dict(saved[0])
    resumed = start(other)
    resumed[1].load_state_dict(saved[2])
    resumed[0].load_state_dict(saved[1])
    run(model, *pair, range(3, 6))
    run(other, *resumed, range(3, 6))
    for own, expected in zip(weights(other), weights(model), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-12)


@every_made
def test_averages_and_their_schedule(made):
    """TestSWAUtils: SWALR, AveragedModel with both averages and its state, update_bn."""
    model = network()
    optimizer = made(model, 0.05)
    schedule = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
    averages = [AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))]
    seen: list[list[Tensor]] = []
    for batch in range(4):
        train(model, optimizer, range(batch, batch + 1))
        schedule.step()
        seen.append(weights(model))
        for average in averages:
            average.update_parameters(model)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    for place, parameter in enumerate(averages[0].module.parameters()):
        mean = torch.stack([step[place] for step in seen]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean)
    for average in averages:
        twin = AveragedModel(network(seed=1))
        twin.load_state_dict(saved_and_read(average.state_dict()))
        assert same(weights(twin), weights(average))
    update_bn([torch.zeros(2, 4).double()], averages[0])
    assert all(p.isfinite().all() for p in averages[1].parameters())


# ---- torch's optimizers, with all their options, under hold -----------------------------------------


# What their steps are made of is not a function of weights and gradients up to rounding.
NOT_HELD = {
    "Rprop": "it looks at signs of gradients alone, also of those that are rounding",
    "SparseAdam": "it takes sparse gradients only",
    "LBFGS": "it moves the weights while it looks for a step",
}
INFOS = [
    info
    for info in optim_db
    if info.optim_cls.__module__.startswith("torch.") and info.optim_cls.__name__ not in NOT_HELD
]


def test_all_of_torchs_optimizers_are_tried_or_named():
    names = {info.optim_cls.__name__ for info in optim_db}
    assert names >= {"AdamW", "SGD", "RMSprop", "Adafactor", "Muon", *NOT_HELD}
    assert len(INFOS) >= 10


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.optim_cls.__name__)
def test_copies_train_alike_under_torchs_optimizers_with_all_their_options(info: OptimizerInfo):
    tried = 0
    for given in info.optim_inputs_func("cpu"):
        options = dict(given.kwargs)
        if options.get("capturable") or options.get("differentiable"):
            continue  # for other devices; not for steps that are made
        matrices_only = info.optim_cls.__name__ == "Muon"
        # Rounding of gradients that are zero must not be divided by next to nothing.
        if info.optim_cls.__name__ == "Adafactor":
            options["eps"] = (1e-8, 1e-3)
        curves = []
        for seed in (None, 2):
            model = network()
            if seed is not None:
                group().random_element(seed, size=0.5).apply_(model)
            symmetries = group()
            named = list(model.named_parameters())
            if matrices_only:
                named = [(name, p) for name, p in named if p.dim() == 2]
                symmetries = group().only("linear pair", "CE row shift")
                if seed is not None:
                    model = symmetries.random_element(seed, size=0.5).apply_(network())
                    named = [(name, p) for name, p in model.named_parameters() if p.dim() == 2]
            optimizer = info.optim_cls(named, **options)
            ddc.hold(optimizer, symmetries)
            losses = []
            for batch in range(5):
                losses.append(backward(model, batch).item())
                optimizer.step()
            losses.append(loss_on(model, 0).item())
            curves.append(losses)
        apart = max(abs(a - b) / abs(a) for a, b in zip(*curves, strict=True))
        assert apart < 1e-8, given.desc
        tried += 1
    assert tried >= 1


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.optim_cls.__name__)
def test_a_held_optimizer_of_torch_goes_on_from_its_state(info: OptimizerInfo):
    muon = info.optim_cls.__name__ == "Muon"
    symmetries = group().only("linear pair", "CE row shift") if muon else group()

    def start(model: nn.Module) -> Optimizer:
        named = [(n, p) for n, p in model.named_parameters() if p.dim() == 2 or not muon]
        optimizer = info.optim_cls(named, lr=1e-3)
        ddc.hold(optimizer, symmetries)
        return optimizer

    model = network()
    optimizer = start(model)
    train(model, optimizer, range(3))
    saved = saved_and_read([model.state_dict(), optimizer.state_dict()])
    other = network(seed=3)
    other.load_state_dict(saved[0])
    resumed = start(other)
    resumed.load_state_dict(copy.deepcopy(saved[1]))
    train(model, optimizer, range(3, 6))
    train(other, resumed, range(3, 6))
    # torch loads the float32 product of momenta that NAdam keeps in the type of the parameter.
    rounded = info.optim_cls.__name__ == "NAdam"
    for own, expected in zip(weights(other), weights(model), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-9 if rounded else 1e-12, atol=1e-12)
