"""Training on a Dask cluster.

This is the only package that imports `distributed`. The client runs the boosting loop and keeps the lazy source of every
partition. Workers hold the rows, in sessions (`dboost.session`).

**Who trains.** All workers read and encode the table together. Then

* one worker has all rows and grows whole trees, if the table is so small that rounds would cost more than further processors
  save (`rebalance.is_for_one_worker`; `dboost.single-worker-values: 0` prevents it);
* else the workers of a host hand their rows over to one of them, the trainer, if its memory holds them (`host_trainers`;
  `dboost.session-per-host: false` prevents it);
* trainers of several hosts, or workers of one host that keep their rows, grow trees in rounds: the reducer in the scheduler's
  process merges their histograms and picks the splits.

The model does not depend on it. A worker without rows is lost without a trace; what a lost trainer had is read again.

    client/client.py                 select the Dask client                                                  client
    client/worker_choice.py          the workers to which a fit is confined                                  client
    client/dask_clients.py           the current client, or that of a new cluster                            client
    client/client_loss.py            errors of a client that is closed, or whose scheduler is silent         client
    client/connection.py             calls to the reducer                                                    client
    client/attempts.py               limit of repeated losses of workers                                     client
    training/cluster_fit.py          fit and leaf refit on a cluster: its table and evaluation sets          client
    training/cluster_backend.py      calls of all sessions of a fit, and recovery when workers are lost      client
    training/cluster_dataset.py      data sets that stay on the workers                                      client
    training/fit_events.py           events of a fit, for monitoring                                         client
    partitions/read_tasks.py         the user's data as Dask tasks, one per partition                        client
    partitions/table_features.py     the features of the table that workers have read, merged                client
    partitions/partitioned_table.py  partitions of each worker; recovery of lost partitions                  client
    partitions/rebalance.py          move partitions to balance the workers, and to workers that joined      client
    partitions/joined_workers.py     partitions for workers that join during training                        client
    scheduler/reducer.py             scheduler plugin: call workers, merge histograms, pick splits           scheduler
    scheduler/fit_calls.py           calls of the sessions of a fit, and when they end early                 scheduler
    scheduler/reducer_rounds.py      the rounds of trees as calls of all sessions                            scheduler
    worker/plugin_factory.py         install the worker plugin, also on workers without dboost               scheduler
    worker/worker_plugin.py          worker plugin: hold the sessions, answer the reducer                    worker
    worker/partition_mover.py        partitions that workers send to each other after reading                worker
    worker/host_trainers.py          which session trains on the rows of a host                              client, worker
    transport/messages.py            statuses, exceptions and serialization of messages                      all three
    transport/line.py                connections of a fit without an event loop                              all three
    transport/line_calls.py          calls of sessions on lines                                              scheduler, worker
    transport/session_tree.py        which sessions are called directly, and which through others            scheduler, worker
    transport/relay.py               pass calls on to other sessions                                         worker
    transport/round_sums.py          sums of the answers of a round                                          scheduler, worker
    transport/event_loop.py          run coroutines of Dask's event loops                                    all three
    transport/split_proposals.py     sampled values among workers, for split candidates                      scheduler, worker
    transport/feature_exchange.py    reduce wide histograms by feature among the workers                     scheduler, worker
    transport/peer_messages.py       messages of sessions to each other                                      worker
    monitoring/                      the status of all fits, the page in Dask's dashboard, Prometheus        scheduler, worker
"""
