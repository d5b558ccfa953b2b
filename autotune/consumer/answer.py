"""Answers questions, each in a forked child: what a consumer leaves in the process ends with it."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from autotune.consumer.readers import READERS, Reader

Answer = dict[str, Any]


def answer_all(questions: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """One answer for each question, in their order."""
    return [_answer(question) for question in questions]


def _answer(question: Mapping[str, Any]) -> Answer:
    reader = READERS[question["reader"]]
    missing = [name for name in reader.packages if not _installed(name)]
    if missing:
        return {"missing": missing}
    importlib.import_module(reader.module)  # before the fork, so that it happens once
    asked = (*reader.packages, *filter(_installed, reader.optional))
    return {"versions": {name: version(name) for name in asked}, **_forked(question)}


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _forked(question: Mapping[str, Any]) -> Answer:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            json.dump(_read(READERS[question["reader"]], question), pipe)
        sys.stderr.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(text) if text else {"refused": f"the reader died without a word, {code}"}


def _read(reader: Reader, question: Mapping[str, Any]) -> Answer:
    """What the consumer makes of a folder, or the words with which it refuses."""
    os.chdir(question["folder"])
    sys.path.insert(0, question["folder"])
    read = importlib.import_module(reader.module).__dict__[reader.function]
    try:
        return {"effective": read(Path(question["folder"]), **question.get("options", {}))}
    except (Exception, SystemExit) as error:  # whatever somebody else's parser raises
        traceback.print_exc()
        return {"refused": f"{type(error).__name__}: {error}"}
