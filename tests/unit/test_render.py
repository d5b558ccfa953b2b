from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest
from jinja2 import nodes
from jinja2.sandbox import SandboxedEnvironment

from autotune import render as rendering
from autotune.backends import backend_of
from autotune.errors import UsageError
from autotune.render import parse_json, parse_python, render, shipped_templates
from tests.build import make_setup

QUOTING = {"tojson", "python", "shell", "shell_words", "torch_dtype", "comment"}
HOSTILE = (
    "plain",
    'double " quote',
    "single ' quote",
    "new\nline",
    "$(touch pwned) `touch pwned` $HOME",
    "back\\slash \\u0041",
    "</script> <!-- & -->",
    '"""',
    "é \u2028 \U0001f600",
    "{{ 7 * 7 }} {% raw %}",
    "",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write(folder: Path, text: str, name: str = "some.txt.j2") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return name


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ().__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ value.__init__.__globals__ }}",
        "{{ render.__globals__['sys'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ lipsum.__globals__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ '{0.__class__}'.format(value) }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_a_template_cannot_escape_from_the_sandbox(folder: Path, escape: str) -> None:
    name = write(folder, escape)
    with pytest.raises(UsageError, match=r"some\.txt\.j2"):
        render(name, {"value": "text", "render": render}, folder)


@pytest.mark.parametrize(
    "use",
    [
        "{{ missing }}",
        "{{ missing | tojson }}",
        "{{ missing | python }}",
        "{{ missing | shell }}",
        "{{ missing | torch_dtype }}",
        "{{ missing | comment }}",
        "{% if missing %}{% endif %}",
        "{{ knobs.missing }}",
        "{{ knobs['missing'] | tojson }}",
    ],
)
def test_an_unknown_variable_is_named_with_its_line_and_the_known_ones(
    folder: Path, use: str
) -> None:
    name = write(folder, f"first line\nsecond line {use}\n")
    with pytest.raises(UsageError, match="'missing'") as raised:
        render(name, {"micro_batch": 1, "knobs": {}}, folder)
    assert f"{folder / name}, line 2" in str(raised.value)
    assert "It may use: knobs, micro_batch." in str(raised.value)


def test_an_error_in_an_included_template_is_placed_there(folder: Path) -> None:
    write(folder, "\n\n{{ missing }}", "part.txt.j2")
    name = write(folder, "{% include 'part.txt.j2' %}")
    with pytest.raises(UsageError, match=r"part\.txt\.j2, line 3"):
        render(name, {}, folder)


def test_a_syntax_error_is_named_with_its_line(folder: Path) -> None:
    name = write(folder, "fine\n{% if %}\n")
    with pytest.raises(UsageError, match=r"some\.txt\.j2, line 2: "):
        render(name, {}, folder)


@pytest.mark.parametrize("wrong", ["{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ none[0] }}", "{{ 1() }}"])
def test_a_failing_expression_is_an_error_of_the_user(folder: Path, wrong: str) -> None:
    name = write(folder, f"\n{wrong}")
    with pytest.raises(UsageError, match=r"some\.txt\.j2, line 2: "):
        render(name, {}, folder)


def test_a_missing_template_is_named_with_the_folders_searched(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no template absent\.j2") as raised:
        render("absent.j2", {}, folder)
    assert str(folder) in str(raised.value)
    assert str(shipped_templates()) in str(raised.value)


@pytest.mark.parametrize("name", ["../secret.txt", "a/../../secret.txt"])
def test_a_template_outside_of_the_folders_is_not_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    inside = tmp_path / "templates"
    inside.mkdir()
    with pytest.raises(UsageError, match="no template"):
        render(name, {}, inside)


def test_a_template_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder of templates"):
        render("deepspeed/config.json.j2", {}, tmp_path / "absent")


def test_a_template_that_is_not_text_is_an_error_of_the_user(folder: Path) -> None:
    (folder / "binary.txt.j2").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"binary\.txt\.j2"):
        render("binary.txt.j2", {}, folder)


def test_a_users_template_goes_before_the_shipped_one_of_the_same_name(folder: Path) -> None:
    name = write(folder, '{"mine": {{ value | tojson }}}\n', "deepspeed/config.json.j2")
    assert render(name, {"value": 1}, folder) == '{"mine": 1}\n'


