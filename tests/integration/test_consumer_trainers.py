"""TRL, axolotl and LLaMA-Factory: what their trainers do with the exported files.

Where one of them is installed its own parser is asked, and what is known of it is held against it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.consult import Question, consult
from autotune.export import export, write
from autotune.setup import BACKENDS
from autotune.wiring.exports import unmeasured
from tests.build import make_setup
from tests.proof import SAMPLED, faults, read

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

TRAINERS = ("trl", "axolotl", "llamafactory")


@pytest.mark.slow  # `test_every_dialect` asks about setups of the same space
@pytest.mark.parametrize("to", TRAINERS)
def test_the_trainer_sees_what_the_notes_promise(to: str, tmp_path: Path) -> None:
    found = read(to, [setup for backend in BACKENDS for setup in SAMPLED[backend]], tmp_path)
    assert list(faults(found)) == []
    for setup, _, answer in found:
        knobs = setup.to_dict()
        for knob in ("precision", "zero_stage", "activation_checkpointing"):
            assert answer.effective[knob] == knobs[knob], setup.key
        for knob in ("micro_batch", "gradient_accumulation"):
            assert answer.effective[knob] == knobs[knob], setup.key


def without(folder: Path, to: str, key: str, **knobs: Any) -> Question:
    """The question of an export that lacks a key."""
    write(export(unmeasured(make_setup(**knobs), None), to), folder)
    path = folder / f"{to}.yaml"
    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    del said[key]
    path.write_text(yaml.safe_dump(said), encoding="utf-8")
    return Question(to, folder)


def test_what_is_written_against_a_default_is_needed(tmp_path: Path) -> None:
    recomputing = {"backend": "fsdp", "activation_checkpointing": True}
    wide = {"backend": "fsdp", "precision": "bf16"}
    disable = "disable_gradient_checkpointing"
    precise, kept, twice, own, own_twice, plugin = consult(
        [
            without(tmp_path / "0", "trl", "bf16"),
            without(tmp_path / "1", "trl", "gradient_checkpointing", backend="ddp"),
            without(tmp_path / "2", "trl", "gradient_checkpointing", **recomputing),
            without(tmp_path / "3", "llamafactory", disable, backend="ddp"),
            without(tmp_path / "4", "llamafactory", disable, **recomputing),
            without(tmp_path / "5", "axolotl", "plugins", **wide),
        ]
    )
    assert precise.refused is not None, "bf16 is TRL's default, and DeepSpeed's JSON says fp32"
    assert kept.effective["activation_checkpointing"] is True
    assert "two ways" in (twice.refused or "")
    assert own.effective["activation_checkpointing"] is True
    assert "twice" in (own_twice.refused or "")
    assert plugin.effective["grad_comm_dtype"] == "bf16"


def test_a_key_that_axolotl_does_not_read_is_refused(tmp_path: Path) -> None:
    write(export(unmeasured(make_setup(backend="fsdp"), None), "axolotl"), tmp_path)
    path = tmp_path / "axolotl.yaml"
    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    said["fsdp_config"]["mixed_precision_policy"] = "bf16"
    path.write_text(yaml.safe_dump(said), encoding="utf-8")
    (answer,) = consult([Question("axolotl", tmp_path)])
    assert "mixed_precision_policy" in (answer.refused or "")


def said_to(to: str, folder: Path, **knobs: Any) -> Path:
    write(export(unmeasured(make_setup(**knobs), None), to), folder)
    return folder / f"{to}.yaml"


OWN_WARNINGS = pytest.mark.filterwarnings("ignore")
CASES: list[dict[str, Any]] = [
    {"backend": "ddp", "precision": "bf16", "activation_checkpointing": True},
    {"backend": "fsdp", "precision": "fp16", "grad_comm_dtype": "fp16", "zero_stage": 2},
    {"backend": "ddp", "precision": "fp32", "bucket_bytes": 2**22},
]


@OWN_WARNINGS
@pytest.mark.parametrize("knobs", CASES)
def test_trl_parses_as_it_is_known_to(
    knobs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    reader = importlib.import_module("autotune.consumer.trl")
    monkeypatch.chdir(tmp_path)
    path = said_to("trl", tmp_path, **knobs)
    with importlib.import_module("autotune.consumer.huggingface").capable():
        (args, model, launcher), (known, known_model, known_launcher) = (
            reader.parsed(path),
            reader.parsed_as_known(path),
        )
    assert (model.dtype, launcher) == (known_model.dtype, known_launcher)
    resolve = importlib.import_module("trl.cli.accelerate_config")
    words = resolve.resolve_accelerate_config_argument(["--accelerate_config", launcher])
    assert words == ["--config_file", launcher]
    for name in yaml.safe_load(path.read_text(encoding="utf-8")).keys() - {
        "dtype",
        "accelerate_config",
    }:
        assert getattr(args, name) == getattr(known, name), name


@OWN_WARNINGS
@pytest.mark.parametrize("knobs", CASES)
def test_llama_factory_parses_as_it_is_known_to(knobs: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("llamafactory")
    reader = importlib.import_module("autotune.consumer.llamafactory")
    said = yaml.safe_load(said_to("llamafactory", tmp_path, **knobs).read_text(encoding="utf-8"))
    with importlib.import_module("autotune.consumer.huggingface").capable():
        (args, disabled), (known, known_disabled) = (
            reader.parsed(said),
            reader.parsed_as_known(said),
        )
    assert disabled == known_disabled
    for name in said.keys() - {reader.DISABLE}:
        assert getattr(args, name) == getattr(known, name), name


@OWN_WARNINGS
@pytest.mark.parametrize("knobs", CASES)
def test_axolotl_builds_the_arguments_that_it_is_known_to(
    knobs: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("axolotl")
    reader = importlib.import_module("autotune.consumer.axolotl")
    said = yaml.safe_load(said_to("axolotl", tmp_path, **knobs).read_text(encoding="utf-8"))
    reader.demand_valid(said)
    make = importlib.import_module("axolotl.utils.dict").DictDefault
    validate = importlib.import_module("axolotl.utils.config").validate_config
    plain = {key: value for key, value in said.items() if key != "plugins"}
    builders = importlib.import_module("axolotl.core.builders.causal")
    builder = object.__new__(builders.HFCausalTrainerBuilder)
    others = dict.fromkeys(("model", "tokenizer", "processor", "peft_config", "model_ref"))
    vars(builder).update(others, _train_dataset=None, _eval_dataset=None)
    builder.cfg = validate(make({**reader.REQUIRED, "output_dir": "x", **plain}))
    built, _ = builder._set_base_training_args(10)
    known = reader.arguments(said)
    # The rest of the keys are added where the trainer itself is built.
    for name in known.keys() - {"deepspeed", "ddp_bucket_cap_mb"}:
        assert built[name] == known[name], name
