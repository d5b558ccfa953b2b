"""From a setup to the text that configures it: the very text that is exported."""

from __future__ import annotations

import json
from typing import Any

from autotune.backends import backend_of
from autotune.backends.accelerate import FILE_NAME, TEMPLATE, accelerate_variables
from autotune.backends.scripted import uses_accelerate
from autotune.bundle import bundle
from autotune.configs import carry
from autotune.render import render
from autotune.setup import Setup
from autotune.sweep.plan import Plan


def render_setup(plan: Plan, setup: Setup) -> str:
    """The configuration text of a setup; a script's files are bundled into one text."""
    backend = backend_of(setup)
    text = render(backend.template, backend.variables(setup), plan.spec.templates)
    if setup.backend == "deepspeed":
        text = _in_own(plan, setup, text)
    if plan.script is None:
        return text
    files = {backend.file_name: text}
    if uses_accelerate(plan.script):
        variables = accelerate_variables(
            setup,
            deepspeed_file=backend.file_name if setup.backend == "deepspeed" else None,
            carried=_own_accelerate(plan),
        )
        files[FILE_NAME] = render(TEMPLATE, variables, plan.spec.templates)
    return bundle(files)


def _in_own(plan: Plan, setup: Setup, text: str) -> str:
    """The setup's knobs in the user's own DeepSpeed configuration, if there is one."""
    own = plan.own
    if own is None or own.deepspeed is None:
        return text
    auto = own.auto and plan.script is not None
    carried = carry(json.loads(text), own.deepspeed, setup, auto=auto)
    return json.dumps(carried, indent=2) + "\n"


def _own_accelerate(plan: Plan) -> dict[str, Any] | None:
    own = plan.own
    return dict(own.config) if own is not None and own.kind == "accelerate" else None
