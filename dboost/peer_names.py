"""Names of other libraries for parameters and losses, for the hints of messages about unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Collection

#: Names of XGBoost, LightGBM and scikit-learn for keywords of `dboost.fit`, for messages.
NAMES_OF_PEERS = {
    "bagging_fraction": "subsample", "categorical_feature": "categorical_features", "class_weight":
    "class_weight of DBoostClassifier, or sample_weight", "colsample_bynode": "max_features", "eta": "learning_rate",
    "feature_fraction_bynode": "max_features", "gamma": "leaf_penalty", "interaction_constraints": "interaction_cst",
    "lambda_l1": "l1_regularization", "lambda_l2": "l2_regularization", "max_bin": "max_bins", "max_leaves": "max_leaf_nodes",
    "metric": "eval_metric", "min_child_samples": "min_samples_leaf", "min_child_weight": "min_hessian",
    "min_data_in_leaf": "min_samples_leaf", "min_sum_hessian_in_leaf": "min_hessian", "monotone_constraints": "monotonic_cst",
    "n_estimators": "max_iter", "n_jobs": "n_threads", "nthread": "n_threads", "num_boost_round": "max_iter",
    "num_iterations": "max_iter", "num_leaves": "max_leaf_nodes", "num_threads": "n_threads", "objective": "loss",
    "reg_alpha": "l1_regularization", "reg_lambda": "l2_regularization", "scale_pos_weight":
    "class_weight of DBoostClassifier, or sample_weight", "seed": "random_state", "validation_fraction":
    "validation_fraction of the estimators, or eval_set", "verbose": "progress",
}  # fmt: skip

#: Names of XGBoost, LightGBM, CatBoost and scikit-learn for losses, in small letters, for messages.
LOSSES_OF_PEERS = {
    "squared_error": ("l2", "l2_root", "least_squares", "ls", "mean_squared_error", "mse", "reg:linear", "reg:squarederror",
                      "regression", "regression_l2", "rmse", "root_mean_squared_error", "squared_loss", "squarederror"),
    "absolute_error": ("l1", "lad", "mae", "mean_absolute_error", "reg:absoluteerror", "regression_l1"),
    "quantile": ("pinball", "pinball_loss", "reg:quantileerror"),
    "huber": ("reg:pseudohubererror",),
    "poisson": ("count:poisson",),
    "gamma": ("reg:gamma",),
    "tweedie": ("reg:tweedie",),
    "log_loss": ("binary", "binary:logistic", "binary_crossentropy", "binary_logloss", "binomial_deviance",
                 "categorical_crossentropy", "cross_entropy", "crossentropy", "deviance", "log", "logistic", "logloss",
                 "multi:softmax", "multi:softprob", "multi_logloss", "multiclass", "multinomial_deviance", "softmax"),
}  # fmt: skip


def similar_parameters(name: str, known: Collection[str]) -> list[str]:
    """Return what an unknown name of a keyword may mean: the keyword of that name in another library, or similar names."""
    return [NAMES_OF_PEERS[name]] if name in NAMES_OF_PEERS else difflib.get_close_matches(name, known, n=3)


def similar_losses(name: str, known: Collection[str]) -> list[str]:
    """Return what an unknown name of a loss may mean: the loss of that name in another library, or a similar name."""
    found = [loss for loss, names in LOSSES_OF_PEERS.items() if name.lower() in names]
    return found or difflib.get_close_matches(name.lower(), known, n=1)
