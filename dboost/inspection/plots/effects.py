"""Plots of feature effects: importance as bars; partial dependence as lines, bars, surfaces, cells or panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dboost._lazy_import import pd
from dboost.errors import ParameterError
from dboost.inspection.plots import canvas
from dboost.inspection.plots.canvas import BLUE, FAINT, GREY
from dboost.model.ensemble import Ensemble
from dboost.params import Integer

#: Up to this number of points, each has a marker: they are probably codes.
FEW_POINTS = 12
#: Largest number of the model's outputs in a plot, and of panels or columns of levels.
MAX_OUTPUTS, MAX_PANELS = 12, 9


def plot_importance(importance: pd.Series | pd.DataFrame, max_features: int, ax: Any) -> Any:
    """Draw bars, the largest on top; with classes, each bar is the mean and the classes are markers on it."""
    max_features = Integer(1).checked("max_features", max_features)
    title = {"friedman": "Relative importance", "permutation": "Importance by permutation"}
    kind = importance.attrs.get("kind", "friedman")
    by_class = importance if isinstance(importance, pd.DataFrame) else None
    values = importance.mean(axis=1) if isinstance(importance, pd.DataFrame) else importance
    shown = values.iloc[:max_features][::-1]
    with canvas.style():
        height = 0.75 + 0.235 * max(3, len(shown))
        n_outputs = 1 if by_class is None else by_class.shape[1]
        ax = canvas.axes_for(ax, height=max(height, _key_height(n_outputs)))
        y = np.arange(len(shown))
        ax.barh(y, shown.to_numpy(), color=BLUE, height=0.62, alpha=1.0 if by_class is None else 0.35)
        if by_class is not None:
            markers = "o^sDvP*X"
            for k, name in enumerate(by_class.columns[:MAX_OUTPUTS]):
                class_importance = by_class.loc[shown.index, name]
                style = {"color": canvas.CYCLE[k % len(canvas.CYCLE)], "marker": markers[k % len(markers)]}
                ax.plot(
                    class_importance,
                    y,
                    linestyle="none",
                    markersize=4.5,
                    clip_on=False,
                    label=canvas.key(canvas.short(name)),
                    **style,
                )
            canvas.legend_beside(ax, _key_title(by_class.columns.name, n_outputs))
        elif len(shown):
            for i, value in enumerate(shown.to_numpy().tolist()):
                canvas.note(ax, f"{value:z.0f}".replace("-", "−"), (max(value, 0), i), (3, 0), color=GREY)
        ax.set_yticks(y, canvas.distinct(shown.index))
        left = values.shape[0] - len(shown)
        more = f" (the {len(shown)} largest of {values.shape[0]})" if left else ""
        canvas.title(ax, title.get(kind, f"Importance by {kind}") + more)
        measure = "root of the gain by splits, " if kind == "friedman" else ""
        ax.set_xlabel(f"{measure}percent of the largest" + (", per class" if by_class is not None else ""))
        ax.set_xlim(min(0.0, float(shown.min()) * 1.05 if len(shown) else 0.0), 108)
        ax.set_ylim(-0.6, max(3, len(shown)) - 0.4)
        canvas.bars(ax)
    return ax


def plot_partial_dependence(ensemble: Ensemble, table: pd.DataFrame, ax: Any) -> Any:
    """Draw a table of `partial_dependence`; return the axes, or an array of them for panels."""
    names = table.attrs["features"]
    label = canvas.plain(canvas.score_label(ensemble, table.attrs["scale"], table.attrs["centered"]))
    with canvas.style():
        if len(names) == 1:
            title = f"{_kind_title(table)} on {canvas.short(_user_name(names[0]), 32)}"
            if _is_numeric(table[names[0]]):
                ax = canvas.axes_for(ax, height=max(3.0, _key_height(_n_outputs(table))))
                _curve(ax, table, names[0], label)
            else:
                shown = _with_levels(table, names[0], canvas.MAX_LEVELS)
                ax = canvas.axes_for(ax, height=max(_bars_height(shown, names[0]), _key_height(_n_outputs(table))))
                _bars(ax, shown, names[0], label)
                title += _more(shown, names[0])
            canvas.title(ax, title)
            return ax
        if table.attrs["kind"] == "individual":
            raise ParameterError("individual curves are drawn for one feature: ask for two of them one after the other")
        numeric = [_is_numeric(table[name]) for name in names]
        if all(numeric) and _axis(table) is None:
            ax = canvas.axes_for(ax, height=3.7)
            _surface(ax, table, names, label)
            canvas.title(ax, f"{_kind_title(table)} on {' and '.join(canvas.short(_user_name(name), 20) for name in names)}")
            return ax
        if not any(numeric) and _axis(table) is None:
            return _cells(ax, table, names, label)
        if ax is not None:
            raise ParameterError("this plot has several panels and creates its own axes: leave ax out")
        return _classes(table, names, label) if all(numeric) else _panels(table, names, numeric, label)


def share_values(drawn: Sequence[Any], is_numeric: Sequence[bool]) -> None:
    """Give plots of the dependence on one feature the same limits of values, so that the sizes of effects can be compared."""
    limits = [ax.get_ylim() if numeric else ax.get_xlim() for ax, numeric in zip(drawn, is_numeric, strict=True)]
    low, high = min(map(min, limits)), max(map(max, limits))
    for ax, numeric in zip(drawn, is_numeric, strict=True):
        (ax.set_ylim if numeric else ax.set_xlim)(low, high)


def _kind_title(table: pd.DataFrame) -> str:
    return {"conditional": "Conditional mean", "individual": "Dependence, row by row,"}.get(table.attrs["kind"], "Dependence")


def _user_name(column: str) -> str:
    """The feature's own name."""
    return column.removeprefix("feature ")


