"""What a batch holds inside a model: texts, beams, or parts of one input, of which one can be shown."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnscope
from attnscope.errors import SelectionError


class Heads(nn.Module):
    """Attention that keeps its weights as the oracle has them."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(8, 24)

    def forward(self, x):
        query, key, value = (
            each.unflatten(-1, (2, 4)).transpose(-3, -2) for each in self.into(x).chunk(3, -1)
        )
        self.weights = (query @ key.mT / 2).softmax(-1)  # [..., head, row, key]
        return F.scaled_dot_product_attention(query, key, value).transpose(-3, -2).flatten(-2)


class Channels(nn.Module):
    """Patches of each channel attend within it, as in PatchTST: the channels are the batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.attend = nn.Linear(4, 8), Heads()

    def forward(self, series):  # [text, time, channel]
        patches = series.mT.unfold(-1, 4, 4)  # [text, channel, patch, 4]
        return self.attend(self.patch(patches).flatten(0, 1))


class Axial(nn.Module):
    """Rows of a table attend to rows, columns to columns, as in TabPFN."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.over_columns, self.over_rows = Heads(), Heads()

    def forward(self, table):  # [text, row, column, size]
        table = self.over_columns(table.flatten(0, 1)).unflatten(0, table.shape[:2])
        return self.over_rows(table.transpose(1, 2).flatten(0, 1))


def _recorded(model, *given):
    with torch.inference_mode(), attnscope.record(model.eval(), seal=False) as run:
        model(*given)
    return run


def test_channels_are_parts_and_one_can_be_shown():
    model = Channels()
    run = _recorded(model, torch.randn(1, 24, 7))
    notes = [note for note in run.overview().notes if "mean" in note]
    assert notes == [
        "scores are means over 7 parts, each of which attends within itself: run.part(0) shows one",
        "layer 0: mean of 7 parts, each of which attends within itself",
    ]
    part = run.part(3)
    for head in range(2):
        np.testing.assert_allclose(part.head(f"L0H{head}").weights, model.attend.weights[3, head], atol=1e-6)
    assert not any("mean" in note for note in part.overview().notes)
    assert "part 3 of the batch" in part.notes
    rows = model.attend.weights[3, 1]
    entropy = -(rows * rows.log()).sum(-1).mean()
    assert part.head("L0H1").scores["entropy"].value == pytest.approx(float(entropy), abs=1e-5)
    for number, sentence in ((7, "no part 7: attend has the parts 0-6"), (-1, "no part -1")):
        with pytest.raises(SelectionError, match=sentence):
            run.part(number)


def test_table_rows_and_columns_are_parts_not_texts():
    model = Axial()
    run = _recorded(model, torch.randn(1, 5, 3, 8))
    assert not any("texts of the batch" in note for note in run.overview().notes)
    assert any("means over 3 or 5 parts" in note for note in run.notes)
    part = run.part(2)
    np.testing.assert_allclose(part.head("L0H1").weights, model.over_columns.weights[2, 1], atol=1e-6)
    np.testing.assert_allclose(part.head("L1H0").weights, model.over_rows.weights[2, 0], atol=1e-6)
    with pytest.raises(SelectionError, match="over_rows has the parts 0-2"):
        run.part(4)


def test_batch_texts_are_named_texts_in_notes():
    model = Heads()
    run = _recorded(model, torch.randn(4, 6, 8))
    assert "scores are means over 4 texts of the batch: run.part(0) shows one" in run.notes
    np.testing.assert_allclose(run.part(1).head("L0H0").weights, model.weights[1, 0], atol=1e-6)


def test_part_of_a_single_text_is_refused():
    run = _recorded(Heads(), torch.randn(1, 6, 8))
    with pytest.raises(SelectionError, match="no part 0: Heads attends in one part"):
        run.part(0)


