"""How symmetries are treated, from Python: treatments, recipes, identity of states, param groups."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import ddc
import pytest
import torch
from ddc import _C
from ddc._options import TREATMENT
from optim_support import backward, every_kind, group, loss, network, same, train, weights
from torch import Tensor, nn


class Block(nn.Module):
    """Self-attention and a ReLU MLP, each behind a LayerNorm: gauges of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.query, self.key = nn.Linear(6, 8), nn.Linear(6, 8)
        self.value, self.output = nn.Linear(6, 8), nn.Linear(8, 6)
        self.mlp_norm = nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)
        self.unembed = nn.Linear(6, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (
            f(h).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        a = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.output(a.transpose(1, 2).flatten(-2))
        x = x + self.down(torch.relu(self.up(self.mlp_norm(x))))
        return self.unembed(x)


def block() -> Block:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Block().double()


def block_loss(model: nn.Module) -> Tensor:
    inputs, targets = torch.randn(4, 5, 6).double(), torch.randint(5, (4, 5))
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@pytest.fixture(scope="module")
def found() -> ddc.SymmetryGroup:
    result = ddc.discover(block(), block_loss, head_sizes=[4])
    kinds = {gauge.kind for gauge in result.gauges}
    assert {"QK linear", "VO linear", "norm scale", "relu rescale", "CE row shift"} <= kinds
    return result


def steps(optimizer: torch.optim.Optimizer, model: nn.Module, count: int = 4) -> list[Tensor]:
    for batch in range(count):
        torch.manual_seed(batch)
        model.zero_grad()
        block_loss(model).backward()
        optimizer.step()
    return weights(model)


# ------------------------------------------------------------------------------------------------
# Treatments by name

VALUES = {
    "bind": [False],
    "heads": ["cut", "whole"],
    "placement": ["canonical", "in_place"],
    "coordinates": ["folded", "balanced", "standard", "polar"],
    "hold": ["ratio", "unit"],
    "vertical": ["frozen", "sgd", "adam"],
    "radial": ["linear", "log"],
    "max_log_step": [0.05],
    "second_moment": [
        "transported",
        "body_frame",
        "body_frame_topk",
        "per_head_scalar",
        "per_head_matrix",
        "none",
    ],
    "tau": [0.5],
    "frame_drift": [0.01],
    "frame_interval": [2],
    "procrustes": [True],
    "rebalance_above": [0.1],
    "project": ["step", "never"],
    "every": [1, 3],
    "decay_held": [True],
}


def test_every_treatment_of_the_library_is_tested_here():
    assert VALUES.keys() == TREATMENT.keys()
    for declared in _C.treatment_options():
        if declared["choices"]:
            known = set(declared["choices"]) - {"default"}
            missing = known - {*VALUES[declared["name"]], "momentum"}  # momentum is Muon's
            assert not missing


@pytest.mark.parametrize(
    ("option", "value"), [(name, value) for name, values in VALUES.items() for value in values]
)
def test_a_treatment_reaches_the_gauges_by_name(found, option, value):
    model = block()
    rotations = [g for g in found.gauges if g.action in ("linear", "rotation")]
    optimizer = ddc.DDCAdam(model.named_parameters(), symmetries=found, **{option: value})
    names = {gauge.name for gauge in optimizer.report().gauges}
    if option == "bind":
        assert not names
        return
    assert names == {gauge.name for gauge in found.gauges}
    seen = {optimizer.treatment(gauge.name)[option] for gauge in found.gauges}
    assert value in seen
    if option == "second_moment":
        assert all(optimizer.treatment(g.name)[option] == value for g in rotations)
    after = steps(optimizer, model)
    assert all(torch.isfinite(weight).all() for weight in after)
    assert not same(after, weights(block()))


def test_a_treatment_may_be_given_by_kind_and_by_name(found):
    rescale = next(gauge for gauge in found.gauges if gauge.kind == "relu rescale")
    optimizer = ddc.DDCAdam(
        block().named_parameters(),
        symmetries=found,
        coordinates={"norm scale": "folded", rescale.name: "standard"},
        second_moment={"QK linear": "body_frame"},
    )
    for gauge in found.gauges:
        treatment = optimizer.treatment(gauge.name)
        if gauge.kind == "norm scale":
            assert treatment["coordinates"] == "folded"
        if gauge.name == rescale.name:
            assert treatment["coordinates"] == "standard"
        if gauge.action == "linear":
            expected = "body_frame" if gauge.kind == "QK linear" else "transported"
            assert treatment["second_moment"] == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"coordinats": "polar"}, TypeError, "no option 'coordinats'; did you mean 'coordinates'"),
        ({"coordinates": "polr"}, ValueError, "one of default, .*; did you mean 'polar'"),
        ({"coordinates": {"relu rescal": "polar"}}, ValueError, "did you mean 'relu rescale'"),
        ({"coordinates": {"CE row shift": "polar"}}, ValueError, "coordinates is for scale gauges"),
        ({"second_moment": {"norm scale": "none"}}, ValueError, "for rotations and linear gauges"),
        ({"decay_held": {"norm scale": True}}, ValueError, "decay_held is for shifts"),
        ({"tau": 1.5}, ValueError, r"option tau must be in \[0, 1\), got 1.5"),
        ({"frame_interval": 0}, ValueError, "frame_interval must be a whole number >= 1, got 0"),
        ({"project": "momentum"}, ValueError, "DDCAdam.*project=momentum needs a base rule"),
        ({"recipe": "papr"}, ValueError, "unknown recipe 'papr'; did you mean 'paper'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(found, options, error, message):
    with pytest.raises(error, match=message):
        ddc.DDCAdam(block().named_parameters(), symmetries=found, **options)


def test_a_treatment_without_symmetries_is_refused():
    with pytest.raises(ValueError, match="coordinates: no symmetries are given"):
        ddc.DDCAdam(block().parameters(), coordinates="standard")


@pytest.mark.parametrize("kind", [ddc.DDCSgd, ddc.DDCShampoo, ddc.DDCSoap])
def test_a_rule_without_second_moments_refuses_to_be_told_which(found, kind):
    with pytest.raises(ValueError, match="second_moment=none needs a base rule that keeps"):
        kind(block().named_parameters(), symmetries=found, second_moment="none")


def test_the_table_of_options_in_the_docs_is_the_declaration():
    root = Path(__file__).parents[2]
    command = [sys.executable, str(root / "scripts" / "options_table.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == (root / "docs" / "reference" / "options.md").read_text()


# ------------------------------------------------------------------------------------------------
# Recipes

ALL = [ddc.DDCAdam, ddc.DDCMuon, ddc.DDCSgd, ddc.DDCLion, ddc.DDCShampoo, ddc.DDCSoap]


@pytest.mark.parametrize("kind", ALL)
def test_every_optimizer_has_the_recipe_of_the_paper(found, kind):
    model = block()
    optimizer = kind(model.named_parameters(), symmetries=found, recipe="paper")
    kinds = sorted(gauge.kind for gauge in optimizer.report().gauges)
    rotations = ["CE row shift", "QK rotation", "VO rotation"]
    scales = [] if kind is ddc.DDCMuon else ["norm scale", "relu rescale"]
    assert kinds == sorted(rotations + scales)
    if kind is ddc.DDCMuon:
        assert optimizer.param_groups[0]["method"] == "sharpen"
        assert optimizer.param_groups[0]["scale"] == "frobenius"
    assert all(torch.isfinite(weight).all() for weight in steps(optimizer, model))


def test_an_option_goes_before_that_of_a_recipe(found):
    named = block().named_parameters()
    optimizer = ddc.DDCMuon(named, symmetries=found, recipe="paper", method="exact")
    assert optimizer.param_groups[0]["method"] == "exact"
    assert optimizer.param_groups[0]["scale"] == "frobenius"


@pytest.mark.parametrize("kind", ALL)
def test_copies_stay_one_function_under_every_optimizer_and_recipe(found, kind):
    for options in ({}, {"placement": "in_place"}, {"recipe": "paper"}):
        first = block()
        start = kind(first.named_parameters(), symmetries=found, **options)
        bound = {gauge.name for gauge in start.report().gauges}
        # Elements of what is bound: of a linear gauge the paper's recipe binds the rotations only.
        common = [g.name for g in found.gauges if g.name in bound and g.action != "linear"]
        second = block()
        found.only(*common).random_element(seed=1, size=0.3).apply_(second)
        other = kind(second.named_parameters(), symmetries=found, **options)
        steps(start, first, 6)
        steps(other, second, 6)
        inputs = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(3)).double()
        gap = (first(inputs).log_softmax(-1) - second(inputs).log_softmax(-1)).abs().max().item()
        assert gap < 1e-11


# ------------------------------------------------------------------------------------------------
# Identity: what a state was trained with


def changed(found: ddc.SymmetryGroup, change) -> ddc.SymmetryGroup:
    fields = json.loads(found.to_json())
    for finding in fields["findings"]:
        change(finding["gauge"])
    return ddc.SymmetryGroup.from_json(json.dumps(fields))


def channel_map(gauge: dict) -> None:
    if gauge["kind"] == "QK linear":  # heads of interleaved coordinates
        for leg in gauge["legs"]:
            leg["channel_of"] = [0, 4, 1, 5, 2, 6, 3, 7]


def offset(gauge: dict) -> None:
    if gauge["kind"] == "norm scale":
        gauge["legs"][0]["offset"] = 1.0


OTHERS = {
    "another group": lambda g: g.without("VO*"),
    "a channel map": lambda g: changed(g, channel_map),
    "an offset": lambda g: changed(g.only("norm scale", "relu rescale"), offset),
    "a name": lambda g: changed(g, lambda gauge: gauge.update(name=gauge["name"] + "'")),
}
TREATED = {
    "coordinates": {"coordinates": "standard"},
    "second moment": {"second_moment": "body_frame"},
    "max_log_step": {"max_log_step": 0.2},
    "recipe": {"recipe": "paper"},
}


@pytest.mark.parametrize("name", [*OTHERS, *TREATED])
def test_a_state_of_other_symmetries_or_another_treatment_is_refused(found, name):
    model = block()
    symmetries = found.only("norm scale", "relu rescale") if name == "an offset" else found
    ours = ddc.DDCAdam(model.named_parameters(), symmetries=symmetries)
    steps(ours, model)
    before = copy.deepcopy(ours.state_dict())
    theirs = ddc.DDCAdam(
        block().named_parameters(),
        symmetries=OTHERS[name](found) if name in OTHERS else found,
        **TREATED.get(name, {}),
    )
    with pytest.raises(ValueError, match="trained with the symmetries .*, the optimizer has"):
        ours.load_state_dict(theirs.state_dict())
    with pytest.raises(ValueError, match="trained with the symmetries .*, the optimizer has"):
        theirs.load_state_dict(before)
    assert same(ours.state_dict(), before)


def test_an_optimizer_with_a_treatment_survives_pickle_and_deepcopy(found):
    model = block()
    options = {"coordinates": "standard", "second_moment": {"QK linear": "body_frame"}}
    optimizer = ddc.DDCAdam(model.named_parameters(), symmetries=found, **options)
    steps(optimizer, model)
    for twin_model, twin in (
        copy.deepcopy((model, optimizer)),
        pickle.loads(pickle.dumps((model, optimizer))),
    ):
        assert same(twin.state_dict(), optimizer.state_dict())
        reference_model, reference = copy.deepcopy((model, optimizer))
        assert same(steps(twin, twin_model), steps(reference, reference_model))
        assert twin.treatment("query.weight:qk_linear")["second_moment"] == "body_frame"


# ------------------------------------------------------------------------------------------------
# Param groups that change: as torch.optim.AdamW, which reads them at every step


def pair() -> tuple[nn.Module, nn.Module]:
    return network(), network()


@pytest.mark.parametrize("change", ["moved", "merged", "split", "reordered"])
def test_param_groups_may_be_rearranged_as_those_of_adamw(change):
    ours, theirs = pair()

    def groups(model: nn.Module) -> list[dict]:
        named = list(model.named_parameters())
        return [{"params": named[:2], "lr": 1e-2}, {"params": named[2:], "lr": 3e-2}]

    optimizer = ddc.DDCAdam(groups(ours))
    plain = torch.optim.AdamW(groups(theirs))
    for each, model in ((optimizer, ours), (plain, theirs)):
        train(model, each, range(2))
        first, second = each.param_groups
        if change == "moved":
            second["params"].append(first["params"].pop())
            second["param_names"].append(first["param_names"].pop())
        elif change == "merged":
            first["params"] += second["params"]
            first["param_names"] += second["param_names"]
            del each.param_groups[1]
        elif change == "split":
            each.param_groups.append(
                {
                    **second,
                    "params": [second["params"].pop()],
                    "param_names": [second["param_names"].pop()],
                    "lr": 0.1,
                }
            )
        else:
            each.param_groups.reverse()
        train(model, each, range(2, 4))
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-13, atol=1e-15)


def test_a_renamed_parameter_is_looked_for_under_its_name():
    model = network()
    optimizer = ddc.DDCAdam(model.named_parameters(), symmetries=group())
    train(model, optimizer, range(1))
    optimizer.param_groups[0]["param_names"][0] = "renamed"
    backward(model, 1)
    with pytest.raises(ValueError, match="acts on the parameter '0.weight', which is in no param"):
        optimizer.step()


def test_a_gauged_parameter_that_is_moved_has_the_options_of_its_new_group():
    ends = []
    for how in ("moved", "there from the start"):
        model = network()
        named = list(model.named_parameters())
        cut = 3 if how == "moved" else 2
        optimizer = ddc.DDCAdam(
            [{"params": named[:cut], "weight_decay": 0.0}, {"params": named[cut:]}],
            symmetries=group(),
        )
        first, second = optimizer.param_groups
        if how == "moved":
            second["params"].insert(0, first["params"].pop())
            second["param_names"].insert(0, first["param_names"].pop())
        second["weight_decay"] = 0.5
        train(model, optimizer, range(3))
        ends.append(weights(model))
    assert same(*ends)


# ------------------------------------------------------------------------------------------------
# A rule of one's own, loading, logging


def lion(gradient: Tensor, state: dict[str, Tensor], step: int, lr: float, betas) -> Tensor:
    average = state["exp_avg"]
    update = average.lerp(gradient, 1 - betas[0])
    average.lerp_(gradient, 1 - betas[1])
    # A sign makes full steps of rounding errors: what is next to nothing is left alone.
    return torch.where(update.abs() > 1e-12, update.sign(), 0.0).mul_(-lr)


Lion = ddc.lifted(
    lion, init=lambda p: {"exp_avg": torch.zeros_like(p)}, name="Lion", lr=1e-3, betas=(0.9, 0.99)
)


def test_a_rule_in_python_inherits_every_gauge(found):
    ends = []
    for moved in (False, True):
        model = block()
        if moved:
            found.random_element(seed=2, size=0.3).apply_(model)
        optimizer = Lion(model.named_parameters(), symmetries=found, lr=3e-3)
        steps(optimizer, model, 6)
        inputs = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(3)).double()
        ends.append(model(inputs).log_softmax(-1))
    assert (ends[0] - ends[1]).abs().max() < 1e-10


