"""Reading of data of any kind as chunks, and predictions in the same kind."""

from dboost.data.chunk import Chunk
from dboost.data.column import CategoryColumn, Column
from dboost.data.predict_io import predict_through
from dboost.data.predictor import feature_block
from dboost.data.roles import RowRoles
from dboost.data.table import ReadOptions, Table, open_table

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