def _label(column: str) -> str:
    """The feature's name beside an axis."""
    return canvas.short(_user_name(column), 40)


def _is_numeric(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column)) and not pd.api.types.is_bool_dtype(column)


def _by_class(table: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    """Return the rows of each output, of at most `MAX_OUTPUTS`."""
    axis = _axis(table)
    if axis is None:
        return [(None, table)]
    return [(name, table[table[axis] == name]) for name in table[axis].unique()[:MAX_OUTPUTS]]


def _n_outputs(table: pd.DataFrame) -> int:
    axis = _axis(table)
    return 1 if axis is None else table[axis].nunique()


def _key_title(axis: Any, n_outputs: int) -> str:
    """Return the title of a legend: what the outputs are, and how many of them are drawn if these are not all."""
    return str(axis) if n_outputs <= MAX_OUTPUTS else f"{axis}\n(first {MAX_OUTPUTS} of {n_outputs})"


def _axis(table: pd.DataFrame) -> str | None:
    """The column with the names of the model's outputs, see `Outputs.axis`; None of a single output."""
    return next(
        (name for name in ("class", "output", "quantile") if name in table and name not in table.attrs["features"]), None
    )


def _curve(ax: Any, table: pd.DataFrame, name: str, label: str, legend: bool = True) -> None:
    """Draw lines over a numeric feature, with its deciles inside the axis."""
    groups = _by_class(table)
    for i, (class_name, part) in enumerate(groups):
        present = part[part[name].notna() & part["value"].notna()]
        style, mean_text = canvas.colour(i), None
        if "row" in present:
            for _, curve in present.groupby("row"):
                ax.plot(curve[name], curve["value"], color=style["color"], linewidth=0.5, alpha=_faintness(present), zorder=1)
            present = present.groupby(name, as_index=False)["value"].mean()
            style["linewidth"] = 2.6
            mean_text = "mean of the rows"
        marker = "o" if len(present) <= FEW_POINTS else None
        text = mean_text if class_name is None else canvas.key(canvas.short(class_name))
        ax.plot(present[name], present["value"], marker=marker, markersize=4, label=text, zorder=3, **style)
        missing = part[part[name].isna()]
        if len(missing):
            text = None if len(groups) > 1 else "missing"
            ax.axhline(missing["value"].mean(), color=style["color"], linewidth=0.9, linestyle=(0, (1, 2)), label=text)
    _rug(ax, table, name, "x")
    ax.set_xlabel(_label(name))
    canvas.y_label(ax, label)
    ax.grid(axis="y")
    _number_codes(ax.xaxis, table[name])
    if legend and ax.get_legend_handles_labels()[0]:
        if len(groups) > 1:
            title = _key_title(_axis(table), _n_outputs(table))
            canvas.legend_beside(ax, f"{title}\n(dots: missing)" if table[name].isna().any() else title)
        else:
            ax.legend(loc="best")


def _number_codes(axis: Any, values: pd.Series) -> None:
    """Let the ticks of an axis be whole numbers if its few values are: they are probably codes."""
    present = values.dropna().unique()
    if len(present) <= FEW_POINTS and (present == np.round(present)).all():
        axis.get_major_locator().set_params(integer=True)


def _faintness(curves: pd.DataFrame) -> float:
    return float(np.clip(12 / max(1, curves["row"].nunique()), 0.06, 0.5))


def _rug(ax: Any, table: pd.DataFrame, name: str, axis: str) -> None:
    """Draw short lines at the deciles of the data, inside the axis."""
    deciles = table.attrs["deciles"].get(_user_name(name), [])
    if deciles:
        transform = ax.get_xaxis_transform() if axis == "x" else ax.get_yaxis_transform()
        for decile in deciles:
            ends: tuple[Any, Any] = ([decile, decile], [0.0, 0.03])
            for colour, width in ((ax.get_facecolor(), 2.2), (canvas.ink(ax), 0.9)):
                ax.plot(*(ends if axis == "x" else ends[::-1]), transform=transform, color=colour, linewidth=width, zorder=4)


def _by_effect(table: pd.DataFrame, name: str) -> list[Any]:
    """Return the levels of a feature in the order of their values."""
    effects = table["value"].groupby([None if _missing(level) else level for level in table[name]], dropna=False).mean()
    return [None if _missing(level) else level for level in effects.sort_values().index]


def _bars(ax: Any, table: pd.DataFrame, name: str, label: str, legend: bool = True, levels: list[Any] | None = None) -> None:
    """Draw bars from the mean over the levels to the value of each level; with classes, markers.

    levels : from the lowest line on, which panels share. Default: the largest value on top.
    """
    levels = _by_effect(table, name) if levels is None else levels
    y = np.arange(len(levels))
    groups = _by_class(table)
    markers = "o^sDvP*X"
    for i, (class_name, part) in enumerate(groups):
        level_means = part["value"].groupby([None if _missing(v) else v for v in part[name]], dropna=False, sort=False).mean()
        values = np.array([level_means.iloc[_position(level_means, level)] for level in levels])
        centre = float(np.nanmean(values))
        if class_name is None:
            ax.barh(y, values - centre, left=centre, height=0.62, color=BLUE)
            ax.axvline(centre, color=GREY, linewidth=0.8)
        else:
            style = {"color": canvas.CYCLE[i % len(canvas.CYCLE)], "marker": markers[i % len(markers)]}
            ax.plot(values, y, linestyle="none", markersize=5, label=canvas.key(canvas.short(class_name)), **style)
            ax.axvline(centre, color=style["color"], linewidth=0.6, linestyle=(0, (1, 2)))
    ax.set_yticks(y, canvas.distinct(levels))
    canvas.x_label(ax, label)  # the title has the name of the feature
    ax.set_ylim(-0.6, max(2, len(levels)) - 0.4)
    ax.margins(x=0.06)
    canvas.bars(ax)
    if len(groups) > 1 and legend:
        canvas.legend_beside(ax, _key_title(_axis(table), _n_outputs(table)))


def _missing(level: Any) -> bool:
    return level is None or (isinstance(level, float) and level != level)


def _position(of_level: pd.Series, level: Any) -> int:
    return next(i for i, value in enumerate(of_level.index) if (_missing(value) and level is None) or value == level)


def _bars_height(table: pd.DataFrame, name: str) -> float:
    return 0.95 + 0.235 * max(2, table[name].nunique(dropna=False))


def _key_height(n_outputs: int) -> float:
    """Return the height that a legend of the outputs needs in inches, with its title; 0 without one."""
    return 0.0 if n_outputs == 1 else 1.15 + 0.2 * (min(n_outputs, MAX_OUTPUTS) + (n_outputs > MAX_OUTPUTS))


def _surface(ax: Any, table: pd.DataFrame, names: list[str], label: str) -> Any:
    """Draw a color mesh over two numeric features, not interpolated: trees are piecewise constant."""
    present = table.dropna(subset=names)
    grid = present.pivot_table(index=names[1], columns=names[0], values="value", dropna=False)
    mesh = ax.pcolormesh(
        _borders(grid.columns.to_numpy(np.float64)), _borders(grid.index.to_numpy(np.float64)), grid.to_numpy(),
        cmap=canvas.SURFACE, rasterized=True,
    )  # fmt: skip
    ax.set(xlabel=_label(names[0]), ylabel=_label(names[1]), facecolor=FAINT)
    limits = ax.get_xlim(), ax.get_ylim()
    _rug(ax, table, names[0], "x")
    _rug(ax, table, names[1], "y")
    ax.set(xlim=limits[0], ylim=limits[1])
    _number_codes(ax.xaxis, table[names[0]])
    _number_codes(ax.yaxis, table[names[1]])
    canvas.colorbar(mesh, ax, label=label, pad=0.02)
    return mesh


def _cells(ax: Any, table: pd.DataFrame, names: list[str], label: str) -> Any:
    """Draw two categorical features as a table: the one of more levels as rows, the largest value on top and on the right."""
    down, across = sorted(names, key=lambda name: -table[name].nunique(dropna=False))
    shown = _with_levels(_with_levels(table, down, canvas.MAX_LEVELS), across, MAX_PANELS)
    rows, columns = (_by_effect(shown, name) for name in (down, across))
    values = np.full((len(rows), len(columns)), np.nan)
    places = (rows.index(None if _missing(level) else level) for level in shown[down])
    for i, level, value in zip(places, shown[across], shown["value"], strict=True):
        values[i, columns.index(None if _missing(level) else level)] = value
    names_across = canvas.distinct(columns)
    width = max(canvas.WIDTH, 2.0 + 0.62 * len(columns))
    is_turned = max(canvas.text_width(name, 8.5) for name in names_across) > 72 * (width - 2.0) / len(columns) - 6
    height = 1.1 + 0.26 * max(2, len(rows)) + (1.4 if is_turned else 0.0)
    ax = canvas.axes_for(ax, height=height, width=width)
    ax.imshow(values, cmap=canvas.shades(), aspect="auto", origin="lower")
    texts, unit = canvas.in_unit(values.ravel().tolist())
    for (i, j), text in zip(np.ndindex(values.shape), texts, strict=True):
        if not np.isnan(values[i, j]):
            ax.text(j, i, text, ha="center", va="center", fontsize=8)
    ax.set_xticks(range(len(columns)), names_across, rotation=90 if is_turned else 0)
    ax.set_yticks(range(len(rows)), canvas.distinct(rows))
    canvas.x_label(ax, f"{_label(across)}\n(cells: {label}{f', {unit}' if unit else ''})")
    canvas.y_label(ax, _label(down))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    most_frequent = [_more(shown, name).removeprefix(", ") for name in names]
    texts = [
        canvas.short(_user_name(name), 30) + (f" ({text})" if text else "")
        for name, text in zip(names, most_frequent, strict=True)
    ]
    canvas.title(ax, f"{_kind_title(table)} on {' and '.join(texts)}")
    return ax


def _borders(values: np.ndarray) -> np.ndarray:
    if len(values) == 1:
        return np.array([values[0] - 0.5, values[0] + 0.5])
    middles = (values[1:] + values[:-1]) / 2
    return np.concatenate([[2 * values[0] - middles[0]], middles, [2 * values[-1] - middles[-1]]])


def _classes(table: pd.DataFrame, names: list[str], label: str) -> Any:
    """Draw one surface per class, or other output."""
    groups = _by_class(table)
    grid = _grid(len(groups), 2.9)
    for ax, (class_name, part) in zip(grid, groups, strict=True):
        part.attrs = table.attrs
        _surface(ax, part, names, label)
        size = canvas.STYLE["axes.labelsize"]
        ax.set_xlabel(canvas.fitting(_user_name(names[0]), _PANEL_WIDTH, size))
        ax.set_ylabel(canvas.fitting(_user_name(names[1]), _PANEL_WIDTH, size))
        ax.set_title(
            canvas.wrapped(f"{_axis(table)} {canvas.short(class_name)}", _PANEL_WIDTH, _PANEL_TITLE, "bold"), size=_PANEL_TITLE
        )
    if _n_outputs(table) > len(groups):
        noun = {"class": "classes"}.get(str(_axis(table)), f"{_axis(table)}s")
        _headline(grid, f"{_kind_title(table)}, the first {len(groups)} of {_n_outputs(table)} {noun}")
    return grid


def _panels(table: pd.DataFrame, names: list[str], numeric: list[bool], label: str) -> Any:
    """Draw a categorical feature × another: one panel for each of the most frequent levels, with shared axes.

    The grey line is the mean of the panels.
    """
    split, second = (names[0], names[1]) if not numeric[0] else (names[1], names[0])
    is_numeric = _is_numeric(table[second])
    if not is_numeric:
        table = _with_levels(table, second, canvas.MAX_LEVELS)
    table = _with_levels(table, split, MAX_PANELS)
    shown = _frequent(table, split)
    texts = _panel_titles(_user_name(split), shown)
    height = (2.1 if is_numeric else _bars_height(table, second)) + 0.15 * max(text.count("\n") for text in texts)
    keys = [canvas.short(class_name) for class_name, _ in _by_class(table) if class_name is not None]
    beside = 0.7 + max(canvas.text_width(text, 8.5) for text in keys) / 72 if keys else 0.0
    grid = _grid(len(shown), height, least=_key_height(_n_outputs(table)), beside=beside, sharex=True, sharey=True)
    n_columns = grid[0].get_subplotspec().get_gridspec().ncols
    parts = [table[table[split].isna()] if level is None else table[table[split] == level] for level in shown]
    for i, (ax, part, text) in enumerate(zip(grid, parts, texts, strict=True)):
        part.attrs = table.attrs
        if is_numeric:
            _curve(ax, part, second, label, legend=False)
            if _axis(table) is None:
                mean = pd.concat(parts).groupby(second)["value"].mean()
                ax.plot(mean.index, mean, color=canvas.DOTS, linewidth=1.0, zorder=2)
        else:
            _bars(ax, part, second, label, legend=False, levels=_by_effect(table, second))
        ax.set_title(text, fontsize=_PANEL_TITLE)
        # The lowest panel of a column shows the axis's numbers, even if it is not in the last row.
        if i + n_columns < len(shown):
            ax.set_xlabel("")
        else:
            ax.tick_params(labelbottom=True)
            ax.set_xlabel(canvas.fitting(canvas.unescaped(ax.get_xlabel()), _PANEL_WIDTH, canvas.STYLE["axes.labelsize"]))
        if i % n_columns:
            ax.set_ylabel("")
        elif is_numeric:
            ax.set_ylabel(canvas.wrapped(label, 0.6 * 72 * height, canvas.STYLE["axes.labelsize"]))
    handles, texts = grid[0].get_legend_handles_labels()
    if _axis(table) is not None:
        title = _key_title(_axis(table), _n_outputs(table))
        grid[0].figure.legend(handles, texts, title=title, loc="outside right center", title_fontsize=8.5)
    user_names = [canvas.short(_user_name(name), 30) for name in (second, split)]
    _headline(grid, f"{_kind_title(table)} on {user_names[0]} by {user_names[1]}{_more(table, split)}")
    return grid


def _panel_titles(name: str, levels: list[Any]) -> list[str]:
    """Return the titles of the panels of levels: with the name of the feature if there is room in one line for all."""
    texts = [canvas.short(level, 48) for level in levels]
    whole = [f"{canvas.plain(name)} = {text}" for text in texts]
    if max(canvas.text_width(text, _PANEL_TITLE, "bold") for text in whole) <= _PANEL_WIDTH:
        return whole
    return [canvas.wrapped(text, _PANEL_WIDTH, _PANEL_TITLE, "bold") for text in texts]


#: Font size of the titles of panels, and their width in points.
_PANEL_TITLE, _PANEL_WIDTH = 8.5, 125.0


def _headline(grid: np.ndarray, text: str) -> None:
    """Write a title above the panels of a figure."""
    size, weight = canvas.STYLE["axes.titlesize"], canvas.STYLE["axes.titleweight"]
    width = 66.0 * grid[0].figure.get_figwidth()
    grid[0].figure.suptitle(canvas.wrapped(text, width, size, weight), x=0.01, ha="left", fontsize=size, fontweight=weight)


def _with_levels(table: pd.DataFrame, name: str, most: int) -> pd.DataFrame:
    """Return the part of a table that has the most frequent levels of a feature."""
    levels = _frequent(table, name)[:most]
    if len(levels) == table[name].nunique(dropna=False):
        return table
    shown = table[[(None if _missing(level) else level) in levels for level in table[name]]]
    counts = dict(zip(map(str, table[name].unique()), table.attrs["counts"].get(_user_name(name), []), strict=False))
    shown.attrs = table.attrs | {
        "counts": table.attrs["counts"] | {_user_name(name): [counts[str(level)] for level in shown[name].unique() if counts]},
        "levels": table.attrs["levels"] | {_user_name(name): _n_levels(table, name)},
    }
    return shown


def _n_levels(table: pd.DataFrame, name: str) -> int:
    """Return the number of levels that a feature has, which a table may not show all."""
    return max(table.attrs["levels"].get(_user_name(name), 0), table[name].nunique(dropna=False))


def _more(table: pd.DataFrame, name: str) -> str:
    """Return what a title says if a table has the most frequent levels of a feature only."""
    n, n_levels = table[name].nunique(dropna=False), _n_levels(table, name)
    if n == n_levels:
        return ""
    is_counted = any(table.attrs["counts"].get(_user_name(name), ()))
    return f", the {n} most frequent of {n_levels}" if is_counted else f", the first {n} of {n_levels}"


def _frequent(table: pd.DataFrame, name: str) -> list[Any]:
    """Return the levels of a feature in a table of two features, the most frequent first."""
    levels = [None if _missing(level) else level for level in table[name].unique()]
    counts = table.attrs["counts"].get(_user_name(name), [])
    if len(counts) != len(levels):
        return levels
    return [levels[i] for i in np.argsort(-np.array(counts), kind="stable")]


def _grid(n: int, height: float, least: float = 0.0, beside: float = 0.0, **how: Any) -> np.ndarray:
    """Return axes of n panels. height : of each in inches; least : of the figure; beside : width of what is beside them."""
    n_columns = min(n, 3 if n > 4 else 2)
    n_rows = -(-n // n_columns)
    size = {"width": max(canvas.WIDTH, 2.6 * n_columns) + beside, "height": max(height * n_rows + 0.3, least)}
    grid = canvas.new_axes(n_rows, n_columns, **size, **how)
    for ax in grid.ravel()[n:]:
        ax.remove()
    axes: np.ndarray = grid.ravel()[:n]
    for ax in axes:
        ax.locator_params(axis="x", nbins=2 if n_columns > 1 else 5)
    return axes
