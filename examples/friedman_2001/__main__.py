"""Command-line entry point: ``python -m examples.friedman_2001 --targets 100 --output friedman_2001``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rich.progress import Progress

from examples.friedman_2001 import marketing, pictures, report
from examples.friedman_2001.experiments import EXPERIMENTS, QUICK, Sizes


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.friedman_2001", description="Friedman's simulation study.")
    parser.add_argument("--targets", type=int, default=100, metavar="N", help="random targets per experiment (default: 100)")
    parser.add_argument("--only", nargs="+", choices=list(EXPERIMENTS), default=list(EXPERIMENTS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a few rows and trees, to check that everything runs")
    parser.add_argument("--marketing", type=Path, metavar="FILE", help="the demographic data as Parquet")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("friedman_2001"), metavar="FOLDER")
    options = parser.parse_args(argv)
    if options.targets < 1:
        parser.error("--targets must be at least 1")
    if options.marketing is not None and not options.marketing.is_file():
        parser.error(f"there is no file {options.marketing}")
    options.output.mkdir(parents=True, exist_ok=True)

    results: dict[str, pd.DataFrame] = {}
    text = ""
    with Progress() as progress:
        for name in options.only:
            errors = []
            for k in progress.track(range(options.targets), description=name):
                # A function of seed, experiment and target only, so that an experiment can run without the others.
                rng = np.random.default_rng([options.seed, list(EXPERIMENTS).index(name), k])
                errors.append(EXPERIMENTS[name].run(rng, QUICK if options.quick else Sizes()))
                results[name] = pd.DataFrame(errors)
                text = _write(results, options.output, {})
    text = _write(results, options.output, {name: pictures.boxes(name, of, options.output) for name, of in results.items()})
    if options.marketing is not None:
        importance, curves = marketing.curves(options.marketing, options.seed)
        text += f"\n## Demographic data\n\n{report.marketing(marketing.errors(options.marketing, options.seed))}\n\n"
        text += report.table(("", "relative importance"), [(name, f"{value:.0f}") for name, value in importance.items()])
        text += f"\n\n![partial dependence]({pictures.dependence(curves, options.output)})\n"
        (options.output / "report.md").write_text(text)
    print(text)


def _write(results: dict[str, pd.DataFrame], folder: Path, drawn: dict[str, str]) -> str:
    """Write the report of the targets done so far, so that an interrupted run leaves a report."""
    text = report.markdown(results, drawn)
    (folder / "report.md").write_text(text)
    errors = {name: of.to_dict("list") for name, of in results.items()}
    (folder / "errors.json").write_text(json.dumps(errors, indent=1) + "\n")
    return text


if __name__ == "__main__":
    main()
