"""Reader of UBJSON, the binary form of XGBoost's models: the content of JSON, with lengths and types before the values.

Values are big-endian. A container may declare the type of all its items (``$``) and their number (``#``); arrays of numbers
with both are read as one block. Every length is compared with the bytes that are left before memory is taken for it, so that a
damaged file ends in a ValueError.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Big-endian dtypes by marker.
_NUMBERS = {
    marker: np.dtype(dtype)
    for marker, dtype in (
        (b"i", ">i1"), (b"U", ">u1"), (b"I", ">i2"), (b"l", ">i4"), (b"L", ">i8"), (b"d", ">f4"), (b"D", ">f8"),
    )
}  # fmt: skip
_CONSTANTS: dict[bytes, Any] = {b"Z": None, b"T": True, b"F": False}
_NO_OP = b"N"
#: Nested containers: more of them are no model.
_DEEPEST = 50


def parse_ubjson(data: bytes) -> Any:
    """Return the value in UBJSON data, as `json.loads` would; ValueError for anything else."""
    reader = _Reader(data)
    value = reader.value(reader.marker(), _DEEPEST)
    if reader.at != len(data):
        raise ValueError("there is more in it than its content")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, length: int) -> bytes:
        if not 0 <= length <= len(self.data) - self.at:
            raise ValueError("it ends too early")
        self.at += length
        return self.data[self.at - length : self.at]

    def marker(self) -> bytes:
        marker = self.take(1)
        while marker == _NO_OP:
            marker = self.take(1)
        return marker

    def value(self, marker: bytes, levels: int) -> Any:
        if marker in _NUMBERS:
            return self._numbers(marker, 1)[0]
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker == b"S":
            return self._text()
        if marker == b"C":
            return self.take(1).decode("ascii")
        if marker not in (b"[", b"{"):
            raise ValueError(f"{marker!r} is no type of a value")
        if not levels:
            raise ValueError(f"it has more than {_DEEPEST} levels")
        return self._list(levels - 1) if marker == b"[" else self._mapping(levels - 1)

    def _numbers(self, marker: bytes, count: int) -> list[Any]:
        dtype = _NUMBERS[marker]
        numbers = np.frombuffer(self.take(count * dtype.itemsize), dtype)
        if marker == b"d":  # the digits that JSON has: the fewest that identify the float32
            numbers = numbers.astype(np.float32).astype(np.str_).astype(np.float64)
        values: list[Any] = numbers.tolist()
        return values

    def _length(self) -> int:
        marker = self.marker()
        if marker not in _NUMBERS or _NUMBERS[marker].kind == "f":
            raise ValueError("a length is no integer")
        length: int = self._numbers(marker, 1)[0]
        if not 0 <= length <= len(self.data) - self.at:  # every item takes a byte, but for constants, of which models have none
            raise ValueError(f"a length is {length}, and {len(self.data) - self.at} bytes are left")
        return length

    def _text(self) -> str:
        return self.take(self._length()).decode()

    def _declared(self, end: bytes) -> tuple[bytes | None, int | None]:
        """The type and number of items that a container declares; its end, if it is empty, is read as 0 items."""
        kind = None
        following = self.marker()
        if following == b"$":
            kind, following = self.take(1), self.marker()
            if following != b"#":
                raise ValueError("a container has a type and no length")
        if following == b"#":
            return kind, self._length()
        if following == end:
            return None, 0
        self.at -= 1
        return None, None

    def _list(self, levels: int) -> list[Any]:
        kind, count = self._declared(b"]")
        if kind in _NUMBERS and count is not None:
            return self._numbers(kind, count)
        items: list[Any] = []
        while count is None or len(items) < count:
            marker = self.marker() if kind is None else kind
            if count is None and marker == b"]":
                break
            items.append(self.value(marker, levels))
        return items

    def _mapping(self, levels: int) -> dict[str, Any]:
        kind, count = self._declared(b"}")
        mapping: dict[str, Any] = {}
        n_read = 0
        while count is None or n_read < count:
            if count is None and self.data[self.at : self.at + 1] == b"}":
                self.at += 1
                break
            name = self._text()
            mapping[name] = self.value(self.marker() if kind is None else kind, levels)
            n_read += 1
        return mapping
