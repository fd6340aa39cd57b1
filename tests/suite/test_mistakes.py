"""A mistake has the same error, with the same row, at every entrance and in every form: `MISTAKES` × `ENTRANCES` × `FORMS`.

Its traceback ends at the call: no frame of dboost is shown.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from distributed import Client

from dboost.errors import DataError
from tests.helpers.shown_frames import frames_of_dboost
from tests.suite.covering import cells, combinations
from tests.suite.entrances import ENTRANCES, Given
from tests.suite.forms import FORMS
from tests.suite.mistakes import MISTAKES

SQUARE = [
    (mistake, entrance, form)
    for mistake in MISTAKES
    for entrance in ENTRANCES
    for form in FORMS
    if ENTRANCES[entrance].can(MISTAKES[mistake], FORMS[form])
]


@pytest.mark.parametrize(
    ("mistake", "entrance", "form"),
    cells(SQUARE, fast=combinations((0,), (1, 2)), slow=combinations((0, 1), (0, 2), (1, 2))),
)
def test_a_mistake_has_one_error(client: Client, tmp_path: Path, mistake: str, entrance: str, form: str) -> None:
    wrong, way, table = MISTAKES[mistake], ENTRANCES[entrance], FORMS[form]
    with warnings.catch_warnings(), pytest.raises(way.error or wrong.error) as caught:
        warnings.simplefilter("ignore")
        way.run(Given(wrong, table, tmp_path, client))
    starts = (0,) if way.cuts and not table.starts else () if way.joins and wrong.what == "range" else table.starts
    prefix = way.prefix if way.error is not None or wrong.error is DataError else ""
    partition = "(partition 0: )?" if wrong.is_of_column else ""
    sentence = wrong.pattern(table.names(starts))
    assert re.fullmatch(f"{prefix}{partition}{sentence}{way.suffix}", str(caught.value)), str(caught.value)
    assert frames_of_dboost(caught.value) == []
