"""SARIF, checked against the structural rules of its specification, 2.1.0."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from autotune.lint import RULES, Linted, lint_files, sarif
from tests.lint_case import VERSIONS, lines

MESSAGE = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "minLength": 1}},
}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
POSITIVE = {"type": "integer", "minimum": 1}
ARTIFACT = {
    "type": "object",
    "required": ["uri"],
    "properties": {
        "uri": {"type": "string", "pattern": r"^[^\\ ]+$"},
        "uriBaseId": {"type": "string"},
    },
    "additionalProperties": False,
}
LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": ARTIFACT,
                "region": {
                    "type": "object",
                    "required": ["startLine"],
                    "properties": dict.fromkeys(
                        ("startLine", "startColumn", "endLine", "endColumn"), POSITIVE
                    ),
                    "additionalProperties": False,
                },
            },
            "additionalProperties": False,
        },
        "logicalLocations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "fullyQualifiedName": {"type": "string", "minLength": 1},
                    "kind": {"const": "member"},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
RULE = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string", "pattern": "^[A-Z][A-Za-z0-9]+$"},
        "shortDescription": MESSAGE,
        "fullDescription": MESSAGE,
        "help": MESSAGE,
        "defaultConfiguration": {"type": "object", "properties": {"level": LEVEL}},
    },
    "additionalProperties": False,
}
RESULT = {
    "type": "object",
    "required": ["message", "ruleId", "ruleIndex", "level", "locations"],
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": LEVEL,
        "message": MESSAGE,
        "locations": {"type": "array", "items": LOCATION, "minItems": 1, "maxItems": 1},
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "additionalProperties": False,
}
INVOCATION = {
    "type": "object",
    "required": ["executionSuccessful"],
    "properties": {
        "executionSuccessful": {"type": "boolean"},
        "toolExecutionNotifications": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["message"],
                "properties": {"level": LEVEL, "message": MESSAGE, "locations": {"type": "array"}},
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
DRIVER = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "semanticVersion": {"type": "string"},
        "rules": {"type": "array", "items": RULE, "uniqueItems": True},
    },
    "additionalProperties": False,
}
LOG = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {"driver": DRIVER},
                    },
                    "invocations": {"type": "array", "items": INVOCATION},
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {"type": "array", "items": RESULT},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
"""Sections 3.13 (log), 3.14 (run), 3.18 (tool), 3.20 (invocation), 3.27 (result), 3.28 (location),
3.30 (region), 3.49 (reportingDescriptor) and 3.58 (notification), as far as they are used."""


@pytest.fixture
def log(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "my configs").mkdir()
    first, second = tmp_path / "my configs" / "ds é.json", tmp_path / "nothing.yaml"
    first.write_text(lines({"fp16": {"enabled": True}, "comms_logger": {}}))
    second.write_text("x: 1\n")
    items = lint_files([first, second], versions=VERSIONS, consumer=False)
    found: dict[str, Any] = json.loads(
        json.dumps(sarif(items, tool_version="1.2.3", folder=tmp_path))
    )
    return found


def test_the_log_keeps_to_the_structure_of_the_specification(log: dict[str, Any]) -> None:
    jsonschema.validate(log, LOG)


def test_every_rule_is_described_and_every_result_points_to_its_rule(log: dict[str, Any]) -> None:
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(RULES)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    levels = {result["ruleId"]: result["level"] for result in run["results"]}
    assert levels["ds-fp16-stage-0"] == "error"
    assert levels["ds-comms-logger"] == "warning"
    assert levels["ds-clipping-by-version"] == "note"


def test_a_result_has_the_file_and_the_region_of_its_key(log: dict[str, Any]) -> None:
    (result,) = [item for item in log["runs"][0]["results"] if item["ruleId"] == "ds-comms-logger"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {
        "uri": "my%20configs/ds%20%C3%A9.json",
        "uriBaseId": "%SRCROOT%",
    }
    assert place["region"] == {"startLine": 3, "startColumn": 1, "endLine": 3, "endColumn": 15}
    (logical,) = result["locations"][0]["logicalLocations"]
    assert logical["fullyQualifiedName"] == "comms_logger"


def test_a_file_that_could_not_be_linted_is_a_notification(log: dict[str, Any]) -> None:
    (invocation,) = log["runs"][0]["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    assert re.search("nothing.yaml: is of no known kind", notification["message"]["text"])


def test_fingerprints_survive_other_lines(tmp_path: Path) -> None:
    found = []
    for text in (lines({"comms_logger": {}}), "\n\n" + lines({"comms_logger": {}})):
        path = tmp_path / "ds.json"
        path.write_text(text)
        items = lint_files([path], versions=VERSIONS, consumer=False)
        assert isinstance(items[0], Linted)
        (run,) = sarif(items, tool_version="1", folder=tmp_path)["runs"]
        found.append({item["partialFingerprints"]["key/v1"] for item in run["results"]})
    assert found[0] == found[1]
