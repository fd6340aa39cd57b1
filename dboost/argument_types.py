"""Types of the arguments that users pass, by the names that signatures show.

Some are types of libraries that dboost does not import, or of several that need not be installed: for a type checker these are
`Any`, and `data.kinds` and `input_data` check them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dboost.metrics import Metric

#: A table: a frame or array of pandas, polars, pyarrow, NumPy, SciPy or Dask, a stream of record batches, a path of files, a
#: table of Delta Lake or Iceberg, or a `dboost.Dataset`.
TableLike: TypeAlias = Any
#: One value per row, or the name of their column.
ColumnLike: TypeAlias = "str | ArrayLike"
#: The same, or several columns; `...` if it is not given.
TargetLike: TypeAlias = "str | Sequence[str] | ArrayLike | EllipsisType"
#: Which features are categorical: "from_dtype", names, numbers, or a mask.
CategoricalFeatures: TypeAlias = "str | Sequence[str] | Sequence[int] | ArrayLike | None"
#: A text, tuples, or an expression of pyarrow or polars.
RowFilterLike: TypeAlias = Any
#: A table, a tuple (X, y[, weight[, offset]]), or several of these in a list, or in a dict by name.
EvaluationSets: TypeAlias = Any
#: Names of metrics, functions ``f(y, prediction, weight)`` and `dboost.metrics.Metric`, one or several.
MetricLike: TypeAlias = "str | Callable[..., float] | Metric | Sequence[str | Callable[..., float] | Metric]"
#: A `distributed.Client`.
Client: TypeAlias = Any
#: Addresses or names of workers, or the resources that they must have.
WorkersLike: TypeAlias = "str | Sequence[str] | Mapping[str, float]"
#: A `dboost.Booster`, or the path of one.
ModelLike: TypeAlias = Any
#: A seed, None for one of NumPy's global generator, or a generator of NumPy.
RandomState: TypeAlias = Any
#: Predictions in the form of the table that they are for: an array, a series or frame, or a lazy collection.
Predictions: TypeAlias = Any
