"""ddc.discover on models that are written in Python, and the group that it returns."""

import copy
import doctest
import pickle
import random
import threading
from collections import namedtuple

import ddc
import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F


def mlp(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)).to(dtype)


def loss(model):
    inputs = torch.randn(32, 3, dtype=next(model.parameters()).dtype)
    return F.cross_entropy(model(inputs), torch.randint(4, (32,)))


KINDS = ["relu rescale", "CE row shift", "CE bias shift"]


def kinds(group):
    return [gauge.kind for gauge in group.gauges]


@pytest.fixture(scope="module")
def group():
    return ddc.discover(mlp(), loss)


def test_finds_the_symmetries_of_a_network(group):
    assert kinds(group) == KINDS
    assert [gauge.group for gauge in group.gauges] == ["(R+)^5", "R^5", "R"]
    assert group.dimension == 11
    assert group.residual <= group.tolerance
    assert group.gauges[0].legs == [("0.weight", 0, 1.0), ("0.bias", 0, 1.0), ("2.weight", 1, -1.0)]
    assert "relu rescale" in str(group)
    assert repr(group) == "<SymmetryGroup: 3 gauges, dimension 11>"


def test_random_element_moves_the_weights_and_not_the_function(group):
    model = mlp()
    moved = group.random_element(seed=4).apply_(copy.deepcopy(model))
    again = group.random_element(seed=4).apply_(copy.deepcopy(model))
    inputs = torch.randn(7, 3, dtype=torch.float64)
    before, after = (F.log_softmax(m(inputs), -1) for m in (model, moved))
    torch.testing.assert_close(before, after, rtol=1e-12, atol=1e-12)
    for old, new, repeated in zip(
        model.parameters(), moved.parameters(), again.parameters(), strict=True
    ):
        assert (new - old).abs().max() > 1e-2
        assert torch.equal(new, repeated)


def test_an_element_refuses_another_model(group):
    other = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4)).double()
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(RuntimeError, match="0.weight"):
        group.random_element(0).apply_(other)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())


def test_a_group_survives_files_json_pickle_and_copies(group, tmp_path):
    path = tmp_path / "model.symmetries.json"
    group.save(path)
    assert ddc.SymmetryGroup.load(path) == group
    assert ddc.SymmetryGroup.load(path, mlp()) == group
    assert ddc.SymmetryGroup.from_json(group.to_json()) == group
    assert pickle.loads(pickle.dumps(group)) == group
    assert copy.deepcopy(group) == group
    with pytest.raises(RuntimeError, match="0.weight"):
        ddc.SymmetryGroup.load(path, nn.Linear(2, 2))
    path.write_text(path.read_text()[:200])
    with pytest.raises(RuntimeError, match="model.symmetries.json"):
        ddc.SymmetryGroup.load(path)


def test_parts_of_a_group_by_name_or_kind(group):
    assert kinds(group.only("CE*")) == KINDS[1:]
    assert kinds(group.without("CE*")) == KINDS[:1]
    assert kinds(group.without("2.bias:shift")) == KINDS[:2]
    assert len(group.only("nothing")) == 0


def test_verify_tells_whether_a_group_still_holds(group):
    assert group.verify(mlp(), loss).passed

    class Leaky(nn.Sequential):
        def forward(self, inputs):
            return self[2](F.gelu(self[0](inputs)))

    verdict = group.verify(Leaky(*mlp()), loss)
    assert not verdict.passed
    assert verdict.residual > 1e-4


@pytest.mark.parametrize("source", ["torch", "random", "numpy", "fixed"])
def test_batches_may_come_from_any_generator_or_be_always_the_same(source):
    fixed = torch.randn(32, 3, generator=torch.Generator().manual_seed(5))

    def inputs():
        if source == "torch":
            return torch.randn(32, 3)
        if source == "random":
            return torch.tensor([[random.gauss(0, 1) for _ in range(3)] for _ in range(32)])
        if source == "numpy":
            return torch.from_numpy(numpy.random.randn(32, 3))
        return fixed

    def drawing_loss(model):
        batch = inputs().double()
        return F.cross_entropy(model(batch), (batch.sum(-1) > 0).long())

    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    assert kinds(ddc.discover(mlp(), drawing_loss)) == KINDS
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (numpy.random.get_state()[1] == states[2]).all()


def test_a_loss_that_cannot_be_asked_twice_is_refused():
    batches = iter(torch.randn(1000, 32, 3, dtype=torch.float64))

    def streaming_loss(model):
        return model(next(batches)).square().mean()

    with pytest.raises(ValueError, match="not from an iterator"):
        ddc.discover(mlp(), streaming_loss)


def test_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4)).double()
    loss(model).backward()
    before = copy.deepcopy(model.state_dict())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    with torch.no_grad():  # as in a callback of a training loop
        group = ddc.discover(model, loss)
    assert "norm scale" in kinds(group) or "relu rescale" in kinds(group)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)
    assert not model._forward_hooks


def test_errors_of_the_loss_arrive_and_leave_the_model_as_it_was():
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    calls = 0

    def failing_loss(model):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyError("no such batch")
        return loss(model)

    with pytest.raises(KeyError, match="no such batch"):
        ddc.discover(model, failing_loss)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not model._forward_hooks


