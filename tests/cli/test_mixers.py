"""``--mixers``: signed maps and scores of linear layers, against the delta rule written out in float64."""

import re
from base64 import b64decode

import numpy as np
import pytest
import torch
import transformers
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

import attnscope
from attnscope.render.page import Code, unpack
from attnscope.storage.folder import ExportPlan
from tests.capture.hooks.test_mixers import recurrence
from tests.models import folders

TEXT = "The cat sat on the mat."
LAYERS, HEADS = 3, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folders.hybrid(tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def matrices(folder):
    """The matrix of each head, and the tokens' texts.  [layer, head, query, key]"""
    calls, kernel = [], qwen.torch_chunk_gated_delta_rule

    def record(query, key, value, g, beta, **more):
        calls.append([each[0].double() for each in (query, key, g, beta)])
        return kernel(query, key, value, g=g, beta=beta, **more)

    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(qwen, "torch_chunk_gated_delta_rule", record)
        given = tokenizer(TEXT, return_tensors="pt")
        model(**given, use_cache=False)

    def matrix(query, key, g, beta, head):
        def unit(states):
            states = states[:, head // 2].numpy()  # two heads share queries and keys
            return states / np.sqrt((states**2).sum(-1, keepdims=True) + 1e-6)

        query, key = unit(query) / np.sqrt(query.shape[-1]), unit(key)

        def step(t, state, value):
            state = state * np.exp(float(g[t, head]))
            return state + float(beta[t, head]) * np.outer(key[t], value - key[t] @ state)

        return recurrence(step, query, len(query))

    return np.array([[matrix(*call, head) for head in range(HEADS)] for call in calls])


@pytest.fixture(scope="module")
def shares(matrices):
    sizes = np.abs(matrices)
    return sizes / sizes.sum(-1, keepdims=True)


def test_head_is_signed_map_of_its_matrix(run, folder, matrices):
    answer = run.json("show", TEXT, "-m", folder, "--mixers", "--head", "L2H1", "--kind", "mixer")
    weights = np.array([[np.nan if each is None else each for each in row] for row in answer["weights"]])
    lower = np.tril(np.ones_like(weights, bool))
    np.testing.assert_allclose(weights[lower], matrices[2, 1][lower], atol=1e-6)
    assert np.isnan(weights[~lower]).all()
    assert (weights[lower] < 0).any()
    assert answer["site"]["kernel"] == "gated delta rule"
    ends = [re.search(r"rows sum to (\S+) to (\S+)", note) for note in answer["notes"]]
    ends = next(each for each in ends if each)
    layer = matrices[2].sum(-1)
    assert [float(end) for end in ends.groups()] == pytest.approx([layer.min(), layer.max()], rel=0.06)


def test_scores_are_of_shares(run, folder, shares):
    heads = run.json("stats", TEXT, "-m", folder, "--mixers")["heads"]
    mixers = [each for each in heads if each["kind"] == "mixer"]
    assert len(mixers) == LAYERS * HEADS
    entropies = -np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1)), 0).sum(-1)
    for head in mixers:
        mean = entropies[head["layer"], head["head"], 1:].mean()  # the first row has no choice
        assert head["scores"]["entropy"]["value"] == pytest.approx(mean, abs=1e-5)


def test_found_share_is_of_absolute_weights(run, folder, shares):
    answer = run.json("find", "5 -> 2", TEXT, "-m", folder, "--mixers", "--kind", "mixer")
    for head in answer["questions"][0]["heads"]:
        share = shares[head["layer"], head["head"], 5, 2]
        assert head["weight"] == pytest.approx(share, abs=1e-5)


