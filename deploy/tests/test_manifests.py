"""The manifests are valid for Kubernetes and the Dask operator in strict mode, and follow the project's own rules."""

from __future__ import annotations

import copy
import inspect
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes_validate")
pytest.importorskip("jsonschema")

from dask.utils import parse_timedelta
from jsonschema import ValidationError

import dboost
from dboost.cli import HELD_BACK, UNUSABLE, demo_command
from dboost.cli.arguments import ELSEWHERE, gather, keywords, parse
from dboost.cli.gate import parse_gate
from deploy.tests.manifests import BUILT, FOLDER, VERSIONS, Manifest, built, overlay, pods, read, the, validate

SERVE = FOLDER.parent / "service" / "serve.py"
PLAIN = [
    "shared/account.yaml", "shared/settings.yaml", "shared/network.yaml", "shared/disruption.yaml", "base/scheduler.yaml",
    "base/workers.yaml", "base/train.yaml", "overlays/nightly/nightly.yaml",
]  # fmt: skip
SERVICE = ["components/service/service.yaml", "components/service/network.yaml"]
OPERATOR = ["operator/cluster.yaml", "operator/autoscaler.yaml", "operator/job.yaml", "operator/network.yaml"]
#: Resources that only some overlays have.
OPTIONAL = ["overlays/laptop/volume.yaml", "components/metadata-server/network.yaml"]
#: Resources whose schemas the validator does not have.
CERT_MANAGER = ["components/tls-cert-manager/certificates.yaml"]
COMPONENTS = tuple(f"components/{name}" for name in ("tls", "tls-cert-manager", "metadata-server", "gate", "service"))
CLIENTS = [("base/train.yaml", "Job"), ("overlays/nightly/nightly.yaml", "CronJob"), ("operator/job.yaml", "DaskJob")]


def every_pod() -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    for name in (*PLAIN, *SERVICE, *OPERATOR):
        for manifest in read(name):
            for labels, spec in pods(manifest):
                yield name, labels, spec


PODS = [pytest.param(labels, spec, id=f"{name} {spec['containers'][0]['name']}") for name, labels, spec in every_pod()]


@pytest.mark.fast_cells(7)
@pytest.mark.parametrize("name", [*PLAIN, *OPTIONAL, *SERVICE, *OPERATOR])
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
    patches = {f"overlays/laptop/{name}.yaml" for name in ("small", "places", "workers", "train", "nightly")}
    patches |= {f"components/gate/{name}.yaml" for name in ("places", "args")}
    patches |= {"overlays/spot/workers.yaml", *(f"components/tls/{name}.yaml" for name in ("places", "pods", "cron"))}
    there = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml"}
    assert there == {*PLAIN, *OPTIONAL, *SERVICE, *OPERATOR, *CERT_MANAGER} | patches
    assert {str(path.parent.relative_to(FOLDER)) for path in FOLDER.rglob("kustomization.yaml")} == {
        *BUILT,
        *COMPONENTS,
        "shared",
    }


def guide() -> str:
    return (FOLDER.parent.parent / "docs" / "deploy" / "kubernetes.md").read_text(encoding="utf-8")


def test_the_guide_names_the_versions_that_are_checked() -> None:
    oldest, *last = VERSIONS
    assert len(set(VERSIONS)) == 5
    assert f"valid for Kubernetes {oldest} and {last[0]} to {last[-1]}." in guide()


def test_the_commands_of_the_guide_name_what_is_there() -> None:
    """A job's template cannot be changed, and pods read settings when they start."""
    names = {kind: [one["metadata"]["name"] for one in read(*PLAIN) if one["kind"] == kind] for kind in ("Job", "Deployment")}
    assert re.findall(r"^kubectl delete job (\S+)", guide(), re.MULTILINE) == names["Job"]
    (restarted,) = re.findall(r"`kubectl rollout restart deployment ([^`]*)`", guide())
    assert sorted(restarted.split()) == sorted(names["Deployment"])


def test_the_readme_says_which_file_to_start_from() -> None:
    text = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    places = re.findall(r"`((?:docker|kubernetes|service|docs)/[^`]*)`", text)
    for place in places:
        assert (FOLDER.parent / place).exists() or (FOLDER.parent.parent / place).exists(), place
    assert {f"kubernetes/{folder}" for folder in BUILT} <= set(places)


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
        known = keywords(dboost.fit, ELSEWHERE)
        assert gather(None, [f"{key}={value}" for key, value in tomllib.loads(text).items()], known)


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


@pytest.mark.slow
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


def egress_to(manifests: list[Manifest], address: str) -> set[tuple[int, str]]:
    """Return port and protocol of what the policies permit to an address outside the cluster's own pods."""
    found = set()
    for policy in manifests:
        for rule in policy["spec"].get("egress", []) if policy["kind"] == "NetworkPolicy" else []:
            blocks = [ip_network(peer["ipBlock"]["cidr"]) for peer in rule.get("to", []) if "ipBlock" in peer]
            if "to" not in rule or any(ip_address(address) in block for block in blocks):
                found |= {(port["port"], port.get("protocol", "TCP")) for port in rule["ports"]}
    return found


