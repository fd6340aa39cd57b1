"""Inspect a model with tables, plots and a report (needs matplotlib: pip install 'dboost[plots]')."""

import pandas as pd
from sklearn.datasets import load_diabetes

import dboost

table = load_diabetes(as_frame=True, scaled=False).frame
train, test = table.iloc[::2], table.iloc[1::2]
booster = dboost.fit(train, "target", eval_set=test, max_iter=300, learning_rate=0.05, early_stopping_rounds=20)

# Feature importance, by the splits and by the loss of accuracy when a feature is permuted.
print(booster.importance().head(3).round(1).to_string())
print(booster.importance("permutation", test, "target").head(3).round(1).to_string())

# Partial dependence on the most important feature, averaged over rows that were not used for training.
first = booster.importance().index[0]
print(booster.partial_dependence(test, first, grid=5).round(1).to_string(index=False))

# Shapley values of one patient: they add up to the difference between the prediction and the expected value.
values = booster.shap_values(test)
row = values.iloc[0].sort_values(key=abs, ascending=False)
print(f"{booster.expected_value:.1f} + {values.iloc[0].sum():.1f} = {booster.predict(test).iloc[0]:.1f}")
print(pd.DataFrame({"value": test.iloc[0][row.index], "contribution": row}).head(3).round(2).to_string())

booster.plot_partial_dependence(test, first, "individual").figure.savefig("dependence.svg")
booster.plot_shap_summary(test).figure.savefig("summary.png")
booster.report("report.html", test, "target")
