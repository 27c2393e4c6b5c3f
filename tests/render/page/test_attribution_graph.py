"""Graphs of ``circuit`` and ``why`` as attribution graphs, by a schema written from its description."""

import json

import jsonschema

from tests.cli.run import ROOT

NUMBER, TEXT, WHOLE = {"type": "number"}, {"type": "string"}, {"type": "integer"}


def an_object(**properties):
    """An object that has all of these."""
    return {"type": "object", "required": list(properties), "properties": properties}


def a_list(items):
    """A list of such items."""
    return {"type": "array", "items": items}


SCHEMA = an_object(
    metadata=an_object(slug=TEXT, scan=TEXT, prompt_tokens=a_list(TEXT), prompt=TEXT),
    qParams={"type": "object"},
    nodes=a_list(
        an_object(
            node_id=TEXT,
            feature={"type": ["integer", "null"]},
            layer={"type": ["string", "integer"]},
            ctx_idx=WHOLE,
            feature_type=TEXT,
            jsNodeId=TEXT,
            clerp=TEXT,
        )
    ),
    links=a_list(an_object(source=TEXT, target=TEXT, weight=NUMBER)),
)
"""The required fields of Neuronpedia's "Anthropic Attribution Graph", version 1.0.0, and their types."""


def saved_graph(run, path, *words):
    """The graph that a command saves, valid, and each link between two of its nodes."""
    assert run(*words, "-o", path).code == 0
    graph = json.loads(path.read_text("utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(graph)
    names = {node["node_id"] for node in graph["nodes"]}
    assert len(names) == len(graph["nodes"])
    assert all({link["source"], link["target"]} <= names for link in graph["links"])
    assert all(0 <= node["ctx_idx"] < len(graph["metadata"]["prompt_tokens"]) for node in graph["nodes"])
    return graph


def test_circuit_has_its_heads_and_edges(run, tmp_path):
    words = "circuit", ROOT / "sample_inputs" / "repeats.tsv", "-m", "own-causal"
    graph, numbers = saved_graph(run, tmp_path / "x.graph.json", *words), run.json(*words)
    links = [(link["source"], link["target"], link["weight"]) for link in graph["links"]]
    assert links == [(edge["source"], edge["target"], edge["effect"]) for edge in numbers["edges"]]
    layers = {node["node_id"]: (node["layer"], node["feature_type"]) for node in graph["nodes"]}
    heads = {f"L{each['layer']}H{each['head']}": str(each["layer"]) for each in numbers["heads"]}
    assert layers == {
        "embeddings": ("E", "embedding"),
        "prediction": (str(numbers["layers"]), "logit"),
        **{name: (layer, "attention head") for name, layer in heads.items()},
    }
    assert graph["metadata"]["scan"] == "own-causal"
    assert "a node of all tokens has the ctx_idx of the last one" in graph["metadata"]["info"]["description"]


def test_why_has_each_part_at_its_token(run, tmp_path):
    text = "a b c d a b"
    words = "why", "b#2 -> c", text, "-m", "own-causal", "--head", "L1H0", "--depth", "2"
    graph, path = saved_graph(run, tmp_path / "why.json", *words), run.json(*words)["path"]
    tokens = graph["metadata"]["prompt_tokens"]
    for node in graph["nodes"]:
        part, _, place = node["node_id"].partition(" · ")
        assert place == f"{tokens[node['ctx_idx']]} {node['ctx_idx']}"
        assert (node["feature_type"] == "attention head") == part.startswith("L")
        assert (node["layer"] == "E") == part.startswith(("embeddings", "positions", "biases"))
    excess = {side["part"]: side["excess"] for side in path[0]["by_query"]}
    links = [each for each in graph["links"] if each["target"].startswith("L1H0 · b 6")]
    own = {each["source"].partition(" · ")[0]: each["weight"] for each in links if "· b 6" in each["source"]}
    assert own
    assert own == {part: excess[part] for part in own}
    assert graph["metadata"]["prompt"] == text
