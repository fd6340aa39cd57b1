"""Fits and prepared data sets on a cluster."""
