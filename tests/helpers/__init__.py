"""Helpers of the tests: tables, fits, clusters, naive counterparts of kernels, and readers of foreign files."""
