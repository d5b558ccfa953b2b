"""TrainingArguments in three forms, and what the dialects around the Trainer share."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.export import Exported, Note, Subject, export, write
from autotune.setup import LossScale, Setup
from autotune.wiring.exports import unmeasured
from autotune.workload import Script
from tests.build import make_setup
from tests.proof import SAMPLED, knobs_of

FAMILY = ("huggingface", "trl", "axolotl", "llamafactory")
ALL = [setup for setups in SAMPLED.values() for setup in setups]
MIB = 2**20


def exported(to: str = "huggingface", **knobs: Any) -> Exported:
    return export(unmeasured(make_setup(**knobs), None), to)


def arguments(to: str = "huggingface", **knobs: Any) -> dict[str, Any]:
    name = "training_args" if to == "huggingface" else to
    found: dict[str, Any] = yaml.safe_load(exported(to, **knobs).files[f"{name}.yaml"])
    return found


def notes_of(to: str = "huggingface", **knobs: Any) -> dict[str, Note]:
    return {note.knob: note for note in exported(to, **knobs).notes}


def of_user(config: dict[str, Any]) -> Subject:
    """A setup that ran in a configuration of the user's own."""
    subject = unmeasured(make_setup(precision="bf16"), None)
    return replace(subject, config=json.dumps(config))


def array(path: Path) -> list[str]:
    """What a shell has of the file."""
    line = 'set -euo pipefail; source "$1"; printf "%s\\0" "${training_args[@]}"'
    shell = ["bash", "-c", line, "bash", str(path)]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("to", FAMILY)
@pytest.mark.parametrize("setup", ALL, ids=lambda setup: setup.key)
def test_every_knob_gets_one_note(setup: Setup, to: str) -> None:
    noted = [note.knob for note in export(unmeasured(setup, None), to).notes]
    assert sorted(noted) == knobs_of(setup)


@pytest.mark.parametrize("setup", ALL, ids=lambda setup: setup.key)
def test_the_three_forms_say_the_same(setup: Setup, tmp_path: Path) -> None:
    files = export(unmeasured(setup, None), "huggingface").files
    said = yaml.safe_load(files["training_args.yaml"])
    assert json.loads(files["training_args.json"]) == said
    path = tmp_path / "training_args.flags"
    path.write_text(files["training_args.flags"], encoding="utf-8")
    words = array(path)
    flags = [word for word in words if word.startswith("--")]
    assert flags == [f"--{name}" for name in said]
    for name, value in said.items():
        word = words[words.index(f"--{name}") + 1 :][:1]
        if name == "fsdp":
            assert word == ["--fsdp_config"], "a value would be the name of an old strategy"
        elif name == "deepspeed":
            assert word == [str(tmp_path / value)]
        else:
            assert json.loads(word[0]) == value


