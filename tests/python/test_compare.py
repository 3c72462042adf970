"""Models modulo symmetry: distances, alignment, and `python -m ddc diff`."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ddc
import pytest
import torch
from ddc.__main__ import main
from families_support import (
    NAMES,
    apart,
    families,
    family_of,
    group_of,
    model_of,
    predictions,
    relative,
)
from optim_support import group, loss, network, train
from safetensors.torch import save_file
from torch import nn

every_family = pytest.mark.parametrize("name", NAMES)


@every_family
def test_related_models_are_at_no_distance_and_others_are(name):
    symmetries = group_of(name)
    model = model_of(name)
    moved = symmetries.random_element(seed=1, size=0.5).apply_(copy.deepcopy(model))
    other = families.build(replace(family_of(name), seed=7))
    assert symmetries.distance(model, moved) < 1e-10
    assert symmetries.distance(model, other) > 0.1
    assert symmetries.distance(other, model) == pytest.approx(symmetries.distance(model, other))

    difference = symmetries.difference(model, moved)
    assert difference.modulo < 1e-10 < 0.1 < difference.weights
    assert max(tensor.modulo for tensor in difference.tensors) < 1e-10
    assert [gauge.name for gauge in difference.gauges] == [g.name for g in symmetries.gauges]
    for gauge in difference.gauges:
        sizes = [size for size in (gauge.log_scale, gauge.angle, gauge.shift) if size is not None]
        assert sizes and all(1e-3 < size < 3.2 for size in sizes), gauge


@every_family
def test_a_model_is_aligned_to_another(name):
    symmetries = group_of(name)
    model = model_of(name)
    moved = symmetries.random_element(seed=1, size=0.5).apply_(copy.deepcopy(model))
    aligned = copy.deepcopy(model)
    move = symmetries.align_(aligned, to=moved)
    assert apart(aligned, moved) < 1e-11
    assert apart(move.inverse().apply_(aligned), model) < 1e-11

    other = families.build(replace(family_of(name), seed=7))
    aligned = copy.deepcopy(model)
    symmetries.align_(aligned, to=other)
    assert relative(predictions(name, aligned), predictions(name, model)) < 1e-12
    assert (
        symmetries.difference(aligned, other).weights < symmetries.difference(model, other).weights
    )
    # Nothing is left to be gained along orbits.
    assert all(
        gauge.log_scale is None or gauge.log_scale < 1e-6
        for gauge in symmetries.difference(aligned, other).gauges
    )


def overlap(symmetries: ddc.SymmetryGroup, *names: str) -> bool:
    """Whether both are shifts of one tensor: rows and columns have the mean of all entries in common."""
    gauges = [gauge for gauge in symmetries.gauges if gauge.name in names]
    tensors = [{tensor for tensor, _, _ in gauge.legs} for gauge in gauges]
    return {gauge.action for gauge in gauges} == {"shift"} and bool(tensors[0] & tensors[1])


@pytest.mark.parametrize("name", ["Llama", "ViT"])
def test_what_one_gauge_moved_is_seen_on_that_gauge_alone(name):
    symmetries = group_of(name)
    for gauge in symmetries.gauges:
        own = symmetries.only(gauge.name)
        moved = own.random_element(seed=1, size=0.3).apply_(model_of(name))
        for each in symmetries.difference(model_of(name), moved).gauges:
            sizes = {each.log_scale, each.angle, each.shift} - {None}
            if each.name == gauge.name:
                assert min(sizes) > 1e-2, each
            elif not overlap(symmetries, gauge.name, each.name):
                assert max(sizes) < 1e-10, (gauge.name, each)


def test_models_that_were_trained_from_other_seeds_are_apart():
    models = [network(seed=0), network(seed=1), group().random_element(3).apply_(network(seed=0))]
    for model in models[:2]:
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), range(100))
    assert group().distance(models[0], models[1]) > 0.1
    assert group().distance(models[0], models[2]) > 0.1  # the same start, but not trained
    again = group().random_element(3).apply_(copy.deepcopy(models[0]))
    assert group().distance(models[0], again) < 1e-10
    assert group().distance(models[0].state_dict(), again.state_dict()) < 1e-10


def test_a_small_change_is_as_small_wherever_the_copies_are():
    first, second = network(), network()
    with torch.no_grad():
        second[1].weight.add_(1e-4 * torch.ones_like(second[1].weight))
    near = group().distance(first, second)
    assert 1e-6 < near < 1e-3
    for seed in range(3):
        moved = group().random_element(seed).apply_(copy.deepcopy(second))
        assert group().distance(first, moved) == pytest.approx(near, rel=1e-6)


def test_gram_matrices_with_equal_eigenvalues_do_not_matter():
    """Orthogonal weights, and a copy with a little noise: bases of eigenspaces are arbitrary."""
    first = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)).double()
    symmetries = ddc.SymmetryGroup.of(
        first, [ddc.gauges.linear_pair(first, "0.weight", "1.weight")]
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in first:
            nn.init.orthogonal_(layer.weight, generator=generator)
        second = copy.deepcopy(first)
        for layer in second:
            layer.weight.add_(1e-6 * torch.randn(6, 6, generator=generator, dtype=torch.float64))
    symmetries.random_element(seed=1, size=0.5).apply_(second)
    assert symmetries.distance(first, second) < 1e-5


def test_other_models_are_refused():
    model = network()
    before = copy.deepcopy(model)
    wide = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 3))
    with pytest.raises(ValueError, match=r"'1.weight' of the second model has shape \[7, 3\]"):
        group().distance(model, wide)
    with pytest.raises(ValueError, match="first model has no tensor '0.weight'"):
        group().difference({"weight": torch.zeros(2)}, model)
    with pytest.raises(ValueError, match="'3.bias' of the one to align to is not finite"):
        group().align_(model, {**network().state_dict(), "3.bias": torch.full((3,), torch.nan)})
    half = network(torch.bfloat16)
    with pytest.raises(ValueError, match="float32 or float64"):
        group().align_(half, model)
    assert apart(half, network(torch.bfloat16)) == 0
    assert apart(model, before) == 0
    # For looking at them any type will do.
    assert 1e-6 < group().distance(half, model) < 1e-1


# ---- The command ----------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    model = network()
    moved = group().only("relu rescale").random_element(1).apply_(network())
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    save_file({f"module.{n}": t for n, t in moved.state_dict().items()}, tmp_path / "b.safetensors")
    group().save(tmp_path / "group.json")
    return tmp_path


@pytest.fixture
def diff(files, capsys):
    def call(first="a.safetensors", second="b.safetensors", symmetries="group.json", *more):
        paths = [str(files / name) for name in (first, second, symmetries)]
        code = main(["diff", *paths[:2], "--symmetries", paths[2], *more])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_command_prints_tables(diff):
    code, out, err = diff()
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert float(lines["1.weight"][1]) > 0.1 > 1e-10 > float(lines["1.weight"][2])
    assert float(lines["0.weight"][1]) == 0
    rescale = next(g for g in group().gauges if g.kind == "relu rescale")
    assert float(lines[rescale.name][-1]) > 0.1
    assert "modulo symmetry" in out and "log-scale" in out


def test_the_command_prints_json(diff):
    code, out, _ = diff("a.safetensors", "b.safetensors", "group.json", "--json")
    assert code == 0
    read = json.loads(out)
    assert read["modulo"] < 1e-10 < 0.1 < read["weights"]
    assert {t["name"] for t in read["tensors"]} == set(network().state_dict())
    by_kind = {g["kind"]: g for g in read["gauges"]}
    assert by_kind["relu rescale"]["log_scale"] > 0.1
    assert by_kind["linear pair"]["log_scale"] < 1e-10
    assert by_kind["CE bias shift"]["shift"] < 1e-10


def test_the_command_says_what_is_wrong(diff, files):
    def fails(match, *arguments):
        code, out, err = diff(*arguments)
        assert (code, out) == (1, "")
        assert err.startswith("ddc: ") and match in err, err

    fails("there is no file", "none.safetensors")
    fails("none.json", "a.safetensors", "b.safetensors", "none.json")
    (files / "text.safetensors").write_text("no tensors")
    fails("is no file of safetensors", "text.safetensors")
    save_file({"weight": torch.zeros(2)}, files / "other.safetensors")
    fails("the second model has no tensor '0.weight'", "a.safetensors", "other.safetensors")
    tensors = {**network().state_dict(), "3.bias": torch.zeros(4)}
    save_file(tensors, files / "wide.safetensors")
    fails("'3.bias' of the first model has shape [4]", "wide.safetensors")
    group_of("Llama").save(files / "llama.json")
    fails("of which the symmetries are", "a.safetensors", "b.safetensors", "llama.json")
    fails("symmetries file", "a.safetensors", "b.safetensors", "a.safetensors")


FACTORY = """
import sys

