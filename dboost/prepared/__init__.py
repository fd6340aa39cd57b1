"""Prepared data sets: rows that are read and binned once, for many fits.

    dboost.dataset.Dataset           the public object, which `dboost.prepare` returns: of files, or on a cluster
    training.binned_data             what fits on a data set have in common: bins, reference sample, checks of a model
    prepared.dataset_rows            the rows of a data set, wherever they are (`BinnedRows`)
    prepared.dataset_files           the rows in files (`StoredDataset`): format, reading and writing
    prepared.dataset_checks          whether files are those that were written
    prepared.dataset_settings        the keywords of `prepare` that a fit may repeat, but not change
    prepared.prepare                 reading and binning a table in this process
    cluster.training.cluster_dataset the rows in the memory of workers (`ClusterRows`)

Datasets of pyarrow are tables to be read (`data.sources.arrow_datasets`).
"""