def test_names_are_found_wherever_the_name_service_is() -> None:
    manifests = read("shared/network.yaml")
    for address in ("10.0.0.10", "169.254.20.10"):  # a service; NodeLocal DNSCache, an address of the node
        assert {(53, "UDP"), (53, "TCP")} <= egress_to(manifests, address)
    openshift = [rule for rule in the("NetworkPolicy", manifests)["spec"]["egress"] if "openshift-dns" in str(rule)]
    assert [port["port"] for port in openshift[0]["ports"]] == [5353, 5353]


def test_roles_of_service_accounts_get_their_credentials() -> None:
    """What shared/account.yaml recommends instead of a secret."""
    manifests = read("shared/network.yaml")
    assert (80, "TCP") in egress_to(manifests, "169.254.170.23"), "EKS Pod Identity"
    assert (988, "TCP") in egress_to(manifests, "169.254.169.252"), "GKE's metadata server"
    node = "169.254.169.254"  # GKE's with Dataplane V2; elsewhere that of the node, whose role pods must not have
    assert (80, "TCP") not in egress_to(manifests, node)
    assert (80, "TCP") in egress_to(read("components/metadata-server/network.yaml"), node)


def test_a_drain_takes_one_worker_at_a_time_and_is_never_blocked() -> None:
    budget = the("PodDisruptionBudget", read("shared/disruption.yaml"))["spec"]
    assert budget["maxUnavailable"] == 1
    for _, labels, spec in every_pod():
        is_worker = labels["app.kubernetes.io/component"] == "worker"
        assert (budget["selector"]["matchLabels"].items() <= labels.items()) == is_worker
        if is_worker:
            (spread,) = spec["topologySpreadConstraints"]
            assert spread["labelSelector"] == budget["selector"] and spread["whenUnsatisfiable"] == "ScheduleAnyway"


@pytest.mark.parametrize(("labels", "spec"), PODS)
def test_a_signal_before_python_has_started_ends_the_container(labels: dict[str, str], spec: dict[str, Any]) -> None:
    """The kernel has no default action for signals to process 1 of a namespace, which is another one then."""
    assert spec["shareProcessNamespace"] is True


def test_the_nightly_job_never_does_the_work_of_the_first_fit() -> None:
    commands = {}
    for name, kind in CLIENTS:
        (_, spec), *_ = pods(the(kind, read(name)))
        commands[name] = parse(spec["containers"][0]["args"][1:])
    nightly = commands["overlays/nightly/nightly.yaml"]
    assert nightly.start_from == nightly.output
    assert [command.start_from for command in commands.values() if command is not nightly] == [None, None]


