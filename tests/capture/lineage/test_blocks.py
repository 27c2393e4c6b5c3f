"""Windows and blocks of libraries at their true keys: rows times values against the module's output."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

from attnscope.capture.lineage.layout import CHANNELS, PARTS
from tests.capture.modules import FunctionModule, Heads
from tests.capture.observing import check_kept, observe
from tests.capture.tiny import SIZES, tiny
from tests.models.images import HIERA


def big_bird():
    blocks = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
    model = tiny("BigBird", **SIZES, **blocks, num_hidden_layers=2, max_position_embeddings=128).build()
    for parameter in model.parameters():  # far from even
        parameter.data *= 4
    return model


@torch.inference_mode()
@pytest.mark.parametrize("length", [64, 61])
def test_big_bird_blocks_join_into_one_map_per_layer(length):
    torch.manual_seed(0)
    model, seen = big_bird(), []
    for layer in model.encoder.layer:
        layer.attention.self.register_forward_hook(lambda module, x, out: seen.append((module, x[0], out[0])))
    record, maps, _ = observe(model, torch.randint(5, 99, (2, length)))
    sites = [(site.site.layer, site.batch, site.heads, site.queries, site.keys) for site in record.sites]
    assert sites == [(layer, 2, 4, 64, 64) for layer in (0, 1)]
    for kept, (module, states, context) in zip(maps, seen[2:], strict=True):
        value = F.linear(states, module.value.weight, module.value.bias)
        mixed = kept.weights @ value.unflatten(-1, (4, 8)).transpose(1, 2)  # [batch, head, query, size]
        mixed = mixed.transpose(1, 2).flatten(2)[:, :length]
        torch.testing.assert_close(mixed, context[:, :length], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(kept.weights.sum(-1)[..., :length], torch.ones(2, 4, length))
        assert not kept.allowed.expand(2, 4, -1, -1)[:, :, 8, 30].any()  # neither near nor global


class Windows(Heads):
    """Attention within windows of a picture, which move by half a window in every other layer."""

    def __init__(self, shift, kernel, side=8, size=4, apart=False):
        super().__init__(heads=2)
        self.shift, self.kernel, self.side, self.size, self.apart = shift, kernel, side, size, apart

    def forward(self, x):
        self.keep(self.windowed(x))
        side, size = self.side, self.size
        x = x.view(len(x), side, side, 16).roll((-self.shift, -self.shift), (1, 2))
        x = x.view(len(x), side // size, size, side // size, size, 16).transpose(2, 3)
        x = x.reshape(-1, size * size, 16)
        if self.apart:
            parts = zip(self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True)
            q, k, v = (F.linear(x, *part).unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
        else:
            q, k, v = self.split(x)
        if self.kernel == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        mixed = mixed.transpose(1, 2).reshape(-1, side // size, side // size, size, size, 16)
        mixed = mixed.transpose(2, 3).reshape(-1, side, side, 16)
        return mixed.roll((self.shift, self.shift), (1, 2)).flatten(1, 2)

    def windowed(self, x):
        """The weights over the whole picture."""
        place = torch.arange(self.side**2)
        axes = place // self.side, place % self.side
        windows = [(axis - self.shift) % self.side // self.size for axis in axes]
        together = torch.stack([window == window[:, None] for window in windows]).all(0)
        q, k, _ = self.split(x)
        return (q @ k.mT / 8**0.5).masked_fill(~together, -torch.inf).softmax(-1)


def windows(m, pixels):
    """Patches of a picture, and two layers of windows."""
    x = m.patches(pixels).flatten(2).mT
    for layer in m.layers:
        x = layer(x) + x
    return x


def merged(m, pixels):
    """Windows of a picture, and windows of what a layer made of four patches each."""
    x = m.patches(pixels).permute(0, 2, 3, 1)
    x = (x + m.layers[0](x.flatten(1, 2)).view(x.shape))[:, None]
    x = torch.cat([x[:, 0, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
    return m.layers[1](m.merge(x).flatten(1, 2))


def picture(run, *layers):
    merge = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 16, bias=False))
    return FunctionModule(run, patches=nn.Conv2d(3, 16, 2, 2), merge=merge, layers=nn.ModuleList(layers))


def in_blocks(m, pixels):
    """Patches that are drawn together or apart, put into blocks of four; two heads attend in these."""
    x = m.resample(m.patches(pixels)).permute(0, 2, 3, 1)
    blocks = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3)
    blocks = blocks.flatten(3, 4).flatten(1, 2)  # [text, block, position, feature]
    q, k, v = (t.unflatten(-1, (2, -1)).movedim(-2, 1) for t in m.qkv(blocks).chunk(3, -1))
    weights = (q @ k.mT).softmax(-1)  # [text, head, block, query, key]
    side = x.shape[1]
    places = torch.arange(side * side).view(side // 2, 2, side // 2, 2).transpose(1, 2).reshape(-1, 4)
    whole = torch.zeros(3, 2, side * side, side * side)
    for block, places_of_block in enumerate(places):
        whole[:, :, places_of_block[:, None], places_of_block] = weights[:, :, block]
    m.keep(whole)
    return (weights @ v).movedim(1, -2).flatten(3)


@torch.inference_mode()
@pytest.mark.parametrize(
    "resample",
    [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(4), nn.Upsample(scale_factor=0.5), nn.Identity()],
    ids=lambda module: type(module).__name__,
)
def test_patch_blocks_are_placed_after_any_resampling(resample):
    torch.manual_seed(0)
    model = FunctionModule(
        in_blocks, patches=nn.Conv2d(3, 16, 2, 2), resample=resample, qkv=nn.Linear(16, 48)
    )
    _, maps, _ = observe(model, torch.randn(3, 3, 16, 16))
    check_kept(model, maps)


PICTURES = {  # of windows by a kernel
    "windows": lambda kernel: picture(windows, Windows(0, kernel), Windows(2, kernel)),
    "merged": lambda kernel: picture(merged, Windows(0, kernel), Windows(1, kernel, 4, 2)),
    "projected apart": lambda kernel: picture(merged, Windows(0, kernel), Windows(1, kernel, 4, 2, True)),
}


@torch.inference_mode()
@pytest.mark.parametrize("kernel", ["softmax", "sdpa"])
@pytest.mark.parametrize("name", PICTURES)
def test_windows_are_placed_in_the_image(name, kernel):
    torch.manual_seed(0)
    record, maps, _ = observe(model := PICTURES[name](kernel), torch.randn(3, 3, 16, 16))
    check_kept(model, maps)
    for site, kept, layer in zip(record.sites, maps, model.layers, strict=True):
        count = layer.side**2
        assert (site.batch, site.heads, site.queries, site.keys, site.offset) == (3, 2, count, count, 0)
        assert torch.equal(kept.allowed.expand_as(kept.weights), kept.weights > 0)


@torch.inference_mode()
def test_pooled_mask_units_are_placed_in_the_image():
    """The oracle: the weights that the model reports for each unit, put where its own way back leads."""
    torch.manual_seed(0)
    model = hf.HieraModel(hf.HieraConfig(**HIERA)).eval()
    for parameter in model.parameters():
        parameter.mul_(4.0)
    pixels, units = torch.randn(1, 3, 128, 192), list[np.ndarray]()
    _, maps, _ = observe(model, pixels)
    for name, layer in model.named_modules():
        if name.endswith(".attn"):
            layer.register_forward_hook(lambda layer, given, output: units.append(output[1].numpy()))
    model(pixels, output_attentions=True)
    counts, places = (1536, 384, 96, 24), list[np.ndarray]()
    for stage, count in enumerate(counts):  # where each token of the model's sequence lies, row by row
        back = model.encoder.reroll(torch.arange(count).view(1, -1, 1), stage)
        places.append(np.argsort(back.flatten().numpy()))
    stages = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]  # of the keys and of the queries
    for kept, weights, (keys, queries) in zip(maps, units, stages, strict=True):
        whole = np.zeros((*weights.shape[:2], counts[queries], counts[keys]), np.float32)
        for unit in range(several := weights.shape[2]):
            rows, columns = places[queries][unit::several], places[keys][unit::several]
            whole[:, :, rows[:, None], columns] = weights[:, :, unit]
        assert np.array_equal(kept.weights, whole)
        assert np.ptp(weights, -1).max() > 0.1


def rf_detr():
    """Windows of 4 × 4 patches, each with a copy of the class token, and a layer over all of them."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "mlp_ratio": 2}
    windows = {"num_windows": 2, "window_block_indexes": [0, 1], "image_size": 32, "patch_size": 4}
    config = hf.RfDetrDinov2Config(**sizes, **windows, out_indices=[3], attn_implementation="eager")
    model = hf.models.rf_detr.modeling_rf_detr.RfDetrDinov2Backbone(config).eval()
    for parameter in model.parameters():
        parameter.data *= 4.0
    return model


