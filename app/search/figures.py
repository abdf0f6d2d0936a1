"""What the metrics say of the indexer of a process, from what that says of itself."""

from __future__ import annotations

from app.observe.metrics import LAG
from app.search.process import IndexerProcess

_COUNTS = {
    "entries": "search_entries",
    "skipped": "search_entries_skipped",
    "batches": "search_batches",
    "written": "search_things_written",
    "unchanged": "search_things_unchanged",
    "failed": "search_things_failed",
    "rebuilds": "search_rebuilds_finished",
    "taken": "search_shards_taken",
}


def figures(indexer: IndexerProcess) -> dict[str, float]:
    """The figures of the indexer, with the names of app/observe/metrics.py."""
    said = indexer.said
    counts, acks, lag = said.get("counts", {}), said.get("acks", {}), said.get("lag", {})
    return {
        **{name: counts.get(key, 0) for key, name in _COUNTS.items()},
        "search_acks": sum(acks.values()),
        "search_acks_lost": said.get("acks_lost", 0),
        "search_indexer_restarts": indexer.restarts,
        "search_indexer_up": float(bool(said) and not said.get("problem")),
        "search_shards": len(lag),
        "search_rebuilding": said.get("rebuilding", 0),
        **{f"{LAG}{shard}": seconds for shard, seconds in lag.items()},
    }
