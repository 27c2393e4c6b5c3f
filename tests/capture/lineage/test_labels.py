"""Labels that are not copied for channels are those that the function itself would make."""

import pytest
import torch

from attnscope.capture.lineage.nodes import Moved, Root


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("which", ["position", "channel"])
@pytest.mark.parametrize("name", ["roll", "roll of all", "halves turned"])
def test_labels_are_those_that_the_function_makes(name, which, axis):
    root = Root(3, torch.Size((2, 6, 4)), -1, torch.device("cpu"))
    whole = root.labels(which).clone()  # each label by itself
    if name == "roll":
        node, expected = Moved(torch.roll, "roll", (root, 1, axis), {}), whole.roll(1, axis)
    elif name == "roll of all":
        node, expected = Moved(torch.roll, "roll", (root, 1), {}), whole.roll(1)
    else:
        halves = [Moved(torch.chunk, "chunk", (root, 2, axis), {}, part) for part in (1, 0)]
        node = Moved(torch.cat, "cat", (halves, axis), {})
        expected = torch.cat(whole.chunk(2, axis)[::-1], axis)
    assert torch.equal(node.labels(which), expected)
    if name == "halves turned" and which == "position" and axis == -1:
        assert node.labels(which).stride(-1) == 0
