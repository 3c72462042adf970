"""Optimizers that know nothing of symmetries, on weights that are held at their canonical place."""

from __future__ import annotations

import copy
import io
import pickle
import re
import threading
from collections.abc import Callable
from typing import Any

import ddc
import pytest
import torch
import transformers
from families_support import NAMES, apart, group_of, loss_of, model_of
from optim_support import backward, group, loss_on, network, same, saved_and_read, train, weights
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

Make = Callable[[Any], Optimizer]


class Lion(Optimizer):
    """Somebody else's optimizer."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for options in self.param_groups:
            for p in options["params"]:
                momentum = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = momentum.lerp(p.grad, 1 - options["betas"][0]).sign_()
                p.add_(update, alpha=-options["lr"])
                momentum.lerp_(p.grad, 1 - options["betas"][1])


class MuonAndAdamW(Optimizer):
    """torch.optim.Muon for matrices, AdamW for all else, as one optimizer."""

    def __init__(self, params, lr=1e-2):
        named = list(params)
        both = [[(n, p) for n, p in named if (p.dim() == 2) == muon] for muon in (True, False)]
        super().__init__([{"params": part} for part in both], {"lr": lr})
        self._parts = [torch.optim.Muon(both[0], lr=lr), torch.optim.AdamW(both[1], lr=lr)]

    def step(self, closure=None):
        for part in self._parts:
            part.step()


OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda named: torch.optim.AdamW(named, lr=1e-2, fused=True),
    "SGD": lambda named: torch.optim.SGD(named, lr=1e-1, momentum=0.9),
    "RAdam": lambda named: torch.optim.RAdam(named, lr=1e-2),
    # With its default eps, that of the type, rounding errors of gradients that are zero become steps.
    "Adafactor": lambda named: torch.optim.Adafactor(named, lr=1e-2, eps=(1e-8, 1e-3)),
    "Lion": lambda named: Lion(named, lr=1e-3),
    "Muon": MuonAndAdamW,
    "another package": lambda named: transformers.optimization.Adafactor(
        named, lr=1e-2, eps=(1e-16, 1e-3), scale_parameter=False, relative_step=False
    ),
}


def curve(name: str, model: nn.Module, optimizer: Optimizer, steps: int) -> Tensor:
    """The loss at every step, and after the last."""
    losses = []
    for step in range(steps):
        loss = loss_of(name, model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(loss_of(name, model, steps).item())
    return torch.tensor(losses, dtype=torch.float64)


def difference(name: str, make: Make, steps: int, held: bool) -> float:
    """How far the losses of two related copies are apart."""
    curves = []
    for seed in (None, 1):
        model = model_of(name)
        if seed is not None:
            group_of(name).random_element(seed, size=0.5).apply_(model)
        optimizer = make(model.named_parameters())
        if held:
            hold = ddc.hold(optimizer, group_of(name), every=1)
        curves.append(curve(name, model, optimizer, steps))
        if held:
            assert hold.distance_to_section() < 1e-3
    assert curves[0][0] != curves[0][-1]
    return ((curves[0] - curves[1]).abs().max() / curves[0].abs().max()).item()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["Llama", "ViT"])
def test_copies_of_one_function_train_alike_under_any_optimizer(name, optimizer):
    make = OPTIMIZERS[optimizer]
    assert difference(name, make, 20, held=True) < 1e-11
    assert difference(name, make, 20, held=False) > 1e-3


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("Llama", "ViT")])
def test_every_family_is_held(name):
    assert difference(name, OPTIMIZERS["AdamW"], 4, held=True) < 1e-11


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_family_is_held_under_any_optimizer(name, optimizer):
    assert difference(name, OPTIMIZERS[optimizer], 12, held=True) < 1e-11


# ---- A small network with gauges of every kind of its own ----------------------------------------


# Error that is left: a step makes so many sweeps of a chain of gauges, and no more.
NEAR = 1e-5


def held(
    make: Make = OPTIMIZERS["AdamW"], seed: int | None = None, dtype=torch.float64, **treatment: Any
):
    """Model, optimizer and hold, of a copy that was moved along its orbit if there is a seed."""
    model = network(dtype)
    if seed is not None:
        group().random_element(seed, size=0.5).apply_(model)
    optimizer = make(model.named_parameters())
    return model, optimizer, ddc.hold(optimizer, group(), **treatment)


def test_the_function_is_kept_and_restoring_is_a_move_along_orbits():
    model, optimizer, hold = held(every=1)
    assert apart(model, network()) > 1e-2
    assert loss_on(model, 7).item() == pytest.approx(loss_on(network(), 7).item(), rel=1e-13)
    hold.remove()
    backward(model, 0)
    optimizer.step()
    stepped = copy.deepcopy(model)
    again, optimizer, hold = held(every=1)
    backward(again, 0)
    optimizer.step()
    assert apart(again, stepped) > 1e-4
    assert loss_on(again, 7).item() == pytest.approx(loss_on(stepped, 7).item(), rel=1e-12)
    assert hold.distance_to_section() < NEAR


def test_float32_copies_stay_together():
    first, one, _ = held(dtype=torch.float32)
    second, two, _ = held(seed=2, dtype=torch.float32)
    train(first, one, range(20))
    train(second, two, range(20))
    assert apart(second, first) < 1e-3
    plain = [network(torch.float32), group().random_element(2, 0.5).apply_(network(torch.float32))]
    for model in plain:
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), range(20))
    losses = [loss_on(model, 7).item() for model in plain]
    assert abs(losses[0] - losses[1]) > 1e-3 * losses[0]
    assert loss_on(second, 7).item() == pytest.approx(loss_on(first, 7).item(), rel=1e-5)


def test_every_k_steps_is_another_trajectory_and_equivariant():
    first, one, sparse = held(every=3)
    second, two, _ = held(seed=2, every=3)
    dense, three, always = held(every=1)
    distances = []
    for batch in range(6):
        for model, optimizer in ((first, one), (second, two), (dense, three)):
            train(model, optimizer, range(batch, batch + 1))
        distances.append(sparse.distance_to_section())
    assert apart(second, first) < 1e-11
    assert max(distances[2], distances[5]) < NEAR < 1e-3 < min(distances[0], distances[4])
    assert always.distance_to_section() < NEAR
    assert apart(dense, first) > 1e-6
    by_kind, four, _ = held(every={"relu rescale": 3})
    train(by_kind, four, range(6))
    assert min(apart(by_kind, first), apart(by_kind, dense)) > 1e-6
    # The linear pair is moved back every ten steps if nothing is said, all else in every one.
    default, five, _ = held()
    said, six, _ = held(every={"linear pair": 10})
    train(default, five, range(12))
    train(said, six, range(12))
    assert apart(said, default) == 0


def test_the_model_may_give_the_names():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    ddc.hold(optimizer, group(), model=model)
    expected, other, _ = held()
    train(model, optimizer, range(3))
    train(expected, other, range(3))
    assert apart(model, expected) == 0


def test_gauges_may_be_a_list():
    model = network()
    gauge = ddc.gauges.relu_rescale(model, "1.weight", ["3.weight"], bias_in="1.bias")
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    hold = ddc.hold(optimizer, [gauge])
    train(model, optimizer, range(2))
    assert hold.distance_to_section() < 1e-12


# ---- What is used together with optimizers --------------------------------------------------------


def both(run: Callable[[nn.Module, Optimizer], Tensor]) -> float:
    """How far two related copies are apart in what `run` returns."""
    results = [run(*held(seed=seed)[:2]) for seed in (None, 2)]
    return ((results[0] - results[1]).norm() / results[0].norm()).item()


def test_clipping_by_the_global_norm_is_invariant():
    def clipped(model, optimizer):
        norms = []
        for batch in range(10):
            backward(model, batch)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            optimizer.step()
        assert min(norms) > 0.1
        return torch.stack(norms)

    assert both(clipped) < 1e-11
    free = [network(), group().random_element(2, 0.5).apply_(network())]
    norms = [clipped(m, torch.optim.AdamW(m.named_parameters(), lr=1e-2)) for m in free]
    assert (norms[0] - norms[1]).norm() > 1e-2 * norms[0].norm()


@pytest.mark.parametrize("average", ["EMA", "SWA"])
def test_averages_of_weights_are_invariant(average):
    def averaged(model, optimizer):
        function = get_ema_multi_avg_fn(0.9) if average == "EMA" else None
        mean = AveragedModel(model, multi_avg_fn=function)
        for batch in range(10):
            train(model, optimizer, range(batch, batch + 1))
            mean.update_parameters(model)
        return torch.cat([parameter.detach().flatten() for parameter in mean.module.parameters()])

    assert both(averaged) < 1e-11


def test_an_average_is_taken_to_the_original_place():
    model, optimizer, hold = held()
    mean = AveragedModel(model)
    mean.update_parameters(model)
    hold.element.inverse().apply_(mean.module)
    assert apart(mean.module, network()) < 1e-13


def test_a_scheduler_a_grad_scaler_and_closures():
    plain, optimizer, _ = held()
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for batch in range(4):
        backward(plain, batch)
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 / 16)

    scaled, optimizer, hold = held()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for batch in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_on(scaled, batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    assert apart(scaled, plain) < 1e-12

    skipped, optimizer, _ = held(lambda named: torch.optim.SGD(named, lr=0.1))
    before = weights(skipped)
    scaler.scale(loss_on(skipped, 0)).backward()
    next(skipped.parameters()).grad[0] = float("inf")
    scaler.step(optimizer)
    assert same(weights(skipped), before)

    closed, optimizer, _ = held(lambda named: torch.optim.SGD(named, lr=0.1))
    value = optimizer.step(lambda: backward(closed, 0))
    expected, other, _ = held(lambda named: torch.optim.SGD(named, lr=0.1))
    assert value == backward(expected, 0)
    other.step()
    assert apart(closed, expected) == 0


def test_hooks_of_others_are_called():
    _, optimizer, hold = held(every=1)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(hold.distance_to_section()))
    model = network()
    for own, other in zip(optimizer.param_groups[0]["params"], model.parameters(), strict=True):
        own.grad = torch.ones_like(other)
    optimizer.step()
    assert len(seen) == 1 and seen[0] < NEAR
    hold.remove()
    optimizer.step()
    assert len(seen) == 2 and seen[1] > 1e-3
    assert "removed" in repr(hold)
    ddc_free = optimizer.state_dict()
    assert set(ddc_free) == {"state", "param_groups"}


# ---- The original place ---------------------------------------------------------------------------


def test_the_original_place_is_where_the_weights_were_found():
    model, optimizer, hold = held()
    placed = weights(model)
    assert hold.place == "canonical"
    with hold.original():
        assert hold.place == "original"
        assert apart(model, network()) < 1e-13
        with pytest.raises(RuntimeError, match="outside of the with"):
            optimizer.step()
        with pytest.raises(RuntimeError, match="already"):
            hold.original().__enter__()
        with pytest.raises(RuntimeError, match="leave the with"):
            hold.remove()
        with pytest.raises(RuntimeError, match="cannot be copied"):
            copy.deepcopy(hold)
    # To the last bit.
    assert same(weights(model), placed)
    train(model, optimizer, range(5))
    loss = loss_on(model, 7).item()
    with hold.original():
        assert loss_on(model, 7).item() == pytest.approx(loss, rel=1e-12)
        there = copy.deepcopy(model)
    moved = hold.element.apply_(there)
    assert apart(moved, model) < 1e-12


def test_what_is_changed_at_the_original_place_comes_along():
    model, _, hold = held()
    with hold.original(), torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        loss = loss_on(model, 7).item()
    assert hold.place == "canonical"
    assert loss_on(model, 7).item() == pytest.approx(loss, rel=1e-12)
    assert loss != pytest.approx(loss_on(network(), 7).item(), rel=1e-3)


def test_what_is_permuted_at_the_original_place_is_noticed():
    model, _, hold = held()
    with hold.original(), torch.no_grad():
        model[3].bias.copy_(model[3].bias.flip(0))
        loss = loss_on(model, 7).item()
    assert loss != pytest.approx(loss_on(network(), 7).item(), rel=1e-6)
    assert loss_on(model, 7).item() == pytest.approx(loss, rel=1e-12)


def test_an_error_inside_leaves_the_weights_at_the_canonical_place():
    model, _, hold = held()
    placed = weights(model)
    with pytest.raises(KeyError), hold.original():
        raise KeyError
    assert same(weights(model), placed)


# ---- Checkpoints -----------------------------------------------------------------------------------


def checkpoint(model, optimizer, hold, place="canonical"):
    if place == "canonical":
        return saved_and_read([model.state_dict(), optimizer.state_dict()])
    with hold.original():
        return saved_and_read([model.state_dict(), optimizer.state_dict()])


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("place", ["canonical", "original"])
@pytest.mark.parametrize("loaded", ["before hold", "after hold", "mixed", "at the original place"])
def test_training_goes_on_from_a_checkpoint(place, loaded, every):
    model, optimizer, hold = held(every=every)
    train(model, optimizer, range(4))
    saved = checkpoint(model, optimizer, hold, place)
    assert saved[1]["ddc"]["place"] == place
    if loaded == "mixed":  # weights at one place, state written at the other
        other = "original" if place == "canonical" else "canonical"
        saved = [checkpoint(model, optimizer, hold, other)[0], saved[1]]
    train(model, optimizer, range(4, 8))

    again = group().random_element(5, 0.5).apply_(network())
    if loaded == "before hold":
        again.load_state_dict(saved[0])
    resumed = OPTIMIZERS["AdamW"](again.named_parameters())
    second = ddc.hold(resumed, group(), every=every)
    if loaded != "before hold":
        again.load_state_dict(saved[0])
    if loaded == "at the original place":
        with second.original():
            again.load_state_dict(saved[0])
            resumed.load_state_dict(saved[1])
            assert second.place == "original"
    else:
        resumed.load_state_dict(saved[1])
    assert second.place == "canonical"
    train(again, resumed, range(4, 8))
    exactly = loaded in ("before hold", "after hold") and place == "canonical"
    assert apart(again, model) <= (0 if exactly else 1e-11)
    with hold.original(), second.original():
        assert apart(again, model) < 1e-11


@pytest.mark.parametrize("loaded", ["before hold", "after hold"])
@pytest.mark.parametrize("place", ["canonical", "original"])
def test_a_float32_checkpoint_is_recognised(place, loaded):
    model, optimizer, hold = held(dtype=torch.float32)
    train(model, optimizer, range(4))
    saved = checkpoint(model, optimizer, hold, place)
    train(model, optimizer, range(4, 6))
    again = network(torch.float32, seed=0 if loaded == "after hold" else 3)
    if loaded == "before hold":
        again.load_state_dict(saved[0])
    resumed = OPTIMIZERS["AdamW"](again.named_parameters())
    ddc.hold(resumed, group())
    if loaded == "after hold":
        again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    train(again, resumed, range(4, 6))
    assert apart(again, model) <= (0 if place == "canonical" else 1e-4)


def test_its_own_state_may_be_loaded_into_an_optimizer():
    """As accelerate does to move it to a device; then a checkpoint of the weights as they were found."""
    model, optimizer, hold = held()
    train(model, optimizer, range(3))
    saved = checkpoint(model, optimizer, hold)
    train(model, optimizer, range(3, 6))
    again = network(seed=3)
    again.load_state_dict(saved[0])
    resumed = OPTIMIZERS["AdamW"](again.named_parameters())
    second = ddc.hold(resumed, group())
    before = weights(again)
    resumed.load_state_dict(resumed.state_dict())
    assert same(weights(again), before)
    resumed.load_state_dict(saved[1])
    train(again, resumed, range(3, 6))
    assert apart(again, model) == 0
    assert second.place == "canonical"


def test_a_checkpoint_before_the_first_step_is_gone_on_with():
    model, optimizer, hold = held()
    saved = checkpoint(model, optimizer, hold)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert hold.distance_to_section() < 1e-12
    with hold.original():
        assert apart(model, network()) < 1e-12


def test_going_back_in_the_same_run():
    model, optimizer, hold = held()
    train(model, optimizer, range(3))
    saved = checkpoint(model, optimizer, hold)
    train(model, optimizer, range(3, 6))
    end = weights(model)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(model, optimizer, range(3, 6))
    assert same(weights(model), end)


def test_other_states_are_refused_and_change_nothing():
    model, optimizer, hold = held()
    train(model, optimizer, range(3))
    saved = checkpoint(model, optimizer, hold)

    def refused(match: str, state: Any, error=ValueError, **options: Any) -> None:
        own = network()
        own.load_state_dict(saved[0])
        fewer = options.pop("symmetries", group())
        other = OPTIMIZERS["AdamW"](own.named_parameters())
        kept = ddc.hold(other, fewer, **options)
        before = weights(own), other.state_dict()
        with pytest.raises(error, match=match):
            other.load_state_dict(state)
        assert same(weights(own), before[0])
        assert same(other.state_dict(), before[1])
        assert kept.place == "canonical"

    refused("symmetries", saved[1], symmetries=group().without("linear pair"))
    refused("symmetries", saved[1], every=2)
    refused("symmetries", saved[1], coordinates="standard")
    plain = {key: value for key, value in saved[1].items() if key != "ddc"}
    refused("without ddc.hold", plain)
    refused("not of this version", {**saved[1], "ddc": {**saved[1]["ddc"], "format": 7}})

    def changed(name: str, value: Any) -> Any:
        own = saved[1]["ddc"]
        return {**saved[1], "ddc": {**own, "state": {**own["state"], name: value}}}

    element = next(name for name in saved[1]["ddc"]["state"] if name.endswith("/element"))
    tensor = saved[1]["ddc"]["state"][element]
    refused("has shape", changed(element, tensor[:1, ..., :1]))
    refused("type", changed(element, tensor.float()))
    refused("not finite", changed(element, tensor * float("nan")))
    refused("nothing that it remembers", changed("more", tensor))
    fewer = {key: value for key, value in saved[1]["ddc"]["state"].items() if key != element}
    refused("is missing", {**saved[1], "ddc": {**saved[1]["ddc"], "state": fewer}})
    groups = [{**saved[1]["param_groups"][0], "params": [0, 1]}]
    refused("match the size", {**saved[1], "param_groups": groups})

    # The optimizer's before the model's.
    late = network(seed=3)
    other = OPTIMIZERS["AdamW"](late.named_parameters())
    ddc.hold(other, group())
    before = weights(late)
    with pytest.raises(ValueError, match="load the model's state dict before"):
        other.load_state_dict(saved[1])
    assert same(weights(late), before)


@pytest.mark.parametrize("copied", ["pickle", "deepcopy"])
@pytest.mark.parametrize("steps", [0, 4])
def test_a_hold_is_copied_with_its_optimizer(copied, steps):
    model, optimizer, hold = held(every=3)
    train(model, optimizer, range(steps))
    if copied == "pickle":
        again, second = pickle.loads(pickle.dumps((model, hold)))
    else:
        again, second = copy.deepcopy((model, hold))
    assert same(weights(again), weights(model))
    train(model, optimizer, range(4, 8))
    train(again, second.optimizer, range(4, 8))
    assert same(weights(again), weights(model))
    with hold.original(), second.original():
        assert apart(again, model) < 1e-13


def saved_whole(objects: Any) -> Any:
    file = io.BytesIO()
    torch.save(objects, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied",
    [lambda o: pickle.loads(pickle.dumps(o)), copy.deepcopy, saved_whole],
    ids=["pickle", "deepcopy", "torch.save"],
)
@pytest.mark.parametrize("steps", [0, 4])
def test_copies_of_a_held_optimizer_are_held(copied, steps):
    model, optimizer, hold = held(every=3)
    train(model, optimizer, range(steps))
    again, second = copied((model, optimizer))
    assert type(second) is type(optimizer)
    assert all(
        a is b for a, b in zip(again.parameters(), second.param_groups[0]["params"], strict=True)
    )
    assert second.state_dict()["ddc"]["symmetries"] == optimizer.state_dict()["ddc"]["symmetries"]
    third, last = copied((again, second))
    for each, own in ((model, optimizer), (again, second), (third, last)):
        train(each, own, range(4, 14))
    assert same(weights(again), weights(model))
    assert same(weights(third), weights(model))


@pytest.mark.parametrize("order", ["optimizer first", "hold first"])
def test_a_copy_of_both_is_one(order):
    model, optimizer, hold = held()
    if order == "hold first":
        again, second_hold, second = copy.deepcopy((model, hold, optimizer))
    else:
        again, second, second_hold = pickle.loads(pickle.dumps((model, optimizer, hold)))
    assert second_hold.optimizer is second
    assert len(second._optimizer_step_post_hooks) == 1
    train(model, optimizer, range(4))
    train(again, second, range(4))
    assert same(weights(again), weights(model))
    second_hold.remove()
    assert "ddc" not in copy.deepcopy((again, second))[1].state_dict()
    assert "ddc" in copy.deepcopy((model, optimizer))[1].state_dict()


def test_a_shallow_copy_of_a_held_optimizer_is_refused():
    model, optimizer, hold = held()
    with pytest.raises(TypeError, match="copy.deepcopy, with the model"):
        copy.copy(optimizer)
    with hold.original(), pytest.raises(RuntimeError, match="while its weights are at their orig"):
        copy.deepcopy((model, optimizer))
    train(model, optimizer, range(1))


# ---- Refusals --------------------------------------------------------------------------------------


def refuse(match: str, moved: nn.Module, optimizer: Any, error=ValueError, **options: Any) -> None:
    before = weights(moved)
    hooks = len(getattr(optimizer, "_optimizer_step_post_hooks", {}))
    with pytest.raises(error, match=match):
        ddc.hold(optimizer, options.pop("symmetries", group()), **options)
    assert same(weights(moved), before)
    assert len(getattr(optimizer, "_optimizer_step_post_hooks", {})) == hooks


def test_what_cannot_be_held_is_refused_before_anything_is_moved():
    def adam(model: nn.Module) -> Optimizer:
        return torch.optim.AdamW(model.named_parameters())

    half = network(torch.bfloat16)
    refuse(r"'0.weight' of type torch.bfloat16.*float32 or float64", half, adam(half))
    frozen = network()
    frozen[1].weight.requires_grad_(False)
    refuse("'1.weight', which is frozen", frozen, adam(frozen))
    model = network()
    some = [(n, p) for n, p in model.named_parameters() if n != "3.weight"]
    refuse("'3.weight', which the optimizer does not have", model, torch.optim.AdamW(some))
    refuse("no names", model, torch.optim.AdamW(model.parameters()))
    refuse("none of the model's", model, adam(model), model=network())
    wide = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    refuse(r"of shape \[3, 4\], which has shape \[4, 4\]", wide, adam(wide))
    sharded = network()
    sharded[1].weight.ds_id = 3
    refuse("sharded", sharded, adam(sharded), error=RuntimeError)

    class AdamWScheduleFree(Lion):
        pass

    refuse("keeps copies of the weights", model, AdamWScheduleFree(model.named_parameters()))
    averaging = Lion(model.named_parameters())
    averaging.state[model[0].weight]["z"] = model[0].weight.detach().clone()
    refuse(r"keeps copies of the weights in its state \('z'\)", model, averaging)
    stepped = network()
    optimizer = torch.optim.SGD(stepped.named_parameters(), lr=0.1, momentum=0.9)
    train(stepped, optimizer, range(1))
    refuse("has made steps", stepped, optimizer)
    own = network()
    lifted = ddc.DDCAdam(own.named_parameters(), symmetries=group())
    refuse("respects symmetries itself", own, lifted)
    refuse("torch.optim.Optimizer is needed, got dict", model, {}, error=TypeError)
    refuse("ddc.SymmetryGroup or a list", model, adam(model), TypeError, symmetries=["scale"])
    refuse("no option 'evry'", model, adam(model), TypeError, evry=2)
    refuse("every", model, adam(model), every=0)
    refuse("rescal", model, adam(model), every={"relu rescal": 2})
    refuse("coordinates=polar", model, adam(model), coordinates="polar")
    refuse("vertical", model, adam(model), vertical="sgd")
    refuse("not bound", model, adam(model), bind=False)
    refuse("placement is in_place", model, adam(model), placement="in_place")


def test_a_second_hold_is_refused():
    model, optimizer, hold = held()
    refuse("held already", model, optimizer)
    hold.remove()
    ddc.hold(optimizer, group())


def test_weights_that_were_loaded_after_hold_are_noticed_before_a_step():
    model, optimizer, _ = held()
    model.load_state_dict(network(seed=3).state_dict())
    backward(model, 0)
    before = weights(model)
    with pytest.raises(RuntimeError, match="changed since they were placed"):
        optimizer.step()
    assert same(weights(model), before)


def test_our_own_optimizers_are_held_too():
    first, second = network(), group().random_element(2, 0.5).apply_(network())
    for model in (first, second):
        optimizer = ddc.DDCSgd(model.named_parameters(), lr=0.1)
        ddc.hold(optimizer, group())
        train(model, optimizer, range(5))
    assert apart(second, first) < 1e-11


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, lr=1e-2), lambda p: torch.optim.AdamW(p, lr=1e-2)]
)
@pytest.mark.parametrize(
    "dtype, size", [(torch.float32, 1e25), (torch.float32, 3e38), (torch.float64, 1.7e308)]
)
def test_weights_that_are_too_large_to_be_held_are_left_finite(make, dtype, size):
    model = network(dtype)
    optimizer = make(model.named_parameters())
    ddc.hold(optimizer, group())
    train(model, optimizer, range(2))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, size)
    try:
        optimizer.step()
    except RuntimeError as error:
        assert re.search("gauge '.*weights are finite, and not brought back", str(error))
    assert all(parameter.isfinite().all() for parameter in model.parameters())


# ---- Param groups, threads, foreign states ----------------------------------------------------------


def in_two_groups() -> tuple[nn.Module, Optimizer, ddc.Hold]:
    model = network()
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW([{"params": named[:2]}, {"params": named[2:]}], lr=1e-2)
    return model, optimizer, ddc.hold(optimizer, group())


def move_a_parameter(optimizer: Optimizer) -> None:
    for key in ("params", "param_names"):
        moved = optimizer.param_groups[0][key].pop()
        optimizer.param_groups[1][key].insert(0, moved)


def test_parameters_may_be_moved_between_param_groups_and_these_reordered():
    """Schedules for fine-tuning do so; the groups have the same options here."""
    model, optimizer, hold = in_two_groups()
    reference, plain, _ = in_two_groups()
    train(model, optimizer, range(2))
    train(reference, plain, range(2))
    move_a_parameter(optimizer)
    for key in ("params", "param_names"):
        optimizer.param_groups[1][key].reverse()
    train(model, optimizer, range(2, 4))
    train(reference, plain, range(2, 4))
    assert same(weights(model), weights(reference))
    with hold.original():
        pass
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again, second = copy.deepcopy((model, hold))
    optimizer.param_groups.reverse()
    for trained, steps in ((model, optimizer), (again, second.optimizer), (reference, plain)):
        train(trained, steps, range(4, 6))
        assert same(weights(trained), weights(model))


def test_a_parameter_that_was_replaced_is_noticed():
    model, optimizer, _ = in_two_groups()
    train(model, optimizer, range(1))
    old = model[1].weight
    model[1].weight = nn.Parameter(old.detach().clone())
    for options in optimizer.param_groups:
        options["params"] = [model[1].weight if p is old else p for p in options["params"]]
    backward(model, 1)
    before = weights(model)
    with pytest.raises(RuntimeError, match="'1.weight' is not in the optimizer's param groups any"):
        optimizer.step()
    assert same(weights(model), before)


def test_a_second_thread_is_refused_in_the_middle_of_a_step():
    model = network()
    amid, done = threading.Event(), threading.Event()

    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            amid.set()
            assert done.wait(60)

    optimizer = Slow(model.named_parameters(), lr=1e-2)
    hold = ddc.hold(optimizer, group())
    backward(model, 0)
    thread = threading.Thread(target=optimizer.step)
    thread.start()
    assert amid.wait(60)
    said = []
    for call in (optimizer.step, optimizer.state_dict, hold.original().__enter__):
        with pytest.raises(
            RuntimeError, match="another thread is in the middle of a step"
        ) as error:
            call()
        said.append(error)
    done.set()
    thread.join()
    optimizer.step()
    assert len(said) == 3
    assert hold.distance_to_section() < 0.1


def test_a_step_that_failed_in_another_thread_blocks_nobody():
    model = network()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=1e-2)
    ddc.hold(optimizer, group())
    backward(model, 0)
    failed, done = threading.Event(), threading.Event()

    def closure() -> float:
        raise KeyError

    def work() -> None:
        with pytest.raises(KeyError):
            optimizer.step(closure)
        failed.set()
        assert done.wait(60)  # the thread lives on

    thread = threading.Thread(target=work)
    thread.start()
    assert failed.wait(60)
    optimizer.step()
    done.set()
    thread.join()


def damaged(state: Any, key: str, change: Callable[[Any], Any] | None) -> Any:
    """A state dict with one entry of the hold's part changed, or (None) taken out."""
    own = dict(state["ddc"])
    where = own if key in own else own.setdefault("state", dict(own["state"]))
    if where is not own:
        where = own["state"] = dict(where)
    if change is None:
        del where[key]
    else:
        where[key] = change(where[key])
    return {**state, "ddc": own}


