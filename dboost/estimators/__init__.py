"""scikit-learn estimators, with the names and habits of its HistGradientBoosting."""

from dboost.estimators.classifier import DBoostClassifier
from dboost.estimators.regressor import DBoostRegressor

__all__ = ["DBoostClassifier", "DBoostRegressor"]
