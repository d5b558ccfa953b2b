"""A TrainJob of Kubeflow Trainer, and a ConfigMap that brings the configuration into its pods.

Facts of kubeflow/trainer v2.3.0: `manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml` (fields
and limits), `pkg/runtime/framework/plugins/torch/torch.go` (the five PET_* variables that its
controller sets, and that a TrainJob may not), `pkg/runtime/framework/plugins/jobset/jobset.go`
(what a patch of the runtime may touch: of the container `node` its mounts, not its environment).
Patches of the runtime are called `runtimePatches` since v2.2.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autotune.backends.accelerate import FILE_NAME as ACCELERATE
from autotune.errors import UsageError
from autotune.export.exported import Exported, Note
from autotune.export.launch import SCRIPTS
from autotune.export.script import export_start, words
from autotune.export.subject import Subject
from autotune.render import HERE, render
from autotune.setup import Setup
from autotune.workload import Script

FOLDER = "/opt/autotune"
"""Where the ConfigMap is mounted."""
JOB, CONFIGURATION = "trainjob.yaml", "configmap.yaml"
MOST_ARGUMENTS = 128
"""Of `spec.trainer.args`: maxItems in the CRD."""
TOPOLOGY = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE")
"""Variables of launch.sh; with PET_ before their names, those that the controller sets."""


def export_kubeflow(subject: Subject) -> Exported:
    """``trainjob.yaml`` and ``configmap.yaml``.

    Raises:
        UsageError: The script that was measured has more arguments than a TrainJob takes.
    """
    launch = export_start(subject)
    notes = tuple(_here(note) for note in launch.notes)
    files = {name: launch.files[name] for name in _mounted(subject)}
    command, arguments = _command(subject.script, subject.setup)
    variables = {
        "provenance": subject.header(notes),
        "name": name_of(files),
        "folder": FOLDER,
        "files": files,
        "backend": subject.setup.backend,
        "measured": subject.script is not None,
        "command": [literal(word) for word in command],
        "arguments": [literal(word) for word in arguments],
        "environment": {name: literal(value) for name, value in environment(subject).items()},
    }
    texts = {
        name: render(f"kubeflow/{name}.j2", variables, subject.templates)
        for name in (CONFIGURATION, JOB)
    }
    return Exported(texts, notes)


def _here(note: Note) -> Note:
    """What other exports say in files of the launch folder is said in the TrainJob."""
    text = note.text
    for file in ("launch.env", "train.sh"):
        text = text.replace(file, JOB)
    return replace(note, text=text)


def _mounted(subject: Subject) -> list[str]:
    """Names of the files that a pod needs."""
    names = [subject.file_name, *subject.others]
    if _accelerate(subject.script):
        names += [ACCELERATE, *SCRIPTS]
    return list(dict.fromkeys(names))


def _accelerate(script: Script | None) -> bool:
    return script is not None and script.launcher == "accelerate"


def name_of(files: Mapping[str, str]) -> str:
    """A name for both objects, so that no export takes the place of another one's ConfigMap."""
    content = "\0".join(part for item in sorted(files.items()) for part in item)
    return f"autotune-{hashlib.sha256(content.encode()).hexdigest()[:10]}"


def literal(text: str) -> str:
    """A text that Kubernetes reads as ``text``.

    In commands, arguments and values of variables it expands ``$(NAME)``, and two dollars are one
    (API reference, Container v1 core, `args`).
    """
    return text.replace("$", "$$")


def environment(subject: Subject) -> dict[str, str]:
    """The variables of launch.env, for files in `FOLDER`."""
    setup = subject.setup
    path = f"{FOLDER}/{subject.file_name}"
    if setup.backend == "deepspeed":
        files = {"AUTOTUNE_DEEPSPEED_CONFIG": path}
    else:
        files = {f"AUTOTUNE_{setup.backend.upper()}_SETUP": path, "PYTHONPATH": FOLDER}
    return {
        "AUTOTUNE_FOLDER": FOLDER,
        **files,
        "AUTOTUNE_MICRO_BATCH": str(setup.micro_batch),
        "AUTOTUNE_GRADIENT_ACCUMULATION": str(setup.gradient_accumulation),
        "AUTOTUNE_ACTIVATION_CHECKPOINTING": str(int(setup.activation_checkpointing)),
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": str(int(setup.precision == "tf32")),
        **({"LAUNCHER": "accelerate"} if _accelerate(subject.script) else {}),
    }


def _command(script: Script | None, setup: Setup) -> tuple[list[str], list[str]]:
    """Command and arguments of the container; torchrun takes the topology from PET_*."""
    if script is None:
        return ["torchrun", "--"], ["train.py"]
    given = [word.replace(HERE, FOLDER) for word in words(script, setup)]
    _check(given)
    if _accelerate(script):
        return _by_launch_sh(), given
    if given[0] == "-m":
        return ["torchrun", "--module", "--"], given[1:]
    dashed = given[0].startswith("-")
    return ["torchrun", "--"], [f"./{given[0]}" if dashed else given[0], *given[1:]]


def _by_launch_sh() -> list[str]:
    """Accelerate does not read PET_*, and wants a number of processes, not "auto"."""
    exports = " ".join(f'{name}="$PET_{name}"' for name in TOPOLOGY)
    return ["bash", "-c", f'export {exports}; exec bash {FOLDER}/launch.sh "$@"', "launch.sh"]


def _check(given: Iterable[str]) -> None:
    count = len(list(given))
    if count > MOST_ARGUMENTS:
        raise UsageError(
            f"The script was measured with {count - 1} arguments; a TrainJob takes "
            f"{MOST_ARGUMENTS} words. Put some of them into a file that your script reads."
        )