def test_distance_of_heads_is_between_shares(run, folder, shares):
    answer = run.json("compare", TEXT, "-m", folder, "--mixers", "--kind", "mixer", "L0H1", "L1H2")
    one, other = shares[0, 1], shares[1, 2]
    mean = (one + other) / 2

    def divergence(rows):
        ratio = np.where(rows > 0, rows / np.where(mean > 0, mean, 1), 1)
        return (rows * np.log(ratio)).sum(-1)

    distance = ((divergence(one) + divergence(other)) / 2).mean()
    assert answer["distance"] == pytest.approx(distance, abs=1e-5)


def test_every_view_names_what_its_weights_are(run, folder, tmp_path):
    words = TEXT, "-m", folder, "--mixers", "--kind", "mixer"
    for more in (("show", "--token", "cat"), ("show", "--token", "cat", "--head", "L1H2")):
        out = run(more[0], *words, *more[1:]).out
        assert re.search(r"full bar: \S+ share of \|A\|", out)
        assert ("gated delta rule" in out.partition("\n\n")[0]) == ("--head" in more)
    assert run("compare", *words, "L0H1", "L1H2").out.count("weight\n") == 2
    assert "attention weight" not in run("compare", *words, "L0H1", "L1H2").out
    assert run("show", *words, "-o", tmp_path / "a.html").code == 0
    assert "gated delta rule; verified: these weights" in (tmp_path / "a.html").read_text("utf-8")


def test_page_and_arrays_hold_signed_weights(run, folder, matrices, tmp_path):
    for name in ("all.npz", "all.html"):
        assert run("show", TEXT, "-m", folder, "--mixers", "-o", tmp_path / name).code == 0
    with np.load(tmp_path / "all.npz") as arrays:
        stored = np.stack([arrays[f"mixer.{layer:02}"] for layer in range(LAYERS)])
    np.testing.assert_allclose(stored, matrices, atol=1e-6)
    page = (tmp_path / "all.html").read_text("utf-8")
    size, code = matrices.shape[-1], Code(1.0, signed=True)
    for layer in range(LAYERS):
        form, text = re.search(f'type="text/(.+)" id="w1-{layer}-2">([^<]+)<', page).groups()
        codes = unpack(text, size, size) if form == "plain" else np.frombuffer(b64decode(text), np.uint8)
        codes = codes.reshape(size, size).astype(int)
        steps = np.where(codes == 255, 127, codes) - 127
        weights = np.sign(steps) * (np.abs(steps) / 127) ** 1.5
        lower = np.tril(np.ones((size, size), bool))
        assert (codes[~lower] == 255).all()
        limit = code.error(float(np.abs(matrices[layer, 2]).max()))
        np.testing.assert_allclose(weights[lower], matrices[layer, 2][lower], atol=limit)


@pytest.mark.sealed
def test_layers_are_named_without_the_option_and_shown_with_it(run, folder):
    without, shown = (run("show", TEXT, "-m", folder, *words).out for words in ((), ("--mixers",)))
    assert "no attention in layers 0-2" in " ".join(without.split())
    assert "no attention in" not in shown
    assert "outside the attention shown" not in shown
    assert "linear and state-space layers" in shown


def test_corpus_notes_each_layer_once(run, folder, tmp_path):
    (tmp_path / "texts.txt").write_text("The cat sat.\nA small dog.\nIt was tired on the mat.\n", "utf-8")
    answer = run.json("stats", "--texts", tmp_path / "texts.txt", "-m", folder, "--mixers")
    assert sum("as a signed matrix" in note for note in answer["notes"]) == 1


def test_trace_and_run_hold_the_signed_weights(run, folder, matrices, tmp_path):
    trace = tmp_path / "a.trace"
    assert run("show", TEXT, "-m", folder, "--mixers", "--save-trace", trace).code == 0
    answer = run.json("show", "--from", trace, "--head", "L2H1", "--kind", "mixer")
    assert answer["weights"][6][4] == pytest.approx(matrices[2, 1, 6, 4], abs=1e-6)
    head = attnscope.load(folder, mixers=True).read(TEXT).head("mixer L2H1")
    np.testing.assert_allclose(head.weights, matrices[2, 1], atol=1e-6)


