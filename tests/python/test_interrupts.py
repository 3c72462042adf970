"""Ctrl-C at any moment of a step: nothing is torn, or it is said that something may be."""

from __future__ import annotations

import copy
import random
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any

import ddc
import pytest
import torch
from optim_support import backward, group, network, same, weights

RULES = [ddc.DDCAdam, ddc.DDCMuon, ddc.DDCSgd, ddc.DDCShampoo, ddc.DDCSoap]
WANTED = 128


@pytest.fixture
def alarm() -> Iterator[None]:
    def handler(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def is_interrupted(optimizer: torch.optim.Optimizer, delay: float) -> bool:
    """Makes a step, into which the alarm goes off after `delay` seconds."""
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        optimizer.step()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for _ in range(10):
            pass  # a signal that has come is handled here at the latest
    except KeyboardInterrupt:
        return True
    return False


def test_no_step_of_a_native_rule_is_torn_by_128_interrupts(alarm):
    draw = random.Random(0)
    made = []
    for rule in RULES:
        for place in ("canonical", "in_place"):
            pair = []
            for _ in range(2):
                model = network()
                pair.append(
                    (model, rule(model.named_parameters(), symmetries=group(), placement=place))
                )
            made.append(pair)

    def now(model: Any, optimizer: Any) -> Any:
        return weights(model), copy.deepcopy(optimizer.state_dict()["state"])

    interrupts = 0
    for batch in range(200):
        for (model, optimizer), (twin, undisturbed) in made:
            for each in (model, twin):
                backward(each, batch)
            before = now(model, optimizer)
            start = time.perf_counter()
            undisturbed.step()
            took = time.perf_counter() - start
            after = now(twin, undisturbed)
            if is_interrupted(optimizer, draw.uniform(1e-6, took)):
                interrupts += 1
                state = now(model, optimizer)
                assert same(state, before) or same(state, after), type(optimizer).__name__
                if not same(state, after):
                    optimizer.step()
            assert same(now(model, optimizer), after)
        if interrupts >= WANTED:
            return
    pytest.fail(f"only {interrupts} steps were interrupted")


class Torn(torch.optim.SGD):
    """Is interrupted before its step, in the middle of it, or not at all."""

    at = ""

    def step(self, closure=None):
        if self.at == "before":
            raise KeyboardInterrupt
        super().step(closure)
        if self.at == "amid":
            raise KeyboardInterrupt


def test_a_held_step_that_was_interrupted_is_told_of_at_the_next_one():
    # torch gives a class its hooks with its first object: a step within a step calls them twice.
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    model = network()
    optimizer = Torn(model.named_parameters(), lr=1e-2, momentum=0.9)
    hold = ddc.hold(optimizer, group())
    backward(model, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        optimizer.at = "before"
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        optimizer.at = ""
        optimizer.step()  # nothing had been written
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    for goes_on in ("steps", "loads"):
        optimizer.at = "amid"
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        optimizer.at = ""
        if goes_on == "steps":
            with pytest.warns(RuntimeWarning, match="interrupted or has failed.*Load a checkpoint"):
                optimizer.step()
        else:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step()
    assert hold.distance_to_section() < 0.1


@pytest.mark.parametrize(
    "options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str
)
def test_what_a_held_adamw_has_written_is_seen_however_it_writes(options):
    model = network()

    class TornAdamW(torch.optim.AdamW):
        def step(self, closure=None):
            super().step(closure)
            raise KeyboardInterrupt

    optimizer = TornAdamW(model.named_parameters(), lr=1e-2, **options)
    ddc.hold(optimizer, group())
    backward(model, 0)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    with pytest.warns(RuntimeWarning, match="step of TornAdamW before this one was interrupted"):
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
