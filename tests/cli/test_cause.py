"""What a prediction depends on: cut, patch, ablate, circuit, cachecost and logits."""

import re
from html import escape
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from attnscope.models import load
from attnscope.questions.loss import ablate
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from attnscope.render.page import graph_page
from attnscope.views import GraphEdge, GraphNode, LayerGraph
from tests.questions.intervention.shapes import saved
from tests.questions.test_logits import TEXT as KING

TEXT = "The cat sat on the mat"
OTHER = ["--with-text", "The dog sat on the mat"]
TIRED = "The cat sat on the mat because it was tired."
SAMPLE = Path(__file__).parents[2] / "sample_inputs" / "repeats.tsv"
QUESTIONS = (
    "questions.prompts.mean_cut questions.patching.patch questions.patching.trace_tokens "
    "questions.stats.measure_heads questions.circuit.find_circuit questions.cachecost.cachecost "
    "cli.commands.ablate.measure_corpus"
)
"""What the commands ask, which takes longer than to say the answer once more."""


def once(question):
    """A question that is answered the first time."""
    found = []
    return lambda *args, **how: (found or found.append(question(*args, **how)) or found)[0]


@pytest.fixture
def ask(run, tmp_path, monkeypatch):
    """One answer as it is printed, as JSON and as rows; it is saved, too."""

    def ask(*asked, saved=("map.svg",), model="own-causal"):
        asked = (*asked, "-m", model)
        with monkeypatch.context() as patched:
            for name in QUESTIONS.split():
                module, _, name = f"attnscope.{name}".rpartition(".")
                patched.setattr(import_module(module), name, once(getattr(import_module(module), name)))
            printed = run(*asked)
            assert printed.code == 0, printed.err
            assert max(map(len, printed.out.splitlines())) <= 80
            answer = run.json(*asked)
            assert answer["schema"] == f"urn:attnscope:{asked[0]}:1"
            for file in saved:
                assert run(*asked, "-o", tmp_path / file).code == 0
            rows = run.csv(*(word for word in asked if not str(word).startswith("--full-heads")))
            return printed.out, answer, rows

    return ask


EFFECT = ["kind", "layer", "head", "effect", "score", "divergence"]
STATE = ["kind", "layer", "position", "token", *EFFECT[3:]]


