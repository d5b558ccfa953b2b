from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.export import Note, Provenance, export
from autotune.setup import Setup
from autotune.wiring.exports import unmeasured
from tests.build import make_setup
from tests.proof import SAMPLED, SCALE, ZERO_SCALE, knobs_of

TO = "lightning"
EVERY = [setup for setups in SAMPLED.values() for setup in setups]
MODULE = "lightning_setup.py"


def files_of(setup: Setup) -> dict[str, str]:
    return dict(export(unmeasured(setup, None), TO).files)


def notes(**knobs: Any) -> dict[str, Note]:
    return {note.knob: note for note in export(unmeasured(make_setup(**knobs), None), TO).notes}


@pytest.mark.parametrize(
    ("backend", "beside"),
    [
        ("deepspeed", {"ds_config.json", "ds_config.provenance.json"}),
        ("fsdp", {"fsdp_setup.py"}),
        ("ddp", {"ddp_setup.py"}),
    ],
)
def test_the_configuration_of_the_backend_lies_beside_the_module_as_it_ran(
    backend: str, beside: set[str]
) -> None:
    subject = replace(unmeasured(make_setup(backend=backend), None), config='{"as it":  "ran"}\n')
    files = export(subject, TO).files
    assert set(files) == {MODULE, *beside}
    assert files[subject.file_name].endswith('{"as it":  "ran"}\n')


@pytest.mark.parametrize("setup", EVERY, ids=lambda setup: setup.key)
def test_every_knob_that_the_setup_has_gets_one_note(setup: Setup) -> None:
    found = export(unmeasured(setup, None), TO).notes
    assert sorted(note.knob for note in found) == knobs_of(setup)


@pytest.mark.parametrize("setup", EVERY, ids=lambda setup: setup.key)
def test_the_module_imports_nothing_that_it_does_not_use_and_autotune_never(setup: Setup) -> None:
    tree = ast.parse(files_of(setup)[MODULE])
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {item.name: item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {item.name: node.module or "" for item in node.names}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert set(imported) - {"annotations"} <= used
    roots = {name.split(".")[0] for name in imported.values()}
    standard = {"__future__", "collections", "contextlib", "functools", "json", "pathlib", "typing"}
    own = {"fsdp": {"fsdp_setup"}, "ddp": {"ddp_setup"}}.get(setup.backend, set())
    assert roots - standard == {"lightning", "torch"} | own


@pytest.mark.parametrize("setup", EVERY, ids=lambda setup: setup.key)
def test_no_line_of_the_module_is_long_and_no_topology_is_in_it(setup: Setup) -> None:
    text = files_of(setup)[MODULE]
    code = [line for line in text.splitlines() if not line.startswith("# ")]
    assert max(len(line) for line in code) <= 100
    (function,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "trainer_arguments"
    )
    keys = {node.value for node in ast.walk(function) if isinstance(node, ast.Constant)}
    assert not {"devices", "num_nodes", "accelerator"} & keys


def test_what_a_script_has_to_do_is_in_the_notes() -> None:
    for backend in ("deepspeed", "fsdp", "ddp"):
        found = notes(backend=backend, activation_checkpointing=True)
        assert "lightning_setup.prepare(" in found["activation_checkpointing"].text
        assert found["activation_checkpointing"].status == "expressed"
        assert found["micro_batch"].status == "approximated"
        assert "lightning_setup.MICRO_BATCH" in found["micro_batch"].text
        assert found["gradient_accumulation"].status == "expressed"
    assert "lightning_setup.prepare(" in notes(backend="fsdp")["grad_comm_dtype"].text
    off = notes(backend="ddp")["activation_checkpointing"]
    assert "prepare(" not in off.text


def test_what_the_json_alone_cannot_say_the_module_says() -> None:
    found = notes(precision="tf32", activation_checkpointing=True)
    assert found["precision"].status == "expressed"
    assert "set_float32_matmul_precision" in found["precision"].text


def test_a_bucket_of_half_elements_and_a_scaler_with_hysteresis_are_approximated() -> None:
    assert notes(bucket_bytes=4001)["bucket_bytes"].status == "approximated"
    assert notes(bucket_bytes=4000)["bucket_bytes"].status == "expressed"
    for backend in ("fsdp", "ddp"):
        with_it = notes(backend=backend, precision="fp16", loss_scale=ZERO_SCALE)
        assert with_it["loss_scale"].status == "approximated"
        without = notes(backend=backend, precision="fp16", loss_scale=SCALE)
        assert without["loss_scale"].status == "expressed"


def test_provenance_cannot_leave_its_comments() -> None:
    hostile = Provenance(
        run="x\nimport os\r\nos.abort()", setup_key='"""', versions={}, date="", verdict="\u2028"
    )
    for backend in ("deepspeed", "fsdp", "ddp"):
        subject = unmeasured(make_setup(backend=backend), None)
        text = export(replace(subject, provenance=hostile), TO).files[MODULE]
        plain = export(subject, TO).files[MODULE]
        assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(plain))


def test_a_users_own_template_goes_first(tmp_path: Path) -> None:
    (tmp_path / "lightning").mkdir()
    (tmp_path / "lightning/ddp.py.j2").write_text("OWN = {{ micro_batch }}\n")
    subject = replace(unmeasured(make_setup(backend="ddp"), None), templates=tmp_path)
    assert export(subject, TO).files[MODULE].endswith("\nOWN = 2\n")
