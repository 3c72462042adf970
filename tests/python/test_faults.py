"""Disks that are full or not to be written to, processes that are killed, loaders that throw."""

from __future__ import annotations

import contextlib
import copy
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from optim_support import backward, every_case, group, network, same, weights
from torch import Tensor


@contextlib.contextmanager
def full_disk(limit: int = 512) -> Iterator[None]:
    """Files end at `limit` bytes: what is written behind fails, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder cannot be written to; root is somebody else for that time, whom permissions concern."""
    is_root = os.geteuid() == 0
    opened = [parent for parent in folder.parents if not parent.stat().st_mode & 0o001]
    modes = {each: each.stat().st_mode for each in (folder, *opened)}
    folder.chmod(0o555)
    for each in opened:
        each.chmod(modes[each] | 0o055)
    try:
        if is_root:
            os.seteuid(65534)
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for each, mode in modes.items():
            each.chmod(mode)


def saves() -> dict[str, Any]:
    return {"symmetries": group(), "element": group().random_element(1)}


@pytest.mark.parametrize("fault", ["full disk", "read-only"])
@pytest.mark.parametrize("what", ["symmetries", "element"])
def test_a_file_that_cannot_be_written_leaves_the_old_one(what, fault, tmp_path):
    path = tmp_path / "kept"
    saved = saves()[what]
    saved.save(path)
    before = path.read_bytes()
    assert len(before) > 512
    with full_disk() if fault == "full disk" else read_only(tmp_path):
        with pytest.raises((OSError, RuntimeError), match="File too large|[Pp]ermission denied"):
            saved.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["kept"]
    saved.save(path)


def test_the_faults_are_faults(tmp_path):
    with full_disk(), pytest.raises(OSError), open(tmp_path / "large", "wb") as file:
        file.write(bytes(1024))
        file.flush()
    with read_only(tmp_path), pytest.raises(PermissionError):
        (tmp_path / "new").touch()


@every_case
def test_a_loader_that_throws_changes_nothing_and_training_goes_on(case):
    def batches(broken: bool) -> Iterator[int]:
        for batch in range(6):
            if batch == 3 and broken:
                raise OSError("the disk with the data is gone")
            yield batch

    model, reference = network(), network()
    optimizer, undisturbed = case.make(model), case.make(reference)

    def epoch(model: Any, optimizer: Any, source: Iterator[int], done: int = 0) -> int:
        for batch in source:
            if batch < done:
                continue
            optimizer.step(lambda batch=batch: backward(model, batch))
            done += 1
        return done

    with pytest.raises(OSError, match="is gone"):
        epoch(model, optimizer, batches(broken=True))
    before = copy.deepcopy((weights(model), optimizer.state_dict()))

    def closure() -> Tensor:
        raise OSError("gone again")

    with pytest.raises(OSError, match="gone again"):
        optimizer.step(closure)
    assert same((weights(model), optimizer.state_dict()), before)
    assert epoch(model, optimizer, batches(broken=False), done=3) == 6
    epoch(reference, undisturbed, batches(broken=False))
    assert same(weights(model), weights(reference))
    assert same(optimizer.state_dict()["state"], undisturbed.state_dict()["state"])


# Three steps of a layer of 6 MB with the state of Adam beside it, saved after each: writing takes long
# enough to be killed in the middle of it.
TRAINS = """
import os, sys, torch, ddc
from torch import nn

path, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1000, 1500), nn.ReLU(), nn.Linear(1500, 2))
gauge = ddc.gauges.relu_rescale(model, "0.weight", "2.weight", bias_in="0.bias")
optimizer = ddc.DDCAdam(model.named_parameters(), lr=1e-3, symmetries=[gauge], placement="in_place")
first = 0
if os.path.exists(path):
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step in range(first, steps):
    generator = torch.Generator().manual_seed(step)
    model.zero_grad()
    model(torch.randn(4, 1000, generator=generator)).square().mean().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)
"""


def test_training_that_is_killed_within_a_write_goes_on_to_the_same_state(tmp_path, monkeypatch):
    def train_here(path: Path) -> None:
        monkeypatch.setattr(sys, "argv", ["-c", str(path), "3"])
        exec(compile(TRAINS, "<training>", "exec"), {})

    whole, path = tmp_path / "whole.pt", tmp_path / "killed.pt"
    train_here(whole)
    size = whole.stat().st_size
    assert size > 1e7
    new = Path(f"{path}.new")
    # In the middle of the second file: the first one is there to go on from.
    process = subprocess.Popen([sys.executable, "-c", TRAINS, str(path), "3"])
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            if path.exists() and 0 < new.stat().st_size < size:
                process.kill()
                break
    process.wait(60)
    assert new.exists() and 0 < new.stat().st_size < size, "the kill was not within a write"
    with pytest.raises(Exception, match="PytorchStreamReader|central directory|EOF|archive"):
        torch.load(new, weights_only=True)
    assert torch.load(path, weights_only=True)["step"] in (1, 2)
    train_here(path)
    assert same(*(torch.load(each, weights_only=True) for each in (path, whole)))
