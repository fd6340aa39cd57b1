"""The number of examples that hypothesis draws: half of those of an exhaustive test, a fifth on a developer's machine."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings


def examples(n: int, **options: Any) -> settings:
    """Return settings for a test with n / 2 examples in continuous integration."""
    return settings(max_examples=max(3, n // (2 if os.environ.get("CI") else 5)), **options)
