"""Labels for positions that are not text, and for weights in files."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import attnscope
from attnscope.axes import Weights, places
from attnscope.errors import InputError
from attnscope.models import load
from attnscope.models.inputs import Label, read_labels, tokens_of_labels
from attnscope.models.served import open_file
from attnscope.models.trace_model import WeightsFile
from attnscope.questions.head import one_head, pick_head
from attnscope.questions.layers import whole_layers
from attnscope.questions.selection import Selection
from attnscope.questions.stats import overview
from attnscope.questions.token import one_token
from tests.models.folders import gpt2, t5
from tests.models.test_module import Letters

TABLE = "label\tgroup\tspecial\nCLS\t\tyes\nTP53\tcycle\t\nCDK1\tcycle\t\nIL6\timmune\t\nTNF\timmune\t\n"


class Genes(nn.Module):
    """An encoder of genes and their levels, with a token for the whole cell before them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.names, self.level = nn.Embedding(5, 16), nn.Linear(1, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)

    def forward(self, genes, levels):
        return self.layer(self.names(genes) + self.level(levels[..., None]))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "labels.tsv"
    path.write_text(TABLE)
    return path


@pytest.fixture
def genes(table):
    inputs = {"genes": torch.arange(5)[None], "levels": torch.rand(1, 5)}
    return attnscope.wrap(Genes().eval()).read(inputs, labels=table)


def test_labels_are_read_from_table_or_plain_lines(table):
    assert read_labels(table)[:2] == (Label("CLS", "", True), Label("TP53", "cycle"))
    table.write_text("shoulder\nelbow\n\nwrist\n\n")
    assert [label.text for label in read_labels(table)] == ["shoulder", "elbow", "", "wrist"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "is empty"),
        (b"label\tgroup\na\tb\nc\n", "line 3: it has 1 columns, not 2"),
        (b"\xff\n", "line 1"),
    ],
)
def test_invalid_label_file_error_names_the_line(table, text, sentence):
    table.write_bytes(text)
    with pytest.raises(InputError, match=sentence):
        read_labels(table)


def test_equal_labels_have_the_same_token_id():
    ids = [token.id for token in tokens_of_labels([Label("a"), Label("b"), Label("a"), Label("a", "group")])]
    assert ids == [0, 1, 0, 2]


def test_labelled_tokens_have_names_and_groups(genes):
    assert genes.tokens == ("CLS", "cycle · TP53", "cycle · CDK1", "immune · IL6", "immune · TNF")
    assert "“TP53 CDK1 IL6 TNF”" in repr(genes.head("L0H1"))


def test_label_group_is_a_part_for_find_and_spans(genes):
    (question,) = genes.find("cycle -> immune").numbers["questions"]
    for each in question["heads"]:
        rows = genes.head(f"L{each['layer']}H{each['head']}").weights
        assert each["weight"] == pytest.approx(rows[1:3, 3:].sum(-1).mean(), abs=1e-6)
    assert "cycle" in repr(genes.spans("group"))
    (alone,) = genes.find("TP53 -> TNF").numbers["questions"]
    assert alone["heads"][0]["rows"] == 1


def test_labels_of_wrong_count_or_axis_are_refused(table):
    with pytest.raises(InputError, match="there are 5 labels for 7 positions"):
        attnscope.wrap(Letters()).read({"0": torch.arange(7)[None]}, labels=table)
    recorded = attnscope.record(Genes(), tokens={"camera": ["a"]})
    with pytest.raises(InputError, match="name those of encoder and decoder"), recorded:
        pass


def test_weights_from_a_file_take_labels(table, tmp_path):
    np.savez(tmp_path / "heads.npz", np.full((2, 5, 5), 0.2, np.float32))
    prepared = open_file(tmp_path / "heads.npz", table).prepared
    assert [token.text for token in prepared.tokens][1] == "cycle · TP53"
    assert prepared.tokens[0].special


