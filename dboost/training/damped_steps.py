"""Damped steps of a model that is continued on other data.

A model that is continued is trained on the new data only. With full steps it would lose what it learned from the old data, the
faster the smaller the new data are; and where its predictions are confident and wrong, Hessians are close to zero and Newton
steps are very large. So, unless the user asks for full steps, two rules reduce them:

* *Prior.* λ of the leaf value -G / (H + λ) is at least `PRIOR`, as if the old predictions rested on that many rows. So leaves
  with few new rows, or with rows of small Hessians, have small steps.
* *Unexplained loss.* The learning rate is multiplied by u² / 2, at least `LEAST` and at most 1. u is the ratio of the model's
  loss on the new data to that of the best constant. The factor is small for a model that predicts the new data well, 1/2 for a
  model no better than a constant, and 1 if u ≥ √2. Data of a single class (u infinite) get `LEAST`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dboost.display import number
from dboost.params import Parameters
from dboost.session.reference_sample import damped_steps

#: Lower limit of λ, in the units of Hessian sums (rows, for losses with Hessian 1).
PRIOR = 30.0


#: Lower limit of the factor of the learning rate.
LEAST = 0.1


def with_damped_steps(parameters: Parameters, unexplained: float) -> Parameters:
    """Return the parameters with damped steps. unexplained : see `training.target_stats.TargetStats`."""
    factor = LEAST if not math.isfinite(unexplained) else min(max(min(max(unexplained, 0.0), 2.0) ** 2 / 2, LEAST), 1.0)
    return replace(
        parameters,
        learning_rate=parameters.learning_rate * factor,
        l2_regularization=max(parameters.l2_regularization, PRIOR),
    )


def damping_notes(learning: Parameters, unexplained: float | None) -> dict[str, Any]:
    """Return what the record of a source that continues a model has about the size of steps. learning : after damping."""
    return {
        "unexplained_loss": unexplained if unexplained is not None and math.isfinite(unexplained) else None,
        "steps": {name: getattr(learning, name) for name in ("learning_rate", "l2_regularization")},
    }


def damping_message(parameters: Parameters, learning: Parameters, unexplained: float | None) -> str:
    """Return how and why steps are damped, for the user; empty if they are not. parameters : the user's."""
    steps = damped_steps(parameters, learning)
    if not steps or unexplained is None:
        return ""
    rest = f"{number(100 * unexplained, 3)} % of the loss of a constant" if math.isfinite(unexplained) else "an unknown loss"
    why = f"the model has learned from other rows before and leaves {rest} on these"
    return f"{steps}, because {why}; continue_steps='full' uses full steps"
