"""Geometry of (a + b) mod 113 after grokking: AdamW, DDCAdam, Muon and DDCMuon beside the paper's numbers.

Run: python benchmarks/grokked_geometry.py --out out/grokked [--seeds 42,142,242]   (hours on two cores)

Runs that are finished are not made again; the table is of those that are there.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

DDC = Path(__file__).resolve().parents[1] / "build" / "release" / "cli" / "ddc"
# As in the experiment `grokking`, from torch's initialisation.
ADAM = ["--lr", "1e-3", "--wd", "2", "--stop", "test_accuracy=0.98"]
MUON = ["--lr", "0.04", "--wd", "0.4", "--stop", "test_accuracy=0.95"]
MUON += ["--set", "adam_embeddings=false", "--set", "adam_weight_decay=0.4"]
ARMS = {"adamw": ADAM, "ddc-adam": ADAM, "muon": MUON, "ddc-muon": MUON}
# Only where a run starts and where it ends.
METERS = ["--meter", "activations:every=1000000"]
METERS += ["--meter", "fisher:tensors=layers.0.mlp_norm.*,samples=512,every=1000000"]
COLUMNS = {
    "step": "steps",
    "test_accuracy": "test accuracy",
    "activations[stream.layers.0.attention].effective_rank": "rank after attention",
    "activations[stream.layers.0.mlp].effective_rank": "rank after MLP",
    "activations[stream].sigma_min": "sigma_min",
    "activations[layers.0.mlp.up].never_on": "dead units",
    "activations[layers.0.mlp.up].axis_alignment": "axis alignment",
    "fisher[layers.0.mlp_norm.*].smallest": "smallest eigenvalue",
    "fisher[layers.0.mlp_norm.*].log_determinant": "log-determinant",
}


def command(arm: str, seed: int, out: Path) -> list[str]:
    return [
        str(DDC), "run", "modular_addition", "--optimizer", arm, *ARMS[arm],
        "--set", "torch_init=true", "--steps", "4000", "--every", "50", *METERS,
        "--seeds", str(seed), "--out", str(out / f"{arm}-{seed}"), "--quiet",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="42,142,242")
    parser.add_argument("--table", action="store_true", help="make no runs")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print("| arm | seeds | " + " | ".join(COLUMNS.values()) + " |")
    print("| --- | --- |" + " ---: |" * len(COLUMNS))
    for arm in ARMS:
        found: dict[str, list[float]] = {name: [] for name in COLUMNS}
        done = []
        for seed in seeds:
            folder = options.out / f"{arm}-{seed}"
            if not options.table:
                subprocess.run(command(arm, seed, options.out), check=True)
            if not (folder / "summary.json").exists():
                continue
            done.append(str(seed))
            last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
            for name in COLUMNS:
                if last.get(name) is not None:
                    found[name].append(last[name])
        cells = [f"{statistics.mean(values):.4g}" if values else "-" for values in found.values()]
        print(f"| {arm} | {', '.join(done) or 'none'} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
