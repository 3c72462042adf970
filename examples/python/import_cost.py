"""Prints what `import ddc` costs beyond `import torch`: medians of processes that take turns."""

import statistics
import subprocess
import sys

CODE = (
    "import time; import torch; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
)


def seconds(statement: str) -> float:
    result = subprocess.run(
        [sys.executable, "-c", CODE.format(statement)], capture_output=True, text=True, check=True
    )
    return float(result.stdout)


def main() -> None:
    runs = [(seconds("pass"), seconds("import ddc")) for _ in range(7)]
    without, with_ddc = (statistics.median(times) for times in zip(*runs, strict=True))
    print(f"import ddc after torch: {with_ddc - without:.3f} s (median of {len(runs)} processes)")


if __name__ == "__main__":
    main()
