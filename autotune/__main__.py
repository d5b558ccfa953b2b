"""``python -m autotune``."""

from autotune.cli import main

main()
