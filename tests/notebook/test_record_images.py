"""A robot policy: its camera images lie under the attention of each action."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import attnscope
from attnscope.errors import InputError

SIZE, HEADS, ROWS, COLUMNS = 16, 2, 3, 4
JOINTS = ("shoulder", "elbow", "gripper")
SEEN = [*JOINTS, *["front"] * (ROWS * COLUMNS), *["wrist"] * 4]
STEPS = [f"t+{step}" for step in range(5)]
LABELS = {"encoder": SEEN, "decoder": STEPS}


class ChunkPolicy(nn.Module):
    """Predicts actions in chunks from two cameras and the joints of an arm: ACT (Zhao et al. 2023)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Conv2d(3, SIZE, 8, stride=8)
        self.joints = nn.Linear(1, SIZE)
        self.encoder = nn.TransformerEncoderLayer(SIZE, HEADS, 32, dropout=0.0, batch_first=True)
        self.queries = nn.Parameter(torch.randn(len(STEPS), SIZE))
        self.decoder = nn.TransformerDecoderLayer(SIZE, HEADS, 32, dropout=0.0, batch_first=True)
        self.action = nn.Linear(SIZE, len(JOINTS))

    def memory(self, joints, front, wrist):
        patches = [self.backbone(each).flatten(2).transpose(1, 2) for each in (front, wrist)]
        return self.encoder(torch.cat([self.joints(joints[..., None]), *patches], 1))

    def forward(self, joints, front, wrist):
        return self.action(self.decoder(self.queries[None], self.memory(joints, front, wrist)))

    def own_weights(self, *seen):
        """The weights of the cross-attention, by torch's own account.  -> [head, step, seen]"""
        layer, memory, asked = self.decoder, self.memory(*seen), self.queries[None]
        asked = layer.norm1(asked + layer.self_attn(asked, asked, asked, need_weights=False)[0])
        _, found = layer.multihead_attn(asked, memory, memory, average_attn_weights=False)
        return found[0].detach().numpy()


@pytest.fixture(scope="module")
def policy():
    return ChunkPolicy().eval()


@pytest.fixture(scope="module")
def recorded(policy):
    """A recording of one call, with what both cameras saw."""
    joints, front, wrist = seen()
    with attnscope.record(policy, LABELS, images={"front": front, "wrist": wrist}) as run:
        policy(joints, front, wrist)
    return run


def seen(seed=0):
    """The joints, and what both cameras see."""
    noise = torch.Generator().manual_seed(seed)
    front, wrist = torch.rand(1, 3, 24, 32, generator=noise), torch.rand(1, 3, 16, 16, generator=noise)
    return torch.rand(1, 3, generator=noise), front, wrist


def as_bytes(image):
    return (255 * image[0].permute(1, 2, 0)).round().to(torch.uint8).numpy()


@pytest.mark.parametrize("how", [lambda each: each, as_bytes, lambda each: Image.fromarray(as_bytes(each))])
def test_action_overlays_cover_each_camera_image(policy, how):
    joints, front, wrist = seen()
    images = {"front": how(front), "wrist": how(wrist)}
    with attnscope.record(policy, LABELS, images=images) as run:
        policy(joints, front, wrist)
    own = policy.own_weights(joints, front, wrist)  # [head, step, seen]
    for head in range(HEADS):
        overlays = run.token("t+2", head=f"cross L0H{head}").numbers["patches"]
        assert [each["picture"] for each in overlays] == ["front", "wrist"]
        patches = [np.array(each["looks_at"]) for each in overlays]
        assert [each.shape for each in patches] == [(ROWS, COLUMNS), (2, 2)]
        np.testing.assert_allclose(np.concatenate([*map(np.ravel, patches)]), own[head, 2, 3:], atol=1e-6)
    np.testing.assert_array_equal(run._pass.prepared.pictures[0].pixels, as_bytes(front))
    assert "front: 3 × 4 patches" in run.notes


