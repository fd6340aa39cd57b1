"""Plots of a model in one style (see `canvas`); matplotlib is imported when the first one is drawn."""
