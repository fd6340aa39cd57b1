"""Plots of performance: metrics over the iterations, calibration, lift, residuals, and the scores of a search's trials.

With sample weights, fractions are of weight, groups have about equal weight, and the confidence interval of a group uses its
effective number of rows, the square of the sum of the weights over the sum of their squares (Kish, 1965).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dboost import losses
from dboost._lazy_import import pd
from dboost.data.columns.labels import Names
from dboost.display import as_read, counted, number
from dboost.errors import DBoostError, ParameterError
from dboost.inspection.plots import canvas
from dboost.inspection.plots.canvas import BLUE, FAINT, GREY, VERMILION
from dboost.inspection.row_functions import EvaluatedRows
from dboost.losses import BaseLoss
from dboost.metrics.named import find_metrics
from dboost.model.ensemble import Ensemble
from dboost.params import Integer

#: Classes of a confusion matrix.
MAX_CLASSES = 12


def plot_history(ensemble: Ensemble, history: pd.DataFrame, ax: Any) -> Any:
    """Draw one panel per metric, with a line for the training rows and for each evaluation set.

    history : ``iteration``, and metrics as ``<set>_<metric>``.

    Returns
    -------
    The axes, or an array of them for several metrics.
    """
    history = history[["iteration", *(name for name in ensemble.metrics if name in history)]]
    loss, best = losses.from_dict(ensemble.loss), ensemble.best_iteration
    panels: dict[str, list[tuple[str, str]]] = {}
    for column in history.columns:
        if column != "iteration":
            rows, metric = _set_and_metric(column, loss)
            panels.setdefault(as_read(metric, 0.0, loss.name)[0], []).append((rows, column))
    if not panels or not len(history):
        raise DBoostError("there is no history to draw: the model has no recorded iterations")
    if ax is not None and len(panels) > 1:
        raise ParameterError(f"the history has {len(panels)} metrics, and the plot creates its own axes: leave ax out")
    with canvas.style():
        grid = (
            canvas.new_axes(len(panels), height=0.5 + 2.5 * len(panels), sharex=True)[:, 0]
            if ax is None
            else np.array([canvas.axes_for(ax)])
        )
        for axes, (metric, lines) in zip(grid, panels.items(), strict=True):
            for rows, column in lines:
                i = 0 if rows == "training" else 1 + sum(rows_of_line != "training" for rows_of_line, c in lines if c < column)
                values = as_read(column, history[column], loss.name)[1]
                axes.plot(history["iteration"], values, label=canvas.key(canvas.plain(f"{rows} rows")), **canvas.colour(i))
            axes.set_ylabel(canvas.plain(metric.replace("_", " ")))
            axes.grid(axis="y")
            axes.margins(x=0.01)
            if best is not None:
                axes.axvline(best, color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
                to_right = best < 0.6 * history["iteration"].max()
                side, align = (4, "left") if to_right else (-4, "right")
                style = {"xycoords": ("data", "axes fraction"), "ha": align, "color": GREY}
                canvas.note(axes, f"best: {best}", (best, 0.5), (side, 0), bbox=canvas.box(axes), **style)
            axes.legend(loc="best")
        grid[-1].set_xlabel("iteration")
        canvas.title(grid[0], "Training" if ensemble.search is None else "Search for the number of iterations")
    return grid[0] if len(grid) == 1 else grid


def _set_and_metric(column: str, loss: BaseLoss) -> tuple[str, str]:
    """The evaluation set and the metric of a column of the history."""
    if column == "train_loss":
        return "training", loss.name
    words = column.split("_")
    for i in range(1, len(words)):
        name = "_".join(words[i:])
        try:
            find_metrics(name, loss)
        except ParameterError:
            continue
        rows = "_".join(words[:i])
        return {"eval": "held-out"}.get(rows, rows), name
    return "held-out", column


def draw_calibration(rows: EvaluatedRows, output: Any, n_bins: int, ax: Any) -> Any:
    """Draw the frequency of a class over its predicted probability, in groups of equally many rows."""
    is_class, probability, label = rows.of_class(output)
    n_bins = Integer(1).checked("n_bins", n_bins)
    weight = np.ones(len(is_class)) if rows.weight is None else rows.weight
    order = np.argsort(probability, kind="stable")
    order = order[weight[order] > 0]
    groups = _groups(order, weight, n_bins)
    with canvas.style():
        ax = canvas.axes_for(ax, height=3.6)
        ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
        ends = _draw_shares(ax, is_class, probability, groups, weight)
        ax.set_xlabel(
            f"predicted probability ({counted(len(groups), 'group')} of rows)\n(dashes: perfect; lines: 95 % intervals)"
        )
        canvas.y_label(ax, f"share of {canvas.short(str(label))}")
        largest = max(float(ends.max()), float(ax.lines[-1].get_xdata().max()))
        reach = 1.0 if largest > 0.7 else 1.1 * largest  # of a rare class, most of the square is empty
        ax.set(xlim=(-0.02 * reach, 1.02 * reach), ylim=(-0.02 * reach, 1.02 * reach))
        canvas.title(ax, f"Calibration of {_subject(rows, label, output)}")
        ax.grid()
    return ax


def _subject(rows: EvaluatedRows, label: Any, output: Any) -> str:
    """Return what a plot of one class shows. output : None if the user did not choose the class among several."""
    n = rows.n_classes
    return f"P({canvas.short(str(label))})" + (f", one of {n} classes" if output is None and n > 2 else "")


def _groups(order: np.ndarray, weight: np.ndarray, n: int) -> list[np.ndarray]:
    """Rows in order, in n groups of about equal weight (without weights the sizes differ by one at most)."""
    if weight.min(initial=1.0) == weight.max(initial=1.0):
        groups = np.array_split(order, min(n, len(order)) or 1)
    else:
        reached = np.cumsum(weight[order])
        groups = np.split(order, np.searchsorted(reached, reached[-1] * np.arange(1, n) / n))
    return [group for group in groups if len(group)]


def _draw_shares(ax: Any, hits: np.ndarray, by: np.ndarray, groups: list[np.ndarray], weight: np.ndarray) -> np.ndarray:
    """Draw the share of hits in each group over the group's mean of `by`; return the ends of the intervals."""
    share, at = (np.array([np.average(values[group], weights=weight[group]) for group in groups]) for values in (hits, by))
    low, high = _wilson(share, np.array([weight[group].sum() ** 2 / (weight[group] ** 2).sum() for group in groups]))
    ax.vlines(at, low, high, color=BLUE, linewidth=1.0, alpha=0.6)
    ax.plot(at, share, "o-", color=BLUE, markersize=4.5)
    return np.array([low, high])


