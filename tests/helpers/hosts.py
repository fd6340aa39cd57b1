"""Hosts on one machine: network namespaces at a bridge, each with a link of limited rate in both directions.

Creating them needs the commands ip and tc, and the permission to use them; `Hosts` raises `NoHosts` with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess

#: A network address range that only these hosts use.
NET = "10.213.7"


class NoHosts(RuntimeError):
    """Namespaces or queues are not permitted here."""


class Hosts:
    """A bridge with namespaces attached; use it as a context manager. This process is at the bridge, without a limit.

    Parameters
    ----------
    n_hosts : int
    rate : str
        Of each link and direction, as tc writes it, for example "1gbit".
    """

    def __init__(self, n_hosts: int, rate: str) -> None:
        self.n_hosts, self._rate = n_hosts, rate
        self.name = f"db{os.getpid() % 100_000}"
        #: The address of this process.
        self.bridge_address = f"{NET}.1"

    def __enter__(self) -> Hosts:
        if not (shutil.which("ip") and shutil.which("tc")):
            raise NoHosts("the commands ip and tc are not here")
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self.__exit__()
            raise NoHosts(f"network namespaces are not permitted here: {error.stderr.decode().strip()}") from error
        return self

    def _make(self) -> None:
        _run("ip", "link", "add", self.name, "type", "bridge")
        _run("ip", "addr", "add", f"{self.bridge_address}/24", "dev", self.name)
        _run("ip", "link", "set", self.name, "up")
        limited = ("root", "tbf", "rate", self._rate, "burst", "256kb", "latency", "50ms")
        for i in range(self.n_hosts):
            space, outer, inner = self.space(i), self.outer(i), f"{self.name}i{i}"
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            _run("ip", "link", "set", outer, "master", self.name, "up")
            _run("ip", "link", "set", inner, "netns", space)
            _run("ip", "-n", space, "addr", "add", f"{self.address(i)}/24", "dev", inner)
            _run("ip", "-n", space, "link", "set", inner, "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("tc", "qdisc", "add", "dev", outer, *limited)
            _run("tc", "-n", space, "qdisc", "add", "dev", inner, *limited)

    def __exit__(self, *_: object) -> None:
        for i in range(self.n_hosts):
            _quietly("ip", "netns", "del", self.space(i))
            _quietly("ip", "link", "del", self.outer(i))
        _quietly("ip", "link", "del", self.name)

    def address(self, i: int) -> str:
        return f"{NET}.{i + 2}"

    def space(self, i: int) -> str:
        return f"{self.name}n{i}"

    def outer(self, i: int) -> str:
        return f"{self.name}o{i}"

    def inside(self, i: int) -> list[str]:
        """Return the command that runs another command on a host."""
        return ["ip", "netns", "exec", self.space(i)]

    def cut(self, i: int) -> None:
        """Cut the link of a host: connections stay open, but nothing arrives any more."""
        _run("ip", "link", "set", self.outer(i), "down")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _quietly(*command: str) -> None:
    subprocess.run(command, check=False, capture_output=True)
