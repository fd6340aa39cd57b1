"""Training on a Dask cluster.

This is the only package that imports `distributed`. The client keeps the boosting loop and the lazy source of every
partition; workers keep the rows; the scheduler's process merges and decides, a tree at a time.

    choice.py       here or on a cluster                                                     client
    source.py       the user's data as loading tasks, one per partition                     client
    loading.py      from surveys to features, target, bins and first score                  client
    table.py        which worker has which partitions; what happens when one is lost         client
    balance.py      which partitions move, so that workers hold their fair shares            client
    fit.py          one fit, step by step                                                    client
    supervision.py  which rows are held out, and what classes weigh                          client
    engine.py       the engine contract, answered by the cluster                             client
    newcomers.py    workers that join are given rows                                         client
    connection.py   calls to the reducer                                                     client
    bulletin.py     what only the client knows of a fit, told as events                      client
    durations.py    how long is waited for others                                            all
    reducer.py      puts questions to workers, merges answers, picks splits                  scheduler
    calls.py        how calls to workers end, and how several are waited for                 scheduler
    courier.py      how the worker's plugin reaches workers                                  scheduler
    board.py        what the events of fits add up to                                        scheduler
    page.py         shows it in Dask's dashboard                                             scheduler
    meters.py       figures for Prometheus                                                   scheduler, worker
    holder.py       answers the reducer                                                      worker
    holding.py      one worker's shards of one fit                                           worker
    parts.py        some of its rows, in memory or streamed from files                       worker
    resting.py      its rows where arcbites are trained on one after another                 worker
    bitten.py       the same in files                                                        worker
    pieces.py       rows as they go to files                                                 worker
    judged.py       held-out rows                                                            worker
    exchange.py     wide histograms, reduced by feature among workers                        worker
    intake.py       partitions until they are shards                                         worker
    moving.py       partitions that go to another worker while loading                       worker
    rows.py         their targets, weights and offsets, in memory or in files                worker
    giving_back.py  memory that was freed: to the system, or kept for the next round         scheduler, worker
    batch.py        partitions being read                                                    worker
"""
