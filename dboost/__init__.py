"""Gradient boosting on Dask, for tables that do not fit one machine or one memory."""
