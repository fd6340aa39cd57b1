"""Monitoring: the status of fits, a page in Dask's dashboard, and metrics for Prometheus.

fit_registry.py        the status of running and recent fits, from the events of Dask's topic "dboost"
dashboard.py           the page of the scheduler's HTTP server
prometheus_metrics.py  what a worker counts, and the metrics of a process
"""