def test_the_flags_find_their_folder_whatever_its_name_is(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s $(a) "folder" \\ with\nlines'
    write(exported(precision="bf16"), folder)
    words = array(folder / "training_args.flags")
    assert words[words.index("--deepspeed") + 1] == str(folder / "ds_config.json")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing_in_the_flags(tmp_path: Path) -> None:
    for number, backend in enumerate(("deepspeed", "fsdp", "ddp")):
        path = tmp_path / f"{number}.flags"
        path.write_text(exported(backend=backend).files["training_args.flags"], encoding="utf-8")
        found = subprocess.run(
            ["shellcheck", "--exclude=SC2034", path], capture_output=True, check=False
        )
        assert found.stdout == b""


def test_the_json_leaves_to_the_trainer_what_is_its_own_and_the_rest_as_it_ran() -> None:
    subject = unmeasured(make_setup(precision="bf16", micro_batch=3), None)
    ran, said = (
        json.loads(subject.config),
        json.loads(export(subject, "huggingface").files["ds_config.json"]),
    )
    owned = {key for key in ran if said[key] != ran[key]}
    assert owned == {
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    }
    assert {said[key] for key in owned} == {"auto"}
    assert set(said) == set(ran)
    assert arguments(micro_batch=3)["per_device_train_batch_size"] == 3
    assert arguments()["max_grad_norm"] == ran["gradient_clipping"]


@pytest.mark.parametrize(
    ("own", "norm"),
    [({"gradient_clipping": 0.5}, 0.5), ({"gradient_clipping": "auto"}, None), ({}, None)],
)
def test_the_users_own_clipping_stays(own: dict[str, Any], norm: float | None) -> None:
    files = export(of_user({"bf16": {"enabled": "auto"}, **own}), "huggingface").files
    assert yaml.safe_load(files["training_args.yaml"]).get("max_grad_norm") == norm
    config = json.loads(files["ds_config.json"])
    assert config["bf16"] == {"enabled": "auto"}
    assert config.get("gradient_clipping") == ("auto" if own else None)


def test_what_a_measured_script_says_by_itself_is_not_said_against_it() -> None:
    script = Script(command=("train.py",), launcher="torchrun")
    subject = replace(unmeasured(make_setup(backend="ddp"), None), script=script)
    said = yaml.safe_load(export(subject, "huggingface").files["training_args.yaml"])
    assert not {"max_grad_norm", "ddp_find_unused_parameters"} & set(said)
    assert arguments(backend="ddp")["ddp_find_unused_parameters"] is False


@pytest.mark.parametrize("to", FAMILY)
@pytest.mark.parametrize(
    ("knobs", "module"),
    [
        ({"backend": "fsdp", "precision": "bf16", "grad_comm_dtype": "bf16"}, None),
        ({"backend": "fsdp", "precision": "bf16"}, "fsdp_setup"),
        ({"backend": "fsdp", "precision": "tf32"}, None),
        ({"backend": "ddp", "bucket_bytes": 4 * MIB}, None),
        ({"backend": "ddp", "bucket_bytes": 4 * MIB + 4}, "ddp_setup"),
        ({"backend": "ddp", "bucket_bytes": MIB // 2}, "ddp_setup"),
        ({"backend": "ddp", "grad_comm_dtype": "bf16"}, "ddp_setup"),
        ({"backend": "ddp", "precision": "fp16", "bucket_bytes": MIB}, "ddp_setup"),
        ({"precision": "bf16"}, None),
    ],
)
def test_the_module_is_there_just_where_the_arguments_cannot_do(
    to: str, knobs: dict[str, Any], module: str | None
) -> None:
    made = exported(to, **knobs)
    assert [name for name in made.files if name in ("fsdp_setup.py", "ddp_setup.py")] == (
        [f"{module}.py"] if module else []
    )
    told = [note.knob for note in made.notes if f"{module}.install()`" in note.text]
    assert bool(told) == (module is not None)


def test_a_bucket_is_counted_in_float32_gradients() -> None:
    assert arguments(backend="ddp", bucket_bytes=4 * MIB)["ddp_bucket_cap_mb"] == 4
    narrow = arguments(backend="ddp", bucket_bytes=4 * MIB, grad_comm_dtype="bf16")
    assert narrow["ddp_bucket_cap_mb"] == 8
    assert "ddp_bucket_cap_mb" not in arguments(backend="ddp", bucket_bytes=4 * MIB + 4)


def test_activations_are_recomputed_by_one_of_the_two_that_can() -> None:
    for backend in ("deepspeed", "ddp"):
        assert arguments(backend=backend, activation_checkpointing=True)["gradient_checkpointing"]
    sharded = arguments(backend="fsdp", activation_checkpointing=True)
    assert "gradient_checkpointing" not in sharded
    assert sharded["fsdp_config"]["activation_checkpointing"] is True


def test_who_loads_the_model_is_told_of_float32_where_it_matters() -> None:
    assert "dtype=torch.float32" in notes_of(backend="ddp", precision="bf16")["precision"].text
    assert "dtype=torch.float32" not in notes_of(backend="ddp")["precision"].text
    assert "dtype=torch.float32" not in notes_of(precision="bf16")["precision"].text


def test_what_is_left_to_do_to_the_script_is_in_the_heads_of_the_files() -> None:
    files = exported(backend="fsdp", precision="bf16").files
    for form in ("yaml", "flags"):
        head = files[f"training_args.{form}"]
        assert "# For grad_comm_dtype: put `import fsdp_setup; fsdp_setup.install()` before" in head
        assert "# For bf16: load your model with dtype=torch.float32" in head
    assert "# For " not in exported(precision="bf16").files["training_args.yaml"]


def test_tf32_is_said_and_what_it_needs() -> None:
    for backend in ("deepspeed", "fsdp", "ddp"):
        assert arguments(backend=backend, precision="tf32")["tf32"] is True
        assert "Ampere" in notes_of(backend=backend, precision="tf32")["precision"].text
    assert arguments(precision="bf16")["tf32"] is False


@pytest.mark.parametrize("to", FAMILY)
def test_hysteresis_and_a_floor_are_only_approximated(to: str) -> None:
    scale = LossScale(hysteresis=2, minimum=0)
    noted = notes_of(to, backend="fsdp", precision="fp16", loss_scale=scale)
    assert noted["loss_scale"].status == "approximated"
    assert notes_of(to, backend="fsdp", precision="fp16")["loss_scale"].status == "expressed"


@pytest.mark.parametrize("to", FAMILY)
def test_every_text_file_says_where_it_is_from(to: str) -> None:
    for backend in ("deepspeed", "fsdp", "ddp"):
        setup = make_setup(backend=backend, grad_comm_dtype="bf16")
        for name, text in exported(to, backend=backend, grad_comm_dtype="bf16").files.items():
            if not name.endswith(".json"):
                assert f"# Setup: {setup.key}\n" in text, name


@pytest.mark.parametrize("to", FAMILY)
def test_a_hostile_provenance_stays_in_its_comments(to: str) -> None:
    subject = unmeasured(make_setup(backend="fsdp", precision="bf16"), None)
    key = "x\nimport os\r\nos.abort()\u2028$(exit)"
    hostile = replace(subject, provenance=replace(subject.provenance, setup_key=key))
    plain = export(subject, to).files
    for name, text in export(hostile, to).files.items():
        assert len(text.splitlines()) == len(plain[name].splitlines()), name


def test_a_users_template_goes_before_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "huggingface").mkdir()
    own = "own: {{ arguments.bf16 | yaml }}\n"
    (tmp_path / "huggingface/training_args.yaml.j2").write_text(own, encoding="utf-8")
    subject = unmeasured(make_setup(precision="bf16"), tmp_path)
    assert export(subject, "huggingface").files["training_args.yaml"] == "own: true\n"