@pytest.mark.skipif(not hasattr(hf, "RfDetrDinov2Config"), reason="this transformers has no RF-DETR")
@torch.inference_mode()
def test_windows_with_a_class_token_each_are_placed_in_the_image():
    torch.manual_seed(0)
    model, pixels = rf_detr(), torch.randn(2, 3, 32, 32)
    record, maps, _ = observe(model, pixels)
    own = model(pixels, output_attentions=True).attentions
    side = np.arange(4)
    places = np.zeros((4, 17), int)  # of each window's tokens: class tokens first, then 8 × 8 patches
    for window, (down, across) in enumerate(np.ndindex(2, 2)):
        patches = (4 * down + side)[:, None] * 8 + 4 * across + side
        places[window] = np.concatenate([[window], 4 + patches.ravel()])
    for kept, weights in zip(maps, own, strict=True):
        whole = np.zeros((2, 2, 68, 68), np.float32)
        if len(weights) == 8:  # [text·window, head, query, key]
            for text, window in np.ndindex(2, 4):
                at = places[window]
                whole[text, :, at[:, None], at] = weights[4 * text + window].numpy().transpose(1, 2, 0)
        else:
            whole[:, :, places.reshape(-1, 1), places.ravel()] = weights
        np.testing.assert_allclose(kept.weights, whole, atol=1e-6)
        assert np.ptp(whole, -1).max() > 0.1
    assert not any("parts" in note for note in record.notes)


