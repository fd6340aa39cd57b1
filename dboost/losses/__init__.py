"""Losses by name. A new one is a file beside this one, and its class in the tuple below."""

from __future__ import annotations

from typing import Any

from dboost.errors import ParameterError
from dboost.losses.base import Loss
from dboost.losses.log_loss import LogLoss
from dboost.losses.squared_error import SquaredError

BUILT_IN: tuple[type[Loss], ...] = (SquaredError, LogLoss)

__all__ = ["BUILT_IN", "LogLoss", "Loss", "SquaredError", "by_name", "from_dict"]


def by_name(name: str) -> Loss:
    """The built-in loss of that name."""
    for loss in BUILT_IN:
        if loss.name == name:
            return loss()
    raise ParameterError(f"unknown loss {name!r}; known are {', '.join(loss.name for loss in BUILT_IN)}")


def from_dict(stored: dict[str, Any]) -> Loss:
    """The loss that a model file names (the inverse of `Loss.to_dict`)."""
    return by_name(stored["name"])
