"""All losses, one suite: derivatives, minima, links, and the kernels' terms compared with the methods.

A new loss is a line in `LOSSES`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dboost.errors import ParameterError
from dboost.exact import ExactSum, unit_for
from dboost.kernels import or_empty
from dboost.kernels.quantile_keys import LANES, N_DIGITS
from dboost.losses import (
    BUILT_IN,
    AbsoluteError,
    BaseLoss,
    BrierOfClasses,
    Expectile,
    Exponential,
    Gamma,
    HalfBrier,
    Huber,
    LogLoss,
    Loss,
    Normal,
    Poisson,
    Quantile,
    SoftmaxLogLoss,
    SquaredError,
    Tweedie,
    by_name,
    from_dict,
)
from dboost.losses.gradient_pass import (
    BLOCK,
    GradientRows,
    PassTotals,
    new_pass_scratch,
    output_terms,
    update_gradients,
)
from dboost.session.target import EncodedRoles
from dboost.training.target_stats import TargetStats, target_stats
from tests.helpers.compiled import kept


@dataclass(frozen=True)
class Case:
    """A loss, the targets that it accepts, and the range of raw scores in which float32 is accurate."""

    loss: BaseLoss
    targets: Callable[[np.random.Generator, int], np.ndarray]
    far: float

    def __str__(self) -> str:
        stored = self.loss.to_dict()
        return "-".join(map(str, stored.values()))

    def start(self, y: np.ndarray, weight: np.ndarray | None = None) -> TargetStats:
        return target_stats(self.loss, lambda function, *arguments: [function(EncodedRoles(y, weight), *arguments)])

    @property
    def n_outputs(self) -> int:
        return self.loss.n_outputs

    def rows(self, n: int, scale: float = 3.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Targets, and raw scores [n_outputs, n]."""
        rng = np.random.default_rng(seed)
        y = self.targets(rng, n).astype(np.float64)
        raw = rng.normal(size=(self.n_outputs, n)) * scale
        return y, raw


