"""Partitions of a table on workers: how they are read, moved and recovered."""
