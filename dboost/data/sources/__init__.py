"""Tables that are read in parts: paths, file formats, table formats, streams, and filters of rows."""

from dboost.data.sources.sources import Parts, ReadCount, Stream, stream_of

__all__ = [
    "Parts",
    "ReadCount",
    "Stream",
    "stream_of",
]
