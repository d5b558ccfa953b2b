"""The lint of files for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from autotune.console.formats import count

STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}
BY = {
    "file": "",
    "default": " [default]",
    "script": "",
    "version": " [depends on the version]",
    "unclear": " [cannot be told]",
}
CONFIRMED = " (confirmed by its parser)"


def lint_lines(file: Mapping[str, Any]) -> Iterator[Text]:
    """What a file does, and what is wrong with it; of an entry of ``files`` in the report."""
    yield Text(f"{file['file']}: {file['title']}", style="bold")
    width = max((len(effect["aspect"]) for effect in file["effects"]), default=0)
    for effect in file["effects"]:
        yield Text(f"  {effect['aspect']:{width}}  {effect['text']}{BY[effect['by']]}")
    for finding in file["findings"]:
        yield from _finding(file["file"], finding)
    if not file["findings"]:
        yield Text("  no findings", style="green")
    yield Text(f"  {_perturbed(file['perturbed'])}", style="dim")


def _finding(name: str, finding: Mapping[str, Any]) -> Iterator[Text]:
    place = f"  {name}:{finding['line']}:{finding['column']} "
    level = finding["level"]
    sure = CONFIRMED if finding["confirmed"] and finding["rule"] != "consumer-refuses" else ""
    yield Text.assemble(
        place, (level, STYLES[level]), f" {finding['rule']}: {finding['text']}{sure}"
    )
    by = " (--fix does it)" if finding["fixable"] else ""
    yield Text(f"      {finding['fix']}{by}", style="dim")


def _perturbed(perturbed: Mapping[str, Any]) -> str:
    if not perturbed["done"]:
        return f"keys were not perturbed: {perturbed['note']}; the findings are those of the tables"
    tried = count(perturbed["files_tried"], "variant")
    return f"every key was perturbed: {perturbed['note']} read {tried} of the file"


def summary_line(report: Mapping[str, Any]) -> str:
    """How many findings of each level in how many files."""
    counts = report["counts"]
    read = [file for file in report["files"] if file["error"] is None]
    said = ", ".join(count(counts[level], "info" if level == "info" else level) for level in counts)
    return f"{count(len(read), 'file')}: {said}"
