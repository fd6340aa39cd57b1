"""Models of other libraries as ours: they predict the same, and boosting goes on from them.

`grafting` turns trees numbered in any way into ours; `xgboost_models` and `lightgbm_models` read what those libraries
save, without needing them. What cannot be carried (linear leaves, other objectives) is refused with the reason.
"""
