"""What users may still type although it is gone: each old spelling, and the sentence that answers it."""

from __future__ import annotations

from collections.abc import Mapping

RETIRED: Mapping[str, str] = {
    "--relative": "--relative was retired: compare what --token looks at under two texts, each with --json",
    "--neutral": "--neutral was retired with --relative: run show --token on the neutral text, too",
}
"""A row for each old spelling of an option."""