def test_the_gate_is_an_addition_to_the_nightly_job_alone(tmp_path: Path) -> None:
    manifests = overlay(tmp_path, "overlays/nightly", components=["gate"])
    job = the("CronJob", manifests)
    validate(job)
    ((_, spec),) = pods(job)
    command = parse(spec["containers"][0]["args"][1:])
    assert (command.eval, command.gate) == ("$(DBOOST_EVAL)", "$(DBOOST_GATE)")
    assert parse_gate(the("ConfigMap", manifests, "places")["data"]["DBOOST_GATE"]) == ("rmse", 0.0)
    (rule, _) = job["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [UNUSABLE, HELD_BACK]
    changed = ("CronJob", "ConfigMap")
    others = [manifest for manifest in manifests if manifest["kind"] not in changed]
    assert others == [manifest for manifest in built("overlays/nightly") if manifest["kind"] not in changed]


def test_the_service_is_reached_by_all_pods_and_reaches_the_model(tmp_path: Path) -> None:
    """Beside the nightly job, whose model it serves."""
    manifests = overlay(tmp_path, "overlays/nightly", components=["service"])
    for manifest in manifests:
        validate(manifest)
        assert manifest["metadata"]["labels"]["app.kubernetes.io/name"] == "dboost"
    service, deployment = the("Service", manifests, "dboost-service"), the("Deployment", manifests, "dboost-service")
    policy, general = the("NetworkPolicy", manifests, "dboost-service"), the("NetworkPolicy", read("shared/network.yaml"))
    ((labels, spec),) = pods(deployment)
    (container,) = spec["containers"]
    for selector in (service["spec"]["selector"], policy["spec"]["podSelector"]["matchLabels"]):
        assert selector.items() <= labels.items() and selector["app.kubernetes.io/component"] == "service"
    assert general["spec"]["podSelector"]["matchLabels"].items() <= labels.items(), "of which it has what leaves the pod"
    (port,), (published,), (rule,) = container["ports"], service["spec"]["ports"], policy["spec"]["ingress"]
    assert published["targetPort"] == port["name"] and rule["ports"] == [{"port": port["containerPort"]}]
    assert container["image"] == "dboost:0.1.0"
    words = container["args"]
    assert Path(words[1]).name == SERVE.name and words[2] == "$(DBOOST_MODEL)"
    assert words[words.index("--port") + 1] == str(port["containerPort"])
    assert int(words[words.index("--drain") + 1]) < spec["terminationGracePeriodSeconds"] - 10
    options = {word for word in words if word.startswith("--")}
    assert options <= set(re.findall(r'add_argument\("(--[a-z-]+)"', SERVE.read_text(encoding="utf-8")))


def test_a_small_cluster_needs_nothing_else() -> None:
    """No store, no secret and no data of the user: every pod that reads data has the volume, and the rows are made first."""
    manifests = built("overlays/laptop")
    claim = the("PersistentVolumeClaim", list(manifests))["metadata"]["name"]
    places = the("ConfigMap", list(manifests), "places")["data"]
    assert all(places[name].startswith("/data/") for name in ("DBOOST_DATA", "DBOOST_MODEL", "DBOOST_CHECKPOINT"))
    for manifest in manifests:
        for labels, spec in pods(manifest):
            if labels["app.kubernetes.io/component"] == "scheduler":
                continue
            (volume,) = (one for one in spec["volumes"] if "persistentVolumeClaim" in one)
            assert volume["persistentVolumeClaim"]["claimName"] == claim
            for container in (*spec["containers"], *spec.get("initContainers", [])):
                assert {"name": volume["name"], "mountPath": "/data"} in container["volumeMounts"]
                assert container["image"] == "dboost:0.1.0"
                assert container["securityContext"]["readOnlyRootFilesystem"]
    (_, spec), *_ = pods(the("Job", list(manifests)))
    (first,) = spec["initContainers"]
    folder = parse(first["args"][1:]).output
    assert Path(places["DBOOST_DATA"]).parent == Path(folder) and fnmatch("train.parquet", Path(places["DBOOST_DATA"]).name)
    assert places["DBOOST_TARGET"] == demo_command.TARGET


@pytest.mark.fast_cells(1)
@pytest.mark.parametrize("component", ["tls", "tls-cert-manager"])
def test_the_component_brings_tls_to_every_pod(component: str, tmp_path: Path) -> None:
    manifests = overlay(tmp_path, "overlays/nightly", components=[component])
    places = the("ConfigMap", manifests, "places")["data"]
    assert places["DBOOST_SCHEDULER"].startswith("tls://")
    files = {value for name, value in places.items() if "__TLS__" in name}
    assert len(files) == 3
    plain = {(one["kind"], one["metadata"]["name"]): one for one in built("overlays/nightly")}
    n_pods = 0
    for manifest in manifests:
        if manifest["apiVersion"].startswith("cert-manager.io/"):
            continue
        validate(manifest)
        for (_, spec), (_, before) in zip(
            pods(manifest), pods(plain[manifest["kind"], manifest["metadata"]["name"]]), strict=True
        ):
            n_pods += 1
            (container,) = spec["containers"]
            (volume,) = (one for one in spec["volumes"] if one not in before["volumes"])
            (mount,) = (one for one in container["volumeMounts"] if one not in before["containers"][0]["volumeMounts"])
            assert mount["name"] == volume["name"] and mount["readOnly"]
            # The names in a secret of kubernetes.io/tls, as cert-manager writes it.
            assert files == {f"{mount['mountPath']}/{name}" for name in ("ca.crt", "tls.crt", "tls.key")}
            assert volume["secret"] == {"secretName": "dboost-tls", "defaultMode": 0o440}
    assert n_pods == 4


def test_the_certificates_are_for_both_sides_and_in_the_secret_of_the_pods() -> None:
    manifests = read(*CERT_MANAGER)
    issuers = {one["metadata"]["name"]: one["spec"] for one in manifests if one["kind"] == "Issuer"}
    certificates = {one["metadata"]["name"]: one["spec"] for one in manifests if one["kind"] == "Certificate"}
    own, ca = certificates["dboost-tls"], certificates["dboost-ca"]
    assert own["secretName"] == "dboost-tls" and {"server auth", "client auth"} <= set(own["usages"])
    assert issuers[own["issuerRef"]["name"]] == {"ca": {"secretName": ca["secretName"]}} and ca["isCA"]
    assert issuers[ca["issuerRef"]["name"]] == {"selfSigned": {}}


def test_durations_are_durations() -> None:
    places = the("ConfigMap", read("shared/settings.yaml"), "places")["data"]
    durations = {name: value for name, value in places.items() if name.startswith("DASK_") and "TIME" in name}
    assert len(durations) == 2
    assert all(parse_timedelta(value) >= 30 for value in durations.values())
