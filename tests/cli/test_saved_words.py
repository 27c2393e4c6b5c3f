"""What a saved picture says without the terminal beside it: title, names of axes and bars; and its bytes."""

import io
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from tests.models.folders import minilm

SVG = "{http://www.w3.org/2000/svg}"
SOURCE = "{http://purl.org/dc/elements/1.1/}source"
CAT, DOG = "The cat sat on the mat because it was", "The dog sat on the mat because it was"
QUERY, KEY, WEIGHT = "query (attends)", "key (attended to)", "attention weight"
HEAD = (QUERY, KEY, WEIGHT)

WORDS = {
    "show CAT": (
        "own", CAT, WEIGHT, "one map per head", "rows attend to columns",
        "worth a look: L0H7 next, L2H1 previous",
    ),
    "show CAT --head L2H1": ("L2H1", "own", CAT, "encoder attention", *HEAD),
    "show CAT --head L2H1 --weighting norm": ("weighted by norm", "attention weighted by norm"),
    "show CAT -m own-causal --head L1H1 --loss": (CAT, "decoder attention", *HEAD, "loss", "nats"),
    "show CAT --head L2H1,L1H3": ("L2H1", "L1H3", CAT, *HEAD),
    "show CAT --token cat": ("cat (token 2) attends to", CAT, WEIGHT),
    "show CAT --head L2H0 --neurons 'it -> cat'": ("it 8 → cat 2", CAT, "added to the score before"),
    "show CAT --by entropy": ("own", CAT, "entropy, nats", "farthest from uniform attention in entropy: "),
    "show CAT --by role": ("own", CAT, "previous 2", "none", "worth a look: L0H7 next"),
    "compare CAT --by layer": (
        "distance of layers, mean over pairs", "distance of layers, their nearest two", CAT,
        "Jensen- Shannon divergence", "L3",
    ),
    "compare CAT --scatter": (CAT, "Jensen- Shannon divergence, nats", "plane: 2-D projection"),
    "stats CAT --map entropy": ("entropy · encoder", CAT, "entropy, nats"),
    "stats CAT --map previous": ("previous · encoder", CAT, "previous, share"),
    "stats CAT --by-position previous": ("previous by position", CAT, "previous, share: 0 to", "row 0"),
    "ablate CAT --importance": ("importance · encoder", CAT, "importance, nats"),
    "stats CAT -m own-causal --faithful": (CAT, "the prediction: ", "% of the tokens removed", "probability"),
    "find 'it -> cat' CAT": ("it -> cat · encoder attention", CAT, "attention, share"),
    "spans 'A cat sat. It ran.'": ("part (attends)", "part (attended to)", WEIGHT, "A cat sat. It ran."),
    "spans 'The king said that he' -m own-causal --generate 3 --written": (
        "generated token (attends)", "share of its attention", "A [CLS]", "The king said that he",
    ),
    "flow CAT": ("rollout", CAT, "token of the layer (draws on)", "input token (contributes)"),
    "flow CAT --layer 0-1": ("rollout layer by layer", CAT, "contribution, share", "rows draw on columns"),
    "flow CAT --token it": ("it (token 8) draws on", CAT, "contribution, share"),
    "compare CAT --with-text DOG": (CAT, DOG, "change, × 10⁻³ nats"),
    "compare CAT --with-text DOG --head L2H1": (f"“{DOG}”", f"“{CAT}”", QUERY, KEY, "difference of weights"),
    "compare CAT L2H1 L1H3": ("L2H1 and L1H3", CAT, *HEAD, "difference of weights"),
    "compare CAT": (CAT, "Jensen- Shannon divergence, nats"),
    "compare CAT --with-model MINILM": (CAT, "heads of own", "heads of …/", "Jensen- Shannon"),
    "compare L1H0 --composition -m own-causal": ("own-causal", "K-composition", "score minus random"),
    "cut 'it -> cat' CAT -m own-causal": (
        "cut it -> cat (renormalized)", "own-causal", CAT, "the prediction: 'a'", "effect, log- probability",
        "below 0: the prediction needs what was changed", "all 12 heads at once",
    ),
    "patch CAT --with-text DOG -m own-causal": (
        f"head outputs of “{CAT}” patched into “{DOG}” · own-causal", "the prediction: 'a'", "recovered",
        "1: all of it; below 0: the wrong way",
    ),
    "patch CAT --with-text DOG -m own-causal --noise --to L2H1:q": (
        f"of “{DOG}” patched into “{CAT}” on the way to L2H1:q",
    ),
    "patch CAT --with-text DOG -m own-causal --by token": (
        f"residual stream of “{CAT}” patched into “{DOG}”", "dog←cat 2", "recovered",
    ),
    "logits CAT -m own-causal": ("what each part adds to the score", CAT, "added to the score, logits"),
    "circuit pairs.tsv -m own-causal": ("circuit · own-causal", CAT, DOG, "lines: share of the score's"),
    "track gpt2 short --texts texts.txt --measure entropy": (
        "entropy by step", "entropy, nats", "step", "L0H0", "short to gpt2", "uniform attention",
    ),
    "track gpt2 short --texts texts.txt --measure first,previous": (
        "first by step", "first, share", "previous by step", "previous, share", "step", "short to gpt2",
    ),
    "cachecost --texts texts.txt -m own-causal --sink 1 --recent 4": (
        "own-causal · a window of 1 + 4 tokens", "loss", "rise of the loss, nats per token", "% of the cache",
    ),
}  # fmt: skip
"""The commands that save a picture, and what its text must have."""


