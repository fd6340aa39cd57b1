"""Damped steps: how fast a model may learn from data that came later.

A model that is continued sees the new data only. With the steps of a first fit it forgets what it knew, the sooner the
smaller the new data are; and where it is sure of itself and wrong, Hessians vanish and Newton steps are huge. So, unless the
user asks for full steps, steps are damped, by two rules.

* *Evidence.* The old leaf values count as if they rested on observations of their own: λ of the leaf value -G / (H + λ) is at
  least `PRIOR`. Where a leaf holds few new rows, or rows that the model is already sure of, its step is small.
* *Need.* The learning rate is multiplied by u² / 2, but at least `LEAST` and at most 1, where u is the share of the loss that
  the model leaves unexplained (its loss on the new data over that of the best constant). A model that predicts well has
  little to learn and is moved little; one that is no better than a constant goes half as fast as a first fit, and one that
  is wrong at full speed. Data of one class tell nothing but how frequent it is now: they get the least.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dboost.params import Parameters

#: λ at least, in the units of Hessian sums: rows, for losses whose Hessian is 1.
PRIOR = 30.0
#: What the learning rate is multiplied by at least.
LEAST = 0.1


def with_damped_steps(parameters: Parameters, unexplained: float) -> Parameters:
    """The parameters to learn with, where a model leaves this share of the loss unexplained (see
    `training.initial_score.Start`)."""
    share = LEAST if not math.isfinite(unexplained) else min(max(min(max(unexplained, 0.0), 2.0) ** 2 / 2, LEAST), 1.0)
    return replace(
        parameters,
        learning_rate=parameters.learning_rate * share,
        l2_regularization=max(parameters.l2_regularization, PRIOR),
    )
