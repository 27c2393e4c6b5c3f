"""The output projection of each attention, held against what the module with that weight really gives."""

import pytest
import torch
import transformers as hf
from torch import nn

from attnscope.capture import recording
from attnscope.capture.projections import PROOF, Projections
from tests.capture.tiny import DECODER, FAMILIES, SIZES, Tiny, inputs

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 99}
MORE = {
    "bloom": Tiny(lambda: hf.BloomConfig(vocab_size=99, hidden_size=32, n_layer=2, n_head=4), "BloomModel"),
    "falcon": Tiny(lambda: hf.FalconConfig(**SMALL, multi_query=True), "FalconModel"),
    "gpt-neox": Tiny(lambda: hf.GPTNeoXConfig(**SMALL, intermediate_size=32), "GPTNeoXModel"),
    "opt": Tiny(
        lambda: hf.OPTConfig(**SMALL, ffn_dim=32, word_embed_proj_dim=32, max_position_embeddings=64),
        "OPTModel",
    ),
    "phi": Tiny(lambda: hf.PhiConfig(**SMALL, intermediate_size=32, pad_token_id=0), "PhiModel"),
    "glm4": Tiny(lambda: hf.Glm4Config(**DECODER, head_dim=8, pad_token_id=0), "Glm4Model"),
    "olmo2": Tiny(lambda: hf.Olmo2Config(**DECODER, pad_token_id=0), "Olmo2Model"),
    "qwen2": Tiny(lambda: hf.Qwen2Config(**DECODER), "Qwen2Model"),
    "roberta": Tiny(
        lambda: hf.RobertaConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=64), "RobertaModel"
    ),
    "distilbert": Tiny(
        lambda: hf.DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=32),
        "DistilBertModel",
    ),
}
ALL = FAMILIES | MORE


class _Blocks:
    """An observer that adds up weights times values times the projection, for all rows, head by head."""

    def __init__(self, found):
        self.found, self.sums = found, []

    def observe(self, attention):
        projection = self.found[attention.site]
        weights = attention.weights()
        groups = attention.heads // attention.values.shape[1]
        total = 0
        for head in range(attention.heads):
            vectors = attention.values[:, head // groups] @ projection.weight[head]  # [batch, key, width]
            total = total + torch.einsum("bij,bjw->biw", weights[:, head], vectors)
        self.sums.append((projection.name, total if projection.bias is None else total + projection.bias))


@pytest.mark.parametrize("name", ALL)
def test_the_sum_over_heads_and_keys_with_the_bias_is_what_the_block_gives(name):
    family = ALL[name]
    torch.manual_seed(0)
    model = family.build()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)  # biases too, which are 0 in a new model
    given = inputs(family.inputs)
    projections = Projections()
    with torch.inference_mode(), projections.watching(model), recording(model, [projections]) as record:
        model(**given)
    assert [site.site for site in record.sites] == projections.sites
    assert set(projections.found) == set(projections.sites)
    assert projections.difference <= PROOF

    outputs = []
    names = {each.name for each in projections.found.values()}
    hooks = [
        module.register_forward_hook(lambda _, __, output, path=path: outputs.append((path, output)))
        for path, module in model.named_modules()
        if path in names
    ]
    blocks = _Blocks(projections.found)
    with torch.inference_mode(), recording(model, [blocks]):
        model(**given)
    for hook in hooks:
        hook.remove()
    assert [path for path, _ in blocks.sums] == [path for path, _ in outputs]
    for (path, ours), (_, theirs) in zip(blocks.sums, outputs, strict=True):
        gap = (ours - theirs.reshape(ours.shape)).abs().max() / theirs.abs().max()
        assert gap <= 1e-5, path


class _Foreign(nn.Module):
    """Attention as people write it, with a name for its output that says nothing."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.x1, self.x2, self.x3 = (nn.Linear(16, 16) for _ in range(3))
        self.mha = nn.MultiheadAttention(16, 4, batch_first=how == "batch first")

    def forward(self, x):
        if self.how != "by hand":
            return self.mha(x, x, x)[0]
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in (self.x3(x), self.x1(x), x))
        mixed = torch.softmax(q @ k.mT / 2, -1) @ v
        return self.x2(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("how", ["by hand", "batch first", "batch second"])
def test_a_projection_is_found_by_its_numbers_whatever_its_name_and_axes(how):
    torch.manual_seed(0)
    model, projections = _Foreign(how).eval(), Projections()
    with projections.watching(model), recording(model, [projections]):  # with gradients: no fast path
        model(torch.randn(2, 7, 16))
    (found,) = projections.found.values()
    assert found.name == ("x2" if how == "by hand" else "mha.out_proj")


def test_where_nothing_projects_nothing_is_found():
    class Bare(nn.Module):
        def forward(self, x):
            y = x[:, None]
            return nn.functional.scaled_dot_product_attention(y, y, y)[:, 0]

    projections = Projections()
    model = Bare()
    with projections.watching(model), recording(model, [projections]):
        model(torch.randn(1, 5, 8))
    assert len(projections.sites) == 1
    assert not projections.found
