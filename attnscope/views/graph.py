"""Nodes in columns from left to right, and the edges between them."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.views.heatmap import Heatmap
from attnscope.views.table import Titled


@dataclass(frozen=True, eq=False)
class GraphNode:
    """A node: its name, column, role, how much it carries, and its own map."""

    name: str
    column: int
    role: str = ""
    effect: float | None = None
    map: Heatmap | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge to a node in a later column: how much it carries, and by which composition."""

    source: str
    target: str
    effect: float
    way: str = ""


@dataclass(frozen=True, eq=False)
class LayerGraph(Titled):
    """A graph by layers."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return 1 + max(node.column for node in self.nodes)

    @property
    def tallest(self) -> int:
        """The number of nodes in the fullest column."""
        columns = [node.column for node in self.nodes]
        return max(map(columns.count, columns))

    def places(self) -> dict[str, tuple[float, float]]:
        """The position of each node: its column, and how far from the column's middle."""
        placed: dict[str, tuple[float, float]] = {}
        at = {node.name: node.column for node in self.nodes}
        passed = {column for edge in self.edges for column in range(at[edge.source] + 1, at[edge.target])}
        for column in range(self.columns):
            names = [node.name for node in self.nodes if node.column == column]
            aside = column in passed and len(names) % 2 == 1  # leaves the middle to a passing edge
            beside = (0.3 if column % 2 else -0.3) if aside else 0.0
            for row, name in enumerate(names):
                placed[name] = float(column), row - (len(names) - 1) / 2 + beside
        return placed
