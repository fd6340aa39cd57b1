"""Training on a Dask cluster.

This is the only package that imports `distributed`. The client runs the boosting loop and keeps the lazy source of every
partition. Workers hold the rows, in sessions (`dboost.session`). The reducer in the scheduler's process merges histograms and
picks the splits of one tree at a time.

    client.py               select or create the Dask client                                        client
    cluster_fit.py          fit and leaf refit on a cluster; the table of a fit                     client
    read_tasks.py           the user's data as Dask tasks, one per partition                        client
    partitioned_table.py    partitions of each worker; recovery of lost partitions                  client
    rebalance.py            move partitions to balance the workers, and to workers that joined      client
    cluster_engine.py       the `Engine` of a cluster; its evaluation sets                          client
    connection.py           calls to the reducer; limit of repeated losses of workers               client
    messages.py             statuses, exceptions and serialization of messages                      client, scheduler, worker
    reducer.py              scheduler plugin: call workers, merge histograms, pick splits           scheduler
    plugin_factory.py       install the worker plugin, also on workers without dboost               scheduler
    worker_plugin.py        worker plugin: hold the sessions, answer the reducer                    worker
    partition_mover.py      fetch partitions from another worker                                    worker
    feature_exchange.py     reduce wide histograms by feature among the workers                     scheduler, worker
    monitoring/events.py    log events of a fit                                                     client
    monitoring/status.py    the status of all fits, from their events                               scheduler
    monitoring/dashboard.py the page in Dask's dashboard                                            scheduler
    monitoring/prometheus.py metrics for Prometheus                                                 scheduler, worker
"""
