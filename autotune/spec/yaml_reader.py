"""YAML as a person means it, with the line of every value.

PyYAML parses; this module decides what the parts mean. Plain scalars follow the core schema
of YAML 1.2, so ``no`` and ``12:30`` are text and ``1e-5`` is a number. Numbers that YAML 1.1
and 1.2 read differently (``017``, ``0o17``, ``1_000``) are refused rather than guessed, and so
are infinities, NaN, tags, merge keys and second values for one key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

from autotune.spec.faults import Fault, Place, shorten

MOST_BYTES = 1_000_000
MOST_NODES = 20_000  # aliases counted every time they are used
DEEPEST = 32
LARGEST_INTEGER = 2**63 - 1
MOST_DIGITS = 20  # with a sign; Python refuses to read thousands of digits

NULLS = ("", "~", "null", "Null", "NULL")
BOOLS = {
    word: value
    for value, name in ((True, "true"), (False, "false"))
    for word in (name, name.title(), name.upper())
}
INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
AMBIGUOUS = re.compile(r"[-+]?(0[0-9]+|0[xX][0-9a-fA-F_]+|0[oObB][0-7_]+|[0-9]+(_[0-9]+)+)")
NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
SURROGATE = re.compile("[\ud800-\udfff]")


class _Refused:
    """Stands for a value about which a fault has been reported."""


REFUSED = _Refused()

TRANSLATIONS = (
    ("'\\t'", "a tab; indent with spaces"),
    ("mapping values are not allowed", "a colon where no key can stand; indent it, or quote text"),
    ("<block end>, but found '<scalar>'", "text after a value that has ended; quote all of it"),
    ("expected <block end>", "the indentation fits no line above"),
    ("but found another document", "a second document (---); a sweep file holds one"),
    ("could not find expected ':'", "a key without a colon and a space after it"),
    ("found undefined alias", "an alias (*) of an anchor (&) that does not stand above it"),
    ("found duplicate anchor", "an anchor (&) whose name is taken; choose another"),
    ("found unexpected end of stream", "a quote is not closed"),
    ("'<document start>'", "text where the file should begin or end"),
    ("'<stream end>'", "a bracket is not closed"),
    ("expected ',' or", "a comma or a closing bracket is missing"),
    ("that cannot start any token", "text that begins with a special character; put it in quotes"),
    ("expected the node content", "a value is missing before this character"),
    ("undefined tag handle", "tags (!) are not read"),
    ("incompatible YAML document", "only YAML 1 is read; delete the line %YAML"),
)
"""Part of PyYAML's message, and the same in plain words."""
OPENED_EARLIER = ("could not find expected ':'", "unexpected end of stream", "'<stream end>'")
"""Messages that come where something ends; the mistake is where it begins."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds.

    Attributes:
        data: Mappings, lists and scalars; `REFUSED` where a fault was found.
        lines: The line of each value, from 1: where its key stands, if it has one.
        faults: What is wrong with it as YAML.
    """

    data: Any
    lines: Mapping[Place, int]
    faults: tuple[Fault, ...]

    def line(self, place: Place) -> int:
        """The line of a value, or of what would hold it if it is missing."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def value(self, place: Place) -> Any:
        """The value at a place that exists."""
        found = self.data
        for step in place:
            found = found[step]
        return found


def read_yaml(text: str) -> Document:
    """Reads one YAML document. Never raises: what cannot be read becomes a fault."""
    try:
        with _composed(text) as composer:
            node = composer.get_single_node()
            if node is None:
                return _unreadable(1, "the file is empty; copy a sweep file from sweeps/")
            walk = _Walk(composer.tagged)
            return Document(walk.value(node, (), 1), walk.lines, tuple(walk.faults))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return _unreadable(line, f"the character U+{error.character:04X} cannot stand in YAML")
    except yaml.MarkedYAMLError as error:
        return _unreadable(*_explain(error))
    except (ValueError, OverflowError):  # PyYAML on "\UFFFFFFFF" and on %YAML with a huge number
        return _unreadable(1, "not valid YAML: an escape or a %YAML line holds too large a number")


def _unreadable(line: int, words: str) -> Document:
    return Document(REFUSED, {(): line}, (Fault(line, (), words),))


def _explain(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """Line and words of a syntax error."""
    problem = f"{error.context or ''}; {error.problem or ''}".strip("; ")
    plain = next((words for part, words in TRANSLATIONS if part in problem), problem)
    marks = [error.problem_mark, error.context_mark]
    if any(part in problem for part in OPENED_EARLIER):
        marks.reverse()
    return next((mark.line + 1 for mark in marks if mark), 1), f"not valid YAML: {plain}"


class _Composer(yaml.SafeLoader):
    """PyYAML up to nodes, bounded; `_Walk` gives the nodes their meaning."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - so declared in the base class

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.tagged: dict[int, str] = {}
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Composes one node, and notes its tag if it has one."""
        peek: Callable[[], yaml.Event] = self.peek_event  # untyped in PyYAML's stubs
        event = peek()
        self._depth += 1
        self._nodes += 1
        _bound(self._depth, self._nodes, event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.tagged[id(node)] = tag
        return node


def _bound(depth: int, nodes: int, mark: Any) -> None:
    if depth > DEEPEST:
        raise yaml.MarkedYAMLError(
            problem=f"nested more than {DEEPEST} levels deep", problem_mark=mark
        )
    if nodes > MOST_NODES:
        raise yaml.MarkedYAMLError(
            problem=f"more than {MOST_NODES} values, aliases written out", problem_mark=mark
        )


@contextmanager
def _composed(text: str) -> Iterator[_Composer]:
    composer = _Composer(text)
    try:
        yield composer
    finally:
        composer.dispose()


@dataclass(slots=True)
class _Walk:
    """Turns nodes into values, noting lines and faults on the way.

    Attributes:
        tagged: Tags that the file writes, by the id of their node.
        lines: Lines found so far.
        faults: Faults found so far.
    """

    tagged: Mapping[int, str]
    lines: dict[Place, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)
    _nodes: int = 0

    def value(self, node: yaml.Node, place: Place, line: int) -> Any:
        """The value of a node that stands at ``place``."""
        self.lines[place] = line
        self._nodes += 1
        _bound(len(place), self._nodes, node.start_mark)
        if id(node) in self.tagged:
            tag = shorten(self.tagged[id(node)])
            return self._refuse(line, place, f"tags ({tag}) are not read; delete it")
        if id(node) in self._open:
            return self._refuse(line, place, "an alias inside what it stands for; write it out")
        self._open.add(id(node))
        try:
            return self._content(node, place)
        finally:
            self._open.remove(id(node))

    def _content(self, node: yaml.Node, place: Place) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node.value, node.style, place, self.lines[place])
        return [
            self.value(item, (*place, index), item.start_mark.line + 1)
            for index, item in enumerate(node.value)
        ]

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._key(key_node, place, line)
            if key is None:
                continue
            inner = (*place, key)
            if key in found:
                words = f"the key stands twice, first in line {self.lines[inner]}; keep one"
                self.faults.append(Fault(line, inner, words))
            else:
                found[key] = self.value(value_node, inner, line)
        return found

    def _key(self, node: yaml.Node, place: Place, line: int) -> str | None:
        if not isinstance(node, yaml.ScalarNode) or id(node) in self.tagged:
            self._refuse(line, place, "a key that is not plain text; allowed: text before a colon")
            return None
        if node.value == "<<":
            self._refuse(line, place, "merge keys (<<) are not read; write the keys out")
            return None
        key = self._scalar(node.value, node.style, place, line)
        if key is REFUSED or isinstance(key, str):
            return None if key is REFUSED else str(key)
        self._refuse(line, place, f"the key {shorten(key)} is not text; put it in quotes")
        return None

    def _scalar(self, text: str, style: str | None, place: Place, line: int) -> Any:
        if SURROGATE.search(text):
            return self._refuse(line, place, f"half a character in {shorten(text)}")
        if style is not None:
            return text
        try:
            return read_plain(text)
        except ValueError as error:
            return self._refuse(line, place, str(error))

    def _refuse(self, line: int, place: Place, words: str) -> _Refused:
        self.faults.append(Fault(line, place, words))
        return REFUSED


def read_plain(text: str) -> bool | int | float | str | None:
    """The value of a scalar without quotes.

    Raises:
        ValueError: A number that is not finite, too large, or ambiguous.
    """
    if text in NULLS:
        return None
    if text in BOOLS:
        return BOOLS[text]
    if AMBIGUOUS.fullmatch(text):
        raise ValueError(
            f"{shorten(text)} is read as different numbers by different programs; "
            "write decimal digits without a leading zero, or put it in quotes if it is text"
        )
    if NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not a finite number; put it in quotes if it is text")
    if not FLOAT.fullmatch(text):
        return text
    value = _number(text)
    if value is None:
        raise ValueError(f"{shorten(text)} is too large a number; put it in quotes if it is text")
    return value


def _number(text: str) -> int | float | None:
    """The number; ``None`` if it does not fit 64 bits."""
    if not INTEGER.fullmatch(text):
        return value if math.isfinite(value := float(text)) else None
    small = len(text) <= MOST_DIGITS and abs(int(text)) <= LARGEST_INTEGER
    return int(text) if small else None
