"""Copies and checkpoints: state that survives them, and state that is refused."""

from __future__ import annotations

import copy
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import ddc
import pytest
import torch
from optim_support import (
    CASES,
    every_case,
    group,
    grouped_case,
    network,
    same,
    saved_and_read,
    train,
    weights,
)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@every_case
def test_a_copy_goes_on_as_the_original(case, how):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    together = (model, optimizer)
    other, twin = (
        copy.deepcopy(together) if how == "deepcopy" else pickle.loads(pickle.dumps(together))
    )
    train(model, optimizer, range(2, 4))
    train(other, twin, range(2, 4))
    assert same(weights(model), weights(other))
    assert same(twin.state_dict(), optimizer.state_dict())
    assert repr(twin) == repr(optimizer)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
@every_case
def test_training_resumes_to_the_bit_and_state_keeps_its_types(case, dtype):
    model = network(dtype)
    optimizer = case.make(model)
    train(model, optimizer, range(3))
    for entries in optimizer.state.values():
        for key, value in entries.items():
            if key in ("exp_avg", "exp_avg_sq", "momentum_buffer") or key.startswith(
                ("left", "right")
            ):
                expected = torch.float64 if dtype == torch.float64 else torch.float32
            elif key.endswith(("step", ".age", ".recomputed", ".count")):
                expected = torch.int64
            elif key.endswith((".bound", ".known", ".original")):
                expected = torch.bool
            elif ".anchor." in key:
                expected = dtype
            else:
                assert key.startswith("gauge.") or key in ("unit", "root_unit", "root_norm"), key
                expected = torch.float64
            assert value.dtype == expected, key
    saved = saved_and_read({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    other = network(dtype, seed=7)
    resumed = case.make(other, lr=0.7)
    other.load_state_dict(saved["model"])
    assert resumed.load_state_dict(state_dict=saved["optimizer"]) is None
    assert same(resumed.state_dict(), optimizer.state_dict())
    train(model, optimizer, range(3, 6))
    train(other, resumed, range(3, 6))
    assert same(weights(model), weights(other))
    assert same(resumed.state_dict(), optimizer.state_dict())


@every_case
def test_state_before_the_first_step_can_be_loaded(case):
    model = network()
    optimizer = case.make(model, lr=0.125)
    saved = saved_and_read(optimizer.state_dict())
    other = network()
    resumed = case.make(other)
    train(other, resumed, range(2))
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(saved)
    train(model, optimizer, range(2))
    train(other, resumed, range(2))
    assert same(weights(model), weights(other))


def of_adam(model: torch.nn.Module) -> dict[str, Any]:
    """One param group that Adam steps."""
    return {"params": list(model.named_parameters()), "use_adam": True, "lr": 1e-3}


def test_loaded_options_say_what_state_there_is():
    """State that Adam left of a matrix goes where Muon would have stepped it otherwise."""
    model = network()
    optimizer = ddc.DDCMuon([of_adam(model)], symmetries=group())
    train(model, optimizer, range(2))
    other = copy.deepcopy(model)
    resumed = ddc.DDCMuon([{**of_adam(other), "lr": 0.5}], symmetries=group())
    resumed.load_state_dict(saved_and_read(optimizer.state_dict()))
    train(model, optimizer, range(2, 4))
    train(other, resumed, range(2, 4))
    assert same(weights(model), weights(other))


@every_case
def test_state_of_another_precision_is_cast(case):
    """As torch does, but never below float32."""
    model = network(torch.float32)
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    for dtype in (torch.float64, torch.bfloat16):
        other = copy.deepcopy(model).to(dtype)
        if case.placed and dtype == torch.bfloat16:
            with pytest.raises(
                ValueError, match="canonical place; .*, the optimizer has .* in place;"
            ):
                case.make(other).load_state_dict(copy.deepcopy(optimizer.state_dict()))
            continue
        resumed = case.make(other)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        train(other, resumed, range(2, 3))
        expected = torch.float64 if dtype == torch.float64 else torch.float32
        if case.moment is not None:
            assert resumed.state[other[0].weight][case.moment].dtype == expected


@every_case
def test_a_state_dict_of_the_learning_rate_alone_will_do(case):
    """Options that it does not have are the optimizer's."""
    model = network()
    optimizer = case.make(model, weight_decay=0.3)
    train(model, optimizer, range(2))
    old = copy.deepcopy(optimizer.state_dict())
    kept = {"lr", "params", "symmetries"}
    old["param_groups"] = [{k: g[k] for k in kept} for g in old["param_groups"]]
    other = copy.deepcopy(model)
    resumed = case.make(other, weight_decay=0.3)
    resumed.load_state_dict(old)
    assert same(resumed.state_dict(), optimizer.state_dict())


def of_tensor(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    """Changes the state of one parameter, the first that has this key, ending so."""

    def damage(state: dict[str, Any]) -> None:
        for entries in state["state"].values():
            for name in entries:
                if name.endswith(key):
                    entries[name] = change(entries[name])
                    return
        raise AssertionError(key)

    return damage


def without(key: str) -> Callable[[dict[str, Any]], None]:
    def damage(state: dict[str, Any]) -> None:
        for entries in state["state"].values():
            for name in list(entries):
                if name.endswith(key):
                    del entries[name]

    return damage


def option(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda state: state["param_groups"][0].update(values)


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "shape": (
        of_tensor("exp_avg_sq", lambda t: t[:-1]),
        "'param.*exp_avg_sq' is of type Double and shape",
    ),
    "missing": (without("exp_avg"), "has no tensor 'param.*exp_avg'"),
    "unknown": (lambda s: s["state"][0].update(velocity=torch.ones(3, 4)), "velocity"),
    "no tensor": (
        of_tensor("exp_avg_sq", lambda t: "lost"),
        "exp_avg_sq' of .* must be a tensor, is .*str",
    ),
    "negative step": (of_tensor("step", lambda t: torch.tensor(-1)), "step' must be >= 0, is -1"),
    "step": (
        of_tensor("step", lambda t: "many"),
        "step of '.*' must be a number, is 'many'",
    ),
    "nan": (of_tensor("exp_avg", lambda t: t + torch.nan), "exp_avg' has NaN or Inf entries"),
    "inf": (of_tensor("exp_avg", lambda t: t + torch.inf), "exp_avg' has NaN or Inf entries"),
    "negative": (of_tensor("exp_avg_sq", lambda t: t - 1), "exp_avg_sq' has negative entries"),
    "nan square": (of_tensor("exp_avg_sq", lambda t: t * torch.nan), "exp_avg_sq' has NaN entries"),
    "sparse": (of_tensor("exp_avg", lambda t: t.to_sparse()), "exp_avg' has layout Sparse"),
    "no state": (lambda s: s.pop("state"), "'state' is missing or no dict.*param_groups"),
    "no groups": (lambda s: s.pop("param_groups"), "'param_groups' is missing or no list"),
    "no params": (lambda s: s["param_groups"][0].pop("params"), "group 0 has no list of params"),
    "no entries": (lambda s: s["state"].update({0: 3}), "state of parameter 0 is no dict"),
    "parameter": (lambda s: s["state"].update({99: {}}), "state of 99, which is in no param group"),
    "group": (
        lambda s: s["param_groups"].append(s["param_groups"][0]),
        "different number of parameter groups",
    ),
    "size": (
        lambda s: s["param_groups"][0]["params"].pop(),
        "doesn't match the size of optimizer's group",
    ),
    "names": (
        lambda s: s["param_groups"][0]["param_names"].pop(),
        "param group 0 has . parameters and . param_names",
    ),
    "lr": (option(lr=-1.0), "option lr must be finite and >= 0, got -1"),
    "betas": (option(betas=0.9), "betas must be a pair of numbers, got 0.9"),
    "symmetries": (
        option(symmetries="3 gauges of dimension 7, 0123456789ab"),
        "3 gauges of dimension 7",
    ),
}
GROUP_DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no symmetries": (
        option(symmetries=None),
        "trained with the symmetries None, the optimizer has 4 gauges",
    ),
    "gauge type": (of_tensor(".bound", lambda t: t.double()), "bound' is of type Double"),
    "order": (
        lambda s: s["param_groups"][0]["param_names"].reverse(),
        "for the parameter '.*' would be loaded for '0.weight'",
    ),
}
IN_PLACE_DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "gauge shape": (
        of_tensor(".log_unit", lambda t: t[1:]),
        "rescale.log_unit' is of type Double and shape",
    ),
    "gauge missing": (without(".frame"), "has no tensor 'gauge.0.weight:linear.frame'"),
    "count": (of_tensor(".age", lambda t: t.float()), "age' is of type Float and shape"),
}
PLACED_DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "gauge shape": (
        of_tensor("rescale.element", lambda t: t[1:]),
        "rescale.element' is of type Double and shape",
    ),
    "gauge missing": (without("linear.element"), "has no tensor 'gauge.0.weight:linear.element'"),
    "count": (of_tensor(".count", lambda t: t.float()), "count' is of type Float and shape"),
    "anchor": (
        of_tensor(".anchor.10.0.weight", lambda t: t[1:]),
        "anchor.10.0.weight' is of type Double and shape",
    ),
}


