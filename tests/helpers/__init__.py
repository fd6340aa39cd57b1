"""Helpers of the tests: tables, fits, clusters, naive counterparts of kernels, other libraries' models."""