def test_a_rule_in_python_is_the_plain_one_without_symmetries():
    model, reference = pair()
    optimizer = Lion(model.parameters(), lr=0.0078125, weight_decay=0.0)
    averages = [torch.zeros_like(p) for p in reference.parameters()]
    for batch in range(4):
        train(model, optimizer, range(batch, batch + 1))
        backward(reference, batch)
        with torch.no_grad():
            for parameter, average in zip(reference.parameters(), averages, strict=True):
                state = {"exp_avg": average}
                parameter += lion(parameter.grad, state, batch + 1, 0.0078125, (0.9, 0.99))
    assert same(weights(model), weights(reference))


def test_a_rule_in_python_has_checkpoints_and_param_groups():
    model = network()
    named = list(model.named_parameters())
    optimizer = Lion(
        [{"params": named[:2]}, {"params": named[2:], "betas": (0.5, 0.6)}], symmetries=group()
    )
    train(model, optimizer, range(3))
    other = copy.deepcopy(model)
    named = list(other.named_parameters())
    resumed = Lion([{"params": named[:2]}, {"params": named[2:]}], symmetries=group())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.param_groups[1]["betas"] == (0.5, 0.6)
    train(model, optimizer, range(3, 5))
    train(other, resumed, range(3, 5))
    assert same(weights(model), weights(other))


