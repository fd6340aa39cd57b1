"""The Kubernetes manifests for the tests: as files, as Kustomize builds them, and validated by the schemas in strict mode."""

from __future__ import annotations

import copy
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parent.parent / "kubernetes"
#: The folders for `kubectl apply -k`.
BUILT = ("base", "overlays/laptop", "overlays/nightly", "overlays/spot", "operator")
_NEWEST = int(kubernetes_validate.latest_version().split(".")[1])
#: The oldest supported and the last four known versions of Kubernetes.
VERSIONS = ("1.31", *(f"1.{_NEWEST - k}" for k in (3, 2, 1, 0)))
_OPERATOR = "kubernetes.dask.org/v1"
#: Ten times as fast where libyaml is installed; the definitions of the operator have thousands of lines.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Manifest = dict[str, Any]


def read(*names: str) -> list[Manifest]:
    """Return all documents of files, without the patches and kustomizations."""
    return [one for name in names for one in yaml.load_all((FOLDER / name).read_text(encoding="utf-8"), LOADER)]


def the(kind: str, manifests: list[Manifest], name: str = "") -> Manifest:
    (found,) = (one for one in manifests if one["kind"] == kind and name in one["metadata"]["name"])
    return found


@functools.cache
def built(folder: str) -> tuple[Manifest, ...]:
    """Return what Kustomize builds from a folder."""
    return tuple(_build(FOLDER / folder))


def overlay(folder: Path, base: str, components: Sequence[str] = (), patches: Sequence[Manifest] = ()) -> list[Manifest]:
    """Return what Kustomize builds from an overlay, as a user writes it, in an empty folder."""
    ours = Path(os.path.relpath(FOLDER, folder.resolve()))
    lines: dict[str, Any] = {
        "resources": [str(ours / base)],
        "components": [str(ours / "components" / name) for name in components],
        "patches": [{"path": f"patch-{k}.yaml"} for k in range(len(patches))],
    }
    for k, patch in enumerate(patches):
        (folder / f"patch-{k}.yaml").write_text(yaml.safe_dump(patch))
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(lines))
    return _build(folder)


def _build(folder: Path) -> list[Manifest]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl, which builds Kustomize's overlays, is not installed")
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, f"kustomize warns: {done.stderr}"
    return list(yaml.load_all(done.stdout, LOADER))


def validate(manifest: Manifest) -> None:
    """Raise jsonschema's ValidationError for what the API would reject or silently drop."""
    if manifest["apiVersion"] == _OPERATOR:
        schema = _definition(manifest["kind"])
        jsonschema.Draft202012Validator(schema).validate(manifest)
        return
    for release in VERSIONS:
        kubernetes_validate.validate(manifest, release, strict=True)


@functools.cache
def _definition(kind: str) -> dict[str, Any]:
    """Return the operator's own schema of a kind of resource, without additional properties."""
    assert version("dask-kubernetes")
    charts = files("dask_kubernetes") / "operator" / "deployment" / "helm" / "dask-kubernetes-operator" / "crds"
    (found,) = yaml.load_all((charts / f"{kind.lower()}.yaml").read_text(encoding="utf-8"), LOADER)
    assert found["spec"]["names"]["kind"] == kind
    (release,) = (one for one in found["spec"]["versions"] if one["name"] == "v1")
    schema = copy.deepcopy(release["schema"]["openAPIV3Schema"])
    text = {"type": "string"}
    schema["properties"] |= {
        "apiVersion": text,
        "kind": text,
        "metadata": {"properties": {"name": text, "labels": {"type": "object", "additionalProperties": text}}},
    }
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return _closed(schema)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and not is_open:
        closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
        closed["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return closed


def pods(manifest: Manifest) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Return labels and specification of the pods that a resource creates."""
    spec = manifest.get("spec") or {}
    if manifest["kind"] in ("Deployment", "Job"):
        yield spec["template"]["metadata"]["labels"], spec["template"]["spec"]
    elif manifest["kind"] == "CronJob":
        yield from pods({"kind": "Job", "spec": spec["jobTemplate"]["spec"]})
    elif manifest["kind"] == "DaskCluster":
        for part in ("scheduler", "worker"):
            yield spec[part]["metadata"]["labels"], spec[part]["spec"]
    elif manifest["kind"] == "DaskJob":
        yield spec["job"]["metadata"]["labels"], spec["job"]["spec"]
        yield from pods({"kind": "DaskCluster", "spec": spec["cluster"]["spec"]})
