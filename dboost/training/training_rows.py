"""The rows of a fit, as `training.fit` uses them.

`TrainingRows` is the protocol. `SessionRows` implements it for tables whose rows are in sessions, in this process or on a
cluster: it calls all sessions and merges their statistics by sums of integers, minima, maxima and unions, so the result does
not depend on the partitions. `training.prepared_dataset.PreparedRows` implements it for prepared data sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Protocol

import numpy as np

from dboost.data.binning import Binning, distinct_values, exact_binning, propose_all
from dboost.errors import DBoostError
from dboost.model.ensemble import Ensemble
from dboost.params import Parameters
from dboost.schema import Feature
from dboost.session.evaluation import EvalSet
from dboost.session.protocol import Engine, Session
from dboost.session.reference_sample import ReferenceSample
from dboost.session.row_selection import DigitRequest
from dboost.session.target import Target, TargetScan, continued, merge_target_scans_to_target, target_for, target_of
from dboost.session.transport import NamedSet, SessionTable
from dboost.session.warm_start import WarmStart
from dboost.training.callbacks import Callback
from dboost.training.plan import FitPlan, FitRequest, RowsDescription
from dboost.training.validation_split import (
    ValidationPlan,
    held_out_rows_of,
    needs_test_set,
    warn_held_out,
)
from dboost.trees.bin_proposal import fine_bins_of

#: Number of rows and largest weight of the evaluation sets that are chosen from the training rows, by name.
Chosen = dict[str, tuple[int, float]]


class TrainingRows(Protocol):
    """The rows of a fit, in this process, in files or on a cluster."""

    def load(self) -> tuple[Feature, ...]:
        """Read the rows and check them; return the features."""

    def learn_target(self) -> Target:
        """Choose loss and classes, and encode the target."""

    def assign(self, target: Target, ensemble_so_far: Callable[[], Ensemble]) -> tuple[ValidationPlan, Chosen]:
        """Apply class weights; select the rows that are held out or watched."""

    def propose_bins(self, warm_start: WarmStart, parameters: Parameters) -> Binning:
        """Propose the split points of numeric features."""

    def compute_start_scores(self, warm_start: WarmStart) -> None:
        """Compute the raw scores of the model that is continued."""

    def map_rows(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return ``function(y, weight, offset, *arguments)`` of each row subset.

        The raw scores of a model that is continued replace the offset.
        """

    def describe(self, seed: int) -> RowsDescription:
        """Return the statistics that the plan depends on; seed : of the reference sample."""

    def build(self, plan: FitPlan, chosen: Chosen) -> Engine:
        """Encode the rows and open the engine that trains on them."""

    def eval_sets(self, plan: FitPlan, chosen: Chosen, sets: Sequence[NamedSet]) -> list[EvalSet]:
        """Return the evaluation sets, those chosen from the training rows first."""

    def observers(self, plan: FitPlan) -> list[Callback]:
        """Return callbacks that report the fit (on a cluster as events), called after those of the user."""

    def close(self) -> None:
        """Release all resources except the engine."""


