"""Registry of losses by name. A new loss is a module here, and its class in the tuple below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dboost.errors import ParameterError
from dboost.losses.base import BaseLoss, Start, Targets
from dboost.losses.brier import BrierOfClasses, HalfBrier
from dboost.losses.classification import Exponential, LogLoss, SoftmaxLogLoss
from dboost.losses.custom import Loss, as_loss, custom_from_dict, register
from dboost.losses.deviance import Gamma, Poisson, SquaredError, Tweedie
from dboost.losses.expectile import Expectile
from dboost.losses.normal import Normal
from dboost.losses.per_output import PerOutput
from dboost.losses.quantile_losses import AbsoluteError, Huber, Quantile
from dboost.losses.several_quantiles import Quantiles, joined_losses, quantile_loss

BUILT_IN: tuple[type[BaseLoss], ...] = (
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
    "BaseLoss",
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
    "Start",
    "Targets",
    "Tweedie",
    "as_loss",
    "auto_loss",
    "by_name",
    "from_dict",
    "keywords_of",
    "register",
]


def auto_loss(is_class: bool, *, of_forest: bool = False) -> str:
    """Return the name of the loss that "auto" stands for."""
    if not is_class:
        return SquaredError.name
    return HalfBrier.name if of_forest else LogLoss.name


#: What makes a loss from its options, where that is not its class.
_MAKERS: dict[str, Callable[..., BaseLoss]] = {Quantile.name: quantile_loss}


def by_name(name: str, n_classes: int = 2, **options: Any) -> BaseLoss:
    """Return the built-in loss of a name; "log_loss" is one class for two classes and another for more.

    options : the losses' own parameters; each loss takes those that it has.
    """
    for loss in BUILT_IN:
        if loss.name == name:
            settings = {option: options[option] for option in (*loss.options, *loss.learned) if option in options}
            return _MAKERS.get(name, loss)(**settings).for_classes(n_classes)
    raise ParameterError(f"unknown loss {name!r}; known are {', '.join(loss.name for loss in BUILT_IN)}")


def from_dict(stored: dict[str, Any], user_loss: Loss | Sequence[Loss] | None = None) -> BaseLoss:
    """Return the loss that a model file names (the inverse of `BaseLoss.to_dict`).

    user_loss : the user's loss, or those of several outputs, which are found by their names; default: classes that are known.
    """
    if "losses" in stored:
        custom = {loss.name: loss for loss in ((user_loss,) if isinstance(user_loss, Loss) else user_loss or ())}
        parts = [from_dict(part, custom.get(part["name"])) for part in stored["losses"]]
        return joined_losses(parts, stored["outputs"], stored.get("targets"), stored.get("columns"))
    if isinstance(user_loss, Loss):
        return as_loss(user_loss)
    if all(loss.name != stored["name"] for loss in BUILT_IN):
        return as_loss(custom_from_dict(stored))
    stored = dict(stored)
    return by_name(stored.pop("name"), stored.pop("n_classes", 2), **stored)


def keywords_of(loss: BaseLoss) -> dict[str, Any]:
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
    return options | {"loss": loss.as_parameter()}