@pytest.mark.parametrize(
    ("asked", "count", "columns", "words"),
    [
        (["cut", "on -> cat", TEXT], 12, EFFECT, "at once"),
        (["patch", TEXT, *OTHER], 12, EFFECT, "at once"),
        (["patch", TEXT, *OTHER, "--by", "token"], 3 * 8, STATE, ""),
        (["patch", TEXT, *OTHER, "--head", "L0H1,L0H2", "--to", "L2H3:q"], 2, EFFECT, ""),
        (["patch", TEXT, *OTHER, "--to", "logits", "--noise"], 12, EFFECT, ""),
        (["patch", TEXT, *OTHER, "--fast", "--exact"], 12, [*EFFECT, "estimate"], "correlation"),
    ],
)
def test_effects_are_printed_saved_and_in_csv(ask, tmp_path, asked, count, columns, words):
    out, answer, rows = ask(*asked, saved=["map.png"])
    assert words in out
    assert ("recovered" in out) == (asked[0] == "patch")
    assert len(answer.get("heads", answer.get("tokens"))) == len(rows) == count
    assert list(rows[0]) == columns
    assert (tmp_path / "map.png").stat().st_size > 1000


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("asked", "count", "named"),
    [
        (["cut", "{B} -> {A}"], 12, "cut {B} -> {A}"),
        (["logits"], 12, "the mean of 2 prompts of “The {A} saw the {B} and the”"),
        (["patch", "--with-text", "The {B} saw the {A} and the", "--against", "{B}"], 12, "2 pairs of texts"),
        (["cut", "* -> *", "--how", "zero", "--head", "L0H0,L1H2"], 2, "zeroed after the softmax"),
        (["patch", "--pairs", "pairs.tsv"], 12, "2 pairs of texts"),
    ],
)
def test_pairs_and_prompts_average_with_standard_errors(ask, tmp_path, monkeypatch, asked, count, named):
    monkeypatch.chdir(tmp_path)
    Path("words.tsv").write_text("A\tB\ncat\tdog\nman\tcat\n")
    Path("pairs.tsv").write_text(
        "The cat sat on the\tThe dog sat on the\tmat\tdoor\nThe cat is\tThe dog is\ta\tthe\n"
    )
    more = ["The {A} saw the {B} and the", "--prompts", "words.tsv", "--target", "{A}"]
    out, answer, _ = ask(*asked, *(() if "--pairs" in asked else more))
    assert len(answer["heads"]) == count
    assert all(each["error"] >= 0 for each in answer["heads"])
    assert named in " ".join(out.split())


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        (TIRED, "", "--target 8 predicts in the place of 'it', where the edge begins"),
        (TIRED, "-m own-causal", "--target 8 predicts after 'it', where the edge begins"),
        (TIRED, "--target tired", "--target tired@10 predicts 'tired' where it stands in the text"),
        (TIRED, "--target tired@10", ""),
        (TIRED, "--target 8", ""),
        (TIRED.replace("tired", "[MASK]"), "", ""),
        ("The cat sat because it", "-m own-causal", ""),
    ],
)
def test_cut_names_target_where_its_edge_or_word_stands(run, text, more, said):
    out = " ".join(run("cut", "it -> cat", text, "--head", "L0H1", *more.split()).out.split())
    assert said in out
    assert ("--target" in out) == bool(said)
    masked = "[MASK]" in text
    assert ("(not masked)" in out) == (not masked and "causal" not in more)


def listed_effects(out, head="effect"):
    """The effects of the table, and those of the map below it, as they are written."""
    table, _, below = out.partition(f"{head}, every head")
    return re.findall(r"^L\dH\d +(\S+)", table, re.M), re.findall(
        r"(?<= )-?\d\.\d+", below.partition("\n\n" + head)[0]
    )


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("more", "digits", "said"),
    [
        ("", 4, "no visible effect: below 0.01 in each head, and in all at once"),
        ("--head L2H5", 4, "no visible effect: below 0.01"),
        ("--target 8", 3, "probability of the target: 42%; 44% with L1H3 changed, 43% with all 32 changed"),
    ],
)
def test_cut_judges_effects_and_writes_them_alike_everywhere(run, more, digits, said):
    asked = ("cut", "it -> ball", "The dog chased the ball because it was red.", *more.split())
    out, answer = run(*asked).out, run.json(*asked)
    assert f"· {said}\n" in out
    found, drawn = listed_effects(out)
    expected = [each["effect"] for each in answer["heads"]]
    assert [abs(float(each)) for each in found] == [round(abs(each), digits) for each in expected[:8]]
    assert all(len(each.partition(".")[2]) == digits for each in (*found, *drawn))
    assert not any(re.fullmatch(r"[+-]0\.0+", each) for each in (*found, *drawn))
    assert sorted(float(each) for each in drawn) == sorted(round(each, digits) for each in expected) * (
        len(expected) > 1
    )
    assert "log-probability  " in out
    assert "score" not in out


def test_ablate_prints_changed_predictions(run):
    out, model = run("ablate", TIRED, "--head", "L2H1").out, load("own")
    seen = ablate(model, model.prepare(TIRED), "L2H1")
    assert f"mean KL divergence of the predictions: {seen.divergence:.3g} nats" in " ".join(out.split())
    rows = re.findall(r"^ *(\S+) (\d+) +(\d\.\d+) .* \d+%", out, re.M)
    listed = [(one.token, str(one.position), f"{one.divergence:.3f}") for one in seen.changed[:8]]
    assert rows == listed
    assert "[the] " in out, "the token that stands in the text"
    numbers = run.json("ablate", TIRED, "--head", "2.1", "-m", "own-causal")
    assert (numbers["head"], numbers["kind"], len(numbers["changed"])) == ("L2H1", "decoder", 11)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "option"), [("importance", ["--importance"]), ("ablation", [])])
