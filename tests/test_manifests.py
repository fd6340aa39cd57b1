"""The manifests are valid for Kubernetes and the Dask operator in strict mode, and follow the project's own rules."""

from __future__ import annotations

import copy
import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes_validate")
pytest.importorskip("jsonschema")

from dask.utils import parse_timedelta
from jsonschema import ValidationError

from dboost.cli.arguments import gather, parameter_names, parse
from tests.helpers.manifests import BUILT, FOLDER, Manifest, built, pods, read, the, validate

PLAIN = [
    "shared/account.yaml", "shared/settings.yaml", "shared/network.yaml", "base/scheduler.yaml", "base/workers.yaml",
    "base/train.yaml", "overlays/nightly/nightly.yaml",
]  # fmt: skip
OPERATOR = ["operator/cluster.yaml", "operator/autoscaler.yaml", "operator/job.yaml", "operator/network.yaml"]
CLIENTS = [("base/train.yaml", "Job"), ("overlays/nightly/nightly.yaml", "CronJob"), ("operator/job.yaml", "DaskJob")]


def every_pod() -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    for name in (*PLAIN, *OPERATOR):
        for manifest in read(name):
            for labels, spec in pods(manifest):
                yield name, labels, spec


PODS = [pytest.param(labels, spec, id=f"{name} {spec['containers'][0]['name']}") for name, labels, spec in every_pod()]


@pytest.mark.parametrize("name", [*PLAIN, *OPERATOR])
def test_files_are_valid(name: str) -> None:
    for manifest in read(name):
        validate(manifest)


@pytest.mark.slow
@pytest.mark.parametrize("folder", BUILT)
def test_what_kustomize_builds_is_valid(folder: str) -> None:
    found = built(folder)
    as_files = [one for name in (*PLAIN, *OPERATOR) for one in read(name)]
    for manifest in found:
        if manifest not in as_files:  # those were checked already
            validate(manifest)
        # Names and labels that Kustomize adds must not separate a service from its pods.
        assert manifest["metadata"]["name"].startswith("dboost")
        for _, spec in pods(manifest):
            assert all(container["image"] == "dboost:0.1.0" for container in spec["containers"])
    kinds = sorted(one["kind"] for one in found)
    assert kinds.count("CronJob") == (folder.startswith("overlays"))
    assert ("DaskCluster" in kinds) == (folder == "operator")


def test_every_file_is_looked_at() -> None:
    patches = {
        "overlays/spot/workers.yaml",
        "overlays/laptop/small.yaml",
        "overlays/laptop/store.yaml",
        "overlays/laptop/open.yaml",
    }
    there = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml"}
    assert there == {*PLAIN, *OPERATOR} | patches
    assert {str(path.parent.relative_to(FOLDER)) for path in FOLDER.rglob("kustomization.yaml")} == {*BUILT, "shared"}


@pytest.mark.parametrize(
    ("name", "kind", "path", "value"),
    [
        ("base/workers.yaml", "Deployment", ("spec", "replica"), 3),
        ("base/workers.yaml", "Deployment", ("spec", "replicas"), "three"),
        ("base/train.yaml", "Job", ("spec", "template", "spec", "containers", 0, "readonlyRootFilesystem"), True),
        ("overlays/nightly/nightly.yaml", "CronJob", ("spec", "concurencyPolicy"), "Forbid"),
        ("operator/cluster.yaml", "DaskCluster", ("spec", "worker", "replica"), 3),
        ("operator/cluster.yaml", "DaskCluster", ("spec", "worker", "spec", "containers", 0, "argv"), []),
        ("operator/autoscaler.yaml", "DaskAutoscaler", ("spec", "minimum"), "three"),
        ("operator/autoscaler.yaml", "DaskAutoscaler", ("spec", "min"), 3),
        ("operator/job.yaml", "DaskJob", ("spec", "job", "spec", "restart"), "Never"),
    ],
)
def test_a_slip_is_noticed(name: str, kind: str, path: tuple[Any, ...], value: Any) -> None:
    manifest = copy.deepcopy(the(kind, read(name)))
    place: Any = manifest
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError):
        validate(manifest)


