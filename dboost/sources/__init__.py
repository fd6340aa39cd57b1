"""Data in, predictions out: whatever the user hands in becomes chunks, and answers go out in the same kind."""

from dboost.sources.blocks import feature_block
from dboost.sources.chunk import CategoryColumn, Chunk, Column
from dboost.sources.table import Table, open_table
from dboost.sources.through import predict_through

__all__ = ["CategoryColumn", "Chunk", "Column", "Table", "feature_block", "open_table", "predict_through"]