sys.path.insert(0, {folder!r})
from optim_support import loss, network


def make():
    return network(seed=5), loss


def squares():
    def of_outputs(model):
        import torch

        return model(torch.randn(16, 4, dtype=torch.float64)).square().mean()

    return network(seed=5), of_outputs
"""


@pytest.fixture
def factory(files):
    file = files / "made.py"
    file.write_text(FACTORY.format(folder=str(Path(__file__).parent)))
    return str(file)


def test_the_command_takes_folders_indices_and_prefixes(diff, files):
    tensors = network().state_dict()
    whole, parts, base = files / "whole", files / "parts", files / "base"
    for folder in (whole, parts, base):
        folder.mkdir()
    save_file(tensors, whole / "model.safetensors")
    names = sorted(tensors)
    shards = {name: f"model-{i % 2 + 1:05}-of-00002.safetensors" for i, name in enumerate(names)}
    for shard in set(shards.values()):
        save_file({n: tensors[n] for n in names if shards[n] == shard}, parts / shard)
    index = parts / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    save_file({f"model.encoder.{n}": t for n, t in tensors.items()}, base / "any.safetensors")
    for first in ("whole", "parts", "parts/model.safetensors.index.json", "base"):
        code, out, err = diff(first, "b.safetensors", "group.json", "--json")
        assert (code, err) == (0, "")
        read = json.loads(out)
        assert read["modulo"] < 1e-10 < 0.1 < read["weights"]

    # And the other way round: symmetries of a model around the base model.
    head = nn.Sequential()
    head.add_module("transformer", network())
    inner = ddc.gauges.relu_rescale(
        head, "transformer.1.weight", ["transformer.3.weight"], bias_in="transformer.1.bias"
    )
    ddc.SymmetryGroup.of(head, [inner]).save(files / "head.json")
    code, out, err = diff("whole", "b.safetensors", "head.json", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["modulo"] < 1e-10
    # What a prefix does not explain is named.
    save_file({n: t for n, t in tensors.items() if n != "3.bias"}, base / "any.safetensors")
    code, _, err = diff("base", "b.safetensors", "head.json", "--json")
    assert (code, err) == (1, err) and "first model has no tensor 'transformer.3.bias'" in err

    def fails(match, first):
        code, out, err = diff(first)
        assert (code, out) == (1, "") and err.startswith("ddc: ") and match in err, err

    (parts / shards[names[0]]).unlink()
    fails(f"names '{shards[names[0]]}', which is not there", "parts")
    index.write_text('{"weights": {}}')
    fails("is no index of a checkpoint", "parts")
    (files / "empty").mkdir()
    fails("there is no checkpoint in", "empty")
    save_file(tensors, base / "other.safetensors")
    fails("has 2 files of safetensors", "base")
    save_file({"1.bias": tensors["1.bias"], "module.1.bias": tensors["1.bias"] + 1}, files / "c")
    fails("has the tensor '1.bias' twice", "c")


def test_the_command_takes_permutations_out(diff, files, factory):
    symmetries = group()
    found = ddc.permutations(network(seed=3), loss, symmetries)
    assert len(found) > 0
    found.save(files / "units.json")
    assert ddc.Permutations.load(files / "units.json") == found
    shuffled = found.shuffle_(network(), seed=1)
    save_file(shuffled.state_dict(), files / "b.safetensors")

    def modulo(*more):
        code, out, err = diff("a.safetensors", "b.safetensors", "group.json", "--json", *more)
        assert (code, err) == (0, "")
        return json.loads(out)["modulo"]

    assert modulo() > 0.1
    assert modulo("--permutations", str(files / "units.json")) < 1e-10
    assert modulo("--permutations", "--model", f"{factory}:make") < 1e-10

    def fails(match, *more):
        code, out, err = diff("a.safetensors", "b.safetensors", "group.json", *more)
        assert (code, out) == (1, "") and err.startswith("ddc: ") and match in err, err

    fails("name it by --model", "--permutations")
    fails("there is no file", "--permutations", str(files / "none.json"))
    fails("it has no permutations", "--permutations", str(files / "group.json"))
    wide = nn.Sequential(
        nn.Linear(4, 3, bias=False), nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 3)
    ).double()
    ddc.permutations(wide, loss).save(files / "units.json")
    fails("has shape", "--permutations", str(files / "units.json"))


def test_the_command_compares_functions(diff, files, factory):
    def function(first, second, made):
        code, out, err = diff(first, second, "group.json", "--json", "--model", f"{factory}:{made}")
        assert (code, err) == (0, "")
        return json.loads(out)["function"]

    save_file(network(seed=1).state_dict(), files / "c.safetensors")
    one = function("a.safetensors", "b.safetensors", "make")
    assert one["batches"] == 8
    assert one["first_loss"] == pytest.approx(one["second_loss"], rel=1e-12)
    assert abs(one["divergence"]) < 1e-12
    assert one["outputs"] is None  # blind to what shifts all logits
    other = function("a.safetensors", "c.safetensors", "make")
    assert other["divergence"] > 1e-2 < abs(other["first_loss"] - other["second_loss"])
    model, losses = network(), []
    for batch in range(8):
        torch.manual_seed(batch)
        losses.append(loss(model).item())
    assert other["first_loss"] == pytest.approx(sum(losses) / 8, rel=1e-12)

    group().only("relu rescale").save(files / "group.json")
    assert function("a.safetensors", "b.safetensors", "squares")["outputs"] < 1e-12
    assert function("a.safetensors", "c.safetensors", "squares")["outputs"] > 1e-2
    code, out, _ = diff(
        "a.safetensors", "c.safetensors", "group.json", "--model", f"{factory}:squares"
    )
    assert code == 0 and "difference of outputs" in out and "loss of the second" in out

    # A shard, which has all that the symmetries are of, and not all of the model.
    file = files / "c.safetensors"
    save_file({n: t for n, t in network().state_dict().items() if n != "0.weight"}, file)
    code, _, err = diff(
        "a.safetensors", "c.safetensors", "group.json", "--model", f"{factory}:make"
    )
    assert code == 1 and "no tensor '0.weight'" in err
    code, _, err = diff("a.safetensors", "b.safetensors", "group.json", "--model", "nothing")
    assert code == 1 and "MODULE:FACTORY" in err


# ---- The documentation ----------------------------------------------------------------------------


def test_the_code_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text()
    section = text.split("## Place, hold, compare")[1].split("\n## ")[0]
    code = section.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/reference/python.md", "exec"), names)
    learned, apart_from_each_other = map(float, capsys.readouterr().out.split()[:2])
    assert learned > 1e-2 > 1e-10 > apart_from_each_other
    assert apart(names["moved"], names["model"]) < 1e-12
    assert apart(names["placed"], names["model"]) > 0.1
    state = torch.load("checkpoint.pt", weights_only=True)[1]
    assert state["ddc"]["place"] == "original"
