from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from autotune.errors import UsageError
from autotune.export import Note, Subject, export
from autotune.setup import Setup
from autotune.wiring.exports import unmeasured
from tests.build import make_setup
from tests.proof import OWN_SCALE, SAMPLED, SCALE, knobs_of

TO = "accelerate-fsdp1"


def parsed(subject: Subject) -> dict[str, Any]:
    files = export(subject, TO).files
    assert set(files) == {"accelerate.yaml"}
    found: dict[str, Any] = yaml.safe_load(files["accelerate.yaml"])
    return found


def notes(**knobs: Any) -> dict[str, Note]:
    setup = make_setup(backend="fsdp", **knobs)
    return {note.knob: note for note in export(unmeasured(setup, None), TO).notes}


def test_the_file_speaks_the_words_of_fsdp1() -> None:
    knobs = {"precision": "bf16", "zero_stage": 2, "activation_checkpointing": True}
    setup = make_setup(backend="fsdp", **knobs)
    assert parsed(unmeasured(setup, None)) == {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 1,
            "fsdp_sharding_strategy": "SHARD_GRAD_OP",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_use_orig_params": True,
            "fsdp_offload_params": False,
            "fsdp_activation_checkpointing": True,
        },
    }


def test_the_keys_of_the_measured_file_stay_but_for_those_that_fsdp1_ignores() -> None:
    own = """
        distributed_type: FSDP
        mixed_precision: bf16
        dynamo_config: {dynamo_backend: INDUCTOR}
        fsdp_config:
          fsdp_version: 2
          fsdp_reshard_after_forward: true
          fsdp_transformer_layer_cls_to_wrap: Block
          fsdp_backward_prefetch: BACKWARD_POST
    """
    subject = unmeasured(make_setup(backend="fsdp"), None)
    found = parsed(replace(subject, others={"accelerate.yaml": own}))
    assert found["mixed_precision"] == "no"
    assert found["dynamo_config"] == {"dynamo_backend": "INDUCTOR"}
    section = found["fsdp_config"]
    assert "fsdp_reshard_after_forward" not in section
    assert section["fsdp_version"] == 1
    assert section["fsdp_sharding_strategy"] == "FULL_SHARD"
    assert section["fsdp_transformer_layer_cls_to_wrap"] == "Block"
    assert section["fsdp_backward_prefetch"] == "BACKWARD_POST"


@pytest.mark.parametrize("setup", SAMPLED["fsdp"], ids=lambda setup: setup.key)
def test_every_knob_that_the_setup_has_gets_one_note(setup: Setup) -> None:
    found = export(unmeasured(setup, None), TO).notes
    assert sorted(note.knob for note in found) == knobs_of(setup)


def test_a_precision_under_autocast_is_approximated_and_fp32_is_the_same() -> None:
    assert notes(precision="fp32")["precision"].status == "expressed"
    for precision in ("bf16", "fp16"):
        note = notes(precision=precision)["precision"]
        assert note.status == "approximated"
        assert "autocast" in note.text
    note = notes(precision="tf32")["precision"]
    assert note.status == "cannot be expressed"
    assert "set_float32_matmul_precision('high')" in note.text


@pytest.mark.parametrize(
    ("precision", "wire", "line"),
    [
        ("bf16", "fp32", "param_dtype=torch.bfloat16, reduce_dtype=torch.float32"),
        ("fp32", "bf16", "param_dtype=None, reduce_dtype=torch.bfloat16"),
        ("tf32", "fp16", "param_dtype=None, reduce_dtype=torch.float16"),
    ],
)
def test_a_wire_that_is_not_the_precision_is_left_to_a_line_of_code(
    precision: str, wire: str, line: str
) -> None:
    note = notes(precision=precision, grad_comm_dtype=wire)["grad_comm_dtype"]
    assert note.status == "cannot be expressed"
    assert "install() does not reach it" in note.text
    assert line in note.text
    same = notes(precision="bf16", grad_comm_dtype="bf16")["grad_comm_dtype"]
    assert same.status == "expressed"


def test_a_scale_that_is_not_torchs_own_is_left_to_a_line_of_code() -> None:
    note = notes(precision="fp16", loss_scale=SCALE)["loss_scale"]
    assert note.status == "cannot be expressed"
    assert "GradScalerKwargs(init_scale=2.0**11, growth_interval=333)" in note.text
    own = notes(precision="fp16", loss_scale=OWN_SCALE)["loss_scale"]
    assert own.status == "expressed"


def test_the_header_says_that_it_is_another_fsdp() -> None:
    text = export(unmeasured(make_setup(backend="fsdp"), None), TO).files["accelerate.yaml"]
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert any("one of FSDP2" in line and "FSDP1" in line for line in header)


def test_setups_of_other_backends_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot say"):
        export(unmeasured(make_setup(backend="ddp"), None), TO)
