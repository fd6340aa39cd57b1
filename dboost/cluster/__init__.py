"""Training on a Dask cluster.

This is the only package that imports `distributed`. The client keeps the boosting loop and the lazy source of every
partition; workers keep the rows; the scheduler's process merges and decides, a tree at a time.

    source.py       the user's data as loading tasks, one per partition                     client
    loading.py      from surveys to features, target, bins and first score                  client
    members.py      which worker has which partitions; what happens when one is lost         client
    engine.py       the engine contract, answered by the cluster                             client
    connection.py   calls to the reducer                                                     client
    reducer.py      puts questions to workers, merges answers, picks splits                  scheduler
    holder.py       answers the reducer                                                      worker
    holding.py      one worker's shards of one fit                                           worker
    batch.py        partitions being read                                                    worker
"""
