"""Pods of the Kubernetes manifests as containers of `deploy.tests.engine`, under the manifests' network policies.

User, rights, limits, environment, arguments, volumes and probes are read from the manifests. What a node of Kubernetes adds is
imitated: variables in arguments, volumes as folders, names and addresses of services, and a process 1 that is not the
container's.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy.tests.engine import GATEWAY, PODS, Engine
from deploy.tests.manifests import Manifest, pods, the

_REFERENCE = re.compile(r"\$\((\w+)\)")
#: The store asks for a name, but does not check the signature.
_OWNER = "AWS4-HMAC-SHA256 Credential=owner/20300101/us-east-1/s3/aws4_request"
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "m": 1e-3}


def quantity(text: str) -> float:
    """Return a quantity of Kubernetes ("500m", "2Gi") as a number."""
    number, unit = re.fullmatch(r"([\d.]+)(\w*)", str(text)).groups()  # type: ignore[union-attr]
    return float(number) * (_UNITS[unit] if unit else 1)


@dataclass(frozen=True)
class Deployed:
    """Manifests, and what they refer to but do not contain."""

    manifests: list[Manifest]
    #: Content of secrets by name: values by key.
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Replaces the image of the manifests.
    image: str = ""

    def configuration(self, name: str) -> dict[str, str]:
        data: dict[str, str] = next(
            one["data"] for one in self.manifests if one["kind"] == "ConfigMap" and one["metadata"]["name"] == name
        )
        return data


#: The tables of tests are so small that one worker would have all rows, and the faults of most others would have no effect.
DIVIDED = {"DASK_DBOOST__SINGLE_WORKER_VALUES": "0"}


class Pods:
    """Containers of one engine.

    Parameters
    ----------
    engine : Engine
    labels : dict
        What the pods have in common, which the network policies select.
    """

    def __init__(self, engine: Engine, labels: dict[str, str]) -> None:
        self._engine, self._labels = engine, labels
        self._addresses: dict[str, str] = {}
        self._services: dict[str, str] = {}

    def start(
        self,
        name: str,
        deployed: Deployed,
        manifest: Manifest,
        *,
        environment: dict[str, str] | None = None,
        arguments: Sequence[str] = (),
        secret: bool = True,
        which: str = "containers",
    ) -> None:
        """Start the only container of a resource's pod.

        environment : replaces variables; arguments : replace those of the manifest; secret : whether optional secrets exist.
        """
        ((labels, pod),) = pods(manifest)
        assert self._labels.items() <= labels.items()
        (container,) = pod[which]
        given: dict[str, str] = {}
        for source in container.get("envFrom", []):
            if "configMapRef" in source:
                given |= deployed.configuration(source["configMapRef"]["name"])
            elif secret:
                given |= deployed.secrets.get(source["secretRef"]["name"], {})
        for variable in container.get("env", []):
            path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            given[variable["name"]] = name if path == "metadata.name" else variable["value"]
        given |= DIVIDED | (environment or {})
        command = [_REFERENCE.sub(lambda match: given[match[1]], one) for one in arguments or container["args"]]
        options = [*_rights(pod, container), *self._volumes(name, deployed, pod, container)]
        for key, value in given.items():
            options += ["--env", f"{key}={value}"]
        image, address = deployed.image or container["image"], self._engine.free_address(PODS)
        for service in _services(deployed, labels):
            address = self._services.setdefault(service, address)  # it does not change with the pod
            options.append(f"--network-alias={service}")
        self._addresses[name] = self._engine.create(name, image, command, *options, address=address)
        self._engine.within(name, "nft", "-f", "-", text=policy_rules(deployed.manifests, labels))
        self._engine.start(name)

    def _volumes(self, name: str, deployed: Deployed, pod: dict[str, Any], container: dict[str, Any]) -> list[str]:
        options = []
        group = pod["securityContext"]["fsGroup"]
        volumes = {one["name"]: one for one in pod["volumes"]}
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "persistentVolumeClaim" in volume:
                folder = self._engine.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
                folder.mkdir(parents=True, exist_ok=True)
            else:
                folder = self._engine.folder / "volumes" / name / mount["name"]
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            files: dict[str, str] = {}
            if "configMap" in volume:
                files = deployed.configuration(volume["configMap"]["name"])
            if "secret" in volume:
                files = deployed.secrets[volume["secret"]["secretName"]]
            for key, content in files.items():
                path = folder / key
                path.write_text(content)
                os.chown(path, 0, group)
                path.chmod(volume.get("secret", {}).get("defaultMode", 0o644))
            os.chown(folder, 0, group)
            folder.chmod(0o755 if files else 0o2777)
            options += ["--volume", f"{folder}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"]
        return options

    def address(self, name: str) -> str:
        return self._addresses[name]

    def wait_for_probe(self, name: str, manifest: Manifest, seconds: float = 120) -> float:
        """Wait until the startup probe of a container succeeds; return the seconds."""
        began = time.monotonic()
        while self.probe(name, manifest) is None:
            if not self._engine.running(name):
                raise RuntimeError(f"{name} has ended\n{self._engine.log(name)[-3000:]}")
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"{name} does not answer\n{self._engine.log(name)[-3000:]}")
            time.sleep(0.1)
        return time.monotonic() - began

    def probe(self, name: str, manifest: Manifest) -> float | None:
        """Return the seconds that the probe of a container takes; None if it fails."""
        ((_, pod),) = pods(manifest)
        (container,) = pod["containers"]
        get = container["startupProbe"]["httpGet"]
        (port,) = (one["containerPort"] for one in container["ports"] if one["name"] == get["port"])
        began = time.monotonic()
        try:
            status, _ = self._engine.request("GET", self._addresses[name], port, get["path"])
        except (OSError, http.client.HTTPException):
            return None
        return time.monotonic() - began if status == 200 else None


def _rights(pod: dict[str, Any], container: dict[str, Any]) -> list[str]:
    user, security, limits = pod["securityContext"], container["securityContext"], container["resources"]["limits"]
    assert user["seccompProfile"]["type"] == "RuntimeDefault", "the engine's default profile"
    options = ["--user", f"{user['runAsUser']}:{user['runAsGroup']}", "--group-add", str(user["fsGroup"])]
    if security["readOnlyRootFilesystem"]:
        options += ["--read-only", "--read-only-tmpfs=false"]
    if not security["allowPrivilegeEscalation"]:
        options += ["--security-opt", "no-new-privileges"]
    options += [f"--cap-drop={one}" for one in security["capabilities"]["drop"]]
    memory = f"{int(quantity(limits['memory']))}b"
    options += ["--memory", memory, "--cpus", f"{quantity(limits['cpu']):g}"]
    # Processes of a pod that share their namespace have the pod's first process as process 1.
    return [*options, "--init"] if pod.get("shareProcessNamespace") else options


def _services(deployed: Deployed, labels: dict[str, str]) -> list[str]:
    found = [one for one in deployed.manifests if one["kind"] == "Service"]
    return [one["metadata"]["name"] for one in found if one["spec"]["selector"].items() <= labels.items()]


def policy_rules(manifests: list[Manifest], labels: dict[str, str]) -> str:
    """Return the network policies of pods with these labels as a table of nftables.

    Other namespaces are empty, and all dboost pods have addresses of `PODS`. Probes come from the gateway.
    """
    chains: dict[str, list[str]] = {"ingress": [f"ip saddr {GATEWAY} accept"], "egress": []}
    for policy in (one["spec"] for one in manifests if one["kind"] == "NetworkPolicy"):
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        for direction, rules in chains.items():
            for rule in policy.get(direction, []):
                for peer in rule.get("from" if direction == "ingress" else "to", [{}]):
                    if "namespaceSelector" in peer:
                        continue
                    cidr = peer.get("ipBlock", {}).get("cidr")
                    if "podSelector" in peer:
                        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
                        cidr = PODS
                    place = f"ip {'saddr' if direction == 'ingress' else 'daddr'} {cidr} " if cidr else ""
                    for port in rule["ports"]:
                        rules.append(f"{place}{port.get('protocol', 'TCP').lower()} dport {port['port']} accept")
    assert the("NetworkPolicy", manifests, "dboost")["spec"]["policyTypes"] == ["Ingress", "Egress"]
    hooks = {"ingress": ("input", "iif"), "egress": ("output", "oif")}
    text = "table inet policies {\n"
    for direction, rules in chains.items():
        hook, device = hooks[direction]
        text += f"chain {direction} {{ type filter hook {hook} priority 0; policy drop;\n"
        text += "\n".join([f"{device} lo accept", "ct state established,related accept", *rules]) + "\n}\n"
    return text + "}\n"


class Bucket:
    """A bucket of the store, by plain HTTP."""

    def __init__(self, engine: Engine, address: str, port: int, name: str) -> None:
        self._engine, self._place, self._name = engine, (address, port), name

    def _request(self, method: str, path: str = "", body: bytes | None = None) -> bytes | None:
        status, reply = self._engine.request(method, *self._place, f"/{self._name}{path}", body, Authorization=_OWNER)
        if status == 404:
            return None
        if status >= 300:
            raise RuntimeError(f"{method} {path}: status {status} {reply[:500]!r}")
        return reply

    def make(self) -> None:
        self._request("PUT")

    def put(self, key: str, content: bytes) -> None:
        self._request("PUT", f"/{key}", content)

    def get(self, key: str) -> bytes | None:
        """Return an object; None if there is none."""
        return self._request("GET", f"/{key}")

    def find(self, prefix: str = "") -> list[str]:
        reply = self._request("GET", f"?list-type=2&prefix={prefix}")
        assert reply is not None
        return re.findall(r"<Key>(.*?)</Key>", reply.decode())

    def remove(self, prefix: str) -> None:
        for key in self.find(prefix):
            self._request("DELETE", f"/{key}")
