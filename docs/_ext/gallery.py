"""Draw the plots of the gallery from synthetic rows when the documentation is built."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sphinx.application import Sphinx
from sphinx.util import logging

MARKETING = Path(__file__).parent.parent.parent.parent / "shared" / "data" / "marketing" / "marketing.parquet"
logger = logging.getLogger(__name__)


def homes(n: int = 3000, seed: int = 0) -> pd.DataFrame:
    """Return synthetic homes whose price depends on an interaction of size and age, and on the town."""
    rng = np.random.default_rng(seed)
    size, age, distance = rng.gamma(6.0, 20.0, n), rng.uniform(0, 80, n), rng.exponential(4.0, n)
    town = rng.choice(["Aalst", "Brugge", "Gent", "Namur"], n, p=[0.2, 0.3, 0.4, 0.1])
    worth = {"Aalst": 0.0, "Brugge": 40.0, "Gent": 60.0, "Namur": -20.0}
    price = 2.0 * size * (1.0 - 0.3 * np.tanh((age - 30) / 10)) - 5.0 * distance + np.array([worth[t] for t in town])
    price += rng.normal(0, 25, n)
    distance[rng.random(n) < 0.1] = np.nan
    return pd.DataFrame({"size": size, "age": age, "distance": distance, "town": pd.Categorical(town), "price": price})


def draw(folder: Path) -> list[str]:
    """Draw all plots into `folder` and return their names."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    import dboost

    folder.mkdir(parents=True, exist_ok=True)
    data, held_out = homes(), homes(1000, seed=1)
    booster = dboost.fit(data, "price", eval_set=held_out, max_iter=120, early_stopping_rounds=20, progress=False)
    dear = data["price"] > data["price"].median()
    classes = dboost.fit(data.drop(columns="price"), dear, max_iter=40, progress=False)
    rows = held_out.drop(columns="price")
    small = dboost.fit(data, "price", max_iter=1, max_leaf_nodes=6, learning_rate=1.0, progress=False)
    calibrated = booster.calibrate(homes(1000, seed=2), "price", by="town")
    pictures: dict[str, Any] = {
        "importance": lambda: booster.plot_importance(),
        "history": lambda: booster.plot_history(),
        "dependence": lambda: booster.plot_partial_dependence(rows, "size"),
        "individual": lambda: booster.plot_partial_dependence(rows.iloc[:60], "age", kind="individual", centered=True),
        "two": lambda: booster.plot_partial_dependence(["size", "age"]),
        "town": lambda: booster.plot_partial_dependence(rows, "town"),
        "summary": lambda: booster.plot_shap_summary(rows.iloc[:400]),
        "scatter": lambda: booster.plot_shap_dependence(rows.iloc[:400], "size"),
        "waterfall": lambda: booster.plot_waterfall(rows, 3),
        "tree": lambda: small.plot_tree(0),
        "residuals": lambda: booster.plot_residuals(rows, held_out["price"]),
        "coverage": lambda: calibrated.plot_coverage(rows, held_out["price"], n_bins=5),
        "calibration": lambda: classes.plot_calibration(rows, held_out["price"] > data["price"].median()),
    }
    if MARKETING.exists():
        pictures["marketing"] = lambda: _marketing().plot_importance()
    for name, picture in pictures.items():
        axes = picture()
        first = axes if hasattr(axes, "figure") else np.ravel(axes)[0]
        first.figure.savefig(folder / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
        plt.close("all")
    return list(pictures)


def _marketing() -> Any:
    """Fit the example of Friedman (2001): income predicted from thirteen answers, many of them missing."""
    import dboost

    table = pd.read_parquet(MARKETING)
    return dboost.fit(table, table.columns[0], loss="absolute_error", max_iter=60, progress=False)


def make(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "_generated"
    done, drawn_by = folder / "done", hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    if not done.exists() or done.read_text() != drawn_by:  # or this file has changed
        names = draw(folder)
        done.write_text(drawn_by)
        logger.info("drew %d plots", len(names))


def add_marketing(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the plot of the paper's example to the gallery if its table was available."""
    if page == "gallery" and (Path(app.srcdir) / "_generated" / "marketing.svg").exists():
        source[0] += "\n## The example of Friedman (2001): predictors of income\n\n![Importance](_generated/marketing.svg)\n"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", make)
    app.connect("source-read", add_marketing)
    return {"parallel_read_safe": True}
