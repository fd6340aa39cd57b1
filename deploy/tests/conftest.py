"""The settings of the package's own tests."""

from __future__ import annotations

import tests.conftest  # noqa: F401
