"""Predictions for data of any kind, in the kind of the data."""
