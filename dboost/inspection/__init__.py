"""Interpretation of a trained model: importance, dependence, Shapley values, interactions, drift, plots and a report.

Each module reads an `Ensemble` and returns a tidy table; most need no data, because the trees hold the number of training rows
at every node. `plots` draws the tables, `report` puts them on one HTML page, and the methods of `Booster` call both.
"""
