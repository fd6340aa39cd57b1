"""Kinds of tables in memory: from a table to a chunk, and predictions in the kind of the table."""