@pytest.mark.parametrize(
    ("model", "function", "error", "message"),
    [
        ("no model", loss, TypeError, "model must be a torch.nn.Module, is str"),
        (mlp(), 3, TypeError, "loss must be a function of the model, is int"),
        (mlp(), lambda model: 3.0, TypeError, "must return a scalar tensor, returned float"),
        (mlp(), lambda model: model[0].bias, TypeError, r"returned \(5,\)"),
        (mlp(), lambda model: torch.zeros(()), ValueError, "does it use the model it is given"),
        (mlp().requires_grad_(False), loss, ValueError, "no parameter that requires a gradient"),
    ],
)
def test_bad_input_is_named(model, function, error, message):
    with pytest.raises(error, match=message):
        ddc.discover(model, function)


class Wrapped(nn.Module):
    """Returns its logits in one of the ways that models do."""

    Output = namedtuple("Output", ["loss", "logits"])

    def __init__(self, form):
        super().__init__()
        self.net = mlp()
        self.form = form

    def forward(self, inputs):
        logits = self.net(inputs)
        forms = {
            "dict": {"loss": logits.sum(), "logits": logits},
            "named": self.Output(logits.sum(), logits),
            "tuple": (logits.sum(), logits),
        }
        return forms[self.form]


@pytest.mark.parametrize("form", ["dict", "named", "tuple"])
def test_logits_are_found_in_what_models_return(form):
    def logits_loss(model):
        inputs = torch.randn(32, 3, dtype=torch.float64)
        out = model(inputs)
        logits = out["logits"] if form == "dict" else out[1]
        return F.cross_entropy(logits, torch.randint(4, (32,)))

    group = ddc.discover(Wrapped(form), logits_loss, completeness=True)
    assert kinds(group) == KINDS
    assert group.completeness.explained == group.completeness.kernel == 11


def test_frozen_parameters_are_held_fixed():
    model = mlp()
    model[2].requires_grad_(False)
    group = ddc.discover(model, loss)
    assert kinds(group) == []
    assert group.notes == ["2 frozen parameters are held fixed"]


def test_names_are_those_of_the_model_nobody_wrapped(group):
    compiled = torch.compile(mlp(), backend="eager")
    assert kinds(ddc.discover(compiled, loss)) == KINDS
    assert ddc.discover(nn.DataParallel(mlp()), loss).gauges[0].legs == group.gauges[0].legs
    group.random_element(0).apply_(compiled)
    ddc.DDCAdam(compiled.named_parameters(), symmetries=group)
    ddc.DDCAdam(nn.DataParallel(mlp()).named_parameters(), symmetries=group)


def test_works_in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(ddc.discover(mlp(), loss)))
    thread.start()
    thread.join()
    assert kinds(found[0]) == KINDS


def test_float32_models_are_judged_at_their_precision():
    group = ddc.discover(mlp(torch.float32), loss)
    assert kinds(group) == KINDS
    assert 1e-9 < group.tolerance < 1e-3


def test_from_model_shows_the_group_only_if_asked(capsys, caplog):
    optimizer = ddc.DDCAdam.from_model(mlp(), loss, lr=1e-2)
    assert optimizer.param_groups[0]["lr"] == 1e-2
    assert kinds(optimizer.symmetries) == KINDS
    assert capsys.readouterr() == ("", "")
    assert "relu rescale" not in caplog.text
    ddc.DDCMuon.from_model(mlp(), loss, verbose=True)
    assert "relu rescale" in caplog.text


def test_a_spectral_norm_is_named():
    torch.manual_seed(0)
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4))
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), normed, nn.ReLU(), nn.Linear(4, 4)).double()
    reasons = [refusal.reason for refusal in ddc.discover(model, loss).refusals]
    assert len(reasons) == 2
    assert all(
        reason.startswith("'2.parametrizations.weight.original' is divided by its spectral norm")
        for reason in reasons
    )


def test_the_examples_in_docstrings_run():
    from ddc import discovery

    results = doctest.testmod(discovery, extraglobs={"ddc": ddc, "torch": torch})
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("dead", [0.0, 5e-33, 1e-9])
def test_what_acts_through_a_gain_that_is_as_good_as_zero_is_left_out(dead):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 4)).double()
    assert "norm kernel shift" in kinds(ddc.discover(model, loss))
    model[1].weight.data[2] = dead
    group = ddc.discover(model, loss)
    assert "norm kernel shift" not in kinds(group)
    reasons = {refusal.kind: refusal.reason for refusal in group.refusals}
    assert "1 entries of the gain '1.weight' are zero" in reasons["norm kernel shift"]
    # A channel that is zero is degenerate, and will be bound when it is not.
    scale = next(gauge for gauge in group.gauges if gauge.kind == "norm scale")
    assert scale.channels == (6 if dead == 0 else 5)
    ddc.DDCAdam(model.named_parameters(), symmetries=group)
    moved = group.random_element(0).apply_(copy.deepcopy(model))
    assert max(parameter.abs().max() for parameter in moved.parameters()) < 1e3
    inputs = torch.randn(7, 3, dtype=torch.float64)
    before, after = (F.log_softmax(m(inputs), -1) for m in (model, moved))
    torch.testing.assert_close(before, after, rtol=1e-12, atol=1e-12)
