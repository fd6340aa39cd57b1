"""A container engine for tests: podman in mount, network and process namespaces of its own.

Containers, bridge, addresses and name service are in namespaces without a way to other hosts, which end with this process. The
machine's own containers, interfaces and mounts are not touched. Only builds use the machine's network.

Images remain in a folder of the user's cache, so that the next run builds only what has changed.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import http.client
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from tests.helpers.clusters import ROOT

#: Commands that the engine needs (netavark, before 1.12, calls iptables).
COMMANDS = ("podman", "crun", "conmon", "catatonit", "unshare", "nsenter", "ip", "tc", "nft", "iptables")
#: Programs of podman's network, which need not be on the PATH.
_LIBRARIES = (Path("/usr/lib/podman"), Path("/usr/libexec/podman"), Path("/usr/local/libexec/podman"))
_NETWORK = "dboost"
#: Addresses of the bridge: all, those of pods under policies, those of other containers, and that of the machine ("the node").
SUBNET, PODS, OTHERS, GATEWAY = "10.89.0.0/16", "10.89.128.0/17", "10.89.1.0/24", "10.89.0.1"
_CLONE_NEWNET = 0x40000000
#: Runs in the new namespaces and ends with its input. What is written to /run and /dev/shm stays in them. crun refuses cgroup
#: v1 with v2 beside it, so v2 is unmounted here (only unmounted: the folder that it is mounted at belongs to the machine).
_SETUP = """set -e
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
mount -t tmpfs none /dev/shm
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work"
mount -t overlay -o "lowerdir=/run,upperdir=$1/upper,workdir=$1/work" none /run
ip link set lo up
echo ready
cat
"""


def missing() -> list[str]:
    """Return what the engine needs and this machine does not have."""
    if platform.system() != "Linux":
        return ["Linux"]
    lacks = [] if os.geteuid() == 0 else ["the rights of root"]
    lacks += [f"the command {name}" for name in COMMANDS if not shutil.which(name)]
    for name in ("netavark", "aardvark-dns"):
        if not shutil.which(name) and not any((folder / name).exists() for folder in _LIBRARIES):
            lacks.append(f"the program {name}")
    if not lacks:
        done = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, text=True)
        if done.returncode:
            lacks.append(f"permission to create namespaces ({done.stderr.strip()})")
    return lacks


class Engine:
    """Podman, while the context is active.

    Attributes
    ----------
    folder : Path
        Content of volumes and logs of this run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._store = cache / "dboost-image-test"
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Engine:
        run = self._store / "run"
        run.mkdir(parents=True, exist_ok=True)
        command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        command += ["catatonit", "--", "sh", "-c", _SETUP, "sh", str(run)]
        self._holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._holder.stdout and self._holder.stderr and self._holder.stdin
        if self._holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"no namespaces: {self._holder.stderr.read()}")
        self._exits.callback(self._holder.wait)
        self._exits.callback(self._holder.stdin.close)
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        (self._init,) = map(int, children)
        self._configure(run)
        self.podman("rm", "--force", "--time", "0", "--all")
        self.podman("network", "rm", "--force", _NETWORK)
        self.podman("network", "create", "--internal", "--subnet", SUBNET, "--gateway", GATEWAY, _NETWORK)
        self._exits.callback(self.podman, "rm", "--force", "--time", "0", "--all")
        self._inside = ThreadPoolExecutor(1, initializer=_enter_network, initargs=(self._init,))
        self._exits.callback(self._inside.shutdown)
        self._addresses = {subnet: ip_network(subnet).hosts() for subnet in (PODS, OTHERS)}
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _configure(self, run: Path) -> None:
        # Hard limits of processes cannot be raised everywhere, and podman's defaults would.
        files, processes = (resource.getrlimit(which)[1] for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
        files = 2**20 if files == resource.RLIM_INFINITY else files
        processes = 32768 if processes == resource.RLIM_INFINITY else min(processes, 32768)
        settings = self._store / "containers.conf"
        settings.write_text(
            f"""[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{run}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{run}/networks"
"""
        )
        storage = self._store / "storage.conf"
        storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{self._store}/images"\nrunroot = "{run}/root"\n')
        (run / "networks").mkdir(exist_ok=True)
        self._environment = os.environ | {"CONTAINERS_CONF": str(settings), "CONTAINERS_STORAGE_CONF": str(storage)}

    def _command(self, command: Sequence[str], network: bool = True) -> list[str]:
        """Return a command that runs another one in the namespaces, or with the machine's network."""
        enter = ["nsenter", "--target", str(self._init), "--mount", "--pid", f"--wd={ROOT}"]
        return [*enter, *(["--net"] if network else []), *command]

    def podman(self, *arguments: str, text: str | None = None, network: bool = True, minutes: float = 5) -> str:
        """Run podman and return what it printed.

        text : its input; network : whether it runs in the namespace of the network, not in that of the machine.
        """
        command = self._command(["podman", *arguments], network)
        done = subprocess.run(command, env=self._environment, input=text, capture_output=True, text=True, timeout=60 * minutes)
        if done.returncode:
            tail = f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
            raise RuntimeError(f"podman {' '.join(arguments)[:500]}: status {done.returncode}\n{tail}")
        return done.stdout.strip()

    def has_image(self, name: str) -> bool:
        done = subprocess.run(self._command(["podman", "image", "exists", name]), env=self._environment)
        return done.returncode == 0

    def size(self, image: str) -> float:
        """Return the MB of an image with all its layers."""
        return int(self.podman("image", "inspect", "--format", "{{.Size}}", image)) / 1e6

    def build(self, tag: str, *options: str, text: str | None = None) -> float:
        """Build an image with the machine's network and settings of pip; return the seconds.

        text : the Containerfile, where ``options`` do not name one. The context is the root of the repository.
        """
        began = time.monotonic()
        options = options if text is None else (*options, "--file", "-")
        volumes = [f"--volume={source}:{place}:ro" for source, place in pip_settings(self.folder).items()]
        command = ["build", "--network=host", "--pull=never", *volumes, "--tag", tag, *options, str(ROOT)]
        self.podman(*command, text=text, network=False, minutes=40)
        return time.monotonic() - began

    def base(self, wanted: str) -> tuple[str, str]:
        """Return the name of a base image with Python, and where it comes from.

        The variable IMAGE_TEST_BASE names it. Otherwise it is ``wanted`` where that can be pulled, or made from the packages of
        this machine's distribution.
        """
        given = os.environ.get("IMAGE_TEST_BASE", "")
        if given:
            if not self.has_image(given):
                self.podman("pull", "--quiet", given, network=False)
            return given, "IMAGE_TEST_BASE"
        if not self.has_image(wanted):
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
                self.podman("pull", "--quiet", wanted, network=False, minutes=2)
        if self.has_image(wanted):
            return wanted, "pulled"
        return self._from_distribution(), "packages of the distribution"

    def _from_distribution(self) -> str:
        release = platform.freedesktop_os_release().get("VERSION_CODENAME")
        name = f"localhost/dboost-base:{release}"
        if self.has_image(name):
            return name
        if release is None or not shutil.which("mmdebstrap"):
            raise LookupError("a base image: it cannot be pulled or made by mmdebstrap, and IMAGE_TEST_BASE names none")
        work = self._store / "base"
        shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
        work.mkdir()
        archive = work / "base.tar"
        rest = "usr/share/doc/* usr/share/man/* usr/share/locale/* var/lib/apt/lists/* var/cache/apt/*"  # none of it is code
        options = [
            "--quiet", "--mode=root", "--variant=minbase", "--include=python3,python3-venv,ca-certificates",
            "--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr",  # without the package that merges, which needs Perl
            '--customize-hook=ln -s /usr/bin/python3 "$1/usr/local/bin/python"', f'--customize-hook=cd "$1" && rm -rf {rest}',
        ]  # fmt: skip
        command = self._command(["mmdebstrap", *options, release, str(archive)], network=False)
        try:
            environment = os.environ | {"TMPDIR": str(work)}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
            if done.returncode:
                raise RuntimeError(f"mmdebstrap: status {done.returncode}\n{done.stderr[-2000:]}")
            self.podman("import", str(archive), name)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return name

    def free_address(self, subnet: str) -> str:
        return str(next(self._addresses[subnet]))

    def create(self, name: str, image: str, arguments: Sequence[str], *options: str, address: str = "") -> str:
        """Create a container with its network, but start no process in it yet; return its address."""
        address = address or self.free_address(OTHERS)
        network = ["--network", _NETWORK, "--ip", address, "--hostname", name]
        path = self._log(name)
        path.unlink(missing_ok=True)  # the log of a container that is replaced would be continued
        log = ["--log-driver", "k8s-file", "--log-opt", f"path={path}"]
        self.podman("create", "--replace", "--pull=never", "--name", name, *network, *log, *options, image, *arguments)
        self.podman("init", name)
        return address

    def start(self, name: str) -> None:
        self.podman("start", name)

    def stop(self, name: str, seconds: int) -> int:
        """Send SIGTERM, and SIGKILL after some seconds; return the exit status."""
        self.podman("stop", "--time", str(seconds), name)
        return int(self.inspect(name)["State"]["ExitCode"])

    def kill(self, name: str) -> None:
        self.podman("kill", "--signal", "KILL", name)

    def disconnect(self, name: str) -> None:
        """Remove the interface of a container."""
        self.podman("network", "disconnect", "--force", _NETWORK, name)

    def address(self, name: str) -> str:
        return str(self.inspect(name)["NetworkSettings"]["Networks"][_NETWORK]["IPAddress"])

    def has_container(self, name: str) -> bool:
        return subprocess.run(self._command(["podman", "container", "exists", name]), env=self._environment).returncode == 0

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.podman("container", "inspect", name))[0]
        return found

    def running(self, name: str) -> bool:
        return bool(self.inspect(name)["State"]["Running"])

    def status(self, name: str, minutes: float = 10) -> int:
        """Wait for the end of a container and return its exit status."""
        try:
            return int(self.podman("wait", "--interval", "100ms", name, minutes=minutes))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{name} still runs\n{self.log(name)[-3000:]}") from None

    def log(self, name: str) -> str:
        """Return what the processes of a container have printed."""
        path = self._log(name)
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        parts = [line.split(" ", 3) for line in lines]  # time, stream, whether the line is complete, text
        return "".join(part[3] + ("\n" if part[2] == "F" else "") for part in parts if len(part) == 4)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def within(self, name: str, *command: str, text: str = "") -> str:
        """Run a program of the machine in the network of a container and return what it printed."""
        enter = ["nsenter", "--target", str(self.inspect(name)["State"]["Pid"]), "--net", *command]
        done = subprocess.run(self._command(enter), input=text, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} in {name}: status {done.returncode} {done.stderr[-1000:]}\n{text}")
        return done.stdout

    def limit_link(self, name: str, rate: str) -> None:
        """Limit the link of a container in both directions. rate : as tc writes it, for example "1gbit"."""
        limit = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        self.within(name, "tc", "qdisc", "add", "dev", "eth0", *limit)
        (inner,) = json.loads(self.within(name, "ip", "-json", "link", "show", "dev", "eth0"))
        find = self._command(["ip", "-json", "link", "show"])
        links = json.loads(subprocess.run(find, capture_output=True, text=True, check=True).stdout)
        (outer,) = (link["ifname"] for link in links if link["ifindex"] == inner["link_index"])
        subprocess.run(self._command(["tc", "qdisc", "add", "dev", outer, *limit]), capture_output=True, check=True)

    def file_of(self, name: str, path: str) -> str:
        """Return the content of a file below /proc of the main process of a container."""
        place = f"/proc/{self.inspect(name)['State']['Pid']}/{path}"
        return subprocess.run(self._command(["cat", place]), capture_output=True, text=True, check=True).stdout

    def peak_memory(self, name: str) -> tuple[int, int]:
        """Return the most bytes that a running container has had, and its limit."""
        for line in self.file_of(name, "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                folder = Path(f"/sys/fs/cgroup/memory{path}")
                return _number(folder / "memory.max_usage_in_bytes"), _number(folder / "memory.limit_in_bytes")
            if not controllers:
                folder = Path(f"/sys/fs/cgroup{path}")
                if (folder / "memory.peak").exists():
                    return _number(folder / "memory.peak"), _number(folder / "memory.max")
        raise LookupError(f"{name} has no control group with a limit of memory")

    def connect(self, address: str, port: int, timeout: float) -> socket.socket:
        """Return a connection to a container."""
        return self._inside.submit(socket.create_connection, (address, port), timeout).result()

    def request(
        self, method: str, address: str, port: int, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Return status and body of the reply to an HTTP request."""
        with contextlib.closing(http.client.HTTPConnection(address, port)) as connection:
            connection.sock = self.connect(address, port, timeout=30)
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.read()


def _number(path: Path) -> int:
    return int(path.read_text())


def _enter_network(pid: int) -> None:
    """Move this thread into the network namespace of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def pip_settings(folder: Path) -> dict[str, str]:
    """Return what gives a build the settings of pip on this machine: places in the build by file or folder of this machine.

    Settings that name local files (certificates, folders of packages) need those as well. Nothing of this remains in an image.
    """
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    settings: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):  # variables come last and win
        name, _, quoted = line.partition("=")
        scope, _, key = name.rpartition(".")
        if scope in ("global", ":env:", "install") and key not in ("config-file", "cache-dir"):
            settings[key] = " ".join(str(ast.literal_eval(quoted)).split())
    mounts: dict[str, str] = {}
    for word in " ".join(settings.values()).split():
        path = Path(word.removeprefix("file://"))
        if path.is_absolute() and path.exists():
            # The pages of an index in a folder may refer to files beside it.
            beside = word.startswith("file://") and path.is_dir() and len(path.parts) > 2
            place = str(path.parent if beside else path)
            mounts[place] = place
    file = folder / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    mounts[str(file)] = "/etc/pip.conf"
    return mounts
