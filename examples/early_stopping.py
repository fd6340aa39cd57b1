"""Stop when the validation score no longer improves, with sample weights and a callback."""

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import dboost

table = load_diabetes(as_frame=True).frame
table["weight"] = 1.0 + (table["age"] > 0)  # older patients count twice
train, test = train_test_split(table, random_state=0)


def watch(event: dboost.Iteration) -> None:
    if event.iteration % 20 == 0:
        print(f"after {event.iteration} iterations: {event.record['eval_mean_absolute_error']:.2f}")


booster = dboost.fit(
    train,
    "target",
    sample_weight="weight",
    learning_rate=0.05,
    max_iter=1000,
    eval_set=test,
    eval_metric=["mean_squared_error", "mean_absolute_error"],
    early_stopping_rounds=30,
    callbacks=[watch],
)
print("kept", booster.best_iteration, "of", len(booster.history), "iterations")
print(booster.history.iloc[booster.best_iteration - 1])