@pytest.mark.parametrize(("labels", "spec"), PODS)
def test_pods_may_do_little_and_take_what_they_say(labels: dict[str, str], spec: dict[str, Any]) -> None:
    assert labels["app.kubernetes.io/name"] == "dboost"
    assert spec["automountServiceAccountToken"] is False and spec["serviceAccountName"] == "dboost"
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        for resource in ("cpu", "memory", "ephemeral-storage"):
            assert resource in container["resources"]["requests"] and resource in container["resources"]["limits"]
        assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == volumes
        assert "/tmp" in mounts.values()
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if kind in container:
                assert container[kind]["httpGet"]["path"] == "/health" and container[kind]["httpGet"]["port"] in ports
        assert ("livenessProbe" in container) == (labels["app.kubernetes.io/component"] != "client")
        # Manifests contain no secrets: they come from the store's own variables, in a Secret that the user creates.
        assert not any("SECRET" in variable["name"] for variable in container.get("env", []))


@pytest.mark.parametrize(("labels", "spec"), PODS)
def test_what_pods_refer_to_is_there(labels: dict[str, str], spec: dict[str, Any]) -> None:
    maps = {one["metadata"]["name"]: one["data"] for one in read("shared/settings.yaml")}
    for volume in spec["volumes"]:
        assert volume.get("configMap", {"name": "dboost-places"})["name"] in maps
    for container in spec["containers"]:
        known = {"DASK_SCHEDULER_ADDRESS", "DASK_WORKER_NAME"}  # the operator sets these
        known |= {variable["name"] for variable in container.get("env", [])}
        for source in container["envFrom"]:
            known |= set(maps[source["configMapRef"]["name"]]) if "configMapRef" in source else set()
        for argument in container["args"]:
            if argument.startswith("$("):
                assert argument[2:-1] in known
            if argument.startswith("/etc/dboost/"):
                assert argument.rpartition("/")[2] in maps["dboost-parameters"]


def test_services_find_their_pods_and_the_network_lets_them_through() -> None:
    manifests = [one for name in PLAIN for one in read(name)]
    service, policy = the("Service", manifests), the("NetworkPolicy", manifests)
    by_component = {labels["app.kubernetes.io/component"]: (labels, spec) for m in manifests for labels, spec in pods(m)}
    labels, spec = by_component["scheduler"]
    assert service["spec"]["selector"].items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    assert {port["port"] for port in service["spec"]["ports"]} == {
        ports[port["targetPort"]] for port in service["spec"]["ports"]
    }
    listening = {port["containerPort"] for _, one in by_component.values() for port in one["containers"][0].get("ports", [])}
    for direction, peer in (("ingress", "from"), ("egress", "to")):
        rule = policy["spec"][direction][0]
        assert {port["port"] for port in rule["ports"]} == listening
        assert rule[peer] == [{"podSelector": policy["spec"]["podSelector"]}]
    assert len(policy["spec"]["ingress"]) == 1
    for labels, _ in by_component.values():
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    address = the("ConfigMap", manifests, "places")["data"]["DBOOST_SCHEDULER"]
    assert address == f"tcp://{service['metadata']['name']}:{ports['comm']}"


@pytest.mark.parametrize(("name", "kind"), CLIENTS)
def test_the_commands_are_those_of_this_version(name: str, kind: str) -> None:
    (_, spec), *_ = pods(the(kind, read(name)))
    program, *arguments = spec["containers"][0]["args"]
    assert program == "dboost"
    parsed = parse(arguments)
    assert parsed.only_new and parsed.checkpoint and parsed.scheduler


def test_the_parameters_are_those_of_this_version() -> None:
    settings = the("ConfigMap", read("shared/settings.yaml"), "parameters")["data"]
    for text in settings.values():
        assert gather(None, [f"{key}={value}" for key, value in tomllib.loads(text).items()], parameter_names())