def texts_of(svg: bytes) -> str:
    """The text of a picture, in one line; the hyphen of a word that was broken stays."""
    root = ElementTree.fromstring(svg)
    texts = (" ".join(part for part in each.itertext()) for each in root.iter(f"{SVG}text"))
    return re.sub(r"\s+", " ", " ".join(texts)).replace("\u2068", "").replace("\u2069", "")


@pytest.mark.sweep
@pytest.mark.parametrize("typed", WORDS)
def test_picture_names_its_text_axes_and_bar_in_equal_bytes(run, place, monkeypatch, tmp_path, typed):
    monkeypatch.chdir(place)
    (tmp_path / "pairs.tsv").write_text(f"{CAT}\t{DOG}\n")
    words = [
        {"CAT": CAT, "DOG": DOG, "MINILM": minilm(), "pairs.tsv": tmp_path / "pairs.tsv"}.get(w, w)
        for w in shlex.split(typed)
    ]
    saved = []
    for name in ("one.svg", "two.svg"):  # the second may come from the cache
        ran = run(*words, "-o", tmp_path / name)
        assert ran.code == 0, ran.err
        saved.append((tmp_path / name).read_bytes())
    assert saved[0] == saved[1]
    shown = texts_of(saved[0])
    for words in WORDS[typed]:
        assert words in shown, shown
    root = ElementTree.fromstring(saved[0])
    title, described = (root.findtext(f"{SVG}{tag}") for tag in ("title", "desc"))
    assert title
    assert described
    assert json.loads(root.findtext(f".//{SOURCE}"))["input"]["model"] in ("own", "own-causal", "gpt2")


def test_jpeg_has_the_requested_resolution(run, tmp_path):
    image = pytest.importorskip("PIL.Image")
    assert run("show", CAT, "--head", "L0H0", "-o", tmp_path / "head.jpg", "--dpi", "40").code == 0
    assert image.open(tmp_path / "head.jpg").info["dpi"] == (40, 40)


def pdf_keywords(content: bytes) -> str:
    """The keywords of a PDF, a string in parentheses of which those inside are escaped."""
    return re.sub(rb"\\(.)", rb"\1", re.search(rb"/Keywords \((.*?[^\\])\)", content, re.S)[1]).decode()


SOURCES = {
    ".png": lambda content: pytest.importorskip("PIL.Image").open(io.BytesIO(content)).text["Source"],
    ".jpg": lambda content: pytest.importorskip("PIL.Image").open(io.BytesIO(content)).info["comment"],
    ".svg": lambda content: ElementTree.fromstring(content).findtext(f".//{SOURCE}"),
    ".pdf": pdf_keywords,
    ".npz": lambda content: str(np.load(io.BytesIO(content))["attnscope"]),
    ".parquet": lambda content: (
        pytest.importorskip("pyarrow.parquet").read_schema(io.BytesIO(content)).metadata[b"attnscope"]
    ),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("suffix", SOURCES)
def test_file_says_its_model_text_and_version_as_json_does(run, tmp_path, suffix):
    asked = ("compare", "Ünlü (cats) sat \\ on the mat.", "--layer", "0-2")
    saved = tmp_path / f"heads{suffix}"
    assert run(*asked, "-o", saved).code == 0
    told = json.loads(SOURCES[suffix](saved.read_bytes()))
    printed = run.json(*asked)
    assert told == {name: printed[name] for name in ("schema", "attnscope", "input", "options", "versions")}
    assert told["input"]["checksum"]
