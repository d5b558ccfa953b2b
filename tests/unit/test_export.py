from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.backends import backend_of
from autotune.errors import UsageError
from autotune.export import Exported, Note, Provenance, export, fitting, subject_of, write
from autotune.outcome import Probe
from autotune.setup import Backend, LossScale, Setup
from tests.build import make_probe, make_setup

PROVENANCE = Provenance(
    run="mine",
    setup_key="some.key",
    versions={"torch": "2.13.0", "deepspeed": "0.19.8"},
    date="2026-01-02T03:04:05+00:00",
    verdict="unconfirmed",
)
MEASURED_JSON = '{"measured":   "text é", "a": 1}\n\n'
MEASURED_MODULE = '"""As measured."""\n\nfrom __future__ import annotations\n\nX = 1\n'


def probe_of(setup: Setup) -> Probe:
    text = MEASURED_JSON if setup.backend == "deepspeed" else MEASURED_MODULE
    return replace(make_probe(0, setup), rendered=text)


def exported(setup: Setup, to: str | None = None, provenance: Provenance = PROVENANCE) -> Exported:
    return export(subject_of(probe_of(setup), provenance), to or setup.backend)


def notes_of(setup: Setup, to: str | None = None) -> dict[str, Note]:
    return {note.knob: note for note in exported(setup, to).notes}


def test_deepspeed_gets_the_measured_json_byte_for_byte_and_a_sidecar() -> None:
    setup = make_setup(precision="bf16")
    files = exported(setup).files
    assert set(files) == {"ds_config.json", "ds_config.provenance.json"}
    assert files["ds_config.json"] == MEASURED_JSON
    sidecar = json.loads(files["ds_config.provenance.json"])
    assert sidecar["run"] == "mine"
    assert sidecar["setup_key"] == "some.key"
    assert sidecar["versions"] == {"torch": "2.13.0", "deepspeed": "0.19.8"}
    assert sidecar["date"] == "2026-01-02T03:04:05+00:00"
    assert sidecar["verdict"] == "unconfirmed"
    assert Setup.from_dict(sidecar["setup"]) == setup


@pytest.mark.parametrize("backend", ["fsdp", "ddp"])
def test_fsdp_and_ddp_get_the_measured_module_below_a_header_of_comments(backend: str) -> None:
    files = exported(make_setup(backend=backend)).files
    (text,) = files.values()
    assert set(files) == {f"{backend}_setup.py"}
    assert text.endswith("\n" + MEASURED_MODULE)
    header = text.removesuffix(MEASURED_MODULE).splitlines()
    assert all(line.startswith("# ") for line in header)
    for said in ("mine", "some.key", "torch 2.13.0", "2026-01-02T03:04:05+00:00", "unconfirmed"):
        assert any(said in line for line in header), said
    assert ast.get_docstring(ast.parse(text)) == "As measured."


@pytest.mark.parametrize(
    ("backend", "configuration"),
    [("deepspeed", "ds_config.json"), ("fsdp", "fsdp_setup.py"), ("ddp", "ddp_setup.py")],
)
def test_launch_gets_the_backends_own_files_and_the_scripts(
    backend: str, configuration: str
) -> None:
    setup = make_setup(backend=backend)
    own, whole = exported(setup).files, exported(setup, "launch").files
    assert set(whole) == {*own, "accelerate.yaml", "launch.sh", "launch.env"}
    assert own.items() <= whole.items()
    assert configuration in whole["launch.env"]
    for script in ("launch.sh", "launch.env"):
        assert "run mine; verdict: unconfirmed" in whole[script]
        assert "Measured at 2026-01-02T03:04:05+00:00 with " in whole[script]
        assert "some.key" in whole[script]


@pytest.mark.parametrize("to", ["fsdp", "launch"])
def test_provenance_cannot_leave_its_comments(to: str) -> None:
    hostile = replace(PROVENANCE, run="x\nimport os\r\nos.abort()", verdict="\u2028$(exit)")
    plain = exported(make_setup(backend="fsdp"), to).files
    for name, text in exported(make_setup(backend="fsdp"), to, hostile).files.items():
        assert len(text.splitlines()) == len(plain[name].splitlines())
        assert text.isascii()


@pytest.mark.parametrize(
    ("backend", "to"),
    [
        ("fsdp", "deepspeed"),
        ("deepspeed", "fsdp"),
        ("ddp", "fsdp"),
        ("deepspeed", "ddp"),
        ("deepspeed", "json"),
        ("fsdp", ""),
    ],
)
def test_a_dialect_that_does_not_fit_is_refused_with_the_ones_that_do(
    backend: Backend, to: str
) -> None:
    others = " or ".join(fitting(backend))
    assert backend in others
    assert "launch" in others
    with pytest.raises(UsageError, match=f"use --to {others}"):
        export(subject_of(probe_of(make_setup(backend=backend)), PROVENANCE), to)


EVERY_KNOB = [
    make_setup(precision="fp16", overlap_comm=True, activation_checkpointing=True),
    make_setup(zero_stage=0, bucket_bytes=None, precision="tf32"),
    make_setup(backend="fsdp", precision="fp16"),
    make_setup(backend="fsdp", precision="bf16", activation_checkpointing=True),
    make_setup(backend="ddp", precision="fp16"),
    make_setup(backend="ddp", precision="bf16", activation_checkpointing=True),
    make_setup(backend="ddp", precision="tf32"),
]


