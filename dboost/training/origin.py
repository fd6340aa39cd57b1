"""Where a fit begins: from nothing, from the model of another fit, or from its own checkpoint.

Rows begin with the score of a *model* (or with the best constant, where there is none), to which its trees are added one by
one, in their order: the very sums that training makes. So whoever goes on from a model goes on as if there had been no break.

What distinguishes the three ways of going on is whose trees the model's are.

* A *warm start* goes on with a fit on its own data, up to `max_iter` iterations in total.
* A *continuation* begins a new fit, with `max_iter` iterations of its own, where a model of other data ended.
* A fit that *resumes* has grown some of the trees itself before it was interrupted. Whatever is found out at the beginning of
  a fit (units, scales) is found out from scores without these, so that it is what it was the first time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dboost.binning import Binning
from dboost.errors import ParameterError
from dboost.losses import Loss, from_dict, is_own
from dboost.model.ensemble import Ensemble
from dboost.model.succession import widen
from dboost.schema import Feature


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a fit begins.

    Attributes
    ----------
    model : Ensemble or None
        The trees that rows' scores hold before the first iteration that is still to come.
    n_earlier : int
        How many of its iterations belong to earlier fits; early stopping never drops these.
    is_new_source : bool
        Whether the fit goes on from a model of other data.
    resumes : bool
        Whether the iterations beyond `n_earlier` are this fit's own.
    keeps_bins : bool
        Whether the model's split points are the candidates of the new trees too.
    damps : bool
        Whether the new trees' steps are damped, see `training.damping`.
    """

    model: Ensemble | None = None
    n_earlier: int = 0
    is_new_source: bool = False
    resumes: bool = False
    keeps_bins: bool = False
    damps: bool = False

    @classmethod
    def warm_start(cls, model: Ensemble | None) -> Origin:
        """From a model of the same data, or from nothing."""
        return cls() if model is None else cls(model, model.n_iterations)

    @classmethod
    def continuation(cls, model: Ensemble, bins: str = "new", steps: str = "damped") -> Origin:
        """From a model of other data; bins : "new" or "kept", steps : "damped" or "full"."""
        check_options(bins, steps)
        if bins == "kept" and not model.edges:
            raise ParameterError("continue_bins='kept': the model to continue does not tell its bins")
        return cls(model, model.n_iterations, True, keeps_bins=bins == "kept", damps=steps == "damped")

    def resumed(self, model: Ensemble) -> Origin:
        """The same fit with the model of its checkpoint."""
        return replace(self, model=model, resumes=True)

    def widened(self, features: tuple[Feature, ...]) -> Origin:
        """The same for features with levels that the model has not met."""
        return self if self.model is None or not self.is_new_source else replace(self, model=widen(self.model, features))

    @property
    def like(self) -> dict[str, Any]:
        """How a table is opened whose features are the model's (see `open_table`)."""
        if not self.is_new_source:
            return {}
        assert self.model is not None
        return {"like": self.model.features, "grows": True}

    def binning(self, features: tuple[Feature, ...]) -> Binning:
        """The model's own split points."""
        assert self.model is not None
        return Binning(features, self.model.edges)

    @property
    def baseline(self) -> np.ndarray:
        """Raw scores that the model begins with: float64[n_outputs]."""
        assert self.model is not None
        return self.model.baseline

    @property
    def n_before(self) -> int:
        """Iterations that the scores hold already."""
        return 0 if self.model is None else self.model.n_iterations

    def last_iteration(self, max_iter: int) -> int:
        """The number of the last iteration, if nothing stops the fit."""
        return max_iter + self.n_earlier if self.is_new_source else max_iter


def checked_decay(decay: Any) -> float:
    """What is kept of the old leaf values."""
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay < 1:
        raise ParameterError(f"decay={decay!r} must be a number of at least 0 and below 1")
    return float(decay)


def keywords_for(model: Ensemble, given: dict[str, Any], own: Loss | None = None) -> dict[str, Any]:
    """Keywords of a fit that continues a model: with ``loss="auto"`` the model's own loss is meant, options and all.

    own : the loss, where it is one of the user's and at hand.
    """
    if given.get("loss", "auto") != "auto":
        return given
    loss = from_dict(model.loss) if own is None else own
    options = {name: model.loss[name] for name in loss.options if name in model.loss}
    return options | given | {"loss": loss if is_own(loss) else loss.name}


def check_options(bins: Any, steps: Any) -> None:
    """Refuse what `continue_bins` and `continue_steps` cannot be."""
    if bins not in ("new", "kept"):
        raise ParameterError(f"continue_bins={bins!r} must be 'new' or 'kept'")
    if steps not in ("damped", "full"):
        raise ParameterError(f"continue_steps={steps!r} must be 'damped' or 'full'")


def without_model(bins: Any = "new", steps: Any = "damped") -> Origin:
    """`NOTHING`; refuses a `continue_bins` or `continue_steps` that only a model to continue would give a meaning."""
    check_options(bins, steps)
    for name, value, default in (("continue_bins", bins, "new"), ("continue_steps", steps, "damped")):
        if value != default:
            raise ParameterError(f"{name}={value!r} needs start_from, the model to continue")
    return NOTHING


#: Parameters without a meaning where leaf values are estimated anew, and their defaults.
_IDLE_IN_REFIT: dict[str, Any] = {
    "eval_set": None, "eval_metric": None, "features": None, "categorical_features": "from_dtype", "callbacks": None,
    "progress": None, "memory_limit": None, "continue_bins": "new", "continue_steps": "damped", "checkpoint": None,
    "checkpoint_every": 10,
}  # fmt: skip


def idle_in_refit(given: dict[str, Any]) -> list[str]:
    """Keywords that a user gave and that have nothing to do with ``refit_leaves=True``, which adds no trees."""

    def is_given(name: str, value: Any) -> bool:
        plain = _IDLE_IN_REFIT[name]
        if name == "callbacks":  # functions, or one; none at all is an empty sequence
            return callable(value) or bool(value)
        # Without progress there is nothing to show, and nothing is shown.
        return not (value is plain or (isinstance(value, str | int) and value == plain) or (name == "progress" and not value))

    return [name for name, value in given.items() if name in _IDLE_IN_REFIT and is_given(name, value)]


def checked_name(source_name: Any) -> str | None:
    """What the user calls the data."""
    if source_name is not None and not isinstance(source_name, str):
        raise ParameterError(f"source_name={source_name!r} must be text")
    return source_name


#: A fit that begins from nothing.
NOTHING = Origin()