def damages_of(case: Any) -> dict[str, tuple[Callable[[dict[str, Any]], Any], str]]:
    if not case.grouped:
        return DAMAGES
    return DAMAGES | GROUP_DAMAGES | (PLACED_DAMAGES if case.placed else IN_PLACE_DAMAGES)


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        pytest.param(case, *damage, id=f"{case}-{name}")
        for case in CASES
        for name, damage in damages_of(case).items()
    ],
)
def test_a_state_dict_that_does_not_fit_is_refused_and_changes_nothing(case, change, message):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    damaged = copy.deepcopy(before)
    change(damaged)
    with pytest.raises((ValueError, RuntimeError, TypeError), match=message):
        optimizer.load_state_dict(damaged)
    assert same(optimizer.state_dict(), before)
    other = copy.deepcopy(model)
    untouched = case.make(other)
    untouched.load_state_dict(before)
    train(model, optimizer, range(2, 3))
    train(other, untouched, range(2, 3))
    assert same(weights(model), weights(other))


@grouped_case
def test_state_of_other_symmetries_is_refused(case):
    model = network()
    ours = case.make(model)
    train(model, ours, range(1))
    for other in (case.kind(model.named_parameters()), case.light().make(model)):
        other.step()
        with pytest.raises(ValueError, match="trained with the symmetries .*, the optimizer has"):
            other.load_state_dict(copy.deepcopy(ours.state_dict()))
        with pytest.raises(ValueError, match="trained with the symmetries .*, the optimizer has"):
            ours.load_state_dict(copy.deepcopy(other.state_dict()))
    with pytest.raises(ValueError, match="trained with the symmetries None"):
        adamw = torch.optim.AdamW(model.parameters())
        adamw.step()
        ours.load_state_dict(adamw.state_dict())


