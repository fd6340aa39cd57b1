"""Encoded rows of one process: bin codes in tiles, target, weight and scores, in memory or in files."""
