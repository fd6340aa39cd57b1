"""scikit-learn estimators with the interface of its HistGradientBoosting estimators."""

from dboost.estimators.classifier import DBoostClassifier
from dboost.estimators.regressor import DBoostRegressor

__all__ = ["DBoostClassifier", "DBoostRegressor"]
