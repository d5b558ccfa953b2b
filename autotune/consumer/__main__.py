"""Entry point: ``python -m autotune.consumer QUESTIONS ANSWERS``, two JSON files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> int:
    """Answers every question of a file; see `autotune.consult` for both formats."""
    if len(sys.argv) != 3:
        print("usage: python -m autotune.consumer QUESTIONS ANSWERS", file=sys.stderr)
        return 2
    # The parsers are asked, not the hardware.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from autotune.consumer.answer import answer_all

    questions = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers = answer_all(questions)
    Path(sys.argv[2]).write_text(json.dumps(answers), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
