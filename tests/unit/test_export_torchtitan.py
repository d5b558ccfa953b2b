from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.export import Note, Provenance, Subject, export, write
from autotune.setup import Setup
from autotune.wiring.exports import unmeasured
from tests.build import make_setup
from tests.proof import SAMPLED, knobs_of

TO = "torchtitan"
PRINT = 'source "$1"; printf "%s\\n" "$TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" "${torchtitan_flags[@]}"'


def subject(**knobs: object) -> Subject:
    return unmeasured(make_setup(backend="fsdp", **knobs), None)


def sourced(given: Subject, folder: Path, **ranks: str) -> subprocess.CompletedProcess[str]:
    write(export(given, TO), folder)
    return subprocess.run(
        ["bash", "-euc", PRINT, "bash", str(folder / "torchtitan.flags")],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", **ranks},
    )


def notes(**knobs: object) -> dict[str, Note]:
    return {note.knob: note for note in export(subject(**knobs), TO).notes}


def test_bash_reads_the_options_word_by_word(tmp_path: Path) -> None:
    given = subject(precision="bf16", zero_stage=2, micro_batch=3, activation_checkpointing=True)
    done = sourced(given, tmp_path / "it's $(a) folder", DATA_PARALLEL_RANKS="8")
    assert done.stdout.splitlines() == [
        "0",
        "--training.dtype=float32",
        "--training.mixed_precision_param=bfloat16",
        "--training.mixed_precision_reduce=float32",
        "--training.max_norm=1.0",
        "--training.local_batch_size=3",
        "--parallelism.fsdp_reshard_after_forward=never",
        "--training.global_batch_size=48",
        "activation-checkpoint:full",
    ]


def test_accumulation_needs_the_number_of_ranks_which_no_file_may_say(tmp_path: Path) -> None:
    done = sourced(subject(), tmp_path)
    assert done.returncode != 0
    assert "DATA_PARALLEL_RANKS: set it to the number of ranks" in done.stderr
    alone = sourced(subject(gradient_accumulation=1), tmp_path / "alone")
    assert "--training.global_batch_size=-1" in alone.stdout.splitlines()


def test_tf32_is_switched_on_and_off_by_the_environment(tmp_path: Path) -> None:
    on = sourced(subject(precision="tf32", gradient_accumulation=1), tmp_path / "on")
    off = sourced(
        subject(gradient_accumulation=1),
        tmp_path / "off",
        TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1",
    )
    assert on.stdout.splitlines()[0] == "1"
    assert off.stdout.splitlines()[0] == "0"


@pytest.mark.parametrize("setup", SAMPLED["fsdp"], ids=lambda setup: setup.key)
def test_every_knob_that_the_setup_has_gets_one_note(setup: Setup) -> None:
    found = export(unmeasured(setup, None), TO).notes
    assert sorted(note.knob for note in found) == knobs_of(setup)


def test_fp16_cannot_be_expressed_and_becomes_the_nearest(tmp_path: Path) -> None:
    found = notes(precision="fp16")
    for knob in ("precision", "loss_scale"):
        assert found[knob].status == "cannot be expressed"
        assert "bfloat16" in found[knob].text
    done = sourced(subject(precision="fp16"), tmp_path, DATA_PARALLEL_RANKS="1")
    assert "--training.mixed_precision_param=bfloat16" in done.stdout.splitlines()


def test_a_narrow_wire_cannot_be_expressed_and_bf16_names_what_can() -> None:
    bf16 = notes(precision="bf16", grad_comm_dtype="bf16")["grad_comm_dtype"]
    fp16 = notes(precision="fp16", grad_comm_dtype="fp16")["grad_comm_dtype"]
    assert bf16.status == fp16.status == "cannot be expressed"
    assert "4597 takes --training.mixed_precision_reduce=bfloat16" in bf16.text
    assert "4597" not in fp16.text
    assert notes()["grad_comm_dtype"].status == "expressed"


def test_provenance_cannot_leave_its_comments(tmp_path: Path) -> None:
    hostile = Provenance(
        run="x\ntouch owned\r\n$(touch owned)",
        setup_key="`touch owned`",
        versions={},
        date="",
        verdict="\u2028; touch owned",
    )
    given = replace(subject(), provenance=hostile)
    plain = export(subject(), TO).files["torchtitan.flags"]
    text = export(given, TO).files["torchtitan.flags"]
    assert text.isascii()
    assert text.split("#\n", 1)[1] == plain.split("#\n", 1)[1]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_shellcheck_finds_nothing(accumulation: int, tmp_path: Path) -> None:
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("no shellcheck here")
    write(export(subject(gradient_accumulation=accumulation), TO), tmp_path)
    done = subprocess.run(
        [checker, str(tmp_path / "torchtitan.flags")], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("", 0)


def test_a_users_own_template_goes_first(tmp_path: Path) -> None:
    (tmp_path / "torchtitan").mkdir()
    (tmp_path / "torchtitan/torchtitan.flags.j2").write_text("own {{ micro_batch }}\n")
    given = replace(subject(), templates=tmp_path)
    assert export(given, TO).files["torchtitan.flags"] == "own 2\n"


def test_setups_of_other_backends_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot say"):
        export(unmeasured(make_setup(), None), TO)