@every_case
def test_names_that_wrappers_put_in_a_state_dict_do_no_harm(case):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    names = saved["param_groups"][0]["param_names"]
    names[:] = [f"module._orig_mod.{name}" for name in names]
    other = copy.deepcopy(model)
    resumed = case.make(other)
    resumed.load_state_dict(saved)
    other.to(torch.float32).to(torch.float64)  # the core is made anew, by these names
    model.to(torch.float32).to(torch.float64)
    train(model, optimizer, range(2, 3))
    train(other, resumed, range(2, 3))
    assert same(weights(model), weights(other))


@every_case
def test_clearing_the_state_starts_anew(case):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    other = copy.deepcopy(model)
    fresh = case.make(other)
    optimizer.state.clear()
    train(model, optimizer, range(2, 4))
    train(other, fresh, range(2, 4))
    if case.placed:
        # The first gradients were taken before the weights were placed anew, and moved with them.
        torch.testing.assert_close(weights(model), weights(other), rtol=1e-11, atol=1e-11)
        return
    assert same(weights(model), weights(other))
    assert same(optimizer.state_dict(), fresh.state_dict())


@every_case
def test_weights_may_be_loaded_after_the_optimizer_is_made(case):
    model, reference = network(), network(seed=5)
    optimizer = case.make(model)
    model.load_state_dict(reference.state_dict())
    fresh = case.make(reference)
    train(model, optimizer, range(3))
    train(reference, fresh, range(3))
    if case.placed:
        torch.testing.assert_close(weights(model), weights(reference), rtol=1e-11, atol=1e-11)
        return
    assert same(weights(model), weights(reference))


# ------------------------------------------------------------------------------------------------
# Faults

# Trains to step 40, and saves after every step, as users do: beside the file, and renamed over it.
TRAINS = """
import os, sys, torch, ddc
from optim_support import group, network, train

path, symmetries = sys.argv[1:]
model = network()
group = ddc.SymmetryGroup.load(symmetries, model)
optimizer = ddc.DDCAdam(model.named_parameters(), lr=1e-2, symmetries=group)
first = 0
if os.path.exists(path):
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step in range(first, 40):
    train(model, optimizer, range(step, step + 1))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)
    print(step, flush=True)
"""