def test_channel_attention_is_named_in_every_layer():
    sizes = {"embed_dim": [12, 24], "num_heads": [2, 4], "num_groups": [2, 4], "depths": [1, 2]}
    steps = {"patch_size": [4, 2], "patch_stride": [2, 2], "patch_padding": [1, 0]}
    config = hf.Florence2VisionConfig(**sizes, **steps, patch_prenorm=[False, True], window_size=4)
    model = hf.models.florence2.modeling_florence2.Florence2VisionBackbone(config)
    record, *_ = observe(model, torch.randn(2, 3, 16, 16))
    assert [site.site.name.split(".")[-1] for site in record.sites] == ["window_attn"] * 3
    assert [site.batch for site in record.sites] == [2, 2, 2]
    assert [layer.name for layer in record.without_attention] == [
        f"blocks.{block}.channel_block.channel_attn" for block in ("0.0", "1.0", "1.1")
    ]
    assert {layer.reason for layer in record.without_attention} == {CHANNELS}


class Halo(Heads):
    """Blocks of a picture that see a border around them (halonet), in one axis with heads or with texts."""

    def __init__(self, kernel, order):
        super().__init__(size=8, heads=2)
        self.kernel, self.order = kernel, order

    def fold(self, x):
        """[text·block, place, head·size] -> [text·block·head, place, size], or as the order says"""
        if self.order == "texts apart":
            return x.unflatten(0, (-1, 4)).unflatten(-1, (2, 4)).transpose(2, 3).flatten(1, 2)
        x = x.unflatten(-1, (2, 4))
        return (x.permute(2, 0, 1, 3) if self.order == "heads first" else x.transpose(1, 2)).flatten(0, 1)

    def forward(self, x):
        blocks, around = F.unfold(x, 4, stride=4), F.unfold(x, 6, stride=4, padding=1)
        blocks, around = (
            each.unflatten(1, (8, -1)).permute(0, 3, 2, 1).flatten(0, 1) for each in (blocks, around)
        )
        (q, _, _), (_, k, v) = (self.qkv(each).chunk(3, -1) for each in (blocks, around))
        self.keep(
            (q.unflatten(-1, (2, 4)).transpose(1, 2) @ k.unflatten(-1, (2, 4)).permute(0, 2, 3, 1)).softmax(
                -1
            )
        )
        q, k, v = map(self.fold, (q, k, v))
        if self.kernel:
            return F.scaled_dot_product_attention(q, k, v, scale=1.0)
        return (q @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize("order", ["heads last", "heads first", "texts apart"])
@pytest.mark.parametrize("kernel", [False, True])
def test_blocks_sharing_the_head_axis_are_parts(kernel, order):
    torch.manual_seed(0)
    record, maps, _ = observe(model := Halo(kernel, order), torch.randn(2, 8, 8, 8))
    check_kept(model, maps)  # 8 blocks, 2 heads
    assert record.places == {PARTS: [("", "8")]}
