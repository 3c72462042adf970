"""Models of repeated layers: some are searched, the others are tried by analogy."""

from __future__ import annotations

import logging
import sys
import types
from collections import Counter

import ddc
import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

LAYERS = 7
COMMON = dict(
    vocab_size=23, bos_token_id=None, eos_token_id=None, pad_token_id=None, use_cache=False
)


def next_token(model: nn.Module) -> Tensor:
    tokens = torch.randint(23, (8, 9))
    logits = model(input_ids=tokens[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def llama(**config: int) -> nn.Module:
    torch.manual_seed(0)
    settings = dict(
        hidden_size=8,
        intermediate_size=10,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        initializer_range=8**-0.5,
    )
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**COMMON | settings | config)
    ).double()


def found(group: ddc.SymmetryGroup) -> dict[str, int]:
    return dict(Counter(f"{gauge.kind} {gauge.group}" for gauge in group.gauges))


def test_all_layers_have_what_some_were_searched_for() -> None:
    group = ddc.discover(llama(), next_token)

    assert found(group) == {
        "glu rescale (R+)^10": LAYERS,
        "norm scale (R+)^8": 2 * LAYERS + 1,
        "VO linear GL(4)^2": LAYERS,
        "QK plane scale (R+)^4": LAYERS,
        "QK torus SO(2)^4": LAYERS,
        "residual rotation O(8)": 1,
        "CE row shift R^8": 1,
    }
    assert group.residual <= group.tolerance
    assert "4 of 7 repeated layers were searched, and the others tried by analogy" in group.notes
    # The stream runs through every layer.
    rotation = next(gauge for gauge in group.gauges if gauge.kind == "residual rotation")
    assert len(rotation.legs) == 7 * LAYERS + 2


def test_a_layer_that_differs_is_not_taken_for_one_like_the_others() -> None:
    model = llama()
    model.model.layers[4].mlp.act_fn = nn.Tanh()
    normal = model.model.layers[4].mlp.forward
    model.model.layers[4].mlp.forward = lambda x: normal(x).tanh()  # type: ignore[method-assign]
    group = ddc.discover(model, next_token)

    assert group.residual <= group.tolerance
    assert not any(gauge.kind == "residual rotation" for gauge in group.gauges)
    assert found(group)["glu rescale (R+)^10"] == LAYERS
    assert found(group)["VO linear GL(4)^2"] == LAYERS


def test_an_interruption_gives_what_has_been_verified() -> None:
    model = llama()
    evaluations = 0

    def interrupted(model: nn.Module) -> Tensor:
        nonlocal evaluations
        evaluations += 1
        if evaluations == last:
            raise KeyboardInterrupt
        return next_token(model)

    before = [parameter.detach().clone() for parameter in model.parameters()]
    last = 5
    with pytest.raises(KeyboardInterrupt):
        ddc.discover(model, interrupted)
    evaluations, last = 0, -1
    whole = ddc.discover(model, interrupted)
    last, evaluations = evaluations - 8, 0
    part = ddc.discover(model, interrupted)

    assert 0 < len(part) <= len(whole)
    assert any(note.startswith("interrupted") for note in part.notes)
    assert {gauge.name for gauge in part.gauges} <= {gauge.name for gauge in whole.gauges}
    for now, was in zip(model.parameters(), before, strict=True):
        assert torch.equal(now, was)


