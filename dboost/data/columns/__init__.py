"""Columns of a partition: values, names, roles, bins, and the chunk that they form."""
