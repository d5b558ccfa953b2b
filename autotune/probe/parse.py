"""Requests out of their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.request import Measure, ProbeRequest, ReadingRequest
from autotune.setup import Setup
from autotune.workload import Gpt, Hf, Model, PythonFactory, Script, Workload


def parse_request(message: Mapping[str, Any]) -> ProbeRequest | ReadingRequest:
    """The request out of its JSON form."""
    work = dict(message["workload"])
    model = parse_model(work.pop("model"))
    both = {
        "setup": Setup.from_dict(message["setup"]),
        "rendered": message["rendered"],
        "workload": Workload(model=model, **work),
    }
    if "measure" in message:
        return ProbeRequest(measure=Measure(**message["measure"]), **both)
    own = {name: message[name] for name in ("ask", "steps", "learning_rate")}
    return ReadingRequest(**own, **both)


def parse_model(message: Mapping[str, Any]) -> Model:
    """The model out of its JSON form; each kind is known by a field that only it has."""
    if "command" in message:
        return Script(**{**message, "command": tuple(message["command"])})
    if "task" in message:
        return Hf(**{**message, "layers": tuple(message["layers"])})
    return PythonFactory(**message) if "path" in message else Gpt(**message)
