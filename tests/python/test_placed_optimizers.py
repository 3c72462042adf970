"""Lifted optimizers whose weights are trained at their canonical place."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import ddc
import pytest
import torch
from families_support import NAMES, apart, group_of, loss_of, model_of
from torch import nn
from torch.optim import Optimizer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import anchors  # noqa: E402

CANONICAL = {"placement": "canonical"}


def train(name: str, model: nn.Module, optimizer: Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        loss = loss_of(name, model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def related(name: str) -> nn.Module:
    model = model_of(name)
    group_of(name).random_element(1, size=0.5).apply_(model)
    return model


def adam(name: str, model: nn.Module, **treatment: object) -> ddc.DDCAdam:
    return ddc.DDCAdam(
        model.named_parameters(), lr=1e-2, symmetries=group_of(name), **CANONICAL, **treatment
    )


def difference(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) / abs(a) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_is_held_adamw(name):
    one, two = model_of(name), related(name)
    optimizer = torch.optim.AdamW(one.named_parameters(), lr=1e-2, weight_decay=0.01)
    # A hook turns rotary planes back every 10 steps unless told otherwise, a step in one pass always.
    planes = {k: 1 for k in {gauge.kind for gauge in group_of(name).gauges} & {"QK torus"}}
    ddc.hold(optimizer, group_of(name), every=planes)
    lifted = adam(name, two, weight_decay=0.01)
    # Linear groups are moved back every 10 steps.
    curves = [train(name, one, optimizer, range(12)), train(name, two, lifted, range(12))]
    assert curves[0][0] != curves[0][-1]
    assert difference(*curves) < 1e-13


@pytest.mark.parametrize("kind", [ddc.DDCMuon, ddc.DDCSgd, ddc.DDCLion, ddc.DDCSoap])
def test_copies_of_one_function_train_alike(kind):
    curves = []
    for model in (model_of("Llama"), related("Llama")):
        optimizer = kind(
            model.named_parameters(), lr=1e-2, symmetries=group_of("Llama"), **CANONICAL
        )
        curves.append(train("Llama", model, optimizer, range(10)))
    assert difference(*curves) < 1e-10


@pytest.mark.parametrize("treatment", [{}, {"every": 3}, {"project": {"VO linear": "never"}}])
@pytest.mark.parametrize("place", ["canonical", "original"])
@pytest.mark.parametrize("order", ["weights first", "optimizer first"])
def test_a_checkpoint_goes_on_from_either_place(place, order, treatment):
    name = "Llama"
    model = model_of(name)
    optimizer = adam(name, model, **treatment)
    train(name, model, optimizer, range(3))
    if place == "original":
        with optimizer.original():
            weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    else:
        weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = train(name, model, optimizer, range(3, 6))
    resumed = model_of(name)
    if order == "weights first":
        resumed.load_state_dict(weights)
    again = adam(name, resumed, **treatment)
    if order == "optimizer first":
        resumed.load_state_dict(weights)
    again.load_state_dict(state)
    assert difference(expected, train(name, resumed, again, range(3, 6))) < 1e-9


def test_original_restores_the_weights_and_refuses_steps():
    name = "Llama"
    model, found = model_of(name), model_of(name)
    optimizer = adam(name, model)
    assert apart(model, found) > 1e-3
    with optimizer.original():
        assert apart(model, found) < 1e-11
        loss_of(name, model, 0).backward()
        with pytest.raises(RuntimeError, match="original place"):
            optimizer.step()
    optimizer.step()


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_go_on_alike(way):
    name = "Llama"
    model = model_of(name)
    optimizer = adam(name, model)
    train(name, model, optimizer, range(3))
    pair = (model, optimizer)
    copied = copy.deepcopy(pair) if way == "deepcopy" else pickle.loads(pickle.dumps(pair))
    expected = train(name, model, optimizer, range(3, 6))
    assert train(name, copied[0], copied[1], range(3, 6)) == expected


@pytest.mark.parametrize(
    ("treatment", "message"),
    [
        ({"coordinates": "polar"}, "coordinates=polar"),
        ({"second_moment": "body_frame"}, "second_moment"),
        ({"hold": "ratio"}, "hold=ratio"),
        ({"vertical": "adam"}, "vertical"),
    ],
)
def test_what_is_more_than_a_place_is_refused_and_nothing_moved(treatment, message):
    model = model_of("Llama")
    before = copy.deepcopy(model)
    with pytest.raises(ValueError, match=message):
        adam("Llama", model, **treatment)
    assert apart(model, before) == 0


def test_weights_of_16_bits_are_refused():
    model = model_of("Llama", torch.bfloat16)
    with pytest.raises(ValueError, match="float32 or float64"):
        adam("Llama", model)


def test_the_report_says_where_weights_are_and_why_in_place():
    def made(model: nn.Module, **options: object) -> ddc.DDCAdam:
        before = copy.deepcopy(model)
        optimizer = ddc.DDCAdam(model.named_parameters(), symmetries=group_of("Llama"), **options)
        assert (apart(model, before) == 0) == (optimizer.place == "in_place")
        assert optimizer.report().place == optimizer.place
        return optimizer

    default = made(model_of("Llama"))
    assert default.place == "canonical"
    assert "weights at their canonical place\n" in str(default.report())
    asked = made(model_of("Llama"), placement="in_place")
    assert "weights in place\n" in str(asked.report())
    half = made(model_of("Llama", torch.bfloat16))
    assert "needs float32 or float64" in half.report().why_in_place
    polar = made(model_of("Llama"), coordinates="polar")
    assert "coordinates=polar is no matter of place\n" in str(polar.report())
    assert "in place" in polar.param_groups[0]["symmetries"]
    frozen = model_of("Llama")
    next(frozen.parameters()).requires_grad_(False)
    assert "which is frozen" in made(frozen).report().why_in_place


def test_the_place_stays_what_it_was_made_to_be():
    """Freezing and unfreezing happens in the middle of training, and copies are made at any time."""
    for frozen in (False, True):
        model = model_of("Llama")
        first = next(model.parameters())
        first.requires_grad_(not frozen)
        optimizer = ddc.DDCAdam(model.named_parameters(), lr=1e-2, symmetries=group_of("Llama"))
        place = optimizer.place
        assert place == ("in_place" if frozen else "canonical")
        train("Llama", model, optimizer, range(2))
        first.requires_grad_(frozen)
        for twin, copied in (
            copy.deepcopy((model, optimizer)),
            pickle.loads(pickle.dumps((model, optimizer))),
        ):
            assert copied.place == place
            reference, other = copy.deepcopy((model, optimizer))
            curves = [
                train("Llama", m, o, range(2, 4)) for m, o in ((twin, copied), (reference, other))
            ]
            assert curves[0] == curves[1]


def test_clipping_by_the_norm_of_all_gradients_is_invariant():
    curves = []
    for model in (model_of("Llama"), related("Llama")):
        optimizer = ddc.DDCAdam(model.named_parameters(), lr=1e-2, symmetries=group_of("Llama"))
        losses = []
        for step in range(5):
            loss = loss_of("Llama", model, step)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    assert difference(*curves) < 1e-11


def scales_and_shifts(name: str) -> ddc.SymmetryGroup:
    """Those that act on weights as they are stored, for which both places are one algorithm."""
    found = group_of(name)
    gauges = [
        gauge.name
        for gauge in found._core.gauges()
        if gauge.action in ("scale", "shift") and not any(leg.through.gain for leg in gauge.legs)
    ]
    return found.only(*gauges)


def differs_between_places(
    name: str, steps: int, kind: type[ddc.Lifted] = ddc.DDCAdam, dtype: torch.dtype = torch.float64
) -> float:
    curves = []
    for place in ("in_place", "canonical"):
        model = model_of(name, dtype)
        optimizer = kind(
            model.named_parameters(),
            lr=1e-3,
            # In place decay acts on a gain 1 + w, at the canonical place on w.
            weight_decay=0.0,
            symmetries=scales_and_shifts(name),
            placement=place,
            hold="unit",
        )
        assert optimizer.place == place
        curves.append(train(name, model, optimizer, range(steps)))
    assert curves[0][0] != curves[0][-1]
    return difference(*curves)


KINDS = [ddc.DDCAdam, ddc.DDCMuon, ddc.DDCSgd]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Llama", "ViT"])
def test_both_places_are_one_algorithm_for_scales_and_shifts(name, kind):
    assert differs_between_places(name, 20, kind) < 1e-13


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Llama", "ViT"])
def test_both_places_are_one_algorithm_in_float32(name, kind):
    assert differs_between_places(name, 20, kind, torch.float32) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_both_places_are_one_algorithm_over_100_steps(name):
    assert differs_between_places(name, 100) < 1e-13


@pytest.mark.parametrize("treatment", [{}, {"every": 1}], ids=["default", "every step"])
@pytest.mark.parametrize("kept_by", [anchors.of_hold, anchors.of_adam])
def test_what_is_turned_is_kept_once_and_nothing_else_is(kept_by, treatment):
    name = "Llama"
    model, found = model_of(name, torch.float32), group_of(name)
    state = kept_by(model, found, **treatment)
    turned = {
        leg.tensor
        for gauge in found._core.gauges()
        # The rotation of the stream is placed, and not held unless somebody says so.
        if gauge.action in ("rotation", "linear")
        and (treatment or gauge.kind != "residual rotation")
        # A pass of DDCAdam turns planes by sums that it has gathered.
        and not (kept_by is anchors.of_adam and gauge.kind == "QK torus")
        for leg in gauge.legs
    }
    tensors = dict(model.named_parameters())
    kept = {key: next(n for n in tensors if n in key) for key in state}
    assert sorted(kept.values()) == sorted(turned)
    for key, tensor in state.items():
        assert tensor.numel() == tensors[kept[key]].numel()
        assert tensor.dtype == torch.float32


class Layouts(nn.Module):
    """A convolution and two linear layers, with parameters stored in one of several layouts."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.a = nn.Linear(16, 10)
        self.b = nn.Linear(10, 3)
        self.double()
        if layout == "transposed":
            for layer in (self.a, self.b):
                layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
        if layout == "channels last":
            self.conv.to(memory_format=torch.channels_last)
        if layout == "gaps":
            for layer in (self.a, self.conv):
                wide = layer.weight.detach().repeat_interleave(2, dim=1)
                layer.weight = nn.Parameter(wide[:, ::2])
                layer.bias = nn.Parameter(layer.bias.detach().repeat_interleave(3)[::3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(torch.relu(self.conv(x)).flatten(1))))


