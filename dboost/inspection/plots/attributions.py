"""Plots of Shapley values: a summary of all rows, one feature in detail, one row step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dboost.data.kinds.table_kinds import is_stream
from dboost.errors import ParameterError
from dboost.inspection.plots import canvas
from dboost.inspection.plots.canvas import BLUE, GREY, VERMILION
from dboost.inspection.row_functions import row_of, sample
from dboost.inspection.shapley import Shapley, expected_value
from dboost.model.ensemble import Ensemble, FlatEnsemble
from dboost.params import Integer
from dboost.schema import Feature, Level

#: Largest number of rows in a plot.
MAX_POINTS = 2000
_ALL_ROWS = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class _Attributions:
    """Shapley values of the rows of a block for one output of a model."""

    #: float64[n, n_features].
    values: np.ndarray
    #: Number of the output.
    output: int
    #: Unit of the values.
    unit: str
    #: What the values explain: "P(yes)", "the predictions".
    subject: str


def _attributions(ensemble: Ensemble, block: np.ndarray, output: Any, background: Any) -> _Attributions:
    """Return the Shapley values of a block. output : None for the one that `_chosen` returns, which the subject names."""
    outputs = ensemble.outputs
    k = outputs.number_of(output) if output is not None or outputs.n == 1 else _chosen(ensemble, block)
    if is_stream(background):
        raise ParameterError("the background must be a table in memory: compute a sample of some hundred rows")
    rows = None if background is None else sample(background, ensemble, _ALL_ROWS)[1].block
    values = Shapley(ensemble, rows, False, None)(block)
    name = canvas.short(outputs.names[k])
    is_class = outputs.labels is not None
    subject = f"P({name})" if is_class else "the prediction" if outputs.n == 1 else f"{outputs.axis} {name}"
    if outputs.n > 1 and output is None:
        subject += f", one of {outputs.n} {'classes' if is_class else f'{outputs.axis}s'}"
    unit = canvas.plain(canvas.score_label(ensemble)) + (f" of {name}" if outputs.n > 1 else "")
    return _Attributions(values if values.ndim == 2 else values[:, :, k], k, unit, subject)


def _chosen(ensemble: Ensemble, block: np.ndarray) -> int:
    """Return the class that most rows are predicted to have; of other outputs the first one, of quantiles the middle one."""
    outputs = ensemble.outputs
    if outputs.labels is None:
        return (outputs.n - 1) // 2 if outputs.axis == "quantile" else 0
    predicted = outputs.probabilities(FlatEnsemble(ensemble).raw_scores(block)).argmax(axis=1)
    return int(np.bincount(predicted, minlength=outputs.n).argmax())


def plot_summary(ensemble: Ensemble, X: Any, output: Any, background: Any, max_features: int, ax: Any) -> Any:
    """Draw one dot per row and feature; features with the largest effect on top.

    Dots of numbers have the color of the number. Dots of categories are grey; ticks are the means of the categories, and the
    names of some are below the dots.
    """
    block = sample(X, ensemble, MAX_POINTS)[1].block
    shapley = _attributions(ensemble, block, output, background)
    max_features = Integer(1).checked("max_features", max_features)
    features = ensemble.features
    order = np.argsort(-np.abs(shapley.values).mean(axis=0), kind="stable")[:max_features][::-1]
    is_categorical = np.array([features[j].categories is not None for j in order], np.bool_)
    room = 1.0 + _NAMES * is_categorical
    lines = np.cumsum(room) - 0.5  # height of the dots of each feature; names are below them
    with canvas.style():
        ax = canvas.axes_for(ax, height=1.0 + 0.31 * max(3.0, room.sum()), width=5.6)
        mesh = None
        grey = {"color": canvas.DOTS, "markersize": _dot(len(block)), "markeredgewidth": 0, "alpha": 0.6, "rasterized": True}
        for y, j in zip(lines, order, strict=True):
            x = shapley.values[:, j]
            rank, at = _ranks(block[:, j]), y + _spread(x, np.zeros(len(x), np.int64))
            is_grey = np.isnan(rank) | (features[j].categories is not None)
            ax.plot(x[is_grey], at[is_grey], "o", **grey)
            if not is_grey.all():
                dots = {
                    "s": 1.2 * _dot(len(block)) ** 2,
                    "cmap": canvas.two_colors(),
                    "vmin": 0,
                    "vmax": 1,
                    "linewidths": 0,
                    "rasterized": True,
                }
                mesh = ax.scatter(x[~is_grey], at[~is_grey], c=rank[~is_grey], alpha=0.85, **dots)
        ax.axvline(0, color=GREY, linewidth=0.8, zorder=0)
        ax.locator_params(axis="x", nbins=7)
        ax.set_yticks(lines, canvas.distinct(features[j].name for j in order))
        ax.set_ylim(-0.1, max(3.0, room.sum()) + 0.1)
        label = f"effect on the {shapley.unit} (Shapley value{_drawn(len(block))})"
        is_missing = np.isnan(block[:, order[~is_categorical]]).any()
        grey_dots = [text for text, is_drawn in (("missing", is_missing), ("categories", is_categorical.any())) if is_drawn]
        if grey_dots:
            means = "; ticks: means of categories" if is_categorical.any() else ""
            label += f"\ngrey dots: {', '.join(grey_dots)}{means}"
        canvas.x_label(ax, label, 0.74)
        canvas.title(ax, f"What moved {shapley.subject}")
        canvas.bars(ax)
        if mesh is not None:
            bar = canvas.colorbar(mesh, ax, ticks=[0, 1], pad=0.01, aspect=50, fraction=0.05, shrink=0.8)
            bar.ax.set_yticklabels(["low", "high"])
            bar.set_label("value of the feature" if room.sum() > 8 else "value", fontsize=8, labelpad=-8)
            bar.solids.set_alpha(1)
        if is_categorical.any():
            ax.figure.draw_without_rendering()  # lays the axes out: the names of a line share its width
        for y, j in zip(lines[is_categorical], order[is_categorical], strict=True):
            _name_means(ax, shapley.values[:, j], block[:, j], features[j].categories or (), float(y))
    return ax


#: Height of the names of categories, and their font size; fewer rows of a category are not named.
_NAMES, _NAME_SIZE, _LEAST_ROWS = 0.6, 7.0, 5
#: Largest number of names of a feature, and in points how far a name may be from its mean, and the distance of two names.
_MOST_NAMES, _FAR, _GAP = 5, 42.0, 7.0


def _name_means(ax: Any, x: np.ndarray, codes: np.ndarray, categories: Sequence[Level], y: float) -> None:
    """Draw the mean of each category as a tick, and name the lowest, the highest and the most frequent ones below the dots.

    Names are moved apart along their line; each is connected with its tick.
    """
    levels, counts = np.unique(np.where(np.isnan(codes), -1, codes).astype(np.int64), return_counts=True)
    means = np.array([x[np.isnan(codes) if level < 0 else codes == level].mean() for level in levels])
    ax.vlines(means, y - 0.3, y + 0.3, color=canvas.ink(ax), linewidth=0.6, alpha=0.45)
    low, high = ax.get_xlim()
    width = ax.get_window_extent().width * 72 / ax.figure.dpi
    frequent = np.flatnonzero(counts >= min(_LEAST_ROWS, counts.max()))
    by_mean = frequent[np.argsort(means[frequent], kind="stable")]
    by_count = frequent[np.argsort(-counts[frequent], kind="stable")]
    texts = {i: canvas.short(None if levels[i] < 0 else categories[levels[i]], 20) for i in frequent.tolist()}
    widths = {i: canvas.text_width(text, _NAME_SIZE) + _GAP for i, text in texts.items()}
    wanted = (means - low) / (high - low) * width

    def placed(names: list[int]) -> np.ndarray:
        return _apart(wanted[names], [widths[i] for i in names], width)

    chosen: list[int] = []
    for i in dict.fromkeys([*by_mean[:1].tolist(), *by_mean[-1:].tolist(), *by_count.tolist()]):
        more = sorted([*chosen, i], key=lambda i: means[i])
        fits = sum(widths[k] for k in more) <= width and (len(more) <= 2 or np.abs(placed(more) - wanted[more]).max() <= _FAR)
        if fits and len(more) <= _MOST_NAMES:
            chosen = more
    style = {"fontsize": _NAME_SIZE, "ha": "center", "va": "top"}
    line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0, "relpos": (0.5, 1.0)}
    for i, place in zip(chosen, placed(chosen), strict=True):
        ax.vlines(means[i], y - 0.42, y + 0.38, color=canvas.ink(ax), linewidth=1.3)
        canvas.note(ax, texts[i], (means[i], y - 0.42), (place - wanted[i], -4.5), arrowprops=line, **style)


def _apart(wanted: Sequence[float], widths: Sequence[float], total: float) -> np.ndarray:
    """Return positions of texts near the wanted ascending ones at which they do not overlap, between 0 and `total`."""
    if not len(wanted):
        return np.empty(0)
    steps = np.concatenate([[0.0], np.cumsum((np.array(widths[1:]) + widths[:-1]) / 2)])
    groups: list[list[float]] = []  # the texts that touch have one shift, the mean of theirs
    for shift in np.array(wanted) - steps:
        groups.append([shift])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    shifts = np.concatenate([np.full(len(group), np.mean(group)) for group in groups])
    return np.asarray(np.clip(shifts, widths[0] / 2, max(total - widths[-1] / 2 - steps[-1], widths[0] / 2)) + steps)


def _dot(n: int) -> float:
    """Return the diameter of the dots of n rows in points."""
    return 2.4 if n > 100 else 4.0


def _ranks(x: np.ndarray) -> np.ndarray:
    """Ranks from 0 for the lowest value to 1 for the highest; NaN where missing."""
    ranks = np.full(len(x), np.nan)
    present = ~np.isnan(x)
    values, inverse, counts = np.unique(x[present], return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    ranks[present] = (below / below[-1])[inverse] if len(values) > 1 else 0.5
    return ranks


def _spread(x: np.ndarray, strip: np.ndarray) -> np.ndarray:
    """Vertical offsets that show the density of the points, alike in all strips, without randomness.

    The first of the points at a place is on the line of its strip, and the others are above and below it in turn.
    """
    column = np.minimum((x - x.min(initial=np.inf)) / ((np.ptp(x) if len(x) else 0.0) or 1.0) * 60, 59).astype(np.int64)
    _, place, counts = np.unique(strip * 60 + column, return_inverse=True, return_counts=True)
    order = np.argsort(place, kind="stable")
    turn = np.empty(len(x), np.int64)
    turn[order] = np.arange(len(x)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.where(turn % 2 == 0, -1, 1) * ((turn + 1) // 2) * min(0.76 / counts.max(initial=1), 0.12)


def plot_waterfall(ensemble: Ensemble, X: Any, row: int, output: Any, background: Any, max_features: int, ax: Any) -> Any:
    """Draw one bar per feature from the expected score to the score of a row, the largest on top."""
    (x,) = row_of(X, ensemble, row)
    shapley = _attributions(ensemble, x[None], output, background)
    values, features = shapley.values[0], ensemble.features
    scores = FlatEnsemble(ensemble).raw_scores(x[None])
    raw = float(scores[0, shapley.output])
    if background is None:
        start = float(expected_value(ensemble)[shapley.output])
    else:  # the values of a row add up to its score minus the start
        start = raw - float(values.sum())
    max_features = Integer(1).checked("max_features", max_features)
    order = np.argsort(-np.abs(values), kind="stable")
    shown, rest = order[: max_features - 1], order[max_features - 1 :]
    if len(rest) == 1:
        shown, rest = order, order[:0]
    steps = [(f"{canvas.short(features[j].name, 24)} = {_value(x[j], features[j])}", float(values[j])) for j in shown]
    if len(rest):
        steps.append((f"{len(rest)} others", float(values[rest].sum())))
    with canvas.style():
        ax = canvas.axes_for(ax, height=1.15 + 0.3 * max(3, len(steps)), width=6.2)
        # From the smallest steps at the bottom to the largest, which ends at the row's score.
        at = start
        texts = canvas.numbers([move for _, move in steps], sign=True)
        for i in range(len(steps) - 1, -1, -1):
            y, move = len(steps) - 1 - i, steps[i][1]
            ax.barh(y, move, left=at, height=0.62, color=VERMILION if move >= 0 else BLUE)
            canvas.note(ax, texts[i], (max(at, at + move), y), (4, 0), color=GREY, bbox=canvas.box(ax))
            at += move
            ax.plot([at, at], [y - 0.31, y + 1.31 if i else y + 0.7], color=GREY, linewidth=0.7)
        ax.axvline(start, color=GREY, linewidth=0.8, linestyle=(0, (3, 2)), zorder=0)
        ax.set_yticks(np.arange(len(steps)), [name for name, _ in steps[::-1]])
        canvas.x_label(ax, f"{shapley.unit} (dashes: expected)", 0.45)
        ax.set_ylim(-0.6, max(3, len(steps)) - 0.2)
        ends = start + np.cumsum([0.0, *(move for _, move in steps[::-1])])
        reach = float(np.ptp(ends)) or 1.0
        ax.set_xlim(ends.min() - 0.05 * reach, ends.max() + 0.22 * reach)
        canvas.bars(ax)
        if shapley.unit.startswith("log odds"):
            _probability_axis(ax)
        canvas.title(ax, _from_to(ensemble, shapley, start, scores))
    return ax


def _from_to(ensemble: Ensemble, shapley: _Attributions, start: float, scores: np.ndarray) -> str:
    """Return the title of a waterfall: from which prediction to which. Of one of several outputs, raw scores: its prediction
    depends on the others.

    scores : raw scores of the row, float64[1, n_outputs].
    """
    outputs, end = ensemble.outputs, float(scores[0, shapley.output])
    if outputs.n > 1:
        subject = shapley.subject
        if outputs.labels is not None:
            (percent,) = canvas.numbers([100 * float(outputs.probabilities(scores)[0, shapley.output])])
            name, others = subject.partition(", one of ")[::2]
            subject = f"{name} = {percent} %" + (f", one of {others}" if others else "")
        return f"{subject}: raw score from {' to '.join(canvas.numbers([start, end]))}"
    scores = np.array([[start], [end]])
    if outputs.labels is None:
        return f"Prediction from {' to '.join(canvas.numbers(outputs.finish(scores).tolist()))}"
    percents = canvas.numbers((100 * outputs.probabilities(scores)[:, -1]).tolist())
    return f"{shapley.subject} from {percents[0]} % to {percents[1]} %"


def _probability_axis(ax: Any) -> None:
    """Add an axis above the log odds with the probabilities."""
    low, high = ax.get_xlim()
    top, last = ax.secondary_xaxis("top"), -np.inf
    drawn = []
    for percent in (0.01, 0.1, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.9, 99.99):
        log_odds = float(np.log(percent / (100 - percent)))
        if low <= log_odds <= high and log_odds - last > 0.12 * (high - low):
            drawn.append((log_odds, f"{percent} %"))
            last = log_odds
    top.set_xticks([at for at, _ in drawn], [text for _, text in drawn])
    top.tick_params(labelsize=7.5, labelcolor=GREY, length=2)
    top.spines["top"].set_visible(False)


def plot_dependence(ensemble: Ensemble, X: Any, feature: Any, output: Any, background: Any, ax: Any) -> Any:
    """Draw one feature's Shapley values over its values; one strip of dots for each of the most frequent levels of a
    categorical feature, the largest effect on top."""
    (j,) = ensemble.feature_positions(feature, at_most=1)
    block = sample(X, ensemble, MAX_POINTS)[1].block
    shapley = _attributions(ensemble, block, output, background)
    values, x, feature = shapley.values[:, j], block[:, j], ensemble.features[j]
    dots: dict[str, Any] = {"color": BLUE, "markersize": _dot(len(x)), "markeredgewidth": 0, "alpha": 0.45}
    more = ""
    with canvas.style():
        present = ~np.isnan(x)
        if feature.categories is None:
            ax = canvas.axes_for(ax)
            ax.plot(x[present], values[present], "o", **dots)
            ax.axhline(0, color=GREY, linewidth=0.8, zorder=0)
            if not present.all():
                mean = values[~present].mean()
                ax.axhline(mean, color=canvas.ink(ax), linewidth=0.9, linestyle=(0, (1, 2)), label="missing, on average")
                ax.legend(loc="best")
            ax.set_xlabel(canvas.short(feature.name, 40))
            canvas.y_label(ax, f"effect on the {shapley.unit}{_drawn(len(x))}")
            ax.grid(axis="y")
        else:
            codes, strip, counts = np.unique(np.where(present, x, -1).astype(np.int64), return_inverse=True, return_counts=True)
            frequent = np.sort(np.argsort(-counts, kind="stable")[: canvas.MAX_LEVELS])
            frequent = frequent[np.argsort([values[strip == k].mean() for k in frequent], kind="stable")]
            if len(frequent) < len(codes):
                more = f", the {len(frequent)} most frequent of {len(codes)}"
            ax = canvas.axes_for(ax, height=0.95 + 0.26 * max(3, len(frequent)))
            offsets = _spread(values, strip)
            for line, k in enumerate(frequent):
                ax.plot(values[strip == k], line + offsets[strip == k], "o", **dots)
            ax.axvline(0, color=GREY, linewidth=0.8, zorder=0)
            names = [None if codes[k] < 0 else feature.categories[codes[k]] for k in frequent]
            ax.set_yticks(np.arange(len(frequent)), canvas.distinct(names))
            ax.set_ylim(-0.6, max(3, len(frequent)) - 0.4)
            canvas.x_label(ax, f"effect on the {shapley.unit}{_drawn(len(x))}")
            canvas.bars(ax)
        canvas.title(ax, f"Effect of {canvas.short(feature.name)} on {shapley.subject}{more}")
    return ax


def _drawn(n: int) -> str:
    """Return the number of rows for a label, if the plot may have left some out."""
    return f", {n:,} rows" if n >= MAX_POINTS else ""


def _value(x: float, feature: Feature) -> str:
    if np.isnan(x):
        return "missing"
    return canvas.value(float(x)) if feature.categories is None else canvas.short(feature.categories[int(x)], 24)
