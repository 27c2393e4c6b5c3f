"""The recipe at the door of the room works as it is written."""

import re
from pathlib import Path

import torch
from torch import nn

import attnscope.models
from attnscope.capture import Keep
from attnscope.models.inputs import Limit


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attend = nn.Embedding(200, 8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids):
        vectors = self.embed(ids)
        return self.attend(vectors, vectors, vectors)[0]


def test_a_kind_of_model_is_added_by_following_the_readme():
    text = Path(attnscope.models.__file__).with_name("README.md").read_text("utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    names: dict = {}
    exec("\n".join(line.removeprefix("   ") for line in code.splitlines()), names)
    model = names["LetterModel"]("letters", Letters(), None)
    prepared = model.prepare("abca", limit=Limit(3))
    keep = Keep(lambda site: range(2))
    model.run(prepared, [keep])
    assert [token.text for token in keep.maps[0].queries] == ["a", "b", "c"]
    x = model.module.embed(prepared.inputs["ids"])
    expected = model.module.attend(x, x, x, average_attn_weights=False)[1][0]
    torch.testing.assert_close(keep.maps[0].weights[0], expected.detach())
    assert prepared.notes == ("cut: the first 3 of 4 tokens are shown",)
