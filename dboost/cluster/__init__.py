"""Training on a Dask cluster.

This is the only package that imports `distributed`. The client runs the boosting loop and keeps the lazy source of every
partition. Workers hold the rows, in sessions (`dboost.session`). The reducer in the scheduler's process merges histograms and
picks the splits of one tree at a time.

    client/client.py                 select the Dask client and the workers of a fit                         client
    training/cluster_fit.py          fit and leaf refit on a cluster: its table and evaluation sets          client
    training/cluster_sessions.py     calls of all sessions of a fit, and recovery when workers are lost      client
    training/cluster_dataset.py      data sets that stay on the workers                                      client
    partitions/read_tasks.py         the user's data as Dask tasks, one per partition                        client
    partitions/partitioned_table.py  partitions of each worker; recovery of lost partitions                  client
    partitions/rebalance.py          move partitions to balance the workers, and to workers that joined      client
    client/connection.py             calls to the reducer; limit of repeated losses of workers               client
    transport/messages.py            statuses, exceptions and serialization of messages                      all three
    scheduler/reducer.py             scheduler plugin: call workers, merge histograms, pick splits           scheduler
    scheduler/session_rounds.py      the rounds of trees as calls of all sessions                            scheduler
    transport/rpc.py                 call the sessions, directly or through others; sums of their answers    scheduler, worker
    transport/line.py                connections of a fit without an event loop                              scheduler, worker
    worker/plugin_factory.py         install the worker plugin, also on workers without dboost               scheduler
    worker/worker_plugin.py          worker plugin: hold the sessions, answer the reducer, move partitions   worker
    transport/feature_exchange.py    reduce wide histograms by feature among the workers                     scheduler, worker
    transport/peer_messages.py       messages of sessions to each other                                      worker
    monitoring/                      the status of all fits, the page in Dask's dashboard, Prometheus        scheduler, worker
"""
