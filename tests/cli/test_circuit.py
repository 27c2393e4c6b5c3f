"""``attnscope circuit``: what it prints, saves and refuses."""

import json
import re
from html import escape
from pathlib import Path

from attnscope.render.page.graph import graph_page
from attnscope.views.graph import GraphEdge, GraphNode, LayerGraph

SAMPLE = Path(__file__).parents[2] / "sample_inputs" / "repeats.tsv"


def test_the_induction_circuit_of_the_bundled_model_is_listed_drawn_and_saved(run, tmp_path):
    """Olsson et al. 2022: a head that looks one token back feeds the keys of one that copies."""
    asked = ("circuit", SAMPLE, "-m", "own-causal")
    answer = json.loads(run(*asked, "--json").out)
    assert [head["head"] for head in answer["heads"]] == [0, 0]
    edges = {(edge["source"], edge["target"]): edge for edge in answer["edges"]}
    assert set(edges) == {("embeddings", "L0H0"), ("L0H0", "L1H0"), ("L1H0", "prediction")}
    assert edges["L0H0", "L1H0"]["way"] == "K"
    assert answer["faithfulness"] >= 0.8
    printed = run(*asked).out
    assert f"faithfulness {answer['faithfulness']:.2f}" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert [line.partition("  ")[0] for line in printed.splitlines() if "→" in line] == [
        f"{edge['source']} → {edge['target']}" for edge in answer["edges"]
    ]
    assert len(run(*asked, "--csv").out.splitlines()) == 1 + len(edges)
    for name in ("graph.svg", "graph.html"):
        assert run(*asked, "-o", tmp_path / name).code == 0
    drawn = (tmp_path / "graph.svg").read_text("utf-8")
    assert all(f"<!-- {name} -->" in drawn for name in ("embeddings", "L0H0", "L1H0", "prediction"))
    page = (tmp_path / "graph.html").read_text("utf-8")
    assert len(re.findall("src='data:image/png", page)) == 2  # the maps of both heads
    assert "<script" not in page


def test_a_page_holds_a_text_that_looks_like_markup_as_text():
    nodes = GraphNode("<i>a</i>", 0, effect=1.0), GraphNode("b", 1)
    view = LayerGraph(nodes, (GraphEdge("<i>a</i>", "b", 1.0),), title="<b>title</b>", notes=("<u>",))
    page = graph_page(view)
    assert not re.search("<(i|b|u|script)>", page)
    assert all(escape(text) in page for text in ("<b>title</b>", "<i>a</i>", "<u>"))
