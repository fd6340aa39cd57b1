"""Registry of losses by name. A new loss is a module here, and its class in the tuple below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dboost.errors import ParameterError
from dboost.losses.base import Loss, custom_from_dict, register
from dboost.losses.brier import BrierOfClasses, HalfBrier
from dboost.losses.classification import Exponential, LogLoss, SoftmaxLogLoss
from dboost.losses.deviance import Gamma, Poisson, SquaredError, Tweedie
from dboost.losses.expectile import Expectile
from dboost.losses.normal import Normal
from dboost.losses.per_output import PerOutput
from dboost.losses.quantile_losses import AbsoluteError, Huber, Quantile
from dboost.losses.several_quantiles import Quantiles, joined_losses

BUILT_IN: tuple[type[Loss], ...] = (
    SquaredError,
    AbsoluteError,
    Quantile,
    Huber,
    Expectile,
    Poisson,
    Gamma,
    Tweedie,
    Normal,
    LogLoss,
    Exponential,
    HalfBrier,
)

__all__ = [
    "BUILT_IN",
    "AbsoluteError",
    "BrierOfClasses",
    "Expectile",
    "Exponential",
    "Gamma",
    "HalfBrier",
    "Huber",
    "LogLoss",
    "Loss",
    "Normal",
    "PerOutput",
    "Poisson",
    "Quantile",
    "Quantiles",
    "SoftmaxLogLoss",
    "SquaredError",
    "Tweedie",
    "auto_loss",
    "by_name",
    "from_dict",
    "is_custom",
    "keywords_of",
    "register",
]


def auto_loss(is_class: bool, *, of_forest: bool = False) -> str:
    """Return the name of the loss that "auto" stands for."""
    if not is_class:
        return SquaredError.name
    return HalfBrier.name if of_forest else LogLoss.name


def by_name(name: str, n_classes: int = 2, **options: Any) -> Loss:
    """Return the built-in loss of a name; "log_loss" is one class for two classes and another for more.

    options : the losses' own parameters; each loss takes those that it has.
    """
    for loss in BUILT_IN:
        if loss.name == name:
            own = {option: options[option] for option in (*loss.options, *loss.learned) if option in options}
            if loss is Quantile and isinstance(own["quantile"], list | tuple):
                return Quantiles(own["quantile"])
            return loss(**own).for_classes(n_classes)
    raise ParameterError(f"unknown loss {name!r}; known are {', '.join(loss.name for loss in BUILT_IN)}")


def from_dict(stored: dict[str, Any], given: Loss | Sequence[Loss] | None = None) -> Loss:
    """Return the loss that a model file names (the inverse of `Loss.to_dict`).

    given : the user's loss, or those of several outputs, which are found by their names; default: classes that are known.
    """
    if "losses" in stored:
        custom = {one.name: one for one in ((given,) if isinstance(given, Loss) else given or ())}
        parts = [from_dict(part, custom.get(part["name"])) for part in stored["losses"]]
        return joined_losses(parts, stored["outputs"], stored.get("targets"), stored.get("columns"))
    if isinstance(given, Loss):
        return given
    if all(loss.name != stored["name"] for loss in BUILT_IN):
        return custom_from_dict(stored)
    stored = dict(stored)
    return by_name(stored.pop("name"), stored.pop("n_classes", 2), **stored)


def is_custom(loss: Loss) -> bool:
    """Return whether a loss is the user's, not one of dboost's."""
    return not isinstance(loss, (*BUILT_IN, SoftmaxLogLoss, PerOutput, BrierOfClasses))


def keywords_of(loss: Loss) -> dict[str, Any]:
    """Return the parameters that stand for a loss: `loss`, and its options."""
    if isinstance(loss, Quantiles):
        return {"loss": loss.name, "quantile": list(loss.levels)}
    options = {
        name: value
        for part in loss.parts or (loss,)
        if part.options
        for name, value in part.to_dict().items()
        if name in part.options
    }
    return options | {"loss": as_given(loss)}


def as_given(loss: Loss) -> Any:
    """Return the value of the parameter `loss` that stands for a loss: a name, a loss of the user's, or a list of these."""
    given = [as_given(part) for part in loss.parts] if loss.parts else loss if is_custom(loss) else loss.name
    return given[0] if isinstance(given, list) and all(one is given[0] or one == given[0] for one in given) else given