TEXT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A model with its text, and the file of its weights with the same text, by name of the model."""
    folder = tmp_path_factory.mktemp("saved")

    def make(name):
        model = load(name if name == "own" else {"gpt2": gpt2, "t5": t5}[name](folder / name))
        prepared = model.prepare(TEXT, "It slept." if name == "t5" else None)
        whole_layers(model, prepared, Selection()).save(folder / f"{name}.npz")
        saved = WeightsFile(folder / f"{name}.npz")
        return (model, prepared), (saved, saved.prepared)

    return cache(make)


@pytest.mark.parametrize("name", ["own", "gpt2", "t5"])
def test_scores_and_thumbnails_from_file_equal_the_model(pair, name):
    live, saved = (overview(*given, Selection()) for given in pair(name))
    assert list(live.grids) == list(saved.grids)
    for kind, grid in live.grids.items():
        for one, other in zip(grid.layers, saved.grids[kind].layers, strict=True):
            np.testing.assert_allclose(one.values, other.values, atol=1e-6)
            np.testing.assert_array_equal(one.masked, other.masked)
    by_kind = [sorted(seen.heads, key=lambda head: (head.site.kind, head.name)) for seen in (live, saved)]
    for one, other in zip(*by_kind, strict=True):
        assert (one.name, one.role and one.role.name) == (other.name, other.role and other.role.name)
        assert one.absent.keys() == other.absent.keys()
        for measure, score in one.scores.items():
            found = other.scores[measure]
            assert (score.value, score.baseline) == pytest.approx((found.value, found.baseline), abs=1e-5)


def test_weights_file_is_named_as_source_and_reads_no_text(pair):
    seen = overview(*pair("own")[1], Selection())
    assert seen.grids["encoder"].subtitle.endswith("13 tokens · weights from the file")
    with pytest.raises(InputError, match="is a file of weights and reads no text"):
        pair("own")[1][0].prepare("x")


@pytest.fixture
def odd(tmp_path):
    """The file of heads of which some weights are changed."""

    def write(shape, changes):
        maps = np.random.default_rng(0).dirichlet(np.ones(5), (*shape, 5))
        for place, weight in changes.items():
            maps[place] = weight
        np.savez(tmp_path / "odd.npz", maps)
        saved = WeightsFile(tmp_path / "odd.npz")
        return saved, saved.prepared

    return write


def test_non_finite_weights_are_drawn_masked_and_noted(odd):
    saved = odd((2, 3), {(1, 2, 3, 4): np.nan, (1, 2, 0, 0): np.inf})
    head, other = (one_head(*saved, name) for name in ("L1H2", "L1H1"))
    assert np.argwhere(head.heatmap.masked).tolist() == [[0, 0], [3, 4]]
    told = "weights of encoder layer 1 that are not finite numbers: 2, shown as masked"
    assert told in head.heatmap.notes
    assert told in overview(*saved, Selection()).notes
    token = one_token(*saved, Selection(token="3"))  # one of them is in its row
    assert told.replace("2", "1") in token.notes
    assert not other.heatmap.masked.any()
    assert (head.scores.role, other.scores.role is None) == (None, False)


def test_single_head_has_the_shared_mask():
    values, allowed = np.random.default_rng(0).random((3, 4, 4)), np.tril(np.ones((4, 4), bool))
    for mask in (allowed, allowed[None], np.stack([allowed] * 3)):
        one = pick_head(Weights(values, mask, places(range(4)), places(range(4))), 2)
        np.testing.assert_array_equal(one.values, values[2])
        np.testing.assert_array_equal(one.allowed, allowed)


def test_negative_weights_use_a_signed_scale(odd):
    saved = odd((1, 2), {(0, 1, 2, 3): -0.5})
    picture = one_head(*saved, "L0H1").heatmap
    assert (picture.signed, picture.limits, picture.values[2, 3]) == (True, (-0.5, 0.5), -0.5)
    assert overview(*saved, Selection()).grids["encoder"].signed
    assert not one_head(*saved, "L0H0").heatmap.signed


@pytest.mark.filterwarnings("error")
def test_single_token_weights_load_without_a_warning(tmp_path):
    np.savez(tmp_path / "few.npz", **{"cross.00": np.ones((1, 1, 1), np.float32)})
    torch.set_warn_always(True)  # else torch says it once in a process
    try:
        saved = WeightsFile(tmp_path / "few.npz")
        overview(saved, saved.prepared, Selection())
    finally:
        torch.set_warn_always(False)
