"""Serve a model over HTTP: ``python serve.py model.json``. It needs dboost and the standard library only.

| request | answer |
|---|---|
| ``POST /predict`` with a JSON object, a row by column name | ``{"prediction": …, "model": sha256}`` |
| ``POST /predict`` with a list of rows | ``{"predictions": [… one for each row …], "model": sha256}`` |
| ``GET /health`` | 200 and the model that is served; 503 while the service stops |

Invalid rows are answered with status 400 and ``{"error": sentence, "row": number from 0, "column": name}``. null is a missing
value, and entries that are no column of the model are ignored. ``--output probability`` returns a list for each row, in the
order of ``classes``, which are in the answer then.

The file of the model is checked every few seconds and loaded again when it has changed. A request is answered by one model as a
whole. A file that is no model, or cannot predict, is not used: the old model stays, and ``/health`` has the error.

On SIGTERM the service answers ``/health`` with 503 for ``--drain`` seconds, so that no balancer sends requests any more. Then
it accepts no connections, finishes the requests that it has, and ends with status 0.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fsspec
import numpy as np

import dboost

OUTPUTS = ("prediction", "probability", "raw_score", "distribution", "interval")
#: What identifies a version of a file, where its file system knows it.
_STAMPS = ("size", "mtime", "ino", "ETag", "LastModified", "last_modified", "updated")
#: Seconds after which a connection is closed that waits for its next request, or that does not finish one that it has begun.
_IDLE, _SLOW = 75.0, 10.0


class BadRequest(Exception):
    """A request that cannot be answered, with what the answer says about it."""

    def __init__(self, error: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST, **details: Any) -> None:
        super().__init__(error)
        self.status, self.details = status, details


@dataclass(frozen=True)
class Column:
    """A column of the rows: what its values are called, and their types in JSON (any for None)."""

    name: str
    kind: str
    types: tuple[type, ...] | None
    is_number: bool = False
    may_be_missing: bool = True

    @classmethod
    def of(cls, feature: Any) -> Column:
        if not feature.is_categorical:
            return cls(feature.name, "a number", (int, float, bool), is_number=True)
        names = {"text": ("a text", (str,)), "numbers": ("a number", (int, float)), "truth values": ("true or false", (bool,))}
        kinds = [names[kind] for kind in feature.legal_kinds]
        if not kinds:
            return cls(feature.name, "a value", None)
        return cls(feature.name, " or ".join(kind for kind, _ in kinds), tuple(t for _, types in kinds for t in types))

    def read(self, row: Mapping[str, Any], details: dict[str, Any]) -> Any:
        """Return the value of a row; raise `BadRequest` if there is none, or one of another type."""
        try:
            value = row[self.name]
        except KeyError:
            raise BadRequest(f"column {self.name!r} is missing", column=self.name, **details) from None
        if value is None and self.may_be_missing:
            return None
        is_other = isinstance(value, (list, dict)) if self.types is None else type(value) not in self.types
        if is_other or (type(value) is int and abs(value) > 2**53):
            missing = ", or null for a missing value" if self.may_be_missing else ""
            expected = self.kind if is_other else "a number that float64 represents exactly"
            error = f"column {self.name!r} must be {expected}{missing}, not {json.dumps(value)[:60]}"
            raise BadRequest(error, column=self.name, **details)
        return int(value) if self.is_number and type(value) is bool else value  # numbers take the predictor's fast path


class Model:
    """A loaded model, ready to predict; it never changes."""

    def __init__(self, path: str, output: str) -> None:
        booster = dboost.load(path)
        self.sha256, self.n_iterations = booster.sha256, booster.n_iter_
        self.loaded = datetime.now(UTC).isoformat(timespec="seconds")
        self._predictor = booster.predictor(output)
        self._columns = [Column.of(feature) for feature in booster.features]
        offset = booster.ensemble.offset  # where raw scores start
        if isinstance(offset, str):
            self._columns.append(Column(offset, "a number", (int, float), may_be_missing=False))
        self.details: dict[str, Any] = {"model": self.sha256}
        if output == "probability":
            self.details = {"classes": np.asarray(booster.classes_).tolist()} | self.details
        missing = {column.name: None if column.may_be_missing else 0.0 for column in self._columns}
        self.answer(missing)  # loads the compiled kernel, and fails here if it fails at all

    def answer(self, body: Any) -> dict[str, Any]:
        """Return the answer to the JSON of a request: a row, or a list of rows."""
        if isinstance(body, dict):
            return {"prediction": self._predict(body, {}), **self.details}
        if not isinstance(body, list):
            raise BadRequest("the body must be a JSON object, a row by column name, or a list of such rows")
        return {"predictions": [self._predict(row, {"row": number}) for number, row in enumerate(body)], **self.details}

    def _predict(self, row: Any, details: dict[str, Any]) -> Any:
        if not isinstance(row, dict):
            raise BadRequest(f"a row must be a JSON object by column name, not {json.dumps(row)[:60]}", **details)
        values = {column.name: column.read(row, details) for column in self._columns}
        try:
            value = self._predictor(values)
        except dboost.DBoostError as error:
            raise BadRequest(str(error), **details) from error
        return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


class ServedModel:
    """The model at a path or URL, loaded again when the file has changed.

    Parameters
    ----------
    path : path or URL
    output : str
        As in `Booster.predictor`.

    Raises
    ------
    dboost.DBoostError
        If there is no valid model.
    """

    def __init__(self, path: str, output: str) -> None:
        self._path, self._output = path, output
        self._stamp = self._read_stamp()
        self.current = Model(path, output)  # replaced as a whole, so a request has one model
        self.error: str | None = None  # of the file that could not be loaded
        self._log(self.current)

    def refresh(self) -> None:
        """Load the file if it has changed, or could not be loaded the last time."""
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp and self.error is None:
                return
            model = Model(self._path, self._output)
        except Exception as error:
            if self.error != str(error):
                self.error = str(error) or type(error).__name__
                print(f"the model is not replaced: {self.error}", file=sys.stderr, flush=True)
            return
        is_other = model.sha256 != self.current.sha256
        self._stamp, self.current, self.error = stamp, model, None
        if is_other:
            self._log(model)

    def health(self) -> dict[str, Any]:
        model = self.current
        status = {"status": "ok"} if self.error is None else {"status": "not replaced", "error": self.error}
        return status | {"model": model.sha256, "iterations": model.n_iterations, "loaded": model.loaded}

    def _read_stamp(self) -> tuple[Any, ...]:
        files, name = fsspec.core.url_to_fs(self._path)
        files.invalidate_cache()
        info = files.info(name)
        return tuple(str(info.get(stamp)) for stamp in _STAMPS)

    def _log(self, model: Model) -> None:
        print(f"serving {self._path}: {model.n_iterations} iterations, {model.sha256}", file=sys.stderr, flush=True)


class Server(ThreadingHTTPServer):
    """A thread for each connection; stopping waits for the requests that are being answered."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], served: ServedModel, max_bytes: int) -> None:
        self.served, self.max_bytes = served, max_bytes
        self.is_draining, self.is_stopping = False, False
        self._idle: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, Handler)

    def wait_for_request(self, connection: socket.socket, read: Callable[[], bytes]) -> bytes:
        """Return the first line of the next request; none if the server stops while it waits."""
        with self._lock:
            if self.is_stopping:
                _end_input(connection)
            self._idle.add(connection)
        try:
            connection.settimeout(_IDLE)
            return read()
        finally:
            connection.settimeout(_SLOW)
            with self._lock:
                self._idle.discard(connection)

    def stop(self) -> None:
        """Accept no connections any more, and wait until all requests are answered."""
        self.shutdown()
        with self._lock:
            self.is_stopping = True
            for connection in self._idle:
                _end_input(connection)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong with a connection, unless the client has closed it."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            print(f"a connection failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _end_input(connection: socket.socket) -> None:
    """Receive nothing any more; what has arrived can still be read."""
    with suppress(OSError):  # the client has closed the connection
        connection.shutdown(socket.SHUT_RD)


