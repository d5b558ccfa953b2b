"""The Optuna room: which setup to probe next, and the store of every probe."""

from autotune.search.search import Proposal, Search
from autotune.search.store import Store

__all__ = ["Proposal", "Search", "Store"]