FOREIGN: list[tuple[str, Callable[[Any], Any] | None, str]] = [
    ("sums", None, "'sums' is missing, must be a list"),
    ("sums", lambda s: s[:-1], "'sums' are of 4 tensors, gauges act on 5"),
    ("sums", lambda s: [[float("nan")] * 4] * 4, "four numbers for each tensor.*nan"),
    ("sums", lambda s: ["x"] * 4, "four numbers for each tensor"),
    ("state", None, "'state' is missing, must be a dict"),
    ("state", lambda s: [s], "'state' is a list, must be a dict"),
    ("symmetries", None, "'symmetries' is missing"),
    ("format", None, "not of this version of ddc: it is of format None, this one reads 1"),
    ("format", lambda f: 2, "not of this version of ddc: it is of format 2, this one reads 1"),
    ("0.weight:linear/element", lambda t: "x", "'0.weight:linear/element' of its state is a str"),
    ("0.weight:linear/element", lambda t: t.to_sparse(), "'0.weight:linear/element' has layout"),
    ("0.weight:linear/bound", lambda t: t.to_sparse(), "'0.weight:linear/bound' has layout"),
    ("0.weight:linear/element", torch.zeros_like, "'0.weight:linear/element' is a singular"),
    (
        "0.weight:linear/element",
        lambda t: t * 1e308,
        "'0.weight:linear/element' has a factor whose",
    ),
    ("0.weight:linear/target", torch.zeros_like, "'0.weight:linear/target' is a singular matrix"),
    ("0.weight:linear/count", lambda t: t - 9, "'0.weight:linear/count' must be >= 0, is -"),
    ("1.weight:rescale/element", lambda t: t * 0 + 1e308, "logarithm of a factor that overflows"),
]


@pytest.mark.parametrize(
    "key, change, message", FOREIGN, ids=[f"{k}-{m[:20]}" for k, _, m in FOREIGN]
)
def test_a_state_dict_that_no_hold_has_written_is_refused_by_the_name_of_what_is_wrong(
    key, change, message
):
    model, optimizer, _ = held()
    train(model, optimizer, range(2))
    before = weights(model), copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(damaged(copy.deepcopy(before[1]), key, change))
    assert same((weights(model), optimizer.state_dict()), before)
