"""Geometry of minima: curvature and its spectrum modulo symmetry, activations, trajectories, rates.

>>> fisher = ddc.geometry.GaussNewton(model, loss, batches=batches)             # doctest: +SKIP
>>> print(ddc.geometry.spectrum(ddc.geometry.quotient(fisher, group)))          # doctest: +SKIP
"""

from ddc._C import (
    ActivationSpectrum,
    DeadUnits,
    EigenPairs,
    Rate,
    Ritz,
    Spectrum,
    StepValidity,
)
from ddc.geometry.curvature import (
    Curvature,
    EmpiricalFisher,
    GaussNewton,
    Hessian,
    MonteCarloFisher,
    Quotient,
    at_canonical_place,
    blocks,
    lanczos,
    norm_input_scale,
    quotient,
    smallest,
    spectrum,
)
from ddc.geometry.meters import Meter, Meters
from ddc.geometry.observables import (
    Node,
    Trajectory,
    activations,
    axis_alignment,
    cluster_gap,
    dead_directions,
    joint_norms,
    rate,
    step_validity,
)

__all__ = [
    "ActivationSpectrum",
    "Curvature",
    "DeadUnits",
    "EigenPairs",
    "EmpiricalFisher",
    "GaussNewton",
    "Hessian",
    "Meter",
    "Meters",
    "MonteCarloFisher",
    "Node",
    "Quotient",
    "Rate",
    "Ritz",
    "Spectrum",
    "StepValidity",
    "Trajectory",
    "activations",
    "at_canonical_place",
    "axis_alignment",
    "blocks",
    "cluster_gap",
    "dead_directions",
    "joint_norms",
    "lanczos",
    "norm_input_scale",
    "quotient",
    "rate",
    "smallest",
    "spectrum",
    "step_validity",
]
