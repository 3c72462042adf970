"""Write the files of this version of ddc that later versions must read: `data`, read by test_versions.py.

python tests/python/write_versions.py

Needs the C++ build, for the checkpoint of C++ and the folder of a run. Files that are there are kept:
they are of an earlier build of the same version.
"""

import copy
import os
import subprocess
from pathlib import Path
from typing import Any

import ddc
import torch
from optim_support import group, loss_on, network
from torch import nn

DATA = Path(__file__).parent / "data"

OPTIMIZERS: dict[str, Any] = {
    "ddc_adam": ddc.DDCAdam,
    "ddc_muon": ddc.DDCMuon,
    "ddc_sgd": ddc.DDCSgd,
    "ddc_shampoo": ddc.DDCShampoo,
    "ddc_soap": ddc.DDCSoap,
}
BUILD = Path(os.environ.get("DDC_BUILD_DIR", Path(__file__).parents[2] / "build" / "release"))
RUN = ["relu_teacher_student", "--optimizer", "ddc-adam", "--set", "d_hidden=4", "samples=8"]


def made(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of one of OPTIMIZERS, or AdamW under hold."""
    if kind != "hold":
        return OPTIMIZERS[kind](model.named_parameters(), symmetries=group(), lr=1e-2)
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-2)
    ddc.hold(optimizer, group())
    return optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: range) -> None:
    for batch in batches:
        model.zero_grad()
        loss_on(model, batch).backward()
        optimizer.step()


def copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def write_symmetries(path: Path) -> None:
    group().save(path)


def write_element(path: Path) -> None:
    model = network()
    group().random_element(1, 0.5).apply_(model)
    group().canonicalize_(model).save(path)


def write_optimizer(kind: str, path: Path) -> None:
    model = network()
    optimizer = made(kind, model)
    train(model, optimizer, range(3))
    saved = {"model": copied(model), "optimizer": copy.deepcopy(optimizer.state_dict())}
    train(model, optimizer, range(3, 6))
    saved["later"] = copied(model)
    torch.save(saved, path)


def write_checkpoint(path: Path) -> None:
    subprocess.run(
        [BUILD / "tests" / "resume_tool", "default", "train", "3", "save", path], check=True
    )


def write_run(path: Path) -> None:
    tool = BUILD / "cli" / "ddc"
    subprocess.run([tool, "run", *RUN, "--steps", "4", "--every", "2", "--out", path], check=True)
    (path / "lock").unlink()


def main() -> None:
    version = ddc.__version__
    files = {
        DATA / f"symmetries_{version}.json": write_symmetries,
        DATA / f"element_{version}.pt": write_element,
        DATA / f"checkpoint_{version}.safetensors": write_checkpoint,
        DATA / f"run_{version}": write_run,
    }
    for path, write in files.items():
        if not path.exists():
            write(path)
    for kind in (*OPTIMIZERS, "hold"):
        path = DATA / f"{kind}_{version}.pt"
        if not path.exists():
            write_optimizer(kind, path)


if __name__ == "__main__":
    main()
