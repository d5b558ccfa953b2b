"""A rule in words, for the terminal."""

from __future__ import annotations

from autotune.lint.rules import Rule


def explain(rule: Rule) -> list[str]:
    """One rule for the terminal."""
    affected = ", ".join(f"{name} {spec}" for name, spec in rule.versions.items())
    return [
        f"{rule.id} ({rule.level})",
        f"  what      {rule.what}",
        f"  why       {rule.why}",
        f"  source    {rule.source}",
        f"  fix       {rule.fix}{' (--fix does it)' if rule.fixable else ''}",
        f"  versions  {affected or 'all that were read'}",
    ]
