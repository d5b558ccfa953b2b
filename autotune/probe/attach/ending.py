"""Why a script ended before it was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.probe.attach.launchers import own_launcher
from autotune.probe.attach.training import SwallowedError, Training
from autotune.probe.process import Frame, classify
from autotune.request import Measure

LIBRARIES = ("site-packages", "dist-packages")


def in_folders(*folders: Path) -> Callable[[Frame], bool]:
    """Tells the frames of files in these folders, but for installed libraries."""

    def own(frame: Frame) -> bool:
        path = Path(frame.filename)
        inside = any(path.is_relative_to(folder) for folder in folders)
        return inside and not any(part in LIBRARIES for part in path.parts)

    return own


def describe(error: BaseException, own: Callable[[Frame], bool]) -> Mapping[str, str]:
    """Kind and reason of an exception that ended the script, at its place in the user's code."""
    if isinstance(error, SwallowedError) and error.__cause__ is not None:
        found = classify(error.__cause__, own)
        return {**found, "reason": f"{found['reason']}; the script caught this and went on."}
    return classify(error, own)


def exit_code(error: SystemExit) -> int:
    """The exit code of the process, as Python takes it from ``sys.exit``."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def ended_early(
    training: Training,
    measure: Measure,
    code: int,
    *,
    launcher: str | None,
    own: Callable[[Frame], bool],
) -> str:
    """What to say of a script that ended by itself, too early.

    Args:
        training: What has been seen of it.
        measure: What it takes to measure it.
        code: Its exit code.
        launcher: The launcher that it tried to start.
        own: Tells the user's own frames.
    """
    if launcher is not None and not training.begun:
        return own_launcher(launcher)
    caught = ""
    if training.caught is not None:
        caught = f" Before that it caught {classify(training.caught, own)['reason']}."
    if not training.begun:
        return (
            f"The script ended without a backward pass (exit code {code}). What trains has to run "
            f"in the process that autotune starts.{caught}"
        )
    steps = f"{training.steps} optimizer step{'s' * (training.steps != 1)}"
    return f"The script ended after {steps} (exit code {code}); {needed(measure)}.{caught}"


def needed(measure: Measure) -> str:
    """How many steps a probe takes, and what to do about it."""
    parts = (1, measure.warm_up_cap, measure.timed_steps, measure.end_to_end_steps)
    total = f"{' + '.join(map(str, parts))} = {sum(parts)}"
    return (
        f"a probe takes 1 + warm-up + timed + end-to-end steps, at most {total}: let it train "
        "longer, e.g. more epochs or max_steps, or lower measure.* in the sweep file"
    )