@pytest.mark.parametrize("kind", [ddc.DDCAdam, ddc.DDCSgd, ddc.DDCLion])
@pytest.mark.parametrize("layout", ["transposed", "channels last", "gaps", "overlapping gradients"])
@pytest.mark.parametrize("placement", ["canonical", "in_place"])
def test_results_do_not_depend_on_layouts(kind, layout, placement):
    x = torch.randn(32, 3, 4, 4, generator=torch.Generator().manual_seed(1)).double()

    def loss_of_layouts(model: nn.Module) -> torch.Tensor:
        inputs = x.to(next(model.parameters()).dtype)
        return (model(inputs) - torch.sin(inputs.flatten(1)[:, :3])).square().mean()

    group = ddc.discover(Layouts("contiguous"), loss_of_layouts, verbose=False)
    assert len(group) >= 2

    def trained(own: str) -> list[torch.Tensor]:
        model = Layouts(own)
        strided = [not p.is_contiguous() for p in model.parameters()]
        assert any(strided) == (own in ("transposed", "channels last", "gaps"))
        optimizer = kind(model.named_parameters(), lr=1e-2, symmetries=group, placement=placement)
        for _ in range(5):
            optimizer.zero_grad()
            loss_of_layouts(model).backward()
            for p in model.parameters():
                if p.dim() == 1 and layout == "overlapping gradients":
                    one = p.grad.mean()
                    p.grad = one.expand_as(p) if own == layout else torch.full_like(p, one.item())
            optimizer.step()
        if placement == "canonical":
            optimizer.settle()
        return [p.detach() for p in model.parameters()]

    for one, two in zip(trained("contiguous"), trained(layout), strict=True):
        assert torch.allclose(one, two, rtol=1e-11, atol=1e-13)
