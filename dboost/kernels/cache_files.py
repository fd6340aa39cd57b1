"""The files of the kernel cache: one for each kernel, signature and state of the code.

Numba keeps an index for each function, which maps signatures to numbered files. The index is read, changed and written
without a lock, and before the file that it names. Workers that compile for the first time at the same time, as those of a
cluster do, then give one number to two signatures, and one of them runs the machine code of the other. And when the code has
changed, a process that reads the new index before the new file is there runs old code under the new name. Here the name of a
file is a digest of all that its content depends on: there is no index, and a file is whole or not there.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba.core.caching import IndexDataCacheFile


class KernelFiles(IndexDataCacheFile):
    """The cache files of one kernel.

    Parameters
    ----------
    folder : str
    base : str
        How the names of the kernel's files begin.
    stamp : str
        Digest of the code.
    """

    def __init__(self, folder: str, base: str, stamp: str) -> None:
        super().__init__(folder, base, stamp)
        self._begin, self._code = base, stamp[:12]

    def flush(self) -> None:
        """Remove the kernel's files."""
        for file in Path(self._cache_path).glob(f"{self._begin}-*.nbc"):
            with suppress(OSError):
                file.unlink()

    def save(self, key: Any, data: Any) -> None:
        """Keep what was compiled for a signature; files of earlier states of the code go."""
        self._save_data(self.name_of(key), data)
        for file in Path(self._cache_path).glob(f"{self._begin}-*.nbc"):
            if not file.name.startswith(f"{self._begin}-{self._code}-"):
                with suppress(OSError):
                    file.unlink()

    def load(self, key: Any) -> Any:
        """What was compiled for a signature, or None."""
        try:
            return self._load_data(self.name_of(key))
        except OSError:
            return None

    def name_of(self, key: Any) -> str:
        """The name of the file. key : as Numba makes it, the signature and what the machine and the function are."""
        signature, *others = key
        words = [*map(_in_words, signature), repr(others), self._version, self._source_stamp]
        return f"{self._begin}-{self._code}-{hashlib.sha256(repr(words).encode()).hexdigest()[:24]}.nbc"


def _in_words(kind: Any) -> str:
    """A type with all that tells it from others: named tuples are told apart by their classes, which have a module."""
    made = getattr(kind, "instance_class", None)
    return f"{kind!r} {getattr(made, '__module__', '')} {getattr(made, '__qualname__', '')}"
