"""Networks drawn at random: copies of one function train alike, under all gauges and under some."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ddc
import pytest
import torch
from torch.optim import Optimizer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import random_networks  # noqa: E402

# Seed of a network with heads wider than the stream, whose linear groups are left out.
WIDE = 2010
STEPS = 8


Named = list[tuple[str, torch.Tensor]]


def optimizers(
    parameters: Named, group: ddc.SymmetryGroup
) -> Iterator[tuple[str, Callable[[], Optimizer]]]:
    def of(kind: type[ddc.Lifted], place: str) -> Optimizer:
        return kind(parameters, symmetries=group, lr=1e-3, placement=place)

    for kind in (ddc.DDCAdam, ddc.DDCMuon):
        for place in ("canonical", "in_place"):
            yield f"{kind.__name__} {place}", lambda k=kind, p=place: of(k, p)
    for every in (1, 3):

        def held(every: int = every) -> Optimizer:
            optimizer = torch.optim.AdamW(parameters, lr=1e-3)
            ddc.hold(optimizer, group, every=every)
            return optimizer

        yield f"hold, every {every}", held


def losses(seed: int, group: ddc.SymmetryGroup, which: int, moved: bool) -> tuple[str, list[float]]:
    network = random_networks.build(seed)
    if moved:
        group.random_element(seed=1, size=0.4).apply_(network)
    name, make = list(optimizers(list(network.named_parameters()), group))[which]
    optimizer = make()
    curve = []
    for step in range(STEPS):
        torch.manual_seed(random_networks.SEEN + step)
        optimizer.zero_grad()
        loss = network.loss()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return name, curve


def apart(seed: int) -> dict[str, float]:
    """How far copies are apart, by gauges and optimizer."""
    full = ddc.discover(random_networks.build(seed), random_networks.Network.loss, verbose=False)
    names = [gauge.name for gauge in full.gauges]
    draw = random.Random(seed)
    some = [name for name in names if draw.random() < 0.5]
    result = {}
    for what, group in (("all", full), ("some", full.only(*some) if some else None)):
        if group is None or not names:
            continue
        for which in range(6):
            (name, first), (_, second) = (losses(seed, group, which, m) for m in (False, True))
            pairs = zip(first, second, strict=True)
            result[f"{what}: {name}"] = max(abs(a - b) / abs(a) for a, b in pairs)
    return result


def check(seed: int) -> None:
    for what, difference in apart(seed).items():
        assert difference < 1e-10, (seed, what, difference)


@pytest.mark.parametrize("seed", [5, WIDE])
def test_copies_of_a_random_network_train_alike(seed: int) -> None:
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2000, 2060))
def test_copies_of_many_random_networks_train_alike(seed: int) -> None:
    check(seed)


def test_wide_heads_are_left_out_with_the_reason() -> None:
    network = random_networks.build(WIDE)
    group = ddc.discover(network, random_networks.Network.loss, completeness=True, verbose=False)
    left_out = [
        refusal for refusal in group.refusals if "neither side has full rank" in refusal.reason
    ]
    assert [refusal.kind for refusal in left_out] == ["QK linear", "linear pair"]
    assert all(refusal.reason.startswith("a symmetry, but left out") for refusal in left_out)
    assert any("2 linear gauges of dimension 50 are symmetries" in note for note in group.notes)
    assert "linear" not in {gauge.action for gauge in group.gauges}
    # They are symmetries, and counted as such.
    assert group.completeness is not None
    assert group.completeness.explained > group.dimension
    moved = group.random_element(1).apply_(random_networks.build(WIDE))
    assert group.distance(network, moved) < 1e-12
    assert group.difference(network, moved).modulo < 1e-12
