"""``python -m benchmarks.readme_pictures [FOLDER]``: draw the pictures of the README (default folder: ``docs/pictures``).

``terminal.svg`` shows a real fit: commands run in a pseudo-terminal, and its screen at the end is drawn. ``summary.svg`` plots
the Shapley values of a model of a table that is part of scikit-learn. `TWICE` names the pictures that have a second file in
the colors of dark color schemes. The badges show what ``pyproject.toml`` states. No
picture loads anything from other hosts.
"""

from __future__ import annotations

import argparse
import errno
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd

COLUMNS, LINES = 96, 40
COMMANDS = (
    "dboost train trips/ --target minutes --eval june.parquet --set max_iter=200",
    "dboost inspect model.json --importance",
)


#: Pictures that the README shows in other colors in dark color schemes: ``NAME_dark.svg``.
TWICE = ("summary", "headline")

#: Width of a character and margins of a badge, in pixels.
CHARACTER, MARGIN = 6.6, 12


def badges() -> dict[str, str]:
    """Return the badges as SVG, by the names of their files: what the package declares, and what the tests compare with it."""
    from dboost.version import __version__

    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = [found[1] for line in project["classifiers"] if (found := re.fullmatch(r".* Python :: (3\.\d+)", line))]
    shown = {"python": " | ".join(pythons), "license": project["license"], "version": __version__}
    return {f"badge_{label}.svg": _badge(label, text) for label, text in shown.items()}


def _badge(label: str, text: str) -> str:
    left, right = (round(len(part) * CHARACTER) + MARGIN for part in (label, text))
    texts = "".join(
        f'  <text x="{x:g}" y="14" text-anchor="middle" textLength="{width - MARGIN}">{part}</text>\n'
        for x, width, part in ((left / 2, left, label), (left + right / 2, right, text))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{label}: {text}">\n'
        f'  <rect width="{left}" height="20" fill="#4b5563"/>\n'
        f'  <rect x="{left}" width="{right}" height="20" fill="#0072b2"/>\n'
        f'  <g fill="#ffffff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">\n{texts}  </g>\n'
        "</svg>\n"
    )


def write_trips(folder: Path) -> None:
    """Write synthetic taxi trips: five months to train on, and one to evaluate."""
    (folder / "trips").mkdir()
    for k, name in enumerate(("jan", "feb", "mar", "apr", "may", "june")):
        rng = np.random.default_rng(k)
        n = 200_000
        trips = pd.DataFrame({"hour": rng.integers(0, 24, n), "weekday": rng.integers(0, 7, n), "km": rng.gamma(2.0, 1.5, n)})
        trips["zone"] = pd.Categorical(rng.choice(["airport", "center", "harbor", "north", "south"], n))
        rush = np.where((trips["weekday"] < 5) & trips["hour"].isin((8, 9, 17, 18)), 1.7, 1.0)
        slow = trips["zone"].map({"airport": 0.8, "center": 1.6, "harbor": 1.2, "north": 1.0, "south": 1.0}).astype(float)
        trips["minutes"] = 3 + 2.6 * trips["km"] * rush * slow * rng.lognormal(0, 0.15, n)
        trips.to_parquet(folder / ("june.parquet" if name == "june" else f"trips/{name}.parquet"))


def run_in_terminal(command: str, folder: Path) -> str:
    """Run a command in a pseudo-terminal; return everything that it wrote."""
    import pty
    import termios

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (LINES, COLUMNS))
    root = Path(__file__).parent.parent
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(root)}
    arguments = [sys.executable, "-m", *shlex.split(command)]
    child = subprocess.Popen(arguments, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    while True:
        try:
            some = os.read(ours, 2**16)
        except OSError as error:  # Linux: the other end is closed
            if error.errno != errno.EIO:
                raise
            break
        if not some:
            break
        written += some
    os.close(ours)
    if child.wait():
        raise RuntimeError(f"{command} ended with {child.returncode}:\n{written.decode()}")
    return written.decode()


def screen(written: str) -> list[str]:
    """Return the lines on the screen at the end, with the codes of their colors.

    Of a terminal's commands only those are known that progress bars use: return, erase a line, cursor up. Others are ignored.
    """
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r\n|[\r\n]|[^\x1b\r\n]+", written):
        if token in ("\n", "\r\n"):
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r" or token.endswith("K"):
            lines[row] = ""
        elif token.endswith("A") and token.startswith("\x1b"):
            row = max(row - int(token[2:-1] or 1), 0)
        elif not token.startswith("\x1b") or token.endswith("m"):
            lines[row] += token
    return lines


def draw_terminal(path: Path) -> None:
    from rich.console import Console
    from rich.text import Text

    with tempfile.TemporaryDirectory() as folder:
        write_trips(Path(folder))
        for command in COMMANDS:  # the first run of a process compiles kernels, which is not shown
            run_in_terminal(command, Path(folder))
        (Path(folder) / "model.json").unlink()
        shown = [(command, screen(run_in_terminal(command, Path(folder)))) for command in COMMANDS]
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        for command, lines in shown:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")), highlight=False)
            for line in "\n".join(lines).strip("\n").split("\n"):
                console.print(Text.from_ansi(line), highlight=False)
        svg = console.export_svg(title="dboost", unique_id="dboost")
    # Rich's own fonts are at another host.
    svg = re.sub(r"@font-face \{[^}]*\}", "", svg).replace("font-family: Fira Code, monospace", "font-family: monospace")
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n", encoding="utf-8")


def draw_summary(path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from sklearn.datasets import load_breast_cancer

    import dboost

    table = load_breast_cancer(as_frame=True).frame
    booster = dboost.fit(table[::2], "target", max_iter=50, progress=False)
    booster.plot_shap_summary(table[1::2], max_features=9)
    plt.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close("all")


def dark(svg: str) -> str:
    """Return a picture in the colors that the documents have in dark color schemes."""
    path = Path(__file__).parent.parent / "docs" / "_ext" / "dark_figures.py"
    spec = importlib.util.spec_from_file_location("dark_figures", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.darkened(svg, module.dark_colors()))


def write_dark(path: Path) -> None:
    """Write a picture's second file."""
    path.with_stem(f"{path.stem}_dark").write_text(dark(path.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme_pictures", description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent.parent / "docs" / "pictures")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in badges().items():
        (folder / name).write_text(svg, encoding="utf-8")
    draw_summary(folder / "summary.svg")
    write_dark(folder / "summary.svg")
    draw_terminal(folder / "terminal.svg")


if __name__ == "__main__":
    main()