def test_ablate_lists_costliest_heads_first(ask, name, option):
    model = load("own")
    seen = measure_heads(model, model.prepare(TIRED), Selection(), **{name: True})
    found = {head.address: getattr(head, name).value for head in seen.heads}
    out, answer, rows = ask("ablate", TIRED, *option, model="own")
    listed = [line.split()[:2] for line in out.splitlines() if line.startswith("L")]
    worst = sorted(found, key=lambda head: -found[head])
    assert listed == [[head.name, f"{found[head]:.3f}"] for head in worst[:10]]
    assert "22 more heads" in out
    assert answer["heads"][0][name]["value"] == pytest.approx(found[worst[0]])
    assert float(rows[0][name]) == pytest.approx(found[worst[0]])


def test_ablate_over_texts_prints_loss_with_standard_error(ask, run, tmp_path):
    (tmp_path / "texts.txt").write_text("The cat sat on the mat.\nA dog ran off with the bone.\n")
    asked = ("ablate", "--texts", tmp_path / "texts.txt")
    out, _, rows = ask(*asked)
    lines = out.splitlines()
    rises = [float(line.split(" ±")[0].split()[-1]) for line in lines if " ±" in line and line[0] == "L"]
    assert rises == sorted(rises, reverse=True)
    assert "the loss with all heads" in " ".join(lines)
    assert "a head's output is set to zero" in out
    assert (list(rows[0])[-2:], len(rows)) == (["ablation", "ablation_error"], 12)
    heads = run.json(*asked, "-m", "own-causal", "--mean")["heads"]
    assert all({"value", "error", "loss", "texts"} == set(head["ablation"]) for head in heads)


def test_circuit_of_bundled_model_is_printed_drawn_and_saved(ask, tmp_path):
    """Olsson et al. 2022: a head that looks one token back feeds the keys of one that copies."""
    printed, answer, rows = ask("circuit", SAMPLE, saved=["graph.svg", "graph.html"])
    edges = {(edge["source"], edge["target"]): edge for edge in answer["edges"]}
    assert set(edges) == {("embeddings", "L0H0"), ("L0H0", "L1H0"), ("L1H0", "prediction")}
    assert edges["L0H0", "L1H0"]["way"] == "K"
    assert f"faithfulness {answer['faithfulness']:.2f}" in printed
    listed = [line.partition("  ")[0] for line in printed.splitlines() if "→" in line]
    assert listed == [f"{edge['source']} → {edge['target']}" for edge in answer["edges"]]
    assert len(rows) == len(edges)
    drawn = (tmp_path / "graph.svg").read_text("utf-8")
    assert all(f">{name}</text>" in drawn for name in ("embeddings", "L0H0", "L1H0", "prediction"))
    page = (tmp_path / "graph.html").read_text("utf-8")
    assert len(re.findall("src='data:image/png", page)) == 2  # the maps of both heads
    assert "<script" not in page


