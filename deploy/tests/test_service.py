"""The HTTP service, as a process: predictions, invalid requests, a model that is replaced under load, and SIGTERM."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dboost
from tests.helpers.object_store import served as served_store

SERVE = Path(__file__).parent.parent / "service" / "serve.py"

_RNG = np.random.default_rng(0)
N = 400
ROWS = pd.DataFrame(
    {
        "age": _RNG.integers(18, 90, N),
        "distance": _RNG.normal(size=N),
        "town": _RNG.choice(["Gent", "Liège", "Mons"], N),
        "is_new": _RNG.choice([True, False], N),
        "e": _RNG.normal(size=N),
    }
)
ROWS["y"] = ROWS["age"] / 10 + ROWS["distance"] + (ROWS["town"] == "Mons") + ROWS["e"]
ROWS["label"] = np.where(ROWS["y"] > ROWS["y"].median(), "high", "low")
FEATURES = ["age", "distance", "town", "is_new"]
ROW: dict[str, Any] = ROWS.loc[0, FEATURES].to_dict() | {"age": 41, "is_new": True}


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as a client sends them."""
    return [{name: None if value != value else value for name, value in row.items()} for row in frame.to_dict(orient="records")]


def train(max_iter: int = 10, **options: Any) -> dboost.Booster:
    return dboost.fit(ROWS, options.pop("target", "y"), features=FEATURES, max_iter=max_iter, **options)


class Service:
    """A running service; `log` are the lines that it has written."""

    def __init__(self, model: Path | str, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SERVE), str(model), "--port", "0", "--check", "0.1", *options],
            stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(SERVE.parents[2])},
        )  # fmt: skip
        self.log: list[str] = []
        for line in self.process.stderr or ():
            self.log.append(line)
            listening = re.match(r"listening at http://127.0.0.1:(\d+)$", line)
            if listening:
                self.port = int(listening[1])
                threading.Thread(target=self._read, daemon=True).start()
                return
        raise AssertionError(f"status {self.process.wait()}: {self.log}")

    def _read(self) -> None:
        self.log.extend(self.process.stderr or ())

    def connect(self) -> closing[http.client.HTTPConnection]:
        return closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60))

    def ask(self, body: Any, path: str = "/predict", method: str = "POST") -> tuple[int, Any]:
        """Return status and JSON of the answer to a body, which is text or bytes, or is sent as JSON."""
        content = body if isinstance(body, str | bytes) else json.dumps(body)
        with self.connect() as connection:
            connection.request(method, path, content)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())

    def health(self) -> tuple[int, Any]:
        return self.ask(b"", "/health", "GET")

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dboost.Booster]]:
    """Yield a service, and its model, of a target whose offset is a column."""
    booster, file = train(offset="e"), tmp_path_factory.mktemp("service") / "model.json"
    booster.save(file)
    service = Service(file, "--max-bytes", "100000")
    yield service, booster
    assert service.end() == 0


@pytest.mark.parametrize(
    ("output", "method"), [("prediction", "predict"), ("probability", "predict_proba"), ("raw_score", "predict")]
)
def test_answers_are_those_of_predict(output: str, method: str, tmp_path: Path) -> None:
    booster = train(target="label")
    booster.save(tmp_path / "model.dboost")
    service = Service(tmp_path / "model.dboost", "--output", output)
    frame = ROWS[[*FEATURES, "y"]].head(50).astype({"distance": object})  # a further column is ignored
    frame.loc[3, "distance"] = frame.loc[5, "town"] = None
    frame.loc[7, "town"] = "Bree"
    options = {"raw_score": True} if output == "raw_score" else {}
    expected = np.asarray(getattr(booster, method)(frame.astype({"distance": float}), **options)).tolist()
    status, reply = service.ask(records(frame))
    assert status == 200 and reply["predictions"] == expected and reply["model"] == booster.sha256
    assert reply.get("classes") == (["high", "low"] if output == "probability" else None)
    status, reply = service.ask(records(frame)[0])
    assert status == 200 and reply["prediction"] == expected[0]
    assert service.ask([]) == (200, {**{k: v for k, v in reply.items() if k != "prediction"}, "predictions": []})
    assert service.end() == 0


