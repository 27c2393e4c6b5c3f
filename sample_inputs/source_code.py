"""Find a shortest path through a maze, breadth first.

A maze is a list of strings of equal length: "#" is a wall, "S" the start, "G" the goal, and a space
an open cell. Run this file to solve the maze at the top and print the path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

Cell = tuple[int, int]

WALL, OPEN, START, GOAL, STEP = "#", " ", "S", "G", "."

MAZE = [
    "###################",
    "#S    #   #       #",
    "##### # # # ##### #",
    "#       #   #   # #",
    "# ########### # # #",
    "# #         # #   #",
    "# # ####### # #####",
    "#   #     #      G#",
    "###################",
]


def find(maze: list[str], symbol: str) -> Cell:
    """Return the row and column of the first cell that holds ``symbol``."""
    for row, line in enumerate(maze):
        if symbol in line:
            return row, line.index(symbol)
    raise ValueError(f"the maze has no {symbol!r}")


def neighbours(maze: list[str], cell: Cell) -> Iterator[Cell]:
    """Yield the cells above, below, left and right of ``cell`` that are not walls."""
    row, column = cell
    for down, right in [(-1, 0), (1, 0), (0, -1), (0, 1)]:
        near = (row + down, column + right)
        inside = 0 <= near[0] < len(maze) and 0 <= near[1] < len(maze[0])
        if inside and maze[near[0]][near[1]] != WALL:
            yield near


def shortest_path(maze: list[str]) -> list[Cell]:
    """Return the cells from start to goal, both included, or an empty list if no path exists."""
    start, goal = find(maze, START), find(maze, GOAL)
    came_from: dict[Cell, Cell] = {start: start}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        if cell == goal:
            break
        for near in neighbours(maze, cell):
            if near not in came_from:  # the first visit is along a shortest path
                came_from[near] = cell
                queue.append(near)
    if goal not in came_from:
        return []
    path = [goal]
    while path[-1] != start:  # walk back from the goal to the start
        path.append(came_from[path[-1]])
    return path[::-1]


def drawn(maze: list[str], path: list[Cell]) -> str:
    """Return the maze as one string, with a dot on every open cell of the path."""
    rows = [list(line) for line in maze]
    for row, column in path:
        if rows[row][column] == OPEN:
            rows[row][column] = STEP
    return "\n".join("".join(row) for row in rows)


if __name__ == "__main__":
    path = shortest_path(MAZE)
    if path:
        print(drawn(MAZE, path))
        print(f"The shortest path takes {len(path) - 1} steps.")
    else:
        print("There is no path from the start to the goal.")
