"""`autotune lint` as people and hooks call it; the consumers are asked elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from autotune.cli import app
from autotune.errors import UsageError
from autotune.lint import RULES
from autotune.lint.page import page
from tests.lint_case import lines

ROOT = Path(__file__).parents[2]
CLEAN = ROOT / "tests" / "configs" / "faultless" / "bf16_zero2.json"
VERSIONS = ("--for", "deepspeed=0.19.8", "--for", "transformers=5.24.0")


def run(*arguments: str | Path) -> Any:
    line = ["lint", "--no-consumer", *VERSIONS, *map(str, arguments)]
    return CliRunner().invoke(app, line)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    config = {
        "gradient_clipping": 1.0,
        "wall_clock_breakdown": True,
        "communication_data_type": "fp32",
    }
    path.write_text(lines(config))
    return path


def test_a_file_without_fault_ends_with_0() -> None:
    done = run(CLEAN)
    assert done.exit_code == 0
    assert "no findings" in done.stdout
    assert "1 file: 0 errors, 0 warnings, 0 infos" in done.stderr


def test_a_finding_at_the_level_ends_with_1(bad: Path) -> None:
    assert run(bad).exit_code == 1
    assert run("--level", "error", bad).exit_code == 0
    assert run("--level", "info", CLEAN).exit_code == 0


def test_a_finding_below_the_level_is_shown_and_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(lines({"gradient_clipping": 0, "bf16": {"enabled": "auto"}}))
    done = run(path)
    assert done.exit_code == 0
    assert "info ds-auto" in done.stdout
    assert run("--level", "info", path).exit_code == 1


def test_a_finding_is_told_with_its_line_and_what_to_do(bad: Path) -> None:
    text = run(bad).stdout
    assert f"{bad}:3:1 warning ds-timers: wall_clock_breakdown is true" in text
    assert "(--fix does it)" in text
    assert "keys were not perturbed" in text


def test_an_unrecognised_file_is_one_line_and_does_not_stop_the_others(
    bad: Path, tmp_path: Path
) -> None:
    other, broken = tmp_path / "pod.yaml", tmp_path / "broken.json"
    other.write_text("kind: Pod\n")
    broken.write_text("{")
    done = run(other, broken, tmp_path / "absent.json", bad)
    assert done.exit_code == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1] for line in errors] == [
        *map(str, (other, broken, tmp_path / "absent.json"))
    ]
    assert "ds-timers" in done.stdout


def test_a_hook_passes_over_files_of_other_kinds(bad: Path, tmp_path: Path) -> None:
    other, broken = tmp_path / "pod.yaml", tmp_path / "many.yaml"
    other.write_text("kind: Pod\n")
    broken.write_text("a: 1\n---\nb: 2\n")
    done = run("--skip-unrecognised", other, broken)
    assert done.exit_code == 0
    assert "error" not in done.stderr.replace("0 errors", "")
    assert run("--skip-unrecognised", other, bad).exit_code == 1
    assert run("--skip-unrecognised", tmp_path / "absent.json").exit_code == 2


def test_a_kind_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("some_key: 1\n")
    assert run(path).exit_code == 2
    done = run("--kind", "deepspeed", path)
    assert done.exit_code == 1
    assert "inert-key: some_key does nothing" in done.stdout


def test_json_holds_everything_under_a_stable_schema(bad: Path, tmp_path: Path) -> None:
    other = tmp_path / "pod.yaml"
    other.write_text("kind: Pod\n")
    done = run("--json", bad, other)
    about = json.loads(done.stdout)
    assert set(about) == {"schema", "versions", "files", "counts"}
    assert about["schema"] == 1
    assert about["versions"]["deepspeed"] == "0.19.8"
    assert about["counts"] == {"error": 0, "warning": 1, "info": 0}
    first, second = about["files"]
    assert set(first) == {"file", "kind", "title", "error", "effects", "findings", "perturbed"}
    assert first["kind"] == "deepspeed"
    assert {item["aspect"]: item["value"] for item in first["effects"]}["wire"] == "fp32"
    (finding,) = first["findings"]
    assert finding == {
        "rule": "ds-timers",
        "level": "warning",
        "key": "wall_clock_breakdown",
        "line": 3,
        "column": 1,
        "end_line": 3,
        "end_column": 23,
        "text": finding["text"],
        "why": RULES["ds-timers"].why,
        "fix": RULES["ds-timers"].fix,
        "source": RULES["ds-timers"].source,
        "fixable": True,
        "confirmed": None,
    }
    assert second == {"file": str(other), "kind": None, "error": second["error"]}
    assert run("--format", "json", bad).stdout == run("--json", bad).stdout


def test_sarif_goes_to_stdout_or_to_a_file(bad: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sarif"
    assert "ds-timers: " in run("--sarif", out, bad).stdout
    assert json.loads(out.read_text()) == json.loads(run("--format", "sarif", bad).stdout)


def test_a_repair_is_written_beside_the_original(bad: Path) -> None:
    before = bad.read_text()
    done = run("--fix", bad)
    assert done.exit_code == 1
    fixed = bad.with_name("ds.fixed.json")
    assert bad.read_text() == before
    assert fixed.read_text() == before.replace("true", "false")
    assert f"wrote {fixed}: 1 repaired" in done.stderr
    assert run(fixed).exit_code == 0


def test_a_repaired_file_that_somebody_changed_is_kept(bad: Path) -> None:
    fixed = bad.with_name("ds.fixed.json")
    fixed.write_text("mine")
    done = run("--fix", bad)
    assert isinstance(done.exception, UsageError)
    assert "--force" in str(done.exception)
    assert fixed.read_text() == "mine"
    run("--fix", "--force", bad)
    assert run("--fix", bad).exception.__class__ is SystemExit
    assert json.loads(fixed.read_text())["wall_clock_breakdown"] is False


def test_nothing_is_written_where_nothing_is_to_repair(tmp_path: Path) -> None:
    path = tmp_path / "ok.json"
    path.write_text(CLEAN.read_text())
    done = run("--fix", path)
    assert done.exit_code == 0
    assert "nothing to repair" in done.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_a_rule_is_explained() -> None:
    done = run("--explain", "ds-fp16-stage-0")
    assert done.exit_code == 0
    for word in ("what", "why", "source", "fix", "versions  deepspeed >=0.18.3,<=0.19.8"):
        assert word in done.stdout
    everything = run("--explain", "all").stdout
    assert all(f"{name} (" in everything for name in RULES)
    listed = json.loads(run("--explain", "all", "--json").stdout)
    assert [item["id"] for item in listed] == list(RULES)
    assert set(listed[0]) >= {"id", "level", "what", "why", "source", "fix", "versions"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "Give a file"),
        (("--level", "bad", "x.json"), "allowed are error, warning, info"),
        (("--kind", "lightning", "x.json"), "allowed are deepspeed"),
        (("--format", "xml", "x.json"), "allowed are text"),
        (("--explain", "nonsense"), "--explain all lists them"),
        (("--for", "deepspeed", "x.json"), "deepspeed=0.16.4"),
    ],
)
def test_wrong_arguments_say_what_is_allowed(arguments: tuple[str, ...], word: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, UsageError)
    assert word in str(done.exception)


def test_a_rule_of_other_versions_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(lines({"zero_optimization": {"stage": 2, "overlap_comm": True}}))
    old = CliRunner().invoke(app, ["lint", "--no-consumer", "--for", "deepspeed=0.16.4", str(path)])
    assert "ds-overlap-race" in old.stdout
    assert "ds-overlap-race" not in run(path).stdout


def test_without_consumers_nothing_heavy_is_imported() -> None:
    script = (
        "import sys\n"
        f"sys.argv = ['autotune', 'lint', '--no-consumer', {str(CLEAN)!r}]\n"
        "from autotune.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = ('torch', 'deepspeed', 'accelerate', 'transformers', 'optuna', 'numpy')\n"
        "print('loaded:', [name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_the_page_of_the_rules_is_the_rules() -> None:
    written = (ROOT / "docs" / "lint-rules.md").read_text(encoding="utf-8")
    assert written == page(), "run `make docs`"
    assert all(f"### {name}\n" in written for name in RULES)


def test_the_hook_calls_the_command_with_its_own_options() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["id"] == "autotune-lint"
    assert hook["types_or"] == ["yaml", "json"]
    program, *words = hook["entry"].split()
    assert program == "autotune"
    assert CliRunner().invoke(app, [*words, str(CLEAN)]).exit_code == 0
