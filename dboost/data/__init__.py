"""Data in, predictions out: whatever the user hands in becomes chunks, and answers go out in the same kind."""

from dboost.data.chunk import CategoryColumn, Chunk, Column
from dboost.data.predict_io import feature_block, predict_through
from dboost.data.table import Table, open_table

__all__ = ["CategoryColumn", "Chunk", "Column", "Table", "feature_block", "open_table", "predict_through"]
