"""Positions that are no text have names: genes, table cells, the joints and cameras of a robot."""

import numpy as np
import pytest
import torch
from torch import nn

import attnscope
from attnscope.errors import InputError
from attnscope.models.inputs import Label, read_labels, tokens_of

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


class Columns(nn.Module):
    """A transformer of a table's row: each column a token, numbers and categories."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.randn(4, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, row):
        columns = row[..., None] * self.weight
        return self.attention(columns, columns, columns, need_weights=False)[0]


class Policy(nn.Module):
    """Chunks of actions that look at two cameras and at the joints of an arm."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.steps = nn.Parameter(torch.randn(3, 8))
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, seen):
        return self.layer(self.steps.expand(len(seen), -1, -1), seen)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "labels.tsv"
    path.write_text(TABLE)
    return path


@pytest.fixture
def genes(table):
    inputs = {"genes": torch.arange(5)[None], "levels": torch.rand(1, 5)}
    return attnscope.wrap(Genes().eval()).read(inputs, labels=table)


def test_a_table_says_label_group_and_whether_it_is_special(table):
    assert read_labels(table)[:2] == (Label("CLS", "", True), Label("TP53", "cycle"))


def test_a_plain_file_has_a_label_a_line(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("shoulder\nelbow\n\nwrist\n\n")
    assert [label.text for label in read_labels(path)] == ["shoulder", "elbow", "", "wrist"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "is empty"), ("label\tgroup\na\tb\nc\n", "line 3: it has 1 columns, not 2"), (b"\xff\n", "line 1")],
)
def test_a_file_that_is_none_is_told_with_its_line(tmp_path, text, sentence):
    path = tmp_path / "labels.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=sentence):
        read_labels(path)


def test_equal_labels_are_the_same_token():
    ids = [token.id for token in tokens_of([Label("a"), Label("b"), Label("a"), Label("a", "group")])]
    assert ids == [0, 1, 0, 2]


def test_genes_have_their_names_and_groups(genes):
    assert genes.tokens == ("CLS", "cycle · TP53", "cycle · CDK1", "immune · IL6", "immune · TNF")
    assert "“TP53 CDK1 IL6 TNF”" in repr(genes.head("L0H1"))


def test_a_group_is_a_part_that_find_and_spans_know(genes):
    (question,) = genes.find("cycle -> immune").numbers["questions"]
    for each in question["heads"]:
        rows = genes.head(f"L{each['layer']}H{each['head']}").weights
        assert each["weight"] == pytest.approx(rows[1:3, 3:].sum(-1).mean(), abs=1e-6)
    assert "cycle" in repr(genes.spans("group"))
    (alone,) = genes.find("TP53 -> TNF").numbers["questions"]
    assert alone["heads"][0]["rows"] == 1


def test_a_cell_of_a_table_has_the_name_of_its_column(tmp_path):
    path = tmp_path / "columns.txt"
    path.write_text("age\nincome\ncity\nclaims\n")
    run = attnscope.wrap(Columns().eval()).read({"row": torch.rand(1, 4)}, labels=path)
    assert run.head("L0H0").keys == ("age", "income", "city", "claims")


def test_a_policy_looks_at_cameras_and_joints_by_their_names():
    seen = [f"front · {n // 2},{n % 2}" for n in range(4)] + [f"arm · {n}" for n in ("shoulder", "elbow")]
    policy = Policy().eval()
    with attnscope.record(policy, tokens={"encoder": seen, "decoder": ["t+0", "t+1", "t+2"]}) as run:
        policy(torch.rand(1, 6, 8))
    head = run.head("cross L0H1")
    assert head.queries == ("t+0", "t+1", "t+2")
    (question,) = run.find("t+1 -> front").numbers["questions"]
    weight = next(h["weight"] for h in question["heads"] if (h["kind"], h["head"]) == ("cross", 1))
    assert weight == pytest.approx(head.weights[1, :4].sum(), abs=1e-6)


def test_another_number_of_labels_is_refused_with_both_numbers(table):
    class Ids(nn.Module):
        def __init__(self):
            super().__init__()
            self.names, self.attention = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, ids):
            states = self.names(ids)
            return self.attention(states, states, states)[0]

    with pytest.raises(InputError, match="there are 5 labels, and 7 positions"):
        attnscope.wrap(Ids()).read({"0": torch.arange(7)[None]}, labels=table)


def test_tokens_of_something_else_than_encoder_and_decoder_are_refused():
    with (
        pytest.raises(InputError, match="name those of encoder and decoder"),
        attnscope.record(Policy(), tokens={"camera": ["a"]}),
    ):
        pass


def test_weights_from_a_file_are_labelled_too(table, tmp_path):
    from attnscope.models.served import open_file

    np.savez(tmp_path / "heads.npz", np.full((2, 5, 5), 0.2, np.float32))
    prepared = open_file(tmp_path / "heads.npz", table).prepared
    assert [token.text for token in prepared.tokens][1] == "cycle · TP53"
    assert prepared.tokens[0].special