def test_many_clients_at_once_get_the_answers_to_their_rows(served: tuple[Service, dboost.Booster]) -> None:
    service, booster = served
    rows, expected = records(ROWS), booster.predict(ROWS).tolist()

    def client(first: int) -> None:
        with service.connect() as connection:  # which is kept for all requests
            for number in range(first, N, 8):
                connection.request("POST", "/predict", json.dumps(rows[number]))
                assert json.loads(connection.getresponse().read())["prediction"] == expected[number]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(client, range(8))) == [None] * 8


def changed(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in (ROW | {"e": 0.5} | values).items() if value is not ...}


# Body, status, words of the error, and what else the answer names.
MISTAKES = [
    (changed(age=...), 400, "column 'age' is missing", {"column": "age"}),
    ([changed(), changed(town=...)], 400, "column 'town' is missing", {"column": "town", "row": 1}),
    (changed(age="41"), 400, "column 'age' must be a number, or null for a missing value, not \"41\"", {"column": "age"}),
    (changed(age=[41]), 400, "column 'age' must be a number", {"column": "age"}),
    (changed(age=10**20), 400, "column 'age' must be a number that float64 represents exactly", {"column": "age"}),
    (changed(town=9000), 400, "column 'town' must be a text", {"column": "town"}),
    (changed(is_new="yes"), 400, "column 'is_new' must be", {"column": "is_new"}),
    (changed(e=...), 400, "column 'e' is missing", {"column": "e"}),
    (changed(e=None), 400, "column 'e' must be a number, not null", {"column": "e"}),
    ([changed(), [1, 2]], 400, "a row must be a JSON object by column name", {"row": 1}),
    ("3", 400, "the body must be a JSON object", {}),
    ("", 400, "the body is no JSON", {}),
    ('{"age": 41,}', 400, "the body is no JSON", {}),
    ('{"age": NaN}', 400, "NaN is no JSON: write null", {}),
    ('{"age": 1e999}', 400, "the number 1e999 is too large", {}),
    (b'{"town": "\xff"}', 400, "the body is no JSON", {}),
    ("[" * 50_000, 400, "the body is no JSON", {}),
    (" " * 100_001, 413, "the body has more than 100,000 bytes", {}),
]


@pytest.mark.parametrize(("body", "status", "error", "details"), MISTAKES)
def test_a_mistake_is_named(
    body: Any, status: int, error: str, details: dict[str, Any], served: tuple[Service, dboost.Booster]
) -> None:
    service, _ = served
    received, reply = service.ask(body)
    assert received == status and error in reply.pop("error")
    assert reply == details
    assert service.ask(changed())[0] == 200


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("POST /other HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 404),
        ("GET /predict HTTP/1.1\r\n\r\n", 404),
        ("POST /predict HTTP/1.1\r\n\r\n", 411),
        ("POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        ("POST /predict HTTP/1.1\r\nContent-Length: -2\r\n\r\n", 411),
        ("POST /predict HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}", 400),
        ("DELETE /predict HTTP/1.1\r\n\r\n", 501),
        ("nonsense\r\n\r\n", 400),
    ],
)
def test_other_requests_are_refused(request_text: str, status: int, served: tuple[Service, dboost.Booster]) -> None:
    service, _ = served
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(request_text.encode())
        connection.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert str(status) in reply.splitlines()[0] or f"Error code: {status}" in reply
    assert service.health()[0] == 200