def test_training_that_is_killed_while_it_saves_goes_on_to_the_same_weights(tmp_path):
    group().save(tmp_path / "group.json")
    model = network()
    optimizer = ddc.DDCAdam(model.named_parameters(), lr=1e-2, symmetries=group())
    train(model, optimizer, range(40))
    random = Random(0)
    path = tmp_path / "state.pt"
    command = [sys.executable, "-c", TRAINS, str(path), str(tmp_path / "group.json")]
    for killed in (True, True, False):
        process = subprocess.Popen(
            command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(random.randint(2, 12) if killed else 0):
            process.stdout.readline()
        if killed:
            time.sleep(random.uniform(0, 5e-3))
            process.kill()
        said = process.communicate(timeout=120)[1].decode()
        assert process.returncode == (-signal.SIGKILL if killed else 0), said
    saved = torch.load(path, weights_only=True)
    assert saved["step"] == 40
    assert same(saved["model"], dict(model.state_dict()))
    assert same(saved["optimizer"], saved_and_read(optimizer.state_dict()))


# ------------------------------------------------------------------------------------------------
# Foreign values, and versions


def with_step(state: Any, value: Any) -> Any:
    entries = {number: dict(entry) for number, entry in state["state"].items()}
    entries[1]["step"] = value
    return {**state, "state": entries}


@every_case
def test_a_number_of_steps_that_is_none_is_refused_by_the_name_of_its_parameter(case):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    name = [n for group in optimizer.param_groups for n in group["param_names"]][1]
    for value, message in (
        (float("nan"), "must be a whole number of 64 bits, is nan"),
        (torch.tensor(float("inf")), "must be a whole number of 64 bits, is inf"),
        (1.5, "must be a whole number of 64 bits, is 1.5"),
        (10**30, "must be a whole number of 64 bits, is 1000"),
        (torch.tensor([1, 2]), r"must be one number, is a tensor of shape \[2\]"),
        (torch.tensor(1j), "must be one number"),
        ("two", "must be a number, is 'two'"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"step of '{name}' {message}"):
            optimizer.load_state_dict(with_step(before, value))
    assert same(optimizer.state_dict(), before)


@pytest.mark.parametrize("given", [None, 3, [], {}, {"state": {}}], ids=str)
def test_what_is_no_state_dict_is_refused_in_words(given):
    optimizer = ddc.DDCAdam(network().named_parameters(), symmetries=group())
    with pytest.raises(ValueError, match="is missing or no (dict|list).*no state dict of an opt"):
        optimizer.load_state_dict(given)


@pytest.mark.parametrize(
    "gauge, change, message",
    [
        ("0.weight:linear.element", torch.zeros_like, "0.weight:linear.element' is a singular"),
        ("0.weight:linear.target", torch.zeros_like, "0.weight:linear.target' is a singular"),
        ("1.weight:rescale.element", lambda t: t * 0 + 1e308, "factor that overflows Double"),
    ],
)
def test_an_element_that_cannot_be_undone_is_refused_when_it_is_loaded(gauge, change, message):
    model = network()
    optimizer = ddc.DDCAdam(model.named_parameters(), symmetries=group())
    train(model, optimizer, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    state = copy.deepcopy(before)
    (entry,) = [entry for entry in state["state"].values() if f"gauge.{gauge}" in entry]
    entry[f"gauge.{gauge}"] = change(entry[f"gauge.{gauge}"])
    with pytest.raises(RuntimeError, match=message):
        optimizer.load_state_dict(state)
    assert same(optimizer.state_dict(), before)


@every_case
def test_state_dicts_have_a_version_and_later_ones_are_refused_by_it(case):
    model = network()
    optimizer = case.make(model)
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    assert {group["ddc_format"] for group in saved["param_groups"]} == {1}

    def of_format(value: Any) -> Any:
        groups = [{**group, "ddc_format": value} for group in saved["param_groups"]]
        return {**saved, "param_groups": groups}

    for value in (2, 0, True, "1", None):
        with pytest.raises(ValueError, match=f"of format {value!r} .* reads formats up to 1"):
            optimizer.load_state_dict(of_format(value))
    assert same(optimizer.state_dict(), saved)
    # Those of before there were numbers.
    groups = [
        {k: v for k, v in group.items() if k != "ddc_format"} for group in saved["param_groups"]
    ]
    optimizer.load_state_dict({**saved, "param_groups": groups})
    assert same(optimizer.state_dict(), saved)
