"""Train on a Dask frame and predict lazily: no more than a few partitions are in memory at a time.

Run it anywhere; it writes into the current folder.
"""

import dask.dataframe as dd
from sklearn.datasets import load_breast_cancer

import dboost

# A folder of Parquet files, as some other program would have left it.
table = load_breast_cancer(as_frame=True).frame
dd.from_pandas(table, npartitions=4).to_parquet("tumours", write_index=False)

rows = dd.read_parquet("tumours")
booster = dboost.fit(rows, "target", max_iter=30)

# Nothing is computed here yet: predictions are a lazy Dask series with the partitions of the rows …
predictions = booster.predict(rows)
print(type(predictions).__name__, "with", predictions.npartitions, "partitions")

# … until something is asked of them.
print("share of rows predicted right:", float((predictions == rows["target"]).mean().compute()))

# The same rows in one piece give the very same model.
assert booster.sha256 == dboost.fit(table, "target", max_iter=30).sha256
