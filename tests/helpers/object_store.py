"""An S3 server on loopback, with the environment that a user would have; no other host is contacted."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

KEY_ID, SECRET = "AKIAOFATEST", "word-that-nobody-may-see"


def environment(endpoint: str, nowhere: Path) -> dict[str, str]:
    """Credentials from the usual variables, and from no other source."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(nowhere / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(nowhere / "no-credentials"),
        "NO_PROXY": "127.0.0.1",
    }


@contextlib.contextmanager
def served(nowhere: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a server that holds an empty bucket, "lake"; it is set in this process as well."""
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        variables = environment(f"http://{host}:{port}", nowhere)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
                patch.delenv(name, raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            s3fs.S3FileSystem.clear_instance_cache()
            # Servers in one process share their content: reset it.
            urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
            s3fs.S3FileSystem().mkdir("lake")
            yield variables
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()
