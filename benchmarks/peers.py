"""The versions of the libraries that the benchmarks compare with.

A comparison with an old version of another library says little, so the figures are measured with those of
``requirements/bench.txt``, and the benchmarks warn if an older one is installed. The newest XGBoost needs Python 3.12.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import Version

REQUIREMENTS = Path(__file__).parent.parent / "requirements"
#: The distributions that may contain a library; the first one is pinned.
DISTRIBUTIONS = {"lightgbm": ("lightgbm",), "xgboost": ("xgboost-cpu", "xgboost"), "sklearn": ("scikit-learn",)}


def installed(library: str) -> Version | None:
    """Return the installed version of a library, or None."""
    for name in DISTRIBUTIONS[library]:
        try:
            return Version(version(name))
        except PackageNotFoundError:
            pass
    return None


@cache
def pinned(library: str) -> Version:
    """Return the version in ``requirements/bench.txt`` or the file that it includes."""
    text = "".join((REQUIREMENTS / name).read_text(encoding="utf-8") for name in ("bench.txt", "run.txt"))
    found = re.search(rf"^{DISTRIBUTIONS[library][0]}==(\S+)$", text, re.MULTILINE)
    assert found is not None, f"{library} has no version in {REQUIREMENTS}"
    return Version(found[1])


def describe(libraries: Iterable[str]) -> str:
    """Return the versions of Python and of some libraries as one line."""
    versions = [f"{library} {installed(library) or 'not installed'}" for library in libraries]
    return ", ".join([f"Python {sys.version.split()[0]}", *versions])


def warnings(libraries: Iterable[str]) -> list[str]:
    """Return a sentence for every library that is older than its pinned version."""
    return [
        f"caution: {library} {found} is older than {pinned(library)} of requirements/bench.txt: its figures say little"
        for library in libraries
        if (found := installed(library)) is not None and found < pinned(library)
    ]
