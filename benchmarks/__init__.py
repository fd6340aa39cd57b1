"""Benchmarks of dboost beside LightGBM, XGBoost and scikit-learn.

``python -m benchmarks`` measures speed and memory on generated tables, ``python -m benchmarks.accuracy`` accuracy on real ones,
``python -m benchmarks.cold_start`` the first fit of a process. All libraries get equal settings: 255 bins, at least one row and
a Hessian sum of 1 in a leaf, an L2 penalty of 1, a learning rate of 0.1.
"""