def test_mean_of_passes_equals_mean_of_their_maps(tmp_path):
    model, maps = Heads().eval(), []
    with torch.inference_mode(), attnscope.record(model, seal=False) as run:
        for seed in range(3):
            model(torch.randn(2, 6, 8, generator=torch.manual_seed(seed)))
            maps.append(model.weights)
    mean, expected = run.mean(), torch.stack(maps).mean(0)  # [text, head, row, key]
    np.testing.assert_allclose(mean.head("L0H1").weights, expected.mean(0)[1], atol=1e-6)
    np.testing.assert_allclose(mean.part(1).head("L0H1").weights, expected[1, 1], atol=1e-6)
    assert "the mean of 3 passes" in mean.notes
    assert not any(note.startswith("the last") for note in mean.notes)
    mean.save(tmp_path / "mean.trace")
    again = attnscope.open(tmp_path / "mean.trace")
    np.testing.assert_allclose(again.head("L0H1").weights, expected.mean(0)[1], atol=1e-6)


def test_mean_of_passes_of_other_lengths_is_refused():
    model = Heads().eval()
    with torch.inference_mode(), attnscope.record(model, seal=False) as run:
        for count in (5, 6):
            model(torch.randn(1, count, 8))
    with pytest.raises(SelectionError, match="have no mean"):
        run.mean()


def test_beams_belong_to_one_text_and_best_is_part_0():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 50}
    config = GPT2Config(**sizes, attn_implementation="eager", bos_token_id=1, eos_token_id=49)
    model = GPT2LMHeadModel(config).eval()
    prompt = torch.tensor([[3, 9, 14, 7]])
    with torch.inference_mode(), attnscope.record(model, seal=False) as run:
        written = model.generate(prompt, num_beams=3, max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert "scores are means over 3 beams of one text: run.part(0) shows one" in run.notes
    assert any("mean of 3 beams of one text" in note for note in run.overview().notes)
    with torch.inference_mode():
        expected = model(written[:, :-1], output_attentions=True).attentions  # [text, head, row, key]
    for layer in range(2):
        shown = run.part(0).head(f"L{layer}H1").weights
        np.testing.assert_allclose(shown, expected[layer][0, 1], atol=1e-5)


class Loop(nn.Module):
    """Runs its layers three times; the second one more often if ``uneven``, the last time on fewer tokens."""

    def __init__(self, uneven=False, shrinks=False):
        super().__init__()
        self.first, self.second = Heads(), Heads()
        self.uneven, self.shrinks, self.maps = uneven, shrinks, []

    def forward(self, x):
        for step in range(3):
            x = x[:, 1:] if self.shrinks and step == 2 else x
            for layer in (self.first, self.second, *[self.second] * self.uneven):
                x = x + layer(x)
                self.maps.append(layer.weights)
        return x


def test_mean_of_one_pass_is_over_the_steps_of_its_loop(tmp_path):
    model = Loop().eval()
    run = _recorded(model, torch.randn(2, 6, 8))
    maps = torch.stack(model.maps[-6:]).unflatten(0, (3, 2))  # [step, layer, text, head, query, key]
    run.save(tmp_path / "loop.trace")
    for each in (run, attnscope.open(tmp_path / "loop.trace")):
        shown = {None: each.mean(), **{number: each.step(number) for number in range(3)}}
        for number, one in shown.items():
            expected = maps.mean(0) if number is None else maps[number]
            assert len(one.heads) == 2 * expected.shape[2]
            np.testing.assert_allclose(one.head("L1H1").weights, expected[1].mean(0)[1], atol=1e-6)
            np.testing.assert_allclose(one.part(1).head("L0H0").weights, expected[0, 1, 0], atol=1e-6)
    assert "step 2 of the 3 steps of a loop" in run.step(2).notes


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"uneven": True}, "attend 3 or 6 times in a pass"), ({"shrinks": True}, "over other lengths in each")],
)
def test_mean_of_unequal_steps_is_refused(options, sentence):
    run = _recorded(Loop(**options).eval(), torch.randn(1, 6, 8))
    with pytest.raises(SelectionError, match=sentence):
        run.mean()
