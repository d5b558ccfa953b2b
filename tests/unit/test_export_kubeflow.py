"""The exported TrainJob, against the rules of its CRD and as a pod would start it."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.bundle import bundle
from autotune.consumer.kubeflow import expanded as expanded_by_reader
from autotune.errors import UsageError
from autotune.export import Exported, export, subject_of, write
from autotune.export.kubeflow import FOLDER, literal
from autotune.setup import BACKENDS, Setup
from autotune.workload import Script, ScriptLauncher
from tests.build import make_probe, make_setup
from tests.recorder import HOSTILE, Recorder, recorded, recorded_environment
from tests.trainjob import expanded, faults_of_job, faults_of_map
from tests.unit.test_export import MEASURED_JSON, MEASURED_MODULE, PROVENANCE, probe_of
from tests.unit.test_export import exported as exported_as

NODES = {
    "PET_NNODES": "4",
    "PET_NODE_RANK": "2",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
    "PET_NPROC_PER_NODE": "8",
}
"""What the controller puts into each pod."""
DOLLARS = ["$$", "$$(HOME)", "$(HOME)", "$", "a$", "$$$(X)", "$(", "${HOME}"]


def measured(
    *command: str, launcher: ScriptLauncher = "torchrun", setup: Setup | None = None
) -> Exported:
    setup = setup or make_setup(precision="bf16")
    name = "ds_config.json" if setup.backend == "deepspeed" else f"{setup.backend}_setup.py"
    text = MEASURED_JSON if setup.backend == "deepspeed" else MEASURED_MODULE
    probe = replace(make_probe(0, setup), rendered=bundle({name: text}))
    script = Script(command=command, launcher=launcher)
    return export(subject_of(probe, PROVENANCE, None, script), "kubeflow")


def plain(words: Sequence[str]) -> list[str]:
    """Words of a sweep file's command line in which no brace is a placeholder's."""
    return [re.sub(r"\{(\w+)\}", r"{{\1}}", word) for word in words]


def job_of(found: Exported) -> Any:
    return yaml.safe_load(found.files["trainjob.yaml"])


def files_of(found: Exported) -> dict[str, str]:
    data: dict[str, str] = yaml.safe_load(found.files["configmap.yaml"])["data"]
    return data


def started(found: Exported) -> list[str]:
    """Command and arguments as the container gets them."""
    trainer = job_of(found)["spec"]["trainer"]
    return [expanded(word, {"HOME": "wrong"}) for word in trainer["command"] + trainer["args"]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("launcher", [None, "torchrun", "accelerate"])
def test_both_files_are_what_a_cluster_accepts(
    backend: str, launcher: ScriptLauncher | None
) -> None:
    setup = make_setup(backend=backend, precision="bf16")
    if launcher is None:
        found = exported_as(setup, "kubeflow")
    else:
        found = measured("train.py", *plain(HOSTILE), launcher=launcher, setup=setup)
    assert set(found.files) == {"configmap.yaml", "trainjob.yaml"}
    job, configuration = job_of(found), yaml.safe_load(found.files["configmap.yaml"])
    assert list(faults_of_job(job)) == []
    assert list(faults_of_map(configuration)) == []
    volumes = json.dumps(job["spec"]["runtimePatches"])
    assert f'"configMap": {{"name": "{configuration["metadata"]["name"]}"}}' in volumes
    assert f'"mountPath": "{FOLDER}"' in volumes


def test_kubeflows_own_models_read_the_trainjob_and_write_it_back() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    job = job_of(measured("train.py", *plain(HOSTILE)))
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job


def _without_runtime(job: Any) -> None:
    del job["spec"]["runtimeRef"]


def _with_reserved(job: Any) -> None:
    job["spec"]["trainer"]["env"].append({"name": "PET_NNODES", "value": "2"})


def _with_a_number(job: Any) -> None:
    job["spec"]["trainer"]["args"] = ["--lr", 1e-4]


def _with_too_many(job: Any) -> None:
    job["spec"]["trainer"]["args"] = ["x"] * 129


def _with_a_name(job: Any) -> None:
    job["metadata"]["name"] = "1st"


def _with_another_container(job: Any) -> None:
    text = json.dumps(job["spec"]["runtimePatches"])
    job["spec"]["runtimePatches"] = json.loads(text.replace('"name": "node"', '"name": "other"'))


def _with_variables_in_a_patch(job: Any) -> None:
    (patch,) = job["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    replicated["template"]["spec"]["template"]["spec"]["containers"][0]["env"] = []


@pytest.mark.parametrize(
    "spoil",
    [
        *(_without_runtime, _with_reserved, _with_a_number, _with_too_many, _with_a_name),
        *(_with_another_container, _with_variables_in_a_patch),
    ],
)
def test_the_rules_refuse_what_a_cluster_refuses(spoil: Callable[[Any], None]) -> None:
    job = copy.deepcopy(job_of(exported_as(make_setup(), "kubeflow")))
    assert list(faults_of_job(job)) == []
    spoil(job)
    assert list(faults_of_job(job)) != []


def test_no_topology_is_written_and_none_of_the_reserved_variables() -> None:
    found = exported_as(make_setup(), "kubeflow")
    trainer = job_of(found)["spec"]["trainer"]
    assert set(trainer) == {"command", "args", "env"}
    assert "PET_" not in found.files["trainjob.yaml"]
    for hint in ("# image:", "# numNodes:", "# resourcesPerNode:"):
        assert hint in found.files["trainjob.yaml"]


def test_the_script_and_its_arguments_arrive_untouched() -> None:
    arguments = [*HOSTILE, *DOLLARS, "1e-4", "yes", "0x1F", "null", "~", "\U0001f600"]
    found = measured("train it's.py", *plain(arguments), "--config={deepspeed_config}")
    last = f"--config={FOLDER}/ds_config.json"
    assert started(found) == ["torchrun", "--", "train it's.py", *arguments, last]
    assert found.files["trainjob.yaml"].isascii()


def test_a_module_and_a_name_like_an_option_are_started_as_what_they_are() -> None:
    module = started(measured("-m", "package.train", "-x"))
    assert module == ["torchrun", "--module", "--", "package.train", "-x"]
    assert started(measured("-c.py", "-x")) == ["torchrun", "--", "./-c.py", "-x"]


def test_more_words_than_a_trainjob_takes_are_refused() -> None:
    measured("train.py", *["x"] * 127)
    with pytest.raises(UsageError, match="128 arguments; a TrainJob takes 128 words"):
        measured("train.py", *["x"] * 128)


def test_under_accelerate_each_pod_runs_launch_sh_with_the_topology_of_the_controller(
    tmp_path: Path,
) -> None:
    arguments = ["first", *HOSTILE, *DOLLARS]
    found = measured("train.py", *plain(arguments), launcher="accelerate")
    mounted = tmp_path / "mounted"
    write(Exported(files_of(found), ()), mounted)
    (tmp_path / "train.py").touch()
    words = [word.replace(FOLDER, str(mounted)) for word in started(found)]
    variables = {item["name"]: item["value"] for item in job_of(found)["spec"]["trainer"]["env"]}
    done = Recorder(tmp_path).run(*words, **variables, **NODES)
    assert done.returncode == 0, done.stderr
    got = recorded(tmp_path)
    assert got[1] == "accelerate.commands.launch"
    for option, value in (
        ("--num_processes", "32"),
        ("--num_machines", "4"),
        ("--machine_rank", "2"),
        ("--main_process_ip", "job-node-0-0.job"),
        ("--deepspeed_config_file", f"{mounted}/ds_config.json"),
    ):
        assert got[got.index(option) + 1] == value
    assert got[got.index("--") + 1 :] == ["train.py", *arguments]
    assert recorded_environment(tmp_path)["AUTOTUNE_FOLDER"] == str(mounted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_variables_are_those_of_launch_env(tmp_path: Path, backend: str) -> None:
    setup = make_setup(backend=backend, precision="tf32", activation_checkpointing=True)
    write(exported_as(setup, "launch"), tmp_path)
    sourced = subprocess.check_output(
        ["bash", "-c", f"cd / && source '{tmp_path}/launch.env' && env -0"],
        env={"PATH": os.environ["PATH"]},
        text=True,
    )
    wanted = dict(item.split("=", 1) for item in sourced.split("\0") if item)
    for shell in ("PATH", "PWD", "OLDPWD", "SHLVL", "_"):
        wanted.pop(shell, None)
    job = job_of(exported_as(setup, "kubeflow"))
    found = {item["name"]: item["value"] for item in job["spec"]["trainer"]["env"]}
    assert {name: value.replace(FOLDER, str(tmp_path)) for name, value in found.items()} == wanted


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mounted_configuration_is_that_of_launch_to_the_letter(backend: str) -> None:
    setup = make_setup(backend=backend)
    files = files_of(exported_as(setup, "kubeflow"))
    (name,) = files
    assert files[name] == exported_as(setup, "launch").files[name]


def test_any_text_survives_the_configmap() -> None:
    text = "\n  indented: é\u2028\t\ttabs \r\n\n trailing \n# comment\n---\n$(X)\n"
    subject = subject_of(replace(probe_of(make_setup(backend="fsdp")), rendered=text), PROVENANCE)
    found = export(subject, "kubeflow")
    assert files_of(found) == {"fsdp_setup.py": export(subject, "fsdp").files["fsdp_setup.py"]}
    assert files_of(found)["fsdp_setup.py"].endswith(text)


def test_other_files_get_another_name() -> None:
    def name(text: str) -> str:
        probe = replace(probe_of(make_setup()), rendered=text)
        found: str = job_of(export(subject_of(probe, PROVENANCE), "kubeflow"))["metadata"]["name"]
        return found

    assert name("{}") == name("{}") != name('{"a": 1}')


def test_the_notes_name_the_files_that_are_there() -> None:
    setup = make_setup(precision="tf32", activation_checkpointing=True)
    notes = exported_as(setup, "kubeflow").notes
    assert [note.status for note in notes] == [
        note.status for note in exported_as(setup, "launch").notes
    ]
    texts = " ".join(note.text for note in notes)
    assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE in trainjob.yaml" in texts
    assert "launch.env" not in texts


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)-$(A)", "1-1"),
        ("$$(A)_$(A)", "$(A)_1"),
        ("$$A", "$A"),
        ("$$$$$$$(A)", "$$$1"),
        ("$(NONE)", "$(NONE)"),
        ("$?_$!", "$?_$!"),
        ("$(A", "$(A"),
        ("end$", "end$"),
        ("$($($(--", "$($($(--"),
    ],
)
def test_kubernetes_expands_only_what_it_documents(text: str, result: str) -> None:
    assert expanded(text, {"A": "1"}) == result
    assert expanded_by_reader(text, {"A": "1"}) == result


@given(st.text(alphabet="$()Ab", max_size=12))
def test_a_literal_text_is_expanded_to_itself(text: str) -> None:
    assert expanded(literal(text), {"A": "1", "b": "2", "": "3"}) == text
    assert expanded_by_reader(literal(text), {"A": "1", "b": "2"}) == text
