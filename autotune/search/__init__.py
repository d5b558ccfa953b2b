"""The Optuna room: which setup to probe next, and the store of every probe."""

from autotune.search.loss_scale import MOST_POLICIES, search_scales
from autotune.search.search import Proposal, Search
from autotune.search.store import Store

__all__ = ["MOST_POLICIES", "Proposal", "Search", "Store", "search_scales"]
