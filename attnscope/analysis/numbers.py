"""What was seen, as plain data for JSON."""

from __future__ import annotations

from typing import Any

from attnscope.capture import SiteRecord


def site_numbers(seen: SiteRecord) -> dict[str, Any]:
    """An attention call as plain data."""
    return {
        "name": seen.site.name,
        "call": seen.site.call,
        "kind": seen.site.kind,
        "layer": seen.site.layer,
        "heads": seen.heads,
        "key_heads": seen.key_heads,
        "queries": seen.queries,
        "keys": seen.keys,
        "kernel": seen.kernel,
        "source": seen.source,
        "dtype": seen.dtype,
        "window": seen.window,
        "difference": seen.difference,
        "unproved": seen.unproved,
    }
