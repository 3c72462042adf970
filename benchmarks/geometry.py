"""Both ends of the spectrum of a large model, what it takes, and the time beside curvlinops.

Run: python benchmarks/geometry.py [--parameters 1e7]
"""

import argparse
import resource
import threading
import time
from statistics import median

import ddc
import torch
from torch import nn
from torch.nn.functional import cross_entropy


def memory() -> float:
    """Resident memory of the process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Peak:
    """Largest resident memory while the context lasts, above what it was before."""

    def __enter__(self) -> "Peak":
        self.before = memory()
        self.peak = self.before
        self._done = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.002):
            self.peak = max(self.peak, memory())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()

    @property
    def bytes(self) -> float:
        return self.peak - self.before


def network(parameters: float) -> nn.Sequential:
    width = int((parameters / 3) ** 0.5)
    return nn.Sequential(
        nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, 10),
    )  # fmt: skip


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def data(samples: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 64, generator=generator)
    return [(inputs, torch.randint(0, 10, (samples,), generator=generator))]


def timed(function, repeats: int) -> float:
    """Seconds of a call, the smallest of several."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=float, default=1e7)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network(options.parameters)
    size = sum(parameter.numel() for parameter in model.parameters())
    weights = 4 * size
    print(f"{size} parameters in float32, {weights / 1e6:.0f} MB; one thread")

    fisher = ddc.geometry.GaussNewton(model, loss, batches=data(options.samples))
    fisher @ torch.randn(size)  # what is loaded once is no memory of the method
    with Peak() as peak:
        start = time.perf_counter()
        found = ddc.geometry.spectrum(
            fisher, iterations=options.iterations, tolerance=1e-5, probes=2, quadrature_steps=20
        )
        seconds = time.perf_counter() - start
    print(found)
    print(
        f"both ends in {seconds:.0f} s, peak memory {peak.bytes / 1e6:.0f} MB above the model, "
        f"{peak.bytes / weights:.2f} times its weights"
    )

    print("\ntime of a product, by samples")
    for samples in (options.samples, 2 * options.samples, 4 * options.samples):
        operator = ddc.geometry.GaussNewton(model, loss, batches=data(samples), batch_size=32)
        vector = torch.randn(size)
        print(f"  {samples:5d}  {timed(lambda o=operator, v=vector: o @ v, options.repeats):.3f} s")

    try:
        from curvlinops import GGNLinearOperator
    except ImportError:
        print("\nno curvlinops to compare with (requirements-test-no-deps.txt)")
        return
    batches = data(128)
    ours = ddc.geometry.GaussNewton(model, loss, batches=batches)
    theirs = GGNLinearOperator(
        model, nn.CrossEntropyLoss(), list(model.parameters()), batches, check_deterministic=False
    )
    vector = torch.randn(size)
    difference = ((ours @ vector) - (theirs @ vector)).norm() / (theirs @ vector).norm()
    # In turn, so that all see the same load of the machine; theirs twice, as a control.
    rounds = [
        (
            timed(lambda: ours @ vector, 1),
            timed(lambda: theirs @ vector, 1),
            timed(lambda: theirs @ vector, 1),
        )
        for _ in range(options.repeats)
    ]
    ratio = median(mine / other for mine, other, _ in rounds)
    control = median(again / other for _, other, again in rounds)
    mine, other, _ = (median(column) for column in zip(*rounds, strict=True))
    print(
        f"\na product with 128 samples, one thread, medians of {options.repeats}: {mine:.3f} s, curvlinops "
        f"{other:.3f} s, ratio {ratio:.2f}, control {control:.2f} (relative difference {difference:.1e})"
    )


if __name__ == "__main__":
    main()
