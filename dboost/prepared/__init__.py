"""Prepared data sets: rows that are read and binned once, in files or in memory, for many fits."""