def test_export_of_mixers_knows_its_own_pictures(run, folder, tmp_path):
    out = tmp_path / "out"
    words = "export", TEXT, "-m", folder, "--mixers", "--layer", "0,3", "--head", "1", "-o", out
    assert run(*words).code == 0
    assert {path.name for path in out.glob("*H*.png")} == {"mixer-L00H01.png", "decoder-L03H01.png"}
    assert all(ExportPlan(("png",)).covers(path.name) for path in out.iterdir())  # else they stay unnoticed


def test_signed_layers_are_not_followed(folder):
    with pytest.raises(attnscope.AttnscopeError, match="linear and state-space layers to follow"):
        attnscope.load(folder, mixers=True).read(TEXT).flow(kind="mixer")


@pytest.fixture(scope="module")
def mamba(tmp_path_factory):
    return folders.mamba(tmp_path_factory.mktemp("mamba"))


def test_channel_is_in_title_and_numbers(run, mamba):
    words = "show", TEXT, "-m", mamba, "--mixers", "--head", "L1H0"
    mean, *each = (
        np.array(run.json(*words, *more)["weights"], float)
        for more in ((), *(("--channel", channel) for channel in range(64)))
    )
    np.testing.assert_allclose(np.mean(each, 0), mean, atol=1e-6)
    assert run.json(*words, "--channel", 7)["site"]["kernel"] == "state space (Mamba), channel 7 of 64"
    assert "channel 7 of 64" in " ".join(run(*words, "--channel", 7).out.split())


def test_channel_that_no_layer_has_is_refused(run, folder, mamba):
    run("show", TEXT, "-m", mamba, "--mixers", "--channel", 64).refuses("the layers have channels 0-63")
    refused = run("show", TEXT, "-m", folder, "--mixers", "--channel", 0)
    refused.refuses("has a matrix for each channel: leave out --channel")
    run("show", TEXT, "-m", mamba, "--channel", 3).refuses("--channel requires --mixers")


@pytest.fixture(scope="module")
def inkling(tmp_path_factory):
    pytest.importorskip("transformers.models.inkling")
    return folders.inkling(tmp_path_factory.mktemp("inkling"))


@pytest.mark.sealed
def test_convolutions_of_a_layer_are_heads_with_their_names(run, inkling, tmp_path):
    model = transformers.AutoModel.from_pretrained(inkling)
    names = [f"self_attn.{part}_sconv" for part in "kv"] + [f"{part}_sconv" for part in ("attn", "mlp")]
    trace = tmp_path / "a.trace"
    assert run("show", TEXT, "-m", inkling, "--mixers", "--save-trace", trace).code == 0
    for head, name in enumerate(names):
        taps = model.get_submodule(f"layers.1.{name}.conv1d").weight[:, 0].detach().double().numpy()
        title = f"short convolution, mean of {len(taps)} channels ({name})"
        for source in (("-m", inkling, TEXT, "--mixers"), ("--from", trace)):
            words = "show", *source, "--head", f"L1H{head}", "--kind", "mixer"
            answer = run.json(*words)
            rows = np.array([[each or 0 for each in row] for row in answer["weights"]])
            expected = sum(np.eye(len(rows), k=-back) * tap for back, tap in enumerate(taps.mean(0)[::-1]))
            np.testing.assert_allclose(rows, expected, atol=1e-6)
            assert title in " ".join(run(*words).out.split())
            assert not any("mix here" in note for note in answer["notes"])
    page = tmp_path / "heads.html"
    run("show", TEXT, "-m", inkling, "--mixers", "-o", page)
    assert "layers × heads: 2 × 4 (decoder), 2 × 4 (mixer)" in page.read_text("utf-8")
    plain = run("show", TEXT, "-m", inkling)
    assert "2 layers × 4 heads" in plain.out
    assert "mlp_sconv: tokens also mix here" in " ".join((plain.out + plain.err).split())