def test_a_rule_in_python_that_returns_no_step_is_an_error():
    nothing = ddc.lifted(lambda g, s, step, lr: None, init=lambda p: {}, name="Nothing", lr=0.1)
    model = network()
    optimizer = nothing(model.parameters())
    backward(model, 0)
    with pytest.raises(
        TypeError, match="Nothing: the rule returned None for .*must return the disp"
    ):
        optimizer.step()


@pytest.mark.parametrize("placement", ["canonical", "in_place"])
def test_state_is_there_from_the_start_and_updated_in_place(found, placement):
    model = block()
    optimizer = ddc.DDCAdam(model.named_parameters(), symmetries=found, placement=placement)
    before = {
        (index, key): (value.data_ptr(), value.shape)
        for index, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
    }
    steps(optimizer, model)
    after = {
        (index, key): (value.data_ptr(), value.shape)
        for index, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
    }
    assert before == after


def test_loading_a_state_runs_no_rule():
    calls = []

    def counted(gradient, state, step, lr):
        calls.append(step)
        return gradient * -lr

    counting = ddc.lifted(counted, init=lambda p: {}, name="Counting", lr=0.1)
    model = network()
    optimizer = counting(model.named_parameters(), symmetries=group())
    train(model, optimizer, range(2))
    made = len(calls)
    resumed = counting(network().named_parameters(), symmetries=group())
    resumed.load_state_dict(optimizer.state_dict())
    assert made > 0
    assert len(calls) == made


