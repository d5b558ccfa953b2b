"""Places in JSON and Hjson, which hjson's own parser does not tell."""

from __future__ import annotations

import json
import re

from autotune.lint.places import Entry, KeyPath, Span

BLANK = re.compile(r"(?:\s+|#[^\n]*|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'', re.DOTALL)
MULTI_LINE = re.compile(r"'''.*?'''", re.DOTALL)
LITERAL = re.compile(
    r"(?:null|true|false|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)"
    r"(?=[ \t]*(?:[,}\]#\r\n]|//|/\*|\Z))"
)
LINE = re.compile(r"[^\n]*")
BARE_KEY = re.compile(r"[^:{}\[\],\s]+")


def hjson_places(text: str) -> list[Entry]:
    """Every key and item in the order of the text; keys that stand twice too.

    Raises:
        ValueError: The text is not Hjson, as far as this reader knows it.
    """
    scanner = _Scanner(text)
    scanner.root()
    return scanner.entries


class _Scanner:
    """Reads a text once, from the start to the end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.entries: list[Entry] = []

    def root(self) -> None:
        self.blank()
        if self.peek("{"):
            self.mapping(())
        else:
            self.pairs((), "")

    def blank(self) -> None:
        self.at = self.match(BLANK).end

    def match(self, pattern: re.Pattern[str]) -> Span:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise ValueError(f"character {self.at}: not Hjson")
        return Span(*found.span())

    def peek(self, word: str) -> bool:
        return self.text.startswith(word, self.at)

    def mapping(self, path: KeyPath) -> None:
        self.at += 1
        self.pairs(path, "}")

    def pairs(self, path: KeyPath, closing: str) -> None:
        self.blank()
        while not self.closes(closing):
            key = self.match(QUOTED if self.peek('"') or self.peek("'") else BARE_KEY)
            self.at = key.end
            self.blank()
            if not self.peek(":"):
                raise ValueError(f"character {self.at}: no colon after a key")
            self.at += 1
            self.value((*path, _plain(self.text[key.start : key.end])), key)

    def items(self, path: KeyPath) -> None:
        self.at += 1
        self.blank()
        position = 0
        while not self.closes("]"):
            self.value((*path, position), None)
            position += 1

    def closes(self, closing: str) -> bool:
        if closing and self.peek(closing):
            self.at += 1
            return True
        if self.at == len(self.text):
            if closing:
                raise ValueError(f"{closing} is missing at the end")
            return True
        return False

    def value(self, path: KeyPath, key: Span | None) -> None:
        self.blank()
        place = len(self.entries)
        span = self.span(path)
        self.entries.insert(place, Entry(path, key, span))
        self.at = span.end
        self.blank()
        if self.peek(","):
            self.at += 1
            self.blank()

    def span(self, path: KeyPath) -> Span:
        start = self.at
        if self.peek("{"):
            self.mapping(path)
            return Span(start, self.at)
        if self.peek("["):
            self.items(path)
            return Span(start, self.at)
        if self.peek("'''"):
            return self.match(MULTI_LINE)
        if self.peek('"') or self.peek("'"):
            return self.match(QUOTED)
        literal = LITERAL.match(self.text, self.at)
        if literal is not None:
            return Span(*literal.span())
        line = self.match(LINE)
        written = self.text[line.start : line.end].rstrip()
        if not written:
            raise ValueError(f"character {self.at}: a value is missing")
        return Span(start, start + len(written))


def _plain(written: str) -> str:
    if written.startswith('"'):
        found: str = json.loads(written, strict=False)
        return found
    if written.startswith("'"):
        return written[1:-1].replace("\\'", "'")
    return written
