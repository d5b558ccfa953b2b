"""Places in YAML, out of the nodes that PyYAML makes."""

from __future__ import annotations

import re
from typing import Any

import yaml

from autotune.lint.places import Entry, KeyPath, Span

ALIAS = re.compile(r"\s*:\s*(\*[^\s,\]}]+)")
MOST_ENTRIES = 20_000  # an alias counts each time it is used


def yaml_data(text: str) -> tuple[Any, list[Entry]]:
    """What ``yaml.safe_load`` makes of a text, and the place of every key and item.

    The last of equal keys wins, as there; the places of all of them are told.

    Raises:
        ValueError: More keys than a configuration has.
        yaml.YAMLError: It is not YAML.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, []
        walk = _Walk(text)
        walk.node(node, ())
        return loader.construct_document(node), walk.entries
    finally:
        loader.dispose()


class _Walk:
    """Goes through the nodes of a text once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.entries: list[Entry] = []
        self.seen: set[int] = set()

    def node(self, node: yaml.Node, path: KeyPath) -> None:
        self.seen.add(id(node))
        if len(self.entries) > MOST_ENTRIES:
            raise ValueError(f"more than {MOST_ENTRIES} values, which no configuration has")
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self.pair(key, value, path)
        elif isinstance(node, yaml.SequenceNode):
            for position, item in enumerate(node.value):
                inner = (*path, position)
                used = id(item) in self.seen
                self.entries.append(Entry(inner, None, _span(node if used else item)))
                self.node(item, inner)

    def pair(self, key: yaml.Node, value: yaml.Node, path: KeyPath) -> None:
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            return
        inner = (*path, str(key.value))
        span = self.alias(key) if id(value) in self.seen else _span(value)
        self.entries.append(Entry(inner, _span(key), span))
        self.node(value, inner)

    def alias(self, key: yaml.Node) -> Span:
        """An alias has no node of its own: it is the node of its anchor."""
        found = ALIAS.match(self.text, key.end_mark.index)
        end: int = key.end_mark.index
        return Span(*found.span(1)) if found else Span(end, end)


def _span(node: yaml.Node) -> Span:
    return Span(node.start_mark.index, _end(node))


def _end(node: yaml.Node) -> int:
    """A block ends with its last value; its own mark stands before the next key."""
    end: int = node.end_mark.index
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return end