class SessionRows:
    """The rows of a table in sessions."""

    def __init__(self, table: SessionTable, request: FitRequest) -> None:
        self._table, self._request = table, request

    def load(self) -> tuple[Feature, ...]:
        self._features = self._table.load()
        return self._features

    def learn_target(self) -> Target:
        target = learn_target(self._request, self._table.target_scans)

        def encode() -> None:
            self._table.apply(Session.encode_target, lambda _: (target,))

        if self._request.warm_start.is_new_source:
            continued(encode)
        else:
            encode()
        return target

    def assign(self, target: Target, ensemble_so_far: Callable[[], Ensemble]) -> tuple[ValidationPlan, Chosen]:
        table, request, validation = self._table, self._request, ValidationPlan()
        parameters = request.parameters
        if request.make_validation_plan is None and not needs_test_set(parameters, validation, request.eval_sets):
            return validation, {}
        before = table.n_kept
        starts, n_rows = starts_of(before), sum(before.values())
        n_classes = None if target.classes is None else len(target.classes)

        def numbered(numbers: Sequence[int]) -> tuple[Any, ...]:
            return {i: (starts[i], before[i]) for i in numbers}, n_classes

        def digit_counts(digits: DigitRequest) -> np.ndarray:
            return reduce(np.add, table.ask_each(Session.digit_counts, lambda numbers: (*numbered(numbers), digits)))

        counts = [n_rows] if n_classes is None else reduce(np.add, table.ask_each(Session.class_counts, numbered)).tolist()
        if request.make_validation_plan is not None:
            validation = request.make_validation_plan(counts, target, ensemble_so_far)
            for metric in validation.metrics:
                if metric.wants_block:
                    table.refuse_values(metric.name)
        holds_out_test_set = needs_test_set(parameters, validation, request.eval_sets)
        test_rows = held_out_rows_of(n_rows, parameters.random_state) if holds_out_test_set else None
        assignment = validation.assign(counts, digit_counts, test_rows)
        table.apply(Session.assign_rows, lambda numbers: (*numbered(numbers), assignment))
        found = table.ask(Session.trained_rows)
        after = dict(sorted((i, n) for each, *_ in found for i, n in each.items()))
        n_held_out = n_rows - sum(after.values())
        if holds_out_test_set:
            warn_held_out(n_held_out, n_rows)
        elif after.keys() != before.keys() or n_held_out != (sum(validation.held_out.sizes) if validation.held_out else 0):
            raise DBoostError(f"{n_held_out} of {n_rows} rows in {len(after)} of {len(before)} partitions were held out")
        table.note_assigned(after, all(is_unit for *_, is_unit in found))
        chosen: Chosen = {}
        for _, of_session, _ in found:
            for name, (n, max_weight) in of_session.items():
                so_far = chosen.get(name, (0, 0.0))
                chosen[name] = so_far[0] + n, max(so_far[1], max_weight)
        return validation, dict(sorted(chosen.items(), reverse=True))  # "validation", then "train"

    def propose_bins(self, warm_start: WarmStart, parameters: Parameters) -> Binning:
        """Propose split points from a sample of the rows, with ``split_proposal="exact"`` from all distinct values."""
        table, features = self._table, self._features
        if warm_start.keeps_bins:
            return warm_start.binning(features)
        if parameters.split_proposal == "exact":
            found = table.ask(Session.distinct)
            return exact_binning(features, [reduce(distinct_values, of_feature) for of_feature in zip(*found, strict=True)])
        starts, n_rows, seed = *self._starts(), parameters.random_state
        n_numeric = sum(not feature.is_categorical for feature in features)
        edges: list[np.ndarray | None] = []
        for first, last in self._column_ranges(n_numeric, n_rows):
            by_partition: dict[int, Any] = {}

            def arguments(numbers: Sequence[int], columns: tuple[int, int] = (first, last)) -> tuple[Any, ...]:
                return {i: starts[i] for i in numbers}, n_rows, seed, columns

            for answer in table.ask_each(Session.sample, arguments):
                by_partition |= answer
            ordered = [by_partition[i] for i in sorted(by_partition)]
            weights = [weight for _, weight in ordered]
            weight = None if any(one is None for one in weights) else np.concatenate(weights)
            values = [columns for columns, _ in ordered]
            joined = [np.concatenate(column) if len(column) > 1 else column[0] for column in zip(*values, strict=True)]
            edges += propose_all(joined, weight, fine_bins_of(parameters), self._request.n_threads)
        numeric = iter(edges)
        return Binning(features, tuple(None if feature.is_categorical else next(numeric) for feature in features))

    def _column_ranges(self, n_numeric: int, n_rows: int) -> list[tuple[int, int]]:
        """Return ranges of numeric columns whose sampled values fit into memory together."""
        budget = self._request.budget
        n_columns = n_numeric if budget is None else budget.columns_at_once(n_rows)
        return [(first, min(first + n_columns, n_numeric)) for first in range(0, n_numeric, max(n_columns, 1))]

    def compute_start_scores(self, warm_start: WarmStart) -> None:
        self._table.apply(Session.compute_start_scores, lambda _: (warm_start,))

    def map_rows(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [answer for of_session in self._table.ask(Session.map_rows, function, arguments) for answer in of_session]

    def describe(self, seed: int) -> RowsDescription:
        table, (starts, n_rows) = self._table, self._starts()
        by_partition: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for answer in table.ask_each(Session.reference_rows, lambda numbers: ({i: starts[i] for i in numbers}, n_rows, seed)):
            by_partition |= answer
        ordered = [by_partition[i] for i in sorted(by_partition)]
        sample = ReferenceSample(np.empty((0, len(self._features))), np.empty(0))
        if ordered:
            sample = ReferenceSample(*(np.concatenate(of) for of in zip(*ordered, strict=True)))
        return RowsDescription(n_rows, table.most_rows(), not table.unit_weights, table.named, sample)

    def build(self, plan: FitPlan, chosen: Chosen) -> Engine:
        self._spec = plan.build_spec(self._starts()[0])
        self._table.hold_out_chosen(self._spec, chosen, with_block=plan.needs_values)
        return self._table.open_engine(self._spec, plan.policy)

    def eval_sets(self, plan: FitPlan, chosen: Chosen, sets: Sequence[NamedSet]) -> list[EvalSet]:
        return self._table.eval_sets(self._spec, chosen, sets, with_block=plan.needs_values)

    def observers(self, plan: FitPlan) -> list[Callback]:
        return self._table.observers(plan.parameters.loss_name, plan.n_rows, len(self._features))

    def close(self) -> None:
        self._table.close()

    def _starts(self) -> tuple[dict[int, int], int]:
        """Return the global id of each partition's first row of positive weight, and the number of such rows."""
        n_kept = self._table.n_kept
        return starts_of(n_kept), sum(n_kept.values())


def learn_target(request: FitRequest, scans: Callable[[], list[TargetScan]]) -> Target:
    """Return loss and classes: of the model that is continued, as given, or by the targets. The result holds no rows."""
    warm_start, parameters = request.warm_start, request.parameters
    if warm_start.is_new_source and warm_start.model is not None:
        return target_of(warm_start.model, parameters)
    if request.classes is not None:
        return target_for(request.classes, parameters)
    return merge_target_scans_to_target(scans(), parameters)


def starts_of(n_kept: dict[int, int]) -> dict[int, int]:
    """Return the global id of each partition's first row among all rows of positive weight."""
    return dict(zip(n_kept, np.concatenate(([0], np.cumsum(list(n_kept.values())))).tolist(), strict=False))
