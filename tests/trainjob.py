"""What a cluster with Kubeflow Trainer 2.3.0 accepts as a TrainJob and as a ConfigMap.

Facts, restated from kubeflow/trainer at v2.3.0:
`manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml` (fields, types, limits, immutability),
`pkg/runtime/framework/plugins/torch/torch.go` and `pkg/constants/constants.go` (reserved names),
`pkg/runtime/framework/plugins/jobset/jobset.go` (patches of the runtime),
`manifests/base/runtimes/torch_distributed.yaml` (the runtime that is referred to);
and from Kubernetes 1.34, `pkg/apis/core/validation` (ConfigMap) and the API's Container. Fields
that no export uses are left out: whatever is not here is refused, as strict validation does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema

VERSION = "2.3.0"
RESERVED = {
    *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK"),
    *("PET_MASTER_ADDR", "PET_MASTER_PORT"),
}
"""Set by the controller; the webhook refuses a TrainJob whose trainer names one of them."""
RUNTIMES = {"torch-distributed": {"node": {"node"}}}
"""Replicated jobs and their containers, by runtime."""
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
"""RFC 1035; at most 63 characters."""
MANAGER = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", re.ASCII)
KEY = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)
MOST_BYTES = 1024 * 1024
"""Of all values of a ConfigMap."""


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _array(items: Any, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


TEXT = {"type": "string"}
LONG = {"type": "string", "maxLength": 253}
NAME = {**LONG, "minLength": 1}
WORDS = _array({"type": "string", "maxLength": 1048576}, 128)
QUANTITIES = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
}
MOUNT = _object(("mountPath", "name"), name=TEXT, mountPath=TEXT, readOnly={"type": "boolean"})
MODE = {"type": "integer", "minimum": 0, "maximum": 0o777}
VOLUME = _object(("name",), name=TEXT, configMap=_object(name=TEXT, defaultMode=MODE))
POD = _object(
    volumes=_array(VOLUME, 128),
    containers=_array(_object(("name",), name=NAME, volumeMounts=_array(MOUNT, 128)), 64),
)
REPLICATED = _object(
    ("name",), name=NAME, template=_object(spec=_object(template=_object(spec=POD)))
)
TRAINER = _object(
    image={"type": "string", "maxLength": 500},
    command=WORDS,
    args=WORDS,
    env=_array(_object(("name",), name=TEXT, value=TEXT), 128),
    numNodes={"type": "integer"},
    numProcPerNode={"type": "integer", "minimum": 1},
    resourcesPerNode=_object(limits=QUANTITIES, requests=QUANTITIES),
)
PATCH = _object(
    ("manager",),
    manager=NAME,
    trainingRuntimeSpec=_object(
        template=_object(spec=_object(replicatedJobs=_array(REPLICATED, 100)))
    ),
)
TRAIN_JOB = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "trainer.kubeflow.org/v1alpha1"},
    kind={"const": "TrainJob"},
    metadata=_object(("name",), name=TEXT, namespace=TEXT),
    spec=_object(
        ("runtimeRef",),
        runtimeRef=_object(("name",), name=NAME, apiGroup=LONG, kind=LONG),
        trainer=TRAINER,
        runtimePatches=_array(PATCH, 16),
        suspend={"type": "boolean"},
    ),
)
CONFIG_MAP = _object(
    ("apiVersion", "kind", "metadata", "data"),
    apiVersion={"const": "v1"},
    kind={"const": "ConfigMap"},
    metadata=_object(("name",), name=NAME, namespace=TEXT),
    immutable={"type": "boolean"},
    data={"type": "object", "additionalProperties": TEXT},
)


def faults_of_job(job: Any) -> Iterator[str]:
    """Why the API server or a webhook of Kubeflow Trainer would refuse a TrainJob."""
    faults = [
        error.message for error in jsonschema.Draft202012Validator(TRAIN_JOB).iter_errors(job)
    ]
    yield from faults
    if faults:
        return
    name, spec = job["metadata"]["name"], job["spec"]
    if not LABEL.fullmatch(name) or len(name) > 63:
        yield f"metadata.name {name!r}"
    names = [item["name"] for item in spec["trainer"].get("env", [])]
    yield from (f"reserved: {item}" for item in names if item in RESERVED)
    if len(set(names)) != len(names):
        yield "trainer.env names a variable twice"
    yield from _faults_of_patches(spec, RUNTIMES[spec["runtimeRef"]["name"]])


def _faults_of_patches(spec: Any, runtime: dict[str, set[str]]) -> Iterator[str]:
    for patch in spec.get("runtimePatches", []):
        if not MANAGER.fullmatch(patch["manager"]):
            yield f"manager {patch['manager']!r}"
        for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            if job["name"] not in runtime:
                yield f"no replicated job {job['name']}"
                continue
            pod = job["template"]["spec"]["template"]["spec"]
            volumes = {item["name"] for item in pod["volumes"]}
            for container in pod["containers"]:
                if container["name"] not in runtime[job["name"]]:
                    yield f"no container {container['name']}"
                mounted = {mount["name"] for mount in container["volumeMounts"]}
                yield from (f"no volume {item}" for item in mounted - volumes)


def faults_of_map(configuration: Any) -> Iterator[str]:
    """Why the API server would refuse a ConfigMap."""
    validator = jsonschema.Draft202012Validator(CONFIG_MAP)
    yield from (error.message for error in validator.iter_errors(configuration))
    data = configuration.get("data", {})
    yield from (f"key {key!r}" for key in data if not KEY.fullmatch(key) or len(key) > 253)
    if sum(len(text.encode()) for text in data.values()) > MOST_BYTES:
        yield "larger than 1 MiB"


def expanded(text: str, environment: dict[str, str]) -> str:
    """What Kubernetes makes of a word of a command: read from the left, each character once."""
    found, rest = "", text
    while "$" in rest:
        before, _, rest = rest.partition("$")
        found += before
        if rest.startswith("$"):
            found, rest = found + "$", rest[1:]
        elif rest.startswith("(") and ")" in rest:
            name, _, rest = rest[1:].partition(")")
            found += environment.get(name, f"$({name})")
        else:
            found += "$"
    return found + rest
