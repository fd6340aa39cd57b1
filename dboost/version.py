"""Which dboost this is. All processes of a fit on a cluster must have the same."""

__version__ = "0.1.0"
