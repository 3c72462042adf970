"""ddc.audit, and `python -m ddc audit` on a user's own file."""

import json
import subprocess
import sys

import pytest
from ddc.__main__ import main

MODELS = """
import torch

def mlp():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)).double()
    def loss(model):
        inputs = torch.randn(16, 3, dtype=torch.float64)
        return (model(inputs) - inputs[:, :2].sin()).square().mean()
    return model, loss

def broken():
    return torch.nn.Linear(2, 2)

def detached():
    return torch.nn.Linear(2, 2), lambda model: torch.zeros(())

def misspelled():
    return torch.nn.Linear(2, 2), lambda model: model(torch.ones(3)).sum()

def lookup():
    return {}["model"]

number = 3
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MODELS)
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """The command in this process: importing torch takes seconds."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)

    def call(*arguments):
        try:
            code = main(arguments)
        except SystemExit as exit:  # argparse
            code = exit.code
        sys.modules.pop("mine", None)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_audits_a_file_of_ones_own(folder):
    result = subprocess.run(
        [sys.executable, "-m", "ddc", "audit", "mine:mlp"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert "Sequential: 32 parameters in 4 tensors" in result.stdout
    assert "(R+)^5" in result.stdout
    assert "explains 5 of 5 directions that no batch sees" in result.stdout


def test_json_and_out_hold_the_same(run, folder):
    code, out, err = run("audit", "mine.py:mlp", "--json", "--out", "group.json")
    assert code == 0, err
    assert json.loads(out) == json.loads((folder / "group.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["audit", "mine"], 1, "must be of the form MODULE:FACTORY"),
        (["audit", "nothere:mlp"], 1, "there is no module 'nothere'"),
        (["audit", "nothere.py:mlp"], 1, "there is no file 'nothere.py'"),
        (["audit", "mine:nothere"], 1, "'nothere' in 'mine' is nothing"),
        (["audit", "mine:number"], 1, "'number' in 'mine' is no function but int"),
        (["audit", "mine:broken"], 1, "must return (model, loss)"),
        (["audit", "mine:detached"], 1, "does it use the model it is given?"),
        (["audit", "mine:mlp", "--seed", "-1"], 2, "invalid whole number value: '-1'"),
        (["audit", "mine:mlp", "--out", "no/such/folder.json"], 1, "no/such"),
        ([], 2, "required"),
    ],
)
def test_bad_input_is_named(run, arguments, code, message):
    got, _, err = run(*arguments)
    assert got == code
    assert message in err


@pytest.mark.parametrize(
    ("factory", "error"),
    [("misspelled", "RuntimeError: mat1 and mat2"), ("lookup", "KeyError: 'model'")],
)
def test_errors_of_ones_own_code_come_with_file_and_line(run, factory, error):
    code, out, err = run("audit", f"mine.py:{factory}")
    assert (code, out) == (1, "")
    line = 1 + MODELS.splitlines().index(f"def {factory}():") + 1
    assert f'mine.py", line {line}' in err
    assert error in err