class Handler(BaseHTTPRequestHandler):
    """Answers requests; see the table at the top."""

    protocol_version = "HTTP/1.1"
    server_version = f"dboost/{dboost.__version__}"
    timeout = _SLOW
    wbufsize = -1  # an answer is one packet
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        super().setup()
        self.rfile = _Lines(self.rfile, self.connection, self.server)  # type: ignore[assignment]

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/health":
            self._refuse(BadRequest("GET /health and POST /predict are answered", HTTPStatus.NOT_FOUND))
        elif self.server.is_draining:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "stopping"})
        else:
            self._send(HTTPStatus.OK, self.server.served.health())

    def do_POST(self) -> None:
        try:
            body = self._body()
            if self.path.partition("?")[0] != "/predict":
                raise BadRequest("POST /predict is answered", HTTPStatus.NOT_FOUND)
            answer = self.server.served.current.answer(_parsed(body))
        except BadRequest as error:
            self._refuse(error)
        except OSError:  # of the connection
            raise
        except Exception as error:
            print(f"a request failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the prediction failed; the log has the reason"})
        else:
            self._send(HTTPStatus.OK, answer)

    def handle_expect_100(self) -> bool:
        is_accepted = super().handle_expect_100()
        self.wfile.flush()
        return is_accepted

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self.close_connection = True  # where the next request begins is not known
            raise BadRequest("the header Content-Length is missing", HTTPStatus.LENGTH_REQUIRED)
        if int(length) > self.server.max_bytes:
            self.close_connection = True
            self.rfile.read(min(int(length), 2 * self.server.max_bytes))  # otherwise the client may not see the answer
            raise BadRequest(
                f"the body has more than {self.server.max_bytes:,} bytes: send fewer rows", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            raise BadRequest("the body is shorter than its Content-Length")
        return body

    def _refuse(self, error: BadRequest) -> None:
        self._send(error.status, {"error": str(error), **error.details})

    def _send(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        body = json.dumps(content, ensure_ascii=False).encode()
        if self.server.is_stopping:
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no line for each request."""


class _Lines:
    """The input of a connection, which notes while it waits for the next request."""

    def __init__(self, file: Any, connection: socket.socket, server: Server) -> None:
        self._file, self._connection, self._server = file, connection, server
        self._is_head = False

    def readline(self, limit: int = -1) -> bytes:
        if self._is_head:
            line: bytes = self._file.readline(limit)
            self._is_head = line not in (b"\r\n", b"\n", b"")
            return line
        line = self._server.wait_for_request(self._connection, lambda: self._file.readline(limit))
        self._is_head = bool(line)
        return line

    def read(self, size: int) -> bytes:
        content: bytes = self._file.read(size)
        return content

    def close(self) -> None:
        self._file.close()


def _parsed(body: bytes) -> Any:
    def refuse(constant: str) -> float:
        raise BadRequest(f"{constant} is no JSON: write null for a missing value")

    def finite(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            raise BadRequest(f"the number {text[:60]} is too large")
        return value

    try:
        return json.loads(body, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from error


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Serve a model over HTTP: POST /predict, GET /health.", allow_abbrev=False)
    parser.add_argument("model", help="file or URL of a saved model")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 for all [%(default)s]")
    parser.add_argument("--port", type=int, default=8080, help="0 for any that is free, which is printed [%(default)s]")
    parser.add_argument("--output", choices=OUTPUTS, default=OUTPUTS[0], help="what is predicted [%(default)s]")
    parser.add_argument("--check", type=float, default=5.0, help="seconds between two looks at the file [%(default)s]")
    parser.add_argument("--drain", type=float, default=0.0, help="seconds between SIGTERM and the end [%(default)s]")
    parser.add_argument("--max-bytes", type=int, default=16 << 20, help="largest body of a request [%(default)s]")
    arguments = parser.parse_args(argv)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        served = ServedModel(arguments.model, arguments.output)
        server = Server((arguments.host, arguments.port), served, arguments.max_bytes)
    except (dboost.DBoostError, OSError, OverflowError) as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1
    print(f"listening at http://{arguments.host}:{server.server_port}", file=sys.stderr, flush=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.2,))
    thread.start()
    while not ended.wait(arguments.check):
        served.refresh()
    server.is_draining = True
    time.sleep(arguments.drain)
    server.stop()
    thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