def classes(k: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, n: np.concatenate([np.arange(k), rng.integers(k, size=n)])[:n]


LOSSES = [
    Case(SquaredError(), lambda rng, n: rng.normal(size=n) * 10, 1e18),
    Case(LogLoss(), classes(2), 87.0),
    *(Case(SoftmaxLogLoss(k), classes(k), 87.0) for k in (3, 10)),
    Case(Exponential(), classes(2), 80.0),
    Case(HalfBrier(), classes(2), 1e18),
    Case(BrierOfClasses(4), classes(4), 1e18),
    Case(Poisson(), lambda rng, n: rng.poisson(3, n), 80.0),
    Case(Gamma(), lambda rng, n: rng.gamma(2, 5, n), 80.0),
    Case(AbsoluteError(), lambda rng, n: rng.standard_t(2, n) * 10, 1e18),
    *(Case(Quantile(q), lambda rng, n: rng.standard_t(2, n) * 10, 1e18) for q in (0.1, 0.7)),
    *(Case(Expectile(q), lambda rng, n: rng.normal(size=n) * 10, 1e18) for q in (0.05, 0.5, 0.9)),
    Case(Normal(2.0), lambda rng, n: rng.normal(size=n) * 2, 1e5),
    Case(Huber(0.9, 2.0), lambda rng, n: rng.standard_t(2, n) * 10, 1e18),
    *(Case(Tweedie(p), lambda rng, n: rng.poisson(1, n) * rng.gamma(2, 5, n), 80.0) for p in (1.1, 1.5, 1.9)),
]
EVERY = pytest.mark.parametrize("case", LOSSES, ids=str)


@kept
def terms_of(loss, y, raw, gradient, hessian, value, scratch):
    output_terms(loss, y, raw, gradient, hessian, 0, value, scratch)


def kernel_terms(loss: BaseLoss, y: np.ndarray, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradient, Hessian and value of up to BLOCK rows as kernels see them."""
    assert len(y) <= BLOCK
    scores = np.ascontiguousarray(raw)
    gradient, hessian = np.empty((2, *scores.shape), np.float32)
    value = np.empty(len(y))
    terms_of(loss.terms(), y, scores, gradient, hessian, value, np.empty(BLOCK, np.float32))
    return gradient, hessian, value


def derivative(function: Callable[[np.ndarray], np.ndarray], raw: np.ndarray, output: int) -> np.ndarray:
    """d function / d raw[output] by a central difference, good to about 1e-9."""
    step = np.zeros_like(raw)
    step[output] = 1e-5
    return (function(raw + step) - function(raw - step)) / 2e-5


def test_a_loss_is_displayed_by_its_name_and_parameters() -> None:
    assert [repr(loss) for loss in (LogLoss(), SoftmaxLogLoss(3), Quantile(0.1))] == [
        "<Loss: log_loss>",
        "<Loss: log_loss, n_classes=3>",
        "<Loss: quantile, quantile=0.1>",
    ]

    class Odd(Loss):
        def __init__(self) -> None:
            self.function = abs

    assert repr(Odd()) == "<Loss: Odd, function=<built-in function abs>>", "although it cannot be stored"


@EVERY
def test_derivatives(case: Case) -> None:
    loss, (y, raw) = case.loss, case.rows(200)
    for output in range(case.n_outputs):
        slope = derivative(lambda r: loss.value(y, r), raw, output)
        near = 1e-7 + 1e-9 * loss.value(y, raw).max()
        assert loss.gradient(y, raw)[output] == pytest.approx(slope, abs=near)
        if not loss.exact_hessian:
            continue
        bend = derivative(lambda r: loss.gradient(y, r)[output], raw, output)  # noqa: B023
        assert loss.hessian(y, raw)[output] == pytest.approx(bend, abs=near)


@pytest.mark.fast_cells(19)
@EVERY
@pytest.mark.parametrize("scale", [0.1, 3.0, 20.0])
def test_kernels_work_out_what_the_methods_do(case: Case, scale: float) -> None:
    loss, (y, raw) = case.loss, case.rows(BLOCK, scale, seed=1)
    gradient, hessian, value = kernel_terms(loss, y, raw)
    if isinstance(loss, Normal):  # which multiplies the derivatives by the mean
        sigma = loss.link.to_prediction(raw)[1]
        gradient[0] /= sigma
        hessian[0] /= sigma * loss.scale
    # The precision of float32 for differences of scores, and for the result.
    near = np.abs(raw).max() * 2.0**-23 + 3e-7
    assert gradient == pytest.approx(loss.gradient(y, raw), abs=near, rel=near)
    assert hessian == pytest.approx(loss.hessian(y, raw), abs=near, rel=near)
    assert value == pytest.approx(loss.value(y, raw), abs=near, rel=near)
    assert (hessian >= 0).all()
    if loss.constant_hessian:
        assert (loss.hessian(y, raw) == 1).all()
        assert (hessian == 1).all()


@EVERY
def test_terms_of_a_row_do_not_depend_on_the_rows_beside_it(case: Case) -> None:
    """Vectorised or not, first or last in the block: the same bits."""
    y, raw = case.rows(67, seed=2)
    together = kernel_terms(case.loss, y, raw)
    for row in range(67):
        alone = kernel_terms(case.loss, y[row : row + 1], raw[..., row : row + 1])
        for a, b in zip(alone, together, strict=True):
            assert a.tobytes() == np.ascontiguousarray(b[..., row : row + 1]).tobytes()
    for first in (1, 3, 8):
        for a, b in zip(kernel_terms(case.loss, y[first:], raw[..., first:]), together, strict=True):
            assert np.array_equal(a, b[..., first:])


@pytest.mark.fast_cells(19)
@EVERY
@pytest.mark.parametrize("share", [1.0, 0.5, 1e-3])
def test_extreme_scores_stay_finite(case: Case, share: float) -> None:
    y, _ = case.rows(100)
    far = case.far * share
    raw = np.random.default_rng(0).choice([-far, 0.0, far], (case.n_outputs, 100))
    for terms in (kernel_terms(case.loss, y, raw), [f(y, raw) for f in (case.loss.gradient, case.loss.hessian)]):
        assert all(np.isfinite(term).all() for term in terms)
    assert np.isfinite(case.loss.value(y, raw)).all()
    assert np.isfinite(case.loss.link.to_prediction(raw)).all()
    if not isinstance(case.loss, Normal):
        assert (case.loss.value(y, raw) >= 0).all()
        assert (kernel_terms(case.loss, y, raw)[2] >= -1e-6 * far).all()


@EVERY
@pytest.mark.parametrize("weighted", [False, True])
def test_the_best_constant_is_the_minimum(case: Case, weighted: bool) -> None:
    if isinstance(case.loss, Huber):
        pytest.skip("Huber's boosting starts at the median: its own minimum depends on δ, which is chosen after that")
    y, _ = case.rows(50, seed=3)
    weight = np.random.default_rng(4).exponential(size=50) if weighted else np.ones(50)
    constant = case.start(y, weight).baseline
    assert constant.shape == (case.n_outputs,)

    def total(raw: np.ndarray) -> float:
        return float(case.loss.value(y, np.tile(raw[:, None], 50)) @ weight)

    at_best = total(constant)
    for output in range(case.n_outputs):
        for step in (-1.0, -0.01, 0.01, 1.0):
            moved = constant.copy()
            moved[output] += step
            # Between two targets a pinball loss may be flat.
            flat = case.loss.leaves[0].statistic == "quantile"
            assert total(moved) >= at_best * (1 - 1e-14) if flat else total(moved) > at_best


@EVERY
def test_links_are_inverses(case: Case) -> None:
    _, raw = case.rows(100)
    loss, link = case.loss, case.loss.link
    prediction = link.to_prediction(raw)
    assert link.to_prediction(link.to_raw(prediction)) == pytest.approx(prediction, rel=1e-9)
    if link.are_probabilities:
        assert np.array_equal(prediction, raw)
        return
    if loss.targets.are_classes:
        assert ((prediction > 0) & (prediction < 1)).all()
    if loss.targets.are_classes and case.n_outputs > 1:
        assert prediction.sum(axis=0) == pytest.approx(np.ones(100))
    else:
        assert link.to_raw(prediction) == pytest.approx(raw, abs=1e-6)


@EVERY
def test_a_stored_loss_comes_back(case: Case) -> None:
    again = from_dict(case.loss.to_dict())
    assert type(again) is type(case.loss)
    assert again.to_dict() == case.loss.to_dict()
    y, raw = case.rows(20)
    assert np.array_equal(again.value(y, raw), case.loss.value(y, raw))
    assert type(pickle.loads(pickle.dumps(case.loss))) is type(case.loss)


@EVERY
def test_the_unit_of_loss_sums_fits_the_rows(case: Case) -> None:
    """The magnitude determines the unit of exact sums: neither too large for the losses that occur, nor too small."""
    y, _ = case.rows(1000, seed=5)
    loss = case.loss
    start = case.start(y)
    magnitude, constant = start.magnitude, start.baseline
    raw = np.tile(constant[:, None], 1000)
    assert loss.value(y, raw).max() <= magnitude * 1.0001
    assert loss.value(y, raw).max() >= magnitude * 1e-3


def test_the_list_is_complete() -> None:
    assert {type(case.loss) for case in LOSSES} >= {*BUILT_IN, SoftmaxLogLoss}
    for loss in BUILT_IN:
        assert isinstance(by_name(loss.name, quantile=0.3, expectile=0.3), loss)
    with pytest.raises(ParameterError, match="unknown loss 'squared'; known are squared_error, absolute_error"):
        by_name("squared")


def target_arrays(y: np.ndarray) -> list[np.ndarray]:
    """Return the arrays of targets of `GradientRows`."""
    return [y if y.dtype == dtype else or_empty(None, dtype) for dtype in ("float64", "float32", "uint8")]


@EVERY
@given(n=st.integers(1, 2500), seed=st.integers(0, 2**32), cut=st.integers(0, 2500))
def test_targets_in_fewer_bytes_change_nothing(case: Case, n: int, seed: int, cut: int) -> None:
    loss = case.loss
    y, raw = case.rows(n, seed=seed)
    smaller = y.astype(np.uint8 if loss.targets.are_classes else np.float32)
    found = []
    for target in (smaller.astype(np.float64), smaller):
        score = raw.copy()
        gradient, hessian = np.empty(score.shape, np.float32), np.empty(score.shape, np.float32)
        rows = GradientRows(
            score, np.zeros(score.shape, np.uint8), *target_arrays(target), or_empty(None, "float64"), or_empty(None, "uint8"),
            gradient, hessian, gradient.view(np.int32), hessian.view(np.int32),
        )  # fmt: skip
        sums, top = np.zeros(2), np.zeros((2, case.n_outputs), np.int32)
        for first, last in ((0, min(cut, n)), (min(cut, n), n)):
            update_gradients(
                loss.terms(), rows, np.zeros((case.n_outputs, 1)), first, last, unit_for(1e10, n), new_pass_scratch(),
                PassTotals(sums, top), None,
            )  # fmt: skip
        found.append((gradient.tobytes(), hessian.tobytes(), sums.tobytes(), top.tobytes()))
    assert found[0] == found[1]


@EVERY
@given(
    n=st.integers(1, 2500), seed=st.integers(0, 2**32), weighted=st.booleans(), weigh=st.booleans(), cut=st.integers(0, 2500)
)
def test_the_pass_over_rows(case: Case, n: int, seed: int, weighted: bool, weigh: bool, cut: int) -> None:
    """Scores, terms, weights, maxima and sums are right, and exact for any division of the rows into ranges."""
    loss, k = case.loss, case.n_outputs
    rng = np.random.default_rng(seed)
    y, raw = case.rows(n, seed=seed)
    weight = rng.exponential(size=n) if weighted else None
    before = raw
    values = rng.normal(size=(k, 5))
    leaf = rng.integers(5, size=before.shape).astype(np.uint8)
    times = rng.integers(1, 4, n).astype(np.uint8) if weighted and not weigh else None
    loss_unit = unit_for(1e13, n)  # the largest loss of a normal distribution at these scores is about 1e11

    def walked(ranges: list[tuple[int, int]]) -> tuple[np.ndarray, ...]:
        score, gradient, hessian = before.copy(), np.empty(before.shape, np.float32), np.empty(before.shape, np.float32)
        sums, tops, influence = np.zeros(2), [], np.zeros((k, LANES, N_DIGITS), np.int64)
        for first, last in ranges:
            top = np.zeros((2, k), np.int32)
            rows = GradientRows(
                score, leaf, *target_arrays(y), or_empty(weight, "float64"), or_empty(times, "uint8"), gradient, hessian,
                gradient.view(np.int32), hessian.view(np.int32),
            )  # fmt: skip
            update_gradients(
                loss.terms(), rows, values, first, last, loss_unit, new_pass_scratch(), PassTotals(sums, top), influence
            )
            tops.append(top.view(np.float32))
        return score, gradient, hessian, sums, np.max(tops, axis=0), influence.sum(axis=1)

    score, gradient, hessian, sums, top, influence = walked([(0, n)])
    in_two = walked([(min(cut, n), n), (0, min(cut, n))])
    for a, b in zip(in_two, (score, gradient, hessian, sums, top, influence), strict=True):
        assert a.tobytes() == b.tobytes()
    taken = np.stack([values[j][leaf[j]] for j in range(k)])
    assert np.array_equal(score, before + taken)
    starts = range(0, n, BLOCK)
    parts = [kernel_terms(loss, y[s : s + BLOCK], score[:, s : s + BLOCK]) for s in starts]
    g, h, value = (np.concatenate([part[i] for part in parts], axis=-1) for i in range(3))
    if weight is not None:
        w = weight.astype(np.float32) if weigh else np.ones(n, np.float32)
        g, h, value = g * w, h * w, value * weight
    assert np.array_equal(gradient, g)
    assert np.array_equal(hessian, h)
    assert np.array_equal(top, np.stack([np.abs(g).max(axis=1), h.max(axis=1)]))
    total = ExactSum.of(value, loss_unit)
    assert (total.coarse, total.fine) == tuple(sums.tolist())
    for of_output, by_digit in zip(h, influence, strict=True):
        bits = np.ascontiguousarray(of_output).view(np.int32)
        weights = (np.frexp(np.abs(of_output))[0] * 2**24).astype(np.int64) * (1 if times is None else times)
        normal = (bits >> 23 > 0) & (bits > 0)
        expected = np.bincount(bits[normal] >> 20, weights[normal], N_DIGITS)
        assert np.array_equal(by_digit[8:], expected[8:]), "digits below 8 are those of numbers below the normal ones"


def test_a_gradient_that_is_no_number_is_noticed() -> None:
    """As bits, NaN is larger than all numbers, so it reaches the check for divergence."""
    raw, gradient = np.array([[0.0, np.nan, 1.0]]), np.empty((1, 3), np.float32)
    sums, top = np.zeros(2), np.zeros((2, 1), np.int32)
    absent = or_empty(None, "float64"), or_empty(None, "uint8"), np.empty((1, 0), np.float32)
    rows = GradientRows(
        raw, np.zeros((1, 3), np.uint8), *target_arrays(np.zeros(3)), *absent[:2], gradient, absent[2], gradient.view(np.int32),
        absent[2].view(np.int32),
    )  # fmt: skip
    totals = PassTotals(sums, top)
    update_gradients(SquaredError().terms(), rows, np.zeros((1, 1)), 0, 3, 1.0, new_pass_scratch(), totals, None)
    assert np.isnan(top.view(np.float32)[0, 0])
