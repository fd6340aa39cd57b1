"""A simulated cluster: the trainer, the reducer and the worker plugins are real, the network and the clock are simulated.

    python -m benchmarks.simulation [--workers 2,16,64,256,1000] [--rows 1e7,1e9,1e11] [--trees 2] [--quick]

Only the environment of dboost is replaced: the event loop has a simulated clock (`clock.py`), Dask's connections are messages
with simulated latency and bandwidth (`network.py`), and each worker holds a few real rows that stand for many (`cluster.py`,
with the cost of the many by `costs.py`). Workers of one host have one session (`dboost.cluster.worker.host_trainers`), so a
simulated worker stands for a host, and the key ``dboost.session-per-host`` is off. So the model is a real one, equal to that of
one process to the last bit, and the seconds are those of a cluster of any size.
"""
