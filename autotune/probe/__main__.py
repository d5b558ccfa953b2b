"""Entry point of the workers: ``python -m autotune.probe describe|serve|attach``."""

from __future__ import annotations

import json
import sys


def main() -> int:
    """Prints what the machine can do, serves probes until told to stop, or measures a script."""
    if sys.argv[1:] == ["describe"]:
        from autotune.probe.describe import describe

        # DeepSpeed prints to stdout while it is imported, so the answer is the last line.
        print(json.dumps(describe()))
        return 0
    if sys.argv[1:] == ["serve"]:
        from autotune.probe.worker import serve

        serve()
        return 0
    if sys.argv[1:2] == ["attach"] and len(sys.argv) > 2:
        from autotune.probe.attach.worker import attach

        attach(sys.argv[2:])
        return 0
    usage = "usage: python -m autotune.probe describe | serve | attach [--] SCRIPT ARGUMENT..."
    print(usage, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
