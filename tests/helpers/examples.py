"""The number of examples that hypothesis draws: a fifth of them on a developer's machine."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings


def examples(n: int, **options: Any) -> settings:
    """Return settings for a test with n examples in continuous integration."""
    return settings(max_examples=n if os.environ.get("CI") else max(3, n // 5), **options)
