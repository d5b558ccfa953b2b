"""The options of torchtitan, by its own parser where it is installed, else by pinned facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.consult import Question, consult
from autotune.export import export, write
from autotune.wiring.exports import unmeasured
from tests.build import make_setup
from tests.proof import SAMPLED, faults, read


@pytest.mark.slow  # `test_every_dialect` asks about setups of the same space
def test_the_options_are_read_as_the_notes_promise(tmp_path: Path) -> None:
    found = read("torchtitan", SAMPLED["fsdp"], tmp_path, options={"ranks": 3})
    assert list(faults(found)) == []
    for setup, _, answer in found:
        assert answer.effective["micro_batch"] == setup.micro_batch
        assert answer.effective["gradient_accumulation"] == setup.gradient_accumulation
        assert answer.effective["activation_checkpointing"] == setup.activation_checkpointing


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mixed_precision_reduce=float32", "mixed_precision_reduce=bfloat16"),
        ("mixed_precision_param=bfloat16", "mixed_precision_param=float16"),
        ("training.local_batch_size", "training.micro_batch_size"),
        ("activation-checkpoint:none", "activation-checkpoint:some"),
        ("local_batch_size=2", "local_batch_size=two"),
        ("after_forward=always", "after_forward=true"),
        ("  activation-checkpoint:none\n", "  activation-checkpoint:none\n  --training.steps=1\n"),
    ],
)
def test_a_word_that_torchtitan_does_not_know_is_refused(
    old: str, new: str, tmp_path: Path
) -> None:
    setup = make_setup(backend="fsdp", precision="bf16")
    write(export(unmeasured(setup, None), "torchtitan"), tmp_path)
    path = tmp_path / "torchtitan.flags"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    (answer,) = consult([Question("torchtitan", tmp_path)])
    assert answer.refused is not None
