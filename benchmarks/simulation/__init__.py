"""A cluster that is not there: the trainer, the reducer and the shard holders as they are, over a network made of arithmetic.

    python -m benchmarks.simulation [--workers 2,16,64,256,1000] [--rows 1e7,1e9,1e11] [--trees 2] [--quick]

Nothing of dboost is replaced but what surrounds it: the event loop has a clock of its own (`clock.py`), Dask's connections
are messages that take their time on the way (`network.py`), and each worker holds a few real rows that stand for many
(`cluster.py`, with what the many would cost by `costs.py`). So the model that comes out is a real one, the same to the last
bit as that of one process, and the seconds are those of a cluster that nobody here has.
"""
