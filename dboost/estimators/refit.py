"""``refit_leaves=True`` on an estimator: `fit` adds no trees, it estimates the leaf values of a model anew.

The model is `start_from`, or with `partial_fit` the estimator's own. All that an estimator has to say of learning (how many
trees, how they grow, when to stop) has nothing to do with it, because it may be what the model was trained with before; what
would change the rows or ask for something that cannot be done is refused.
"""

from __future__ import annotations

from typing import Any

from dboost.booster import Booster
from dboost.errors import ParameterError
from dboost.params import Parameters
from dboost.training.origin import checked_name, idle_in_refit
from dboost.training.replay import check_loss
from dboost.training.target import loss_for

#: What is nothing to `refit_leaves`, and what it has to be.
_IDLE: dict[str, Any] = {
    "warm_start": False, "arcbites": None, "class_weight": None, "early_stopping_rounds": None, "scoring": "loss", "verbose": 0,
}  # fmt: skip


def refitted(model: Booster | None, X: Any, y: Any, settings: dict[str, Any], parameters: Parameters, **more: Any) -> Booster:
    """The model with the leaf values that these rows suggest.

    Parameters
    ----------
    model : Booster or None
    X, y
        As of an estimator's `fit`.
    settings : dict
        Of the estimator, by name.
    parameters : Parameters
    **more
        ``sample_weight`` and ``offset``, and what is not None of the data that an estimator would be judged by.

    Raises
    ------
    ParameterError, DataError
        As `Booster.refit_leaves`, for a model of another loss, and for what has nothing to do with it.
    """
    if model is None:
        raise ParameterError("refit_leaves=True needs start_from, the model whose leaf values are estimated anew")
    judged = [name for name in ("eval_set", "X_val") if more.pop(name, None) is not None]
    idle = judged + idle_in_refit(settings) + [name for name, plain in _IDLE.items() if settings.get(name, plain) != plain]
    if settings["early_stopping"] not in ("auto", False):
        idle.append("early_stopping")
    if idle:
        raise ParameterError(f"{idle[0]} has nothing to do with refit_leaves=True, which adds no trees")
    classes = model.ensemble.classes
    check_loss(model.ensemble, loss_for(parameters, parameters.loss_name, 2 if classes is None else len(classes)))
    return model.refit_leaves(
        X,
        y,
        **more,
        source_name=checked_name(settings["source_name"]),
        client=settings["client"],
        n_threads=settings["n_threads"],
    )
