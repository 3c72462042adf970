"""Geometry of (a + b) mod 113 after grokking: AdamW, DDCAdam, Muon and DDCMuon beside the paper's numbers.

Run: python benchmarks/grokked_geometry.py --out out/grokked [--seeds 42,142,242] [--arms ...]   (hours)

It goes on where it was interrupted; `--table` makes no runs, and prints what is there. What is missing is
shown as "-".
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

DDC = Path(__file__).resolve().parents[1] / "build" / "release" / "cli" / "ddc"
# As in the experiment `grokking`, from torch's initialisation: at the first evaluation with so high a test
# accuracy, and after a fixed number of steps.
ADAM = ["--lr", "1e-3", "--wd", "2"]
MUON = ["--lr", "0.04", "--wd", "0.4"]
MUON += ["--set", "adam_embeddings=false", "--set", "adam_weight_decay=0.4"]
GROKKED_ADAM = ["--steps", "4000", "--stop", "test_accuracy=0.98", *ADAM]
GROKKED_MUON = ["--steps", "4000", "--stop", "test_accuracy=0.95", *MUON]
ARMS = {
    "adamw": ["adamw", *GROKKED_ADAM],
    "ddc-adam": ["ddc-adam", *GROKKED_ADAM],
    "muon": ["muon", *GROKKED_MUON],
    "ddc-muon": ["ddc-muon", *GROKKED_MUON],
    "long-adamw": ["adamw", "--steps", "10000", "--keep", "1000", *ADAM],
    "long-ddc-adam-paper": [
        "ddc-adam", "--set", "recipe=paper", "--steps", "10000", "--keep", "1000", *ADAM,
    ],
    "long-muon": ["muon", "--steps", "5000", "--keep", "1000", *MUON],
    "long-ddc-muon": ["ddc-muon", "--steps", "5000", "--keep", "1000", *MUON],
}  # fmt: skip
# A block of the exact Fisher matrix of 512 training pairs that is small enough for all eigenvalues.
BLOCK = "layers.0.mlp_norm.*"
METERS = ["activations", f"fisher:tensors={BLOCK},samples=512"]
COLUMNS = {
    "step": "steps",
    "test_accuracy": "test accuracy",
    "activations[stream.embedding].effective_rank": "rank of embedding",
    "activations[stream.layers.0.attention].effective_rank": "rank after attention",
    "activations[stream.layers.0.mlp].effective_rank": "rank after MLP",
    "activations[stream].sigma_min": "sigma_min",
    "activations[layers.0.mlp.up].never_on": "units never on",
    "activations[layers.0.mlp.up].dead_directions": "dead directions",
    "activations[layers.0.mlp.up].axis_alignment": "axis alignment",
    "activations[layers.0.mlp.up].gate_dead": "gate-dead units",
    f"fisher[{BLOCK}].smallest": "smallest eigenvalue",
    f"fisher[{BLOCK}].zeros": "zeros",
    f"fisher[{BLOCK}].log_determinant": "log-determinant",
}


def train(arm: str, seed: str, folder: Path) -> None:
    optimizer, *rest = ARMS[arm]
    command = [str(DDC), "run", "modular_addition", "--optimizer", optimizer, *rest]
    command += ["--set", "torch_init=true", "--every", "50", "--seeds", seed]
    subprocess.run([*command, "--out", str(folder), "--quiet"], check=True)


def measured(folder: Path) -> dict[str, float]:
    """What meters see where the run is; kept in its folder once it is finished."""
    kept = folder / "geometry.json"
    if kept.exists():
        return json.loads(kept.read_text())
    if not (folder / "checkpoints").exists():
        return {}
    command = [str(DDC), "measure", str(folder), "--json"]
    for meter in METERS:
        command += ["--meter", meter]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    values = {"step": found["step"], **found["values"]}
    if (folder / "summary.json").exists():
        kept.write_text(json.dumps(values, indent=1) + "\n")
    return values


def cell(values: list[float]) -> str:
    """Mean, and the range over seeds."""
    if not values:
        return "-"
    if min(values) == max(values):
        return f"{values[0]:.4g}"
    return f"{statistics.mean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="42,142,242")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--table", action="store_true", help="make no runs")
    options = parser.parse_args()
    arms, seeds = options.arms.split(","), options.seeds.split(",")
    if not options.table:
        for seed in seeds:
            for arm in arms:
                train(arm, seed, options.out / f"{arm}-{seed}")
    print("| arm | seeds | " + " | ".join(COLUMNS.values()) + " |")
    print("| --- | --- |" + " ---: |" * len(COLUMNS))
    for arm in arms:
        found = {seed: measured(options.out / f"{arm}-{seed}") for seed in seeds}
        done = [seed for seed in seeds if found[seed]]
        cells = [
            cell([found[seed][name] for seed in done if found[seed].get(name) is not None])
            for name in COLUMNS
        ]
        print(f"| {arm} | {', '.join(done) or 'none'} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