def _wilson(share: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share of n rows."""
    z = 1.96
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return centre - half, centre + half


def draw_coverage(rows: EvaluatedRows, bounds: np.ndarray, n_bins: int, ax: Any) -> Any:
    """Draw the share of targets within their intervals, in groups of rows by the width of the interval.

    bounds : float64[n, 2].
    """
    n_bins, calibration = Integer(1).checked("n_bins", n_bins), rows.calibration
    assert calibration is not None
    width, middle = bounds[:, 1] - bounds[:, 0], bounds.mean(axis=1)
    is_inside = (rows.target >= bounds[:, 0]) & (rows.target <= bounds[:, 1])
    is_constant = np.ptp(width) <= 1e-9 * np.abs(bounds).max(initial=0.0)  # but for rounding
    weight = np.ones(len(width)) if rows.weight is None else rows.weight
    by = middle if is_constant else width
    order = np.argsort(by, kind="stable")
    groups = _groups(order[weight[order] > 0], weight, n_bins)
    with canvas.style():
        ax = canvas.axes_for(ax, height=3.6)
        ax.axhline(calibration.coverage, color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
        low, _ = _draw_shares(ax, is_inside, by, groups, weight)
        ax.set(
            xlabel="middle of the interval (all are equally wide)" if is_constant else "width of the interval",
            ylabel="share of targets within",
            ylim=(min(0.5, float(low.min())) - 0.02, 1.02),
        )
        total = float(np.average(is_inside, weights=weight))
        canvas.title(ax, f"Coverage ({100 * total:.1f} % of the rows, asked for {number(100 * calibration.coverage)} %)")
        ax.grid()
    return ax


def draw_lift(rows: EvaluatedRows, output: Any, ax: Any) -> Any:
    """Draw the fraction of a class that is found over the fraction of rows, the most probable rows first."""
    is_class, probability, label = rows.of_class(output)
    weight = np.ones(len(is_class)) if rows.weight is None else rows.weight
    order = np.argsort(-probability, kind="stable")
    cumulative = np.concatenate([[0.0], np.cumsum((is_class * weight)[order])])
    examined = np.concatenate([[0.0], np.cumsum(weight[order])])
    rate = float(cumulative[-1] / examined[-1]) if examined[-1] else 1.0
    examined, recall = examined / (examined[-1] or 1.0), cumulative / (cumulative[-1] or 1.0)
    with canvas.style():
        ax = canvas.axes_for(ax, height=3.6)
        ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
        ax.plot([0, rate, 1], [0, 1, 1], color=FAINT, linewidth=1.2)
        keep = np.unique(np.round(np.linspace(0, len(examined) - 1, 400)).astype(np.int64))
        ax.plot(examined[keep], recall[keep], color=BLUE)
        tenth = float(np.interp(0.1, examined, recall))
        ax.plot(0.1, tenth, "o", color=VERMILION, markersize=5, zorder=4)
        text = f"the first tenth of the rows\nholds {100 * tenth:.0f} % of them: lift {tenth / 0.1:.1f}"
        style = {"fontsize": 8.5, "color": VERMILION, "bbox": canvas.box(ax)}
        if tenth > 0.25:
            canvas.note(ax, text, (0.1, tenth), (10, -5), va="top", **style)
        else:  # between the dashes and the axis
            canvas.note(ax, text, (0.1, tenth), (0.28, 0.04), va="bottom", textcoords="data", **style)
        ax.set(
            xlabel="share of rows, most probable first\n(grey: perfect order; dashes: none)",
            ylabel=f"share of {canvas.short(str(label))} found",
            xlim=(0, 1),
            ylim=(0, 1.02),
        )
        canvas.title(ax, f"Lift of {_subject(rows, label, output)}")
        ax.grid()
    return ax


def draw_roc(rows: EvaluatedRows, labels: Sequence[Any], ax: Any) -> Any:
    """Draw the share of a class that is found over the share of other rows that is taken for it, a line for each class."""
    with canvas.style():
        ax = canvas.axes_for(ax, height=3.6)
        ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
        areas = []
        for i, label in enumerate(labels):
            hits, others = _found(*rows.of_class(label)[:2], rows.weight)
            hits, others = hits / (hits[-1] or 1.0), others / (others[-1] or 1.0)
            areas.append(float(np.trapezoid(hits, others)))
            keep = _few(others, hits)
            ax.plot(others[keep], hits[keep], label=canvas.key(canvas.short(str(label))), **canvas.colour(i))
        ax.set(
            xlabel="false positive rate: share of other rows",
            ylabel="true positive rate: share found",
            xlim=(-0.01, 1.01),
            ylim=(-0.01, 1.01),
        )
        _curve_title(ax, "ROC curve", "area under it", areas, labels)
    return ax


def draw_precision_recall(rows: EvaluatedRows, labels: Sequence[Any], ax: Any) -> Any:
    """Draw the share of a class among the rows that are taken for it over the share of the class that is found."""
    with canvas.style():
        ax = canvas.axes_for(ax, height=3.6)
        precisions = []
        for i, label in enumerate(labels):
            hits, others = _found(*rows.of_class(label)[:2], rows.weight)
            recall, precision = hits[1:] / (hits[-1] or 1.0), hits[1:] / (hits + others)[1:]
            precisions.append(float(np.diff(recall, prepend=0.0) @ precision))
            keep, style = _few(recall, precision), canvas.colour(i)
            ax.axhline(hits[-1] / ((hits + others)[-1] or 1.0), color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
            ax.plot(recall[keep], precision[keep], label=canvas.key(canvas.short(str(label))), **style)
        ax.set(xlabel="recall: share found", ylabel="precision: share that is right", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        _curve_title(ax, "Precision and recall", "average precision", precisions, labels)
    return ax


def _found(is_class: np.ndarray, probability: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight of a class and of other rows among the most probable rows, for each distinct probability, from 0 on."""
    weight = np.ones(len(is_class)) if weight is None else weight
    is_weighed = weight > 0
    is_class, probability, weight = is_class[is_weighed], probability[is_weighed], weight[is_weighed]
    order = np.argsort(-probability, kind="stable")
    last = np.append(np.flatnonzero(np.diff(probability[order])), len(order) - 1)  # of rows of equal probability
    sums = (np.cumsum((weight * rows)[order])[last] for rows in (is_class, ~is_class))
    hits, others = (np.concatenate([[0.0], sum_]) for sum_ in sums)
    return hits, others


def _few(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return positions of at most some hundred points that show a curve of which x grows: evenly by x, and by position."""
    by_x = np.searchsorted(x, np.linspace(x[0], x[-1], 250)).clip(max=len(x) - 1)
    by_position = np.linspace(0, len(x) - 1, min(len(x), 250)).round().astype(np.int64)
    return np.unique(np.concatenate([by_x, by_position]))


def _curve_title(ax: Any, name: str, measure: str, values: list[float], labels: Sequence[Any]) -> None:
    """Write the measure of a curve into the title, or of several curves into the legend; add the grid."""
    texts = canvas.numbers(values)
    if len(labels) > 1:
        handles = ax.get_legend_handles_labels()[0]
        ax.legend(
            handles, [f"{canvas.short(str(label))}: {text}" for label, text in zip(labels, texts, strict=True)], loc="best"
        )
        canvas.title(ax, f"{name} (with the {measure})")
    else:
        canvas.title(ax, f"{name} of {canvas.short(str(labels[0]))} ({measure}: {texts[0]})")
    ax.grid()


def draw_confusion(rows: EvaluatedRows, ax: Any) -> Any:
    """Draw for each class how its rows were predicted: percent of the rows of the class, of at most `MAX_CLASSES` classes."""
    names, share = rows.confusion()
    n = len(names)
    shown = min(n, MAX_CLASSES)
    with canvas.style():
        labels = canvas.distinct(names[:shown])
        widths = [canvas.text_width(label, 8.5) for label in labels]
        is_turned = max(widths) > 72 * (canvas.WIDTH - 1.0 - max(widths) / 72) / shown - 4
        ax = canvas.axes_for(ax, height=1.3 + 0.42 * max(2, shown) + (max(widths) / 72 if is_turned else 0.0))
        ax.imshow(share[:shown, :shown], cmap=canvas.shades(), vmin=0, vmax=1, aspect="auto")
        for i, j in np.ndindex(shown, shown):
            unit = " %" if shown <= 6 else ""  # the title has it
            ax.text(j, i, f"{100 * share[i, j]:.0f}{unit}", ha="center", va="center", fontsize=8.5)
        ax.set_xticks(range(shown), labels, rotation=90 if is_turned else 0)
        ax.set_yticks(range(shown), labels)
        ax.set(xlabel="predicted", ylabel="true class")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        more = "" if shown == n else f", the first {shown} of {n} classes"
        canvas.title(ax, f"Confusion (percent of the true class{more})")
    return ax


def _density_colors() -> Any:
    """A color map of grey with increasing opacity, visible on white and on black."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    return LinearSegmentedColormap.from_list("density", [(*to_rgb(GREY), 0.06), (*to_rgb(GREY), 0.9)])


def draw_residuals(rows: EvaluatedRows, target: Any, ax: Any) -> Any:
    """Draw target minus prediction over the prediction: rows as a density, and quartiles in groups of equally many rows.

    target : the name of the target's column, or the targets.
    """
    truth, prediction = rows.truth_and_prediction()
    label = str(target) if Names(()).is_label(target) else "the target"
    residual = truth - prediction
    with canvas.style():
        ax = canvas.axes_for(ax, height=3.4)
        if len(truth) > 3000:
            ax.hexbin(prediction, residual, gridsize=45, bins="log", cmap=_density_colors(), linewidths=0, rasterized=True)
        else:
            ax.plot(prediction, residual, "o", color=GREY, markersize=2, alpha=0.4, markeredgewidth=0, rasterized=True)
        ax.axhline(0, color=GREY, linewidth=0.9)
        order = np.argsort(prediction, kind="stable")
        groups = [group for group in np.array_split(order, min(20, max(1, len(order) // 10))) if len(group)]
        at = [prediction[group].mean() for group in groups]
        low, middle, high = np.array([np.quantile(residual[group], (0.25, 0.5, 0.75)) for group in groups]).T
        ax.fill_between(at, low, high, color=BLUE, alpha=0.22, linewidth=0, label="middle half")
        ax.plot(at, middle, color=BLUE, label="median")
        ax.set(xlabel=f"prediction of {canvas.short(label)}", ylabel="target − prediction")
        canvas.title(ax, "Residuals")
        ax.grid(axis="y")
        ax.legend(loc="best")
    return ax