def test_action_tokens_default_to_cross_attention(policy, recorded):
    own = policy.own_weights(*seen())[:, 4, 3:15]
    shown = recorded.token("t+4").numbers["patches"][0]["looks_at"]
    np.testing.assert_allclose(np.ravel(shown), own.mean(0), atol=1e-6)
    looked = recorded.token("front · 1,2", head="encoder L0H0").numbers["patches"]
    assert [each["looked_at_by"] is not None for each in looked] == [True, True]
    assert recorded.head("cross L0H1").queries == tuple(STEPS)
    (question,) = recorded.find("t+4 -> front").numbers["questions"]
    assert question["heads"][0]["weight"] == pytest.approx(own.sum(-1).max(), abs=1e-6)


def test_each_recorded_call_has_its_own_images(policy):
    fronts = []
    with attnscope.record(policy, LABELS, images={"front": fronts, "wrist": seen()[2]}) as run:
        for step in range(3):
            joints, front, wrist = seen(step)
            policy(joints, front, wrist)
            fronts.append(front)
    assert len(run.passes) == 3
    for step, each in enumerate(run.passes):
        own = policy.own_weights(*seen(step))
        shown = each.token("t+0", head="cross L0H1").numbers["patches"][0]["looks_at"]
        np.testing.assert_allclose(np.ravel(shown), own[1, 0, 3:15], atol=1e-6)
        np.testing.assert_array_equal(each._pass.prepared.pictures[0].pixels, as_bytes(fronts[step]))


def test_saved_recording_has_its_images(recorded, tmp_path):
    recorded.save(tmp_path / "a.trace")
    again = attnscope.open(tmp_path / "a.trace")
    assert again.token("t+1").numbers["patches"] == recorded.token("t+1").numbers["patches"]


@pytest.mark.parametrize(
    ("tokens", "images", "sentence"),
    [
        (LABELS, {"side": torch.zeros(3, 8, 8)}, "no token is named 'side': repeat its name once per patch"),
        (None, {"front": torch.zeros(3, 8, 8)}, "no token is named 'front': repeat its name once per patch"),
        (LABELS, {"front": torch.zeros(8, 8)}, r"has the shape \[8, 8\]: give \[row, column, 3\]"),
        (LABELS, {"front": torch.full((3, 8, 8), -1.5)}, "has values outside 0 to 1"),
        (LABELS, {"front": [torch.zeros(3, 8, 8)] * 2}, "front has 2 images, and there was 1 pass"),
    ],
)
def test_mismatched_recording_images_are_refused(policy, tokens, images, sentence):
    with pytest.raises(InputError, match=sentence), attnscope.record(policy, tokens, images=images):
        policy(*seen())


class Denoiser(nn.Module):
    """Patches of a picture look at words, as in a diffusion model: the picture is on the queries' side."""

    def __init__(self):
        super().__init__()
        self.cut, self.words = nn.Conv2d(3, SIZE, 8, stride=8), nn.Embedding(9, SIZE)
        self.across = nn.MultiheadAttention(SIZE, HEADS, batch_first=True)

    def forward(self, picture, ids):
        words = self.words(ids)
        return self.across(self.cut(picture).flatten(2).mT, words, words, average_attn_weights=False)


def test_image_belongs_to_the_axis_labelled_with_its_name():
    words, (picture, ids) = (
        ["a", "small", "cat", "on", "the", "mat"],
        (torch.rand(1, 3, 24, 32), torch.arange(6)[None]),
    )
    labels, images = {"encoder": words, "decoder": ["seen"] * 12}, {"seen": picture[0]}
    model = Denoiser().eval()
    with torch.inference_mode(), attnscope.record(model, labels, images=images) as run:
        _, weights = model(picture, ids)  # [text, head, patch, word]
    (shown,) = run.token("cat", head="cross L0H1")._answer.picture.overlays
    np.testing.assert_allclose(shown.looked_at_by, weights[0, 1, :, 2].reshape(3, 4), atol=1e-6)
    with (
        pytest.raises(InputError, match="no token is named 'other'"),
        attnscope.record(model, labels, images={"other": picture[0]}),
    ):
        pass
