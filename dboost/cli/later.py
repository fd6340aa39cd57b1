"""Options of the command line whose part of dboost does not exist yet.

They are accepted by the parser, so that ``--help`` shows the whole plan, and refused here by name: an option that did
nothing would look like one that worked.
"""

from __future__ import annotations

import argparse

from dboost.errors import ParameterError


def refuse(arguments: argparse.Namespace, *options: str) -> None:
    """Raise a `ParameterError` for the first of these options that was given."""
    for option in options:
        if getattr(arguments, option):
            raise ParameterError(f"--{option.replace('_', '-')} is not supported yet")
