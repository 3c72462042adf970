"""Two processes of torchrun (gloo) train as one with the joined batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

WORKER = Path(__file__).with_name("ddp_worker.py")


def run(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr[-4000:]


def test_two_ranks_train_as_one_process(tmp_path):
    run(str(WORKER), str(tmp_path))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run(*torchrun, str(WORKER), str(tmp_path))
    alone, first, second = (
        torch.load(tmp_path / name, weights_only=True)
        for name in ("rank0of1.pt", "rank0of2.pt", "rank1of2.pt")
    )
    # Rank 1 was told what rank 0 found, and asked nothing itself.
    assert first["calls"] > 0
    assert second["calls"] == 0
    assert first["group"] == second["group"] == alone["group"]
    assert first["vit"] == second["vit"] == alone["vit"]
    legs = [leg for f in json.loads(first["vit"])["findings"] for leg in f["gauge"]["legs"]]
    assert any(leg["axis"] == -1 for leg in legs)
    for name, expected in alone["weights"].items():
        torch.testing.assert_close(first["weights"][name], expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(first["weights"][name], second["weights"][name]), name
    assert len(alone["weights"]) == 8
