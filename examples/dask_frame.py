"""Train on a Dask frame and predict lazily: at most a few partitions are in memory at a time.

The script writes to the current folder.
"""

import dask.dataframe as dd
from sklearn.datasets import load_breast_cancer

import dboost

# Write a folder of Parquet files, as another program would.
table = load_breast_cancer(as_frame=True).frame
dd.from_pandas(table, npartitions=4).to_parquet("tumours", write_index=False)

rows = dd.read_parquet("tumours")
booster = dboost.fit(rows, "target", max_iter=30)

# Nothing is computed yet: the predictions are a lazy Dask series with the partitions of the rows.
predictions = booster.predict(rows)
print(type(predictions).__name__, "with", predictions.npartitions, "partitions")

# Compute them.
print("accuracy:", float((predictions == rows["target"]).mean().compute()))

# The same rows in one table give exactly the same model.
assert booster.sha256 == dboost.fit(table, "target", max_iter=30).sha256
