"""The local learning coefficient, sampled with devinterp, beside the order that a trajectory shows.

Run: python examples/python/learning_coefficient.py   (a minute on one core)

Both look at how a loss K vanishes at a minimum. Langevin dynamics at inverse temperature n * beta estimates
the coefficient lambda = n * beta * E[K], which counts all directions; the order k of the way that training
takes gives 1 / (2 k), the share of that one direction. Of one parameter they are the same.
"""

import math

import ddc
import torch
from devinterp.optim import SGMCMC
from torch import nn

CHAINS = 256


class Product(nn.Module):
    """x times a product of powers of the parameters, at one place per chain."""

    def __init__(self, powers: list[int], chains: int = 1, start: float = 0.0) -> None:
        super().__init__()
        self.powers = powers
        self.w = nn.Parameter(torch.full((len(powers), chains), start))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * math.prod(w**power for w, power in zip(self.w, self.powers, strict=True))


def losses(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Loss of every chain; zero at the minimum."""
    return 0.5 * (model(x) ** 2).mean(0)


def sampled(
    powers: list[int], n_beta: float, steps: int, localization: float
) -> tuple[float, float]:
    """Learning coefficient at the origin by stochastic-gradient Langevin dynamics, and its standard error."""
    x = torch.ones(1, 1)
    model = Product(powers, CHAINS)
    # A share of the square of the width of what is sampled.
    lr = 0.02 * n_beta ** (-1 / max(powers))
    sampler = SGMCMC.sgld(model.parameters(), lr=lr, nbeta=n_beta, localization=localization)
    total = torch.zeros(CHAINS)
    for step in range(2 * steps):
        sampler.zero_grad()
        each = losses(model, x)
        each.sum().backward()
        sampler.step()
        if step >= steps:
            total += each.detach() / steps
    estimate = n_beta * total
    return estimate.mean().item(), estimate.std().item() / CHAINS**0.5


def expected(powers: list[int], n_beta: float, localization: float) -> float:
    """What Langevin dynamics samples at this temperature, n * beta * E[K], by quadrature."""
    width = 4.0 if localization else 4 * n_beta ** (-1 / (2 * max(powers)))
    axis = torch.linspace(-width, width, 4001, dtype=torch.float64)
    axes = torch.meshgrid(*[axis] * len(powers), indexing="ij")
    loss = 0.5 * math.prod(w**power for w, power in zip(axes, powers, strict=True)) ** 2
    weight = (-n_beta * loss - 0.5 * localization * sum(w**2 for w in axes)).exp()
    return (n_beta * (loss * weight).sum() / weight.sum()).item()


def order(powers: list[int]) -> ddc.geometry.Rate:
    """The order of the loss along gradient descent from where all parameters are one half."""
    x = torch.ones(1, 1)
    model = Product(powers, start=0.5).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * 8 ** (sum(powers) - 1))
    trajectory = ddc.geometry.Trajectory(model)
    arc, values = [], []
    for step in range(4000):
        optimizer.zero_grad()
        loss = losses(model, x.double()).sum()
        loss.backward()
        if step % 20 == 0:
            arc.append(trajectory.update())
            values.append(loss.item())
        optimizer.step()
    return ddc.geometry.rate(arc, values, of="loss")


def main() -> None:
    torch.manual_seed(0)
    print("| K | lambda | n beta E[K] | sampled | order k | 1 / (2 k) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, powers, coefficient, n_beta in [
        ("u^2", [1], 1 / 2, 1e4),
        ("u^4", [2], 1 / 4, 1e4),
        ("u^6", [3], 1 / 6, 1e4),
        # Two parameters: a prior keeps the chains near, and lambda is gone to as 1 / log(n beta).
        ("u^2 v^2", [1, 1], 1 / 2, 100),
    ]:
        localization = float(len(powers) > 1)
        mean, error = sampled(powers, n_beta, 4000, localization)
        rate = order(powers)
        read = f"{rate.order:.3f} | {rate.learning_coefficient:.3f}"
        print(
            f"| {name} | {coefficient:.3f} | {expected(powers, n_beta, localization):.3f} | "
            f"{mean:.3f} +- {error:.3f} | {read if rate.verdict == 'readable' else rate.verdict} |"
        )


if __name__ == "__main__":
    main()