@every_kind
def test_metrics_are_flat_numbers(kind):
    model = network()
    optimizer = kind(model.named_parameters(), symmetries=group())
    train(model, optimizer, range(2))
    metrics = optimizer.metrics()
    assert all(isinstance(k, str) and type(v) is float for k, v in metrics.items())
    assert metrics["ddc/gauges"] == 4
    assert metrics["ddc/dimension"] == group().dimension
    assert 0 <= metrics["ddc/imbalance/relu_rescale"] < 1e-14  # on the section
    model = network()
    in_place = kind(model.named_parameters(), symmetries=group(), placement="in_place")
    train(model, in_place, range(2))
    assert in_place.metrics()["ddc/imbalance/relu_rescale"] > 0  # what the last step corrected
    assert not kind(network().parameters()).metrics().get("ddc/imbalance/relu_rescale")


def test_positional_arguments_are_those_of_torch():
    weight = nn.Parameter(torch.ones(3, 3))
    adam = ddc.DDCAdam([weight], 0.5, (0.8, 0.9), 1e-6, 0.25)
    assert adam.param_groups[0]["betas"] == (0.8, 0.9)
    assert adam.param_groups[0]["weight_decay"] == 0.25
    muon = ddc.DDCMuon([weight], 0.5, 0.25, 0.8, False)
    theirs = torch.optim.Muon([weight], 0.5, 0.25, 0.8, False)
    for option in ("lr", "weight_decay", "momentum", "nesterov"):
        assert muon.param_groups[0][option] == theirs.param_groups[0][option]
    sgd = ddc.DDCSgd([weight], 0.5, 0.8, 0.1, 0.25)
    theirs = torch.optim.SGD([weight], 0.5, 0.8, 0.1, 0.25)
    for option in ("lr", "momentum", "dampening", "weight_decay"):
        assert sgd.param_groups[0][option] == theirs.param_groups[0][option]
    with pytest.raises(TypeError, match="at most"):
        ddc.DDCAdam([weight], 0.5, (0.8, 0.9), 1e-6, 0.25, group())