def test_a_terminal_is_told_what_is_being_done(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("ddc._progress._INTERVAL", 0.0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def loss(model: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(model(torch.randn(8, 3)), torch.randint(2, (8,)))

    ddc.discover(model, loss)
    shown = capsys.readouterr().err.split("\r\x1b[K")
    assert any(line.startswith("ddc: charges, ") and "evaluations" in line for line in shown)
    assert any(
        "ddc: gate 1 of 3 [#####...........], " in line and "s left" in line for line in shown
    )
    assert shown[-1] == ""

    monkeypatch.setenv("COLUMNS", "40")
    ddc.discover(model, loss)
    assert "gate 1 of 3, " in (narrow := capsys.readouterr().err) and "[#" not in narrow

    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    ddc.discover(model, loss)
    assert capsys.readouterr().err == ""


def test_a_notebook_shows_a_bar_in_one_output(monkeypatch, capsys) -> None:
    outputs: list[list[str]] = []

    class Handle:
        def __init__(self, first: str) -> None:
            outputs.append([first])

        def update(self, shown: str) -> None:
            outputs[-1].append(shown)

    def display(shown: str, display_id: bool) -> Handle:
        assert display_id
        return Handle(shown)

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    pretend = types.SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", pretend)
    monkeypatch.setattr("ddc._progress._INTERVAL", 0.0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def loss(model: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(model(torch.randn(8, 3)), torch.randint(2, (8,)))

    ddc.discover(model, loss)
    (output,) = outputs
    assert any("[##########......] ddc: gate 2 of 3, " in line for line in output)
    assert output[-1] == ""
    assert capsys.readouterr().err == ""

    for verbose in (False, True):
        ddc.discover(model, loss, verbose=verbose)
    assert len(outputs) == 1


def test_the_log_is_told_and_shown_if_asked(monkeypatch, capsys, caplog) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def loss(model: nn.Module) -> Tensor:
        return nn.functional.cross_entropy(model(torch.randn(8, 3)), torch.randint(2, (8,)))

    with caplog.at_level("INFO", logger="ddc"):
        ddc.discover(model, loss)
    assert "charges" in caplog.messages
    assert capsys.readouterr() == ("", "")

    log = logging.getLogger("ddc")
    monkeypatch.setattr(log, "propagate", False)  # as in a program that configures no logging
    optimizer = ddc.DDCAdam.from_model(model, loss, verbose=True, lr=1e-3)
    out, err = capsys.readouterr()
    assert out == ""
    assert "ddc: charges\n" in err
    assert str(optimizer.symmetries) in err
    assert (log.level, log.handlers) == (logging.NOTSET, [])


def test_autocast_and_reentrant_checkpoints_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def loss(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(torch.randn(16, 4))
        return nn.functional.cross_entropy(outputs.float(), torch.randint(3, (16,)))

    with pytest.raises(ValueError, match=r"under autocast \(torch.bfloat16\)"):
        ddc.discover(model, loss)

    def checkpointed(model: nn.Module) -> Tensor:
        inputs = torch.randn(16, 4, requires_grad=True)
        outputs = torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=True)
        return nn.functional.cross_entropy(outputs, torch.randint(3, (16,)))

    with pytest.raises(ValueError, match="use_reentrant=False"):
        ddc.discover(model, checkpointed)


def test_what_penalises_weights_is_the_reason() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()

    def loss(model: nn.Module) -> Tensor:
        outputs = model(torch.randn(16, 4, dtype=torch.float64))
        penalty = sum(weight.square().sum() for weight in model.parameters())
        return nn.functional.cross_entropy(outputs, torch.randint(3, (16,))) + 0.01 * penalty

    group = ddc.discover(model, loss)
    assert len(group) == 0
    assert {refused.reason for refused in group.refusals} >= {
        "a penalty in the loss sees the entries of '0.weight' (Pow): leave it to weight_decay"
    }


def test_complex_and_sparse_parameters_are_named() -> None:
    for parameter, what in (
        (torch.randn(3, dtype=torch.complex64), "view_as_real"),
        (torch.eye(3).to_sparse(), "dense"),
    ):
        model = nn.Module()
        model.weight = nn.Parameter(torch.randn(3))
        model.other = nn.Parameter(parameter)

        def loss(model: nn.Module) -> Tensor:
            other = model.other.to_dense() if model.other.is_sparse else model.other
            return (model.weight * other.abs().sum()).square().sum()

        with pytest.raises(RuntimeError, match=f"'other' is .*{what}"):
            ddc.discover(model, loss)
