"""What a model learned, as tables, as pictures and as a page (needs matplotlib: pip install 'dboost[plots]')."""

import pandas as pd
from sklearn.datasets import load_diabetes

import dboost

table = load_diabetes(as_frame=True, scaled=False).frame
train, test = table.iloc[::2], table.iloc[1::2]
booster = dboost.fit(train, "target", eval_set=test, max_iter=300, learning_rate=0.05, early_stopping_rounds=20)

# Which features did the work, by the splits and by what predictions lose when a feature is permuted.
print(booster.importance().head(3).round(1).to_string())
print(booster.importance("permutation", data=test, target="target").head(3).round(1).to_string())

# How predictions depend on the first of them: averaged over rows that the model has not seen.
first = booster.importance().index[0]
print(booster.partial_dependence(first, test, grid=5).round(1).to_string(index=False))

# Why one patient's prediction is what it is: the values add up to the difference from the expected one.
values = booster.shap_values(test)
row = values.iloc[0].sort_values(key=abs, ascending=False)
print(f"{booster.expected_value:.1f} + {values.iloc[0].sum():.1f} = {booster.predict(test).iloc[0]:.1f}")
print(pd.DataFrame({"value": test.iloc[0][row.index], "moves the prediction by": row}).head(3).round(2).to_string())

booster.plot_partial_dependence(first, test, "individual").figure.savefig("dependence.svg")
booster.plot_shap_summary(test).figure.savefig("summary.png")
booster.report("report.html", test, "target")
