"""Several fits of the same rows as one model, which averages their raw scores: ``bag=k``.

The fits differ by their seed, so by the rows and features that their trees draw. Their average has less variance than each of
them (L. Breiman, "Bagging predictors", 1996; with samples without replacement, A. Buja and W. Stuetzle, "Observations on
bagging", 2006).

All of them begin with the same baseline, and a raw score is a sum of trees. So the average of k models is itself a sum of
trees: theirs in turn, with values divided by k, as if boosted with a kth of the learning rate. It is an ordinary model, and its
first k · i iterations are the average of the first i of each fit.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from dboost.errors import ParameterError
from dboost.model.ensemble import Ensemble, Tree, rates_of, with_rates, without_counts
from dboost.rows.row_sample import MEMBERS, derive_seed
from dboost.session.reference_sample import with_summary
from dboost.training.fit import FitResult
from dboost.training.request import FitRequest

#: Trains on the rows of a call.
Fit = Callable[[FitRequest], FitResult]


def check_bag(bag: Any, request: FitRequest, *, has_second_fit: bool) -> None:
    """Raise a ParameterError if a call cannot train `bag` fits on all rows.

    has_second_fit : whether it trains on all rows with a number of iterations that is found before.
    """
    if isinstance(bag, bool) or not isinstance(bag, numbers.Integral) or bag < 1:
        raise ParameterError(f"bag={bag!r:.60} must be a number of fits, at least 1")
    if bag == 1:
        return
    parameters = request.parameters
    if request.warm_start.model is not None:
        raise ParameterError(f"bag={bag} does not go together with a model to continue: leave one of them out")
    if parameters.is_forest:
        raise ParameterError(f"bag={bag}: a forest averages its trees already, give it more of them by max_iter")
    if not has_second_fit:
        raise ParameterError(
            f"bag={bag} averages fits of all rows, after a search for their number of iterations: give max_iter='auto' without "
            "eval_set, checkpoint, time_limit, arcbites, a schedule of learning rates and refit=False"
        )
    if not parameters.draws_rows and parameters.max_features == 1.0:
        raise ParameterError(f"bag={bag} would average equal fits: give subsample or max_features below 1")


def fit_bag(fit: Fit, request: FitRequest, n_fits: int) -> FitResult:
    """Return the average of fits with different seeds.

    Their times are added up. The history is empty, unless there is one fit.
    """
    if n_fits == 1:
        return fit(request)
    seed = request.parameters.random_state
    seeds = [seed] + [derive_seed(seed, MEMBERS, number) >> 1 for number in range(1, n_fits)]  # below 2**63
    results = [
        fit(replace(request, parameters=replace(request.parameters, random_state=each), keep_summary=True)) for each in seeds
    ]
    model = average([result.ensemble for result in results])
    ended_by = next((result.ended_by for result in results if result.ended_by != "max_iter"), "max_iter")
    return replace(
        results[0],
        ensemble=with_summary(model, results[0].reference) if request.keep_summary else without_counts(model),
        history=[],
        ended_by=ended_by,
        lost_workers=[worker for result in results for worker in result.lost_workers],
        timings={phase: math.fsum(result.timings.get(phase, 0.0) for result in results) for phase in results[0].timings},
    )


def average(models: Sequence[Ensemble]) -> Ensemble:
    """Return the model whose raw score is the mean of those of models that were trained on the same rows.

    The metrics of its iterations are not known. A summary of scores is that of the first model.
    """
    first, k = models[0], models[0].trees_per_iteration
    by_model = [[model.trees[t : t + k] for t in range(0, len(model.trees), k)] for model in models]
    rates_by_model = [rates_of(model.sources[0]) for model in models]
    trees = tuple(
        _scaled(tree, len(models))
        for iterations in zip_longest(*by_model, fillvalue=())
        for group in iterations
        for tree in group
    )
    rates = [rate / len(models) for rates in zip_longest(*rates_by_model) for rate in rates if rate is not None]
    source = first.sources[0] | {"bag": len(models), "last_iteration": len(trees) // k}
    return replace(first, trees=trees, sources=(with_rates(source, rates),), metrics={}, best_iteration=None)


def _scaled(tree: Tree, n: int) -> Tree:
    """Return the tree with its values divided by n."""
    return replace(tree, value=tree.value / n)