def test_page_of_why_links_each_cell_to_its_terms(run, tmp_path):
    text = "The cat sat; it slept."
    run("why", "it -> cat", text, "--head", "L1H3", "--depth", "2", "-o", tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text("utf-8")
    links = re.findall(r"href='#(cell-\d+-\d+)'", page)
    assert len(links) == len(set(links)) == 9 * 9
    assert re.findall(r"id='(cell-\d+-\d+)'", page) == links
    assert "<script" not in page


def test_graph_page_escapes_markup():
    nodes = GraphNode("<i>a</i>", 0, effect=1.0), GraphNode("b", 1)
    edges = (GraphEdge("<i>a</i>", "b", 1.0),)
    page = graph_page(LayerGraph(nodes, edges, title="<b>title</b>", notes=("<u>",)))
    assert not re.search("<(i|b|u|script)>", page)
    assert all(escape(text) in page for text in ("<b>title</b>", "<i>a</i>", "<u>"))


def test_cachecost_writes_table_json_csv_pattern_and_pictures(ask, tmp_path):
    words = "the cat sat on the mat because the dog ran in the park and it was tired"
    texts = tmp_path / "texts.txt"
    texts.write_text(f"{words}\nthe cat\n{words} of the cat\n", "utf-8")
    asked = ("cachecost", "--texts", texts, "--sink=1", "--recent=6", "--full-heads=0.5", "--needle=0,1")
    out, answer, rows = ask(*asked, saved=["cost.svg", "heads.tsv"])
    assert {path.name for path in tmp_path.glob("*.svg")} == {"cost.svg"}
    heads = {f"L{each['layer']}KV{each['head']}": each["loss"] for each in answer["heads"]}
    losses = list(heads.values())
    assert losses == sorted(losses, reverse=True)
    named = re.findall(r"^L\d+KV\d+", out, re.M)
    assert named == list(heads)[: len(named)] != []
    assert [each["share"] for each in answer["kept"]] == [0, 0.5, 1]
    assert "2 of 3 texts are longer than the window" in answer["notes"]
    assert [float(row["loss"]) for row in rows] == pytest.approx(losses)
    pattern = np.loadtxt(tmp_path / "heads.tsv", delimiter="\t")  # [layer, head]
    np.testing.assert_allclose(pattern, answer["pattern"], atol=1e-6)
    shares = {name: max(0, loss / losses[0]) for name, loss in heads.items()}
    written = {f"L{layer}KV{head}": share for (layer, head), share in np.ndenumerate(pattern)}
    assert written == pytest.approx(shares, abs=1e-6)


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("gpt2"), "gpt2")


def test_logits_groups_and_parts_sum_to_the_score(run, writer):
    out = run("logits", KING, "-m", writer, "--target", "mat", "--against", "cat").out
    groups, parts, *_ = (block.splitlines() for block in out.split("\n\n")[1:])
    values = {line[: line.rindex("  ", 0, 20)].strip(): float(line.split()[-2]) for line in groups}
    *terms, score = values.values()
    assert list(values) == ["heads", "feed-forward", "embeddings", "biases", "= the score"]
    assert sum(terms) == pytest.approx(score, abs=0.01)
    assert parts[0] == "largest terms"
    assert sum(line.startswith("L") for line in parts) >= 5  # the heads whose words are told below
    assert sum(float(line.split()[-2]) for line in parts[1:]) == pytest.approx(score, abs=0.02)
    words = " ".join(out.split())
    assert all(each in words for each in ("the prediction: 'mat'", "over 'cat'", "norm scales"))


def test_logits_prints_and_draws_words_of_a_head(run, writer, tmp_path, monkeypatch):
    asked = ("logits", KING, "-m", writer, "--head", "L1H2")
    seen = run.json(*asked)
    (words,) = seen["words"]
    assert (words["layer"], words["head"]) == (1, 2)
    raised, lowered = ([word["moved"] for word in words[way]] for way in ("raised", "lowered"))
    assert min(raised) > 0 > max(lowered)
    for width in (80, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        out = run(*asked).out
        assert "L1H2  raises" in out
        assert max(map(len, out.splitlines())) <= width
    assert run(*asked, "-o", tmp_path / "writes.png", "--dpi", "50").code == 0


def test_logits_by_layer_prints_target_rank_per_layer(run, writer):
    asked = ("logits", KING, "-m", writer, "--by", "layer", "--target", "mat")
    lines = [line.split()[:3] for line in run(*asked).out.splitlines() if line.strip()[:1].isdigit()]
    assert lines == [
        [str(each["layer"]), f"{each['rank']:,}", f"{each['log_probability']:.2f}"]
        for each in run.json(*asked)["layers"]
    ]
