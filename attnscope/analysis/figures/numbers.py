"""What was seen, as plain data for JSON."""

from __future__ import annotations

from typing import Any

from attnscope.capture import SiteRecord


def site_numbers(site: SiteRecord) -> dict[str, Any]:
    """An attention call as plain data."""
    return {
        "name": site.site.name,
        "call": site.site.call,
        "kind": site.site.kind,
        "layer": site.site.layer,
        "heads": site.heads,
        "key_heads": site.key_heads,
        "queries": site.queries,
        "keys": site.keys,
        "kernel": site.kernel,
        "source": site.source,
        "dtype": site.dtype,
        "window": site.window,
        "difference": site.difference,
        "unproved": site.unproved,
    }