@pytest.mark.parametrize("setup", EVERY_KNOB, ids=lambda setup: setup.key)
@pytest.mark.parametrize("launched", [True, False])
def test_every_knob_that_the_setup_has_gets_one_note(setup: Setup, launched: bool) -> None:
    knobs = [name for name, value in setup.to_dict().items() if value is not None]
    noted = [note.knob for note in exported(setup, "launch" if launched else None).notes]
    assert sorted(noted) == sorted(set(knobs) - {"backend"})


def test_what_the_json_cannot_say_is_said_and_the_launch_folder_says_it() -> None:
    setup = make_setup(precision="tf32", activation_checkpointing=True)
    alone, launched = notes_of(setup), notes_of(setup, "launch")
    assert alone["precision"].status == "cannot be expressed"
    assert alone["activation_checkpointing"].status == "cannot be expressed"
    assert launched["precision"].status == "expressed"
    assert launched["activation_checkpointing"].status == "approximated"
    environment = exported(setup, "launch").files["launch.env"]
    for knob in ("precision", "activation_checkpointing"):
        variable = launched[knob].text.split()[0]
        assert f"export {variable}=1\n" in environment


def test_of_ddp_the_loop_has_to_enter_autocast_and_the_rest_of_the_speed_is_expressed() -> None:
    setup = make_setup(backend="ddp", precision="bf16", grad_comm_dtype="bf16")
    notes = notes_of(setup)
    assert notes["precision"].status == "approximated"
    assert "autocast(device)" in notes["precision"].text
    for knob in ("grad_comm_dtype", "bucket_bytes", "zero_stage"):
        assert notes[knob].status == "expressed"
    for precision in ("fp32", "tf32"):
        plain = notes_of(make_setup(backend="ddp", precision=precision))
        assert plain["precision"].status == "expressed"


@pytest.mark.parametrize(("backend", "function"), [("fsdp", "shard()"), ("ddp", "wrap()")])
def test_what_install_cannot_apply_is_said(backend: str, function: str) -> None:
    setup = make_setup(backend=backend, precision="fp16", activation_checkpointing=True)
    notes = notes_of(setup)
    assert function in notes["activation_checkpointing"].text
    assert "install() cannot" in notes["activation_checkpointing"].text
    assert "install()" in notes["loss_scale"].text
    off = notes_of(make_setup(backend=backend))["activation_checkpointing"]
    assert "install()" not in off.text


def test_a_bucket_that_is_not_whole_elements_is_approximated() -> None:
    assert notes_of(make_setup(bucket_bytes=4000))["bucket_bytes"].status == "expressed"
    assert notes_of(make_setup(bucket_bytes=4001))["bucket_bytes"].status == "approximated"


def test_a_scaler_without_hysteresis_only_approximates_it() -> None:
    scale = LossScale(hysteresis=2, minimum=0)
    with_it = make_setup(backend="fsdp", precision="fp16", loss_scale=scale)
    assert notes_of(with_it)["loss_scale"].status == "approximated"
    assert (
        notes_of(make_setup(backend="fsdp", precision="fp16"))["loss_scale"].status == "expressed"
    )


def test_a_users_launch_template_goes_before_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch/launch.sh.j2").write_text("#!/bin/sh\n", encoding="utf-8")
    files = export(subject_of(probe_of(make_setup()), PROVENANCE, tmp_path), "launch").files
    assert files["launch.sh"] == "#!/bin/sh\n"


def test_files_are_written_as_they_are_and_scripts_are_executable(tmp_path: Path) -> None:
    made = Exported({"launch.sh": "#!/bin/sh\n", "a.json": "é\r\n"}, ())
    folder = tmp_path / "new" / "folder"
    assert write(made, folder) == [folder / "launch.sh", folder / "a.json"]
    assert (folder / "a.json").read_bytes() == "é\r\n".encode()
    assert (folder / "launch.sh").stat().st_mode & 0o111 == 0o111
    assert not (folder / "a.json").stat().st_mode & 0o111
    assert {path.name for path in folder.iterdir()} == set(made.files)


def test_writing_twice_is_fine_and_a_differing_file_is_kept_without_force(tmp_path: Path) -> None:
    made = Exported({"new.txt": "new", "there.txt": "exported"}, ())
    (tmp_path / "there.txt").write_text("the user's own", encoding="utf-8")
    with pytest.raises(UsageError, match=r"there\.txt: exists and differs; use --force"):
        write(made, tmp_path)
    assert (tmp_path / "there.txt").read_text(encoding="utf-8") == "the user's own"
    assert not (tmp_path / "new.txt").exists()
    write(made, tmp_path, force=True)
    assert (tmp_path / "there.txt").read_text(encoding="utf-8") == "exported"
    write(made, tmp_path)


def test_a_folder_that_cannot_be_written_to_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    made = Exported({"a": "text"}, ())
    with pytest.raises(UsageError, match="Cannot export"):
        write(made, tmp_path / "file")
    (tmp_path / "folder/a").mkdir(parents=True)
    with pytest.raises(UsageError, match="Cannot export"):
        write(made, tmp_path / "folder", force=True)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["a"]


def test_the_exported_name_is_the_one_that_the_backend_gives_it() -> None:
    for backend in ("deepspeed", "fsdp"):
        setup = make_setup(backend=backend)
        assert backend_of(setup).file_name in exported(setup).files