def test_the_two_ways_to_a_cluster_run_the_same() -> None:
    """Plain manifests and the operator's may differ in how a worker receives its name and the scheduler's address."""
    plain = {spec["containers"][0]["name"]: spec for name in PLAIN for one in read(name) for _, spec in pods(one)}
    theirs = {"$(DASK_SCHEDULER_ADDRESS)": "$(DBOOST_SCHEDULER)", "$(DASK_WORKER_NAME)": "$(POD_NAME)"}
    for manifest in read(*OPERATOR):
        for _, spec in pods(manifest):
            (container,), (ours,) = spec["containers"], plain[spec["containers"][0]["name"]]["containers"]
            if container["name"] != "train":
                assert [theirs.get(argument, argument) for argument in container["args"]] == ours["args"]
            for field in ("resources", "securityContext", "envFrom", "volumeMounts"):
                assert container[field] == ours[field]
            for field in ("securityContext", "volumes"):
                assert spec[field] == plain[container["name"]][field]


def test_what_the_operator_makes_of_them_is_valid() -> None:
    controller = pytest.importorskip("dask_kubernetes.operator.controller.controller")
    cluster = the("DaskCluster", read("operator/cluster.yaml"))["spec"]
    scheduler, worker = cluster["scheduler"], cluster["worker"]
    job = the("DaskJob", read("operator/job.yaml"))["spec"]["job"]
    made: list[Manifest] = [
        controller.build_scheduler_deployment_spec("dboost", scheduler["spec"], {}, scheduler["metadata"]["labels"]),
        controller.build_scheduler_service_spec("dboost", scheduler["service"], {}, {}),
        controller.build_worker_deployment_spec(
            "dboost-default", "here", "dboost", "0", worker["spec"], {}, worker["metadata"]["labels"]
        ),
        controller.build_job_pod_spec("dboost-train", "dboost-train", "here", job["spec"], {}, job["metadata"]["labels"]),
    ]
    for manifest in made:
        validate(manifest)
    deployment, service, *_ = made
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert service["metadata"]["name"] == "dboost-scheduler"


def test_the_network_lets_the_operator_through_to_schedulers_only() -> None:
    manifests = read(*OPERATOR)
    policy = the("NetworkPolicy", manifests)["spec"]
    schedulers = [the("DaskCluster", manifests)["spec"]["scheduler"]]
    schedulers.append(the("DaskJob", manifests)["spec"]["cluster"]["spec"]["scheduler"])
    for scheduler in schedulers:
        assert policy["podSelector"]["matchLabels"].items() <= scheduler["metadata"]["labels"].items()
        (container,) = scheduler["spec"]["containers"]
        (rule,) = policy["ingress"]
        # The operator's controller calls these two by their names.
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert [port["port"] for port in rule["ports"]] == [ports["tcp-comm"], ports["http-dashboard"]]
        # A namespace and one of its pods; as two entries of the list each alone would match.
        (peer,) = rule["from"]
        assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "dask-operator"}
        assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "dask-kubernetes-operator"}
    for manifest in manifests:
        for labels, _ in pods(manifest):
            reached = policy["podSelector"]["matchLabels"].items() <= labels.items()
            assert reached == (labels["app.kubernetes.io/component"] == "scheduler")


def test_the_ports_and_the_label_are_those_of_the_operator() -> None:
    controller = pytest.importorskip("dask_kubernetes.operator.controller.controller")
    chart = Path(controller.__file__).parent.parent / "deployment" / "helm" / "dask-kubernetes-operator"
    assert yaml.safe_load((chart / "Chart.yaml").read_text())["name"] == "dask-kubernetes-operator"
    asked = inspect.getsource(controller.get_desired_workers)
    assert 'port_name="http-dashboard"' in asked
    default = inspect.signature(controller.get_scheduler_address).parameters["port_name"].default
    assert default == "tcp-comm"


def test_durations_are_durations() -> None:
    places = the("ConfigMap", read("shared/settings.yaml"), "places")["data"]
    durations = {name: value for name, value in places.items() if name.startswith("DASK_") and "TIME" in name}
    assert len(durations) == 2
    assert all(parse_timedelta(value) >= 30 for value in durations.values())