def test_a_model_is_replaced_under_load_and_a_bad_file_is_not_used(tmp_path: Path) -> None:
    file, models = tmp_path / "model.json", [train(max_iter) for max_iter in (2, 5, 9)]
    expected = {model.sha256: model.predict(pd.DataFrame([ROW])).tolist()[0] for model in models}
    models[0].save(file)
    service = Service(file)
    ended, seen = threading.Event(), set()

    def client() -> int:
        n_answers = 0
        with service.connect() as connection:
            while not ended.is_set():
                connection.request("POST", "/predict", json.dumps([ROW, ROW]))
                reply = connection.getresponse()
                answer = json.loads(reply.read())
                assert reply.status == 200 and answer["predictions"] == [expected[answer["model"]]] * 2
                seen.add(answer["model"])
                n_answers += 1
        return n_answers

    def serves(model: dboost.Booster, status: str) -> bool:
        code, health = service.health()
        return code == 200 and health["model"] == model.sha256 and health["status"] == status

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client) for _ in range(4)]
        try:
            for model in models[1:]:
                model.save(file)
                until(lambda model=model: serves(model, "ok") and model.sha256 in seen)  # type: ignore[misc]
            content = file.read_bytes()
            for damage in (content[:-20], b"no model", b""):
                file.write_bytes(damage)
                until(lambda: serves(models[-1], "not replaced"))
                assert str(file) in service.health()[1]["error"]
            file.unlink()
            until(lambda: "No such file" in service.health()[1].get("error", ""))
            models[0].save(file)
            seen.clear()
            until(lambda: serves(models[0], "ok") and models[0].sha256 in seen)
            assert "error" not in service.health()[1]
        finally:
            ended.set()
        assert all(answers.result() > 0 for answers in clients)
    assert service.end() == 0
    assert sum("the model is not replaced" in line for line in service.log) >= 2


@pytest.mark.slow
def test_a_model_in_an_object_store_is_replaced(tmp_path: Path) -> None:
    models = [train(max_iter) for max_iter in (2, 5)]
    with served_store(tmp_path):
        models[0].save("s3://lake/models/model.json")
        service = Service("s3://lake/models/model.json")
        for model in (models[0], models[1]):
            model.save("s3://lake/models/model.json")
            until(lambda model=model: service.health()[1]["model"] == model.sha256)  # type: ignore[misc]
            assert service.ask(ROW)[1]["prediction"] == model.predict(pd.DataFrame([ROW])).tolist()[0]
        assert service.end() == 0


def test_sigterm_ends_the_service_after_the_requests_that_it_has(tmp_path: Path) -> None:
    booster = train()
    booster.save(tmp_path / "model.json")
    service = Service(tmp_path / "model.json", "--drain", "2")
    body = json.dumps(ROW).encode()
    with service.connect() as idle, socket.create_connection(("127.0.0.1", service.port), timeout=60) as begun:
        idle.request("GET", "/health")
        assert idle.getresponse().read()
        begun.sendall(b"POST /predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body[:5]))
        service.process.send_signal(signal.SIGTERM)
        until(lambda: service.health()[0] == 503)
        assert service.ask(ROW)[0] == 200, "while a balancer may still send requests"

        def refuses() -> bool:
            try:
                service.health()
            except OSError:
                return True
            return False

        until(refuses)
        assert service.process.poll() is None, "a request is not complete"
        begun.sendall(body[5:])
        reply = b"".join(iter(lambda: begun.recv(65536), b"")).decode()
        assert reply.startswith("HTTP/1.1 200") and "Connection: close" in reply
        assert json.loads(reply.rpartition("\r\n\r\n")[2])["prediction"] == booster.predict(pd.DataFrame([ROW]))[0]
        assert service.process.wait(timeout=30) == 0
    assert not any("Traceback" in line or "failed" in line for line in service.log)


@pytest.mark.parametrize(
    ("content", "options", "error"),
    [
        (None, [], "model.json"),
        (b"no model", [], "model.json is not a dboost model"),
        (train(2), ["--output", "probability"], "probabilit"),
        (train(2), ["--output", "interval"], "calibrate"),
    ],
)
def test_a_service_without_a_model_does_not_start(content: Any, options: list[str], error: str, tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        content.save(file)
    with pytest.raises(AssertionError, match="status 1") as raised:
        Service(file, *options)
    assert error in str(raised.value) and "Traceback" not in str(raised.value)
