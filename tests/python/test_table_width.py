"""The table of symmetries is as wide as the terminal."""

import os
import sys

import ddc
import pytest
from torch import nn


@pytest.fixture(scope="module")
def symmetries():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    chain = [
        ddc.gauges.relu_rescale(
            model, f"{k}.weight", f"{k + 1}.weight", bias_in=f"{k}.bias", name=f"units of {k}"
        )
        for k in range(5)
    ]
    return ddc.SymmetryGroup.of(model, chain)


def rows(text):
    return [line for line in text.splitlines() if "units of" in line]


@pytest.mark.parametrize("columns", [200, 100, 80, 60, 40])
def test_lines_fit_and_every_gauge_is_there(symmetries, columns, monkeypatch):
    class Terminal:
        def isatty(self):
            return True

        def fileno(self):
            return 1

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Terminal())
        patch.setattr(os, "get_terminal_size", lambda file: os.terminal_size((columns, 24)))
        text = str(symmetries)
    assert len(rows(text)) == 5
    assert max(map(len, rows(text))) <= columns
    assert ("0.weight[0]^+1" in text) == (columns >= 100)
    assert all(f"units of {k}" in text and "(R+)^4" in text for k in range(5))


def test_files_and_notebooks_get_all_columns(symmetries):
    assert not sys.stdout.isatty()
    assert "0.weight[0]^+1" in str(symmetries) and "verified" in str(symmetries)
