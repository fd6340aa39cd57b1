"""Reading of data of any kind as chunks, and predictions in the same kind."""

from dboost.data.columns.chunk import Chunk
from dboost.data.columns.column import CategoryColumn, Column
from dboost.data.columns.roles import RowRoles
from dboost.data.kinds.predictor import feature_block
from dboost.data.output.predict_io import predict_through
from dboost.data.tables.read_table import ReadOptions, open_table
from dboost.data.tables.table import Table

__all__ = [
    "CategoryColumn",
    "Chunk",
    "Column",
    "ReadOptions",
    "RowRoles",
    "Table",
    "feature_block",
    "open_table",
    "predict_through",
]