def test_plain_muon_is_torchs():
    start = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer, plain = ddc.Muon([ours]), torch.optim.Muon([theirs])
    for batch in range(3):
        ours.grad, theirs.grad = (
            (start.sin() * batch + 1).clone(),
            (start.sin() * batch + 1).clone(),
        )
        optimizer.step()
        plain.step()
    # torch's computes in bfloat16.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    with pytest.raises(TypeError, match="Muon has no option 'symmetries'; DDCMuon has"):
        ddc.Muon([ours], symmetries=group())


def test_options_of_torch_that_are_not_here_are_named(found):
    del found
    for option in ("amsgrad", "foreach", "fused", "capturable", "differentiable"):
        with pytest.raises(TypeError, match=f"DDCAdam has no option '{option}'"):
            ddc.DDCAdam(network().parameters(), **{option: True})


def test_the_loss_of_a_small_network_falls_under_every_optimizer(found):
    for kind in ALL:
        model = block()
        optimizer = kind(model.named_parameters(), symmetries=found)
        torch.manual_seed(0)
        start = block_loss(model).item()
        for _ in range(30):
            torch.manual_seed(0)
            model.zero_grad()
            block_loss(model).backward()
            optimizer.step()
        torch.manual_seed(0)
        assert block_loss(model).item() < start
    assert loss(network()).item() > 0