def test_a_users_folder_leaves_the_other_shipped_templates_in_place(folder: Path) -> None:
    setup = make_setup()
    backend = backend_of(setup)
    write(folder, "", "fsdp/fsdp_setup.py.j2")
    shipped = render(backend.template, backend.variables(setup), None)
    assert render(backend.template, backend.variables(setup), folder) == shipped


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_comes_out_of_json_as_it_went_in(folder: Path, value: str) -> None:
    name = write(folder, '{"key": {{ value | tojson }}}', "some.json.j2")
    assert json.loads(render(name, {"value": value}, folder)) == {"key": value}


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_comes_out_of_python_as_it_went_in(folder: Path, value: str) -> None:
    name = write(folder, "VALUE = {{ value | python }}\n", "some.py.j2")
    (statement,) = ast.parse(render(name, {"value": value}, folder)).body
    assert isinstance(statement, ast.Assign)
    assert ast.literal_eval(statement.value) == value


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_comes_out_of_a_shell_as_it_went_in(folder: Path, value: str) -> None:
    name = write(folder, "printf %s {{ value | shell }}", "some.sh.j2")
    script = render(name, {"value": value}, folder)
    assert subprocess.check_output(["bash", "-c", script], cwd=folder).decode() == value
    assert not (folder / "pwned").exists()


@pytest.mark.parametrize("value", [*HOSTILE, "carriage\rreturn", "null\0", "\x0b \x0c \x85"])
def test_a_hostile_value_stays_inside_its_comment(folder: Path, value: str) -> None:
    name = write(folder, "# {{ value | comment }}", "some.py.j2")
    text = render(name, {"value": value}, folder)
    assert len(text.splitlines()) == 1
    assert ast.parse(text).body == []


@pytest.mark.parametrize(
    ("quoting", "value"),
    [
        ("tojson", float("nan")),
        ("tojson", {1, 2}),
        ("python", float("inf")),
        ("python", object()),
        ("python", Path("here")),
        ("shell", "null\0"),
        ("torch_dtype", "bfloat16"),
        ("torch_dtype", 16),
    ],
)
def test_a_value_that_a_language_cannot_hold_is_refused(
    folder: Path, quoting: str, value: object
) -> None:
    name = write(folder, f"{{{{ value | {quoting} }}}}")
    with pytest.raises(UsageError, match=r"some\.txt\.j2, line 1: "):
        render(name, {"value": value}, folder)


@pytest.mark.parametrize(
    "value", [None, True, 0, -1, 10**30, 0.1, 1e-300, "x", [1, None], {"a": (1, "b")}]
)
def test_a_plain_value_is_written_as_the_python_literal_of_it(folder: Path, value: object) -> None:
    name = write(folder, "{{ value | python }}")
    assert ast.literal_eval(render(name, {"value": value}, folder)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ('{"outer": {"a": 1, "a": 1}}', "'a' occurs twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": 1,}', "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_text_that_is_not_strict_json_is_refused(folder: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_json(text, "here")
    name = write(folder, text, "some.json.j2")
    with pytest.raises(UsageError, match=rf"some\.json\.j2 .*{reason}"):
        render(name, {}, folder)


@pytest.mark.parametrize("text", ["def f(:\n", "x = (\n", "a\0b"])
def test_text_that_is_not_python_is_refused(folder: Path, text: str) -> None:
    with pytest.raises(UsageError, match="not Python"):
        parse_python(text, "here")
    name = write(folder, text, "some.py.j2")
    with pytest.raises(UsageError, match=r"some\.py\.j2 .*not Python"):
        render(name, {}, folder)


def test_templates_inside_an_installed_package_go_before_the_source_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "autotune"
    monkeypatch.setattr(rendering, "PACKAGE", package)
    assert shipped_templates() == tmp_path / "templates"
    (package / "templates").mkdir(parents=True)
    assert shipped_templates() == package / "templates"


def shipped() -> list[Path]:
    return sorted(
        path
        for room in ("ddp", "deepspeed", "fsdp", "launch", "shared")
        for path in (shipped_templates() / room).rglob("*.j2")
    )


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.name)
def test_every_value_of_a_shipped_template_is_quoted(path: Path) -> None:
    environment = SandboxedEnvironment()
    environment.filters |= dict.fromkeys(QUOTING, str)
    tree = environment.parse(path.read_text(encoding="utf-8"))
    printed = [part for output in tree.find_all(nodes.Output) for part in output.nodes]
    values = [part for part in printed if not isinstance(part, nodes.TemplateData)]
    for value in values:
        assert isinstance(value, nodes.Filter), f"{path.name}, line {value.lineno}"
        assert value.name in QUOTING, f"{path.name}, line {value.lineno}"
