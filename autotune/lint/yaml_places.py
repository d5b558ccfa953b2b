"""Places in YAML, out of the nodes that PyYAML makes."""

from __future__ import annotations

from typing import Any

import yaml

from autotune.lint.places import Entry, KeyPath, Span

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
        entries: list[Entry] = []
        _walk(node, (), entries)
        return loader.construct_document(node), entries
    finally:
        loader.dispose()


def _walk(node: yaml.Node, path: KeyPath, entries: list[Entry]) -> None:
    if len(entries) > MOST_ENTRIES:
        raise ValueError(f"more than {MOST_ENTRIES} values, which no configuration has")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            inner = (*path, str(key.value))
            entries.append(Entry(inner, _span(key), _span(value)))
            _walk(value, inner, entries)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            entries.append(Entry((*path, position), None, _span(item)))
            _walk(item, (*path, position), entries)


def _span(node: yaml.Node) -> Span:
    return Span(node.start_mark.index, _end(node))


def _end(node: yaml.Node) -> int:
    """A block ends with its last value; its own mark stands before the next key."""
    end: int = node.end_mark.index
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return end
