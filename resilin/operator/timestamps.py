"""Times as Kubernetes writes them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

_cache: dict[str, float] = {}
_CACHE_MOST = 4096  # texts recur in each look at a job; a pod has about six


def parse(text: str | None) -> float | None:
    """Return seconds since the epoch of an RFC 3339 text, None of none."""
    if not text:
        return None
    known = _cache.get(text)
    if known is None:
        if len(_cache) >= _CACHE_MOST:
            _cache.clear()
        known = _cache[text] = datetime.fromisoformat(text).timestamp()
    return known


def text(seconds: float) -> str:
    """Return `seconds` since the epoch as a `metav1.Time` says it: whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro(seconds: float) -> str:
    """Return `seconds` since the epoch as a `metav1.MicroTime` says it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
