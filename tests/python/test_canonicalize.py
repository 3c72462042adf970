"""The canonical place: two copies of one function have the same weights there. Elements as values."""

import copy
import pickle

import ddc
import pytest
import torch
from families_support import NAMES, apart, group_of, model_of, predictions, relative
from optim_support import group, network
from optim_support import loss as network_loss
from torch import nn

every_family = pytest.mark.parametrize("name", NAMES)


@every_family
def test_copies_of_one_function_become_equal(name):
    symmetries = group_of(name)
    model = model_of(name)
    first = copy.deepcopy(model)
    second = symmetries.random_element(seed=1, size=0.5).apply_(copy.deepcopy(model))
    assert apart(second, first) > 0.1

    move = symmetries.canonicalize_(first)
    symmetries.canonicalize_(second)

    assert apart(first, model) > 0.1
    assert relative(predictions(name, first), predictions(name, model)) < 1e-12
    assert apart(second, first) < 1e-11

    again = copy.deepcopy(first)
    symmetries.canonicalize_(again)
    assert apart(again, first) < 1e-11

    assert apart(move.inverse().apply_(copy.deepcopy(first)), model) < 1e-12
    assert apart(move.apply_(copy.deepcopy(model)), first) < 1e-12


@every_family
def test_the_function_stays_in_float32(name):
    model = model_of(name, torch.float32)
    before = predictions(name, model)
    weights = copy.deepcopy(model)
    move = group_of(name).canonicalize_(model)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert relative(predictions(name, model), before) < 1e-5
    assert apart(move.inverse().apply_(model), weights) < 1e-5


def test_16_bit_parameters_are_refused_and_left_alone():
    model = network(torch.bfloat16)
    before = copy.deepcopy(model)
    with pytest.raises(ValueError, match="float32 or float64"):
        group().canonicalize_(model)
    assert apart(model, before) == 0


def test_another_model_is_refused_and_left_alone():
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 5)).double()
    before = copy.deepcopy(model)
    with pytest.raises(RuntimeError):
        group().canonicalize_(model)
    with pytest.raises(RuntimeError):
        group().random_element(0).inverse().apply_(model)
    assert apart(model, before) == 0


def test_random_elements_have_the_numbers_they_had():
    """Parts that are drawn for looking at them are those that move the weights."""
    drawn = group().random_element(seed=3, size=0.7)
    first = drawn.apply_(network())
    second = ddc.Element.of(group(), drawn.parts).apply_(network())
    assert apart(first, network()) > 0.1
    assert apart(first, second) < 1e-14
    assert [name for name, _ in drawn.parts] == [gauge.name for gauge in group().gauges]
    # Drawn from the generator that C++ has always used.
    assert apart(group().random_element(seed=4, size=0.7).apply_(network()), first) > 0.1
    assert apart(drawn.inverse().apply_(first), network()) < 1e-13


def test_elements_follow_one_another():
    first, second = group().random_element(1), group().random_element(2)
    expected = second.apply_(first.apply_(network()))
    assert apart((second @ first).apply_(network()), expected) < 1e-13
    assert apart((first @ second).apply_(network()), expected) > 1e-3
    with pytest.raises(ValueError, match="two groups"):
        second @ group().without("linear pair").random_element(1)
    with pytest.raises(TypeError):
        second @ 3


@pytest.mark.parametrize("copied", ["pickle", "deepcopy", "file"])
def test_an_element_survives(copied, tmp_path):
    model = network()
    move = group().canonicalize_(model)
    if copied == "file":
        move.save(tmp_path / "move.pt")
        again = ddc.Element.load(tmp_path / "move.pt", group())
    else:
        again = pickle.loads(pickle.dumps(move)) if copied == "pickle" else copy.deepcopy(move)
    assert again.group == group()
    assert [name for name, _ in again.parts] == [name for name, _ in move.parts]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(again.parts, move.parts, strict=True))
    assert apart(again.inverse().apply_(model), network()) < 1e-13
    assert "parts" in repr(again)


def test_files_of_elements_are_checked(tmp_path):
    path = tmp_path / "move.pt"
    move = group().random_element(0)
    move.save(path)
    written = path.read_bytes()
    with pytest.raises(ValueError, match=r"has an element of the symmetries \d+ gauges.*these are"):
        ddc.Element.load(path, group().without("linear pair"))
    path.write_bytes(written[: len(written) // 2])
    with pytest.raises(ValueError, match="no file of an element"):
        ddc.Element.load(path, group())
    torch.save({"weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="no file of an element"):
        ddc.Element.load(path, group())
    with pytest.raises(FileNotFoundError):
        ddc.Element.load(tmp_path / "none.pt", group())
    # What cannot be written leaves what was there, and nothing beside it.
    move._parts = None
    move.size = float("nan")
    with pytest.raises(ValueError):
        ddc.Element.of(group(), move.parts).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["move.pt"]


def test_parts_that_are_none_are_refused():
    with pytest.raises(ValueError, match="no gauge 'nothing'"):
        ddc.Element.of(group(), [("nothing", torch.zeros(1, dtype=torch.float64))])
    name, part = group().random_element(0).parts[0]
    with pytest.raises(ValueError, match="float64"):
        ddc.Element.of(group(), [(name, part.float())])
    model = network()
    with pytest.raises(RuntimeError, match="shape"):
        ddc.Element.of(group(), [(name, part[..., :1])]).apply_(model)
    assert apart(model, network()) == 0


def test_the_loss_is_the_same_at_the_canonical_place():
    model = network()
    torch.manual_seed(0)
    before = network_loss(model).item()
    group().canonicalize_(model)
    torch.manual_seed(0)
    assert network_loss(model).item() == pytest.approx(before, rel=1e-13)
