"""The features of a table that the workers have read: merged from what the sessions found, and checked."""

from __future__ import annotations

from collections.abc import Sequence

from dboost.cluster.partitions.partitioned_table import PartitionedTable
from dboost.data.columns.chunk import CategoryIndex
from dboost.data.columns.numbers_as_text import warn_of_text
from dboost.data.columns.read_plan import ReadPlan
from dboost.data.tables.reader import disagree
from dboost.data.tables.reading import Reading, read_consistently
from dboost.data.tables.row_metadata import check_max_weight, raise_for_issues
from dboost.errors import DataError
from dboost.schema import Feature
from dboost.session.partition_batch import PartitionStats


def load_partitions(table: PartitionedTable) -> tuple[Feature, ...]:
    """Read a table, check it, and set the final codes of categories; return the features.

    Raises
    ------
    DataError
        For invalid values, and for a table without rows.
    """

    def read(reading: Reading) -> tuple[Feature, ...]:
        if reading is table.source.reading:
            table.load()
        else:
            table.load_again(table.source.again(reading))
        return _checked_features(table)

    features = read_consistently(table.source.reading, read)
    table.set_features(features)
    if table.source.plan.known is None:
        warn_of_text(features, table.source.named, _category_kinds(table.partition_stats, len(features)))
    return features


def _category_kinds(stats: Sequence[PartitionStats], n_features: int) -> list[dict[str, int]]:
    """Return for each feature the first partition with categories of each kind."""
    kinds: list[dict[str, int]] = [{} for _ in range(n_features)]
    for stats_of_session in stats:
        for first_of_kind, session_kinds in zip(kinds, stats_of_session.category_kinds, strict=True):
            for kind, i in session_kinds.items():
                first_of_kind[kind] = min(i, first_of_kind.get(kind, i))
    return kinds


def _checked_features(table: PartitionedTable) -> tuple[Feature, ...]:
    """Return the features of a table that has been read; raise a DataError for invalid values."""
    stats, plan = table.partition_stats, table.source.plan
    if not sum(table.lengths.values()):
        raise DataError(f"the data have no rows: all {table.source.n_partitions} partitions are empty")
    raise_for_issues([issue for session in stats for issue in session.issues])
    check_max_weight(max(session.max_weight for session in stats), plan.label("sample_weight"))
    scans = [(session.target, min(session.n_kept)) for session in stats if session.target is not None]
    kinds = {scan.categories is not None: (scan.categories is not None, number) for scan, number in scans}
    if len(kinds) == 2:
        raise disagree(str(plan.roles.get("target", "target")), kinds[False], kinds[True])
    return merge_features(plan, stats)


def merge_features(plan: ReadPlan, stats: Sequence[PartitionStats]) -> tuple[Feature, ...]:
    """Return the features, with the categories of all partitions.

    Raises
    ------
    DataError
        For a column with numbers in one partition and categories in another, naming both, or with too many categories.
    """
    if plan.known is not None and plan.closed:
        return plan.known
    features = []
    known = plan.known or (None,) * len(plan.specs)
    for j, spec in enumerate(plan.specs):
        kinds_of_column = (session.kinds[j] for session in stats)
        kinds = sorted({kind for kind in kinds_of_column if kind is not None}, key=lambda kind: kind[1])
        for kind in kinds[1:]:
            if kind[0] != kinds[0][0]:
                raise disagree(spec.name, kinds[0], kind)
        known_levels = known[j]
        index = CategoryIndex(
            spec.name, None if known_levels is None else known_levels.categories, extend_categories=plan.extend_categories
        )
        for session in stats:
            index.translate(session.categories[j])
        categorical = spec.categorical or len(index)
        features.append(Feature(spec.name, index.finish()[0] if categorical else None))
    return tuple(features)
