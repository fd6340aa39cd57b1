"""Metrics: exact, the same for any partitioning. `Metric` is a metric of your own."""

from dboost.metrics.metric import Metric

__all__ = ["Metric"]
