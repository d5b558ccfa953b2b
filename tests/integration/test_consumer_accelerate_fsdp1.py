"""accelerate's file for FSDP1, by its launcher, a real Accelerator and a real FSDP1 model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin, GradScalerKwargs, utils
from accelerate.utils import DistributedType
from accelerate.utils.modeling import get_grad_scaler

from autotune.consult import Question, consult
from autotune.consumer.accelerate import launched
from autotune.consumer.accelerate_fsdp1 import ON_GPUS
from autotune.consumer.modules import scale_of
from autotune.export import export, write
from autotune.setup import Setup
from autotune.wiring.exports import unmeasured
from tests.build import make_setup
from tests.proof import SAMPLED, SCALE, faults, read

TO = "accelerate-fsdp1"


def test_the_accelerator_sees_what_the_notes_promise(tmp_path: Path) -> None:
    found = read(TO, SAMPLED["fsdp"], tmp_path)
    assert list(faults(found)) == []
    for setup, _, answer in found:
        assert answer.effective["zero_stage"] == setup.zero_stage
        assert answer.effective["activation_checkpointing"] == setup.activation_checkpointing


def test_the_wizards_key_for_version_1_would_have_lost_the_stage(tmp_path: Path) -> None:
    exported = export(unmeasured(make_setup(backend="fsdp", zero_stage=2), None), TO)
    write(exported, tmp_path)
    path = tmp_path / "accelerate.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("fsdp_sharding_strategy", "fsdp_reshard_after_forward"))
    (answer,) = consult([Question(TO, tmp_path)])
    assert answer.effective["zero_stage"] == 3


def line_of(setup: Setup, knob: str) -> str:
    """The expression that a note asks a script to pass to its Accelerator."""
    notes = {note.knob: note for note in export(unmeasured(setup, None), TO).notes}
    found = re.search(r"pass \w+=(.*) to Accelerator", notes[knob].text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("precision", "wire"), [("bf16", "fp32"), ("fp32", "bf16"), ("fp16", "bf16")]
)
def test_the_plugin_of_the_note_gives_the_wire_and_keeps_what_the_file_says(
    precision: str, wire: str, tmp_path: Path
) -> None:
    setup = make_setup(backend="fsdp", precision=precision, grad_comm_dtype=wire, zero_stage=2)
    write(export(unmeasured(setup, None), TO), tmp_path)
    environment = {**launched(tmp_path / "accelerate.yaml"), **dict.fromkeys(ON_GPUS, "false")}
    with utils.patch_environment(**environment):
        plugin: Any = eval(
            line_of(setup, "grad_comm_dtype"),
            {"FullyShardedDataParallelPlugin": FullyShardedDataParallelPlugin, "torch": torch},
        )
        if precision != "fp32":
            plugin.set_mixed_precision(precision)  # as the Accelerator does
    names = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert plugin.mixed_precision_policy.reduce_dtype == names[wire]
    assert plugin.mixed_precision_policy.param_dtype == {**names, "fp32": None}[precision]
    assert plugin.sharding_strategy.name == "SHARD_GRAD_OP"
    assert plugin.use_orig_params


def test_the_handler_of_the_note_gives_the_scale() -> None:
    setup = make_setup(backend="fsdp", precision="fp16", loss_scale=SCALE)
    (handler,) = eval(line_of(setup, "loss_scale"), {"GradScalerKwargs": GradScalerKwargs})
    scaler = get_grad_scaler(DistributedType.FSDP, device="cpu", **handler.to_kwargs())
    assert type(scaler).__name__ == "ShardedGradScaler"
    wanted = setup.to_dict()["loss_scale"]
    assert scale_of(scaler) == wanted
