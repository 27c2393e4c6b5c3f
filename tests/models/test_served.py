"""Queries and keys that a server wrote show the rows of the model that ran."""

import importlib
import json

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.numpy import save_file

from attnscope.attention import Head
from attnscope.errors import InputError
from attnscope.models.served import open_file
from tests.models.folders import gpt2

IDS = [[5, 9, 17, 5, 9, 17, 30, 8, 2, 11], [7, 7, 3, 21, 4, 4]]
NAMES = {
    "vllm": "layers.{layer}.self_attn.attn.{part}",
    "model": "model.layers.{layer}.self_attn.{part}",
    "underscores": "layer_{layer}.{long}_states",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model of grouped keys, windows and rotary positions; its queries, keys and weights of two texts."""
    folder = gpt2(tmp_path_factory.mktemp("served"))  # for its tokenizer
    torch.manual_seed(0)
    config = hf.Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
        attn_implementation="eager",
    )
    model = hf.Qwen2ForCausalLM(config).eval()
    model.save_pretrained(folder)
    texts = []
    for ids in IDS:
        states = {}
        hooks = [
            getattr(layer.self_attn, f"{part}_proj").register_forward_hook(
                lambda module, args, out, at=(number, part), kept=states: kept.update({at: out[0].detach()})
            )
            for number, layer in enumerate(model.model.layers)
            for part in "qk"
        ]
        with torch.no_grad():
            weights = model(torch.tensor([ids]), output_attentions=True).attentions
        for hook in hooks:
            hook.remove()
        texts.append((states, [each[0].numpy() for each in weights]))
    return folder, model, texts


def lay_out(model, states, layout: str, rotary: str) -> dict[tuple[int, str], np.ndarray]:
    """The queries and keys of one text as a server would write them."""
    laid = {}
    for (layer, part), flat in states.items():
        heads = flat.view(len(flat), -1, 8).transpose(0, 1)[None]  # [1, head, token, size]
        if rotary == "applied":
            cos, sin = model.model.rotary_emb(heads, torch.arange(len(flat))[None])
            turned = hf.models.qwen2.modeling_qwen2.apply_rotary_pos_emb(heads, heads, cos, sin)
            heads = turned[0]
        heads = heads[0].transpose(0, 1)  # [token, head, size]
        forms = {
            "token head size": heads,
            "head token size": heads.transpose(0, 1),
            "token width": heads.flatten(1),
        }
        laid[layer, part] = forms[layout].contiguous().numpy()
    return laid


def write(path, parts, names: str = "vllm", metadata=None, **more) -> str:
    """A file as a serving plugin writes one."""
    long = {"q": "query", "k": "key"}
    tensors = {
        NAMES[names].format(layer=layer, part=part, long=long[part]): array
        for (layer, part), array in parts.items()
    }
    save_file(tensors | more, path, metadata)
    return str(path)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("rotary", ["applied", "none"])
@pytest.mark.parametrize("layout", ["token head size", "head token size", "token width"])
def test_rows_are_those_of_the_model(served, tmp_path, layout, rotary, names):
    folder, model, texts = served
    states, weights = texts[0]
    metadata = {"rotary": rotary}  # sizes tell which axes are heads, where a config says how many there are
    path = write(tmp_path / "qk.safetensors", lay_out(model, states, layout, rotary), names, metadata)
    found = open_file(path, None, str(folder))
    for layer, expected in enumerate(weights):
        for head in range(4):
            np.testing.assert_allclose(found.weights(Head(f"L{layer}H{head}")), expected[head], atol=1e-6)


def test_a_request_of_a_packed_batch_is_chosen_by_its_number(served, tmp_path):
    folder, model, texts = served
    laid = [lay_out(model, states, "token head size", "applied") for states, _ in texts]
    parts = {at: np.concatenate([each[at] for each in laid]) for at in laid[0]}
    ends = np.array([0, 10, 16], np.int32)
    ids = np.array([*IDS[0], *IDS[1]])
    path = write(tmp_path / "qk.safetensors", parts, cu_seqlens=ends, input_ids=ids)
    with pytest.raises(InputError, match="it holds 2 requests: choose one with --line, 1 to 2"):
        open_file(path, None, str(folder))
    found = open_file(path, None, str(folder), 2)
    np.testing.assert_allclose(found.weights(Head("L1H3")), texts[1][1][1][3], atol=1e-6)
    assert [token.id for token in found.prepared.tokens] == IDS[1]


def test_queries_of_a_cached_pass_are_the_last_rows(served, tmp_path):
    folder, model, texts = served
    parts = lay_out(model, texts[0][0], "token head size", "applied")
    parts = {(layer, part): array[-3:] if part == "q" else array for (layer, part), array in parts.items()}
    found = open_file(write(tmp_path / "qk.safetensors", parts), None, str(folder))
    np.testing.assert_allclose(found.weights(Head("L2H1")), texts[0][1][2][1][-3:], atol=1e-6)


def test_commands_read_it_and_say_what_is_assumed(served, tmp_path, run):
    folder, model, texts = served
    parts = lay_out(model, texts[0][0], "token head size", "applied")
    path = write(tmp_path / "qk.safetensors", parts, input_ids=np.array(IDS[0]))
    shown = run("show", "--from", path, "-m", folder, "--head", "L0H1", "--json")
    answer = json.loads(shown.out)
    np.testing.assert_allclose(
        np.array([[cell or 0 for cell in row] for row in answer["weights"]]), texts[0][1][0][1], atol=1e-6
    )
    table = run("stats", "--from", path, "-m", folder).out
    assert "weights recomputed from the file's queries and keys" in " ".join(table.split())
    assert "assumed, as the file does not say: rotary applied, scale 1/√8, causal" in " ".join(table.split())
    assert run("find", "* -> -1", "--from", path, "-m", folder).code == 0


def test_a_model_is_run_to_check_its_rows(served, tmp_path, run):
    folder, model, texts = served
    parts = lay_out(model, texts[0][0], "token head size", "applied")
    path = write(tmp_path / "qk.safetensors", parts, input_ids=np.array(IDS[0]))
    agreed = run("check", "--from", path, "-m", folder, "--check-with", folder)
    assert agreed.code == 0
    assert [line.split()[0] for line in agreed.out.splitlines() if "rows of layer" in line] == ["ok"] * 3
    parts[1, "q"] = parts[1, "q"] * 1.5
    path = write(tmp_path / "other.safetensors", parts, input_ids=np.array(IDS[0]))
    claims = json.loads(run("check", "--from", path, "-m", folder, "--check-with", folder, "--json").out)[
        "claims"
    ]
    assert [claim["holds"] for claim in claims] == [True, False, True]
    bare = run("check", "--from", write(tmp_path / "bare.safetensors", parts), "--check-with", folder)
    assert (bare.code, "does not name its tokens" in bare.err) == (2, True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda parts: parts.pop((1, "k")), "stands alone: queries need their keys"),
        (lambda parts: parts.update({(1, "k"): parts[1, "k"][:5]}), "they are not of one request"),
        (lambda parts: parts.update({(1, "k"): parts[1, "k"][:, :, :4]}), "do not fit keys"),
        (lambda parts: parts.update({(0, "q"): parts[0, "q"][None, None, None]}), None),
    ],
    ids=["alone", "lengths", "sizes", "axes"],
)
def test_what_does_not_fit_ends_in_a_sentence(served, tmp_path, change, sentence):
    folder, model, texts = served
    parts = lay_out(model, texts[0][0], "token head size", "applied")
    change(parts)
    path = write(tmp_path / "qk.safetensors", parts)
    if sentence is None:
        assert open_file(path, None, str(folder)).weights(Head("L0H0")).shape == (10, 10)
        return
    with pytest.raises(InputError, match=sentence):
        open_file(path, None, str(folder))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"input_ids": np.array([1.5, 2.0])}, "not whole numbers of a vocabulary"),
        ({"input_ids": np.array([2**62] * 10)}, "not whole numbers of a vocabulary"),
        ({"cu_seqlens": np.array([0])}, "not where requests begin and end"),
        ({"cu_seqlens": np.array([7, 3])}, "not where requests begin and end"),
        ({"cu_seqlens": np.array([0, 11])}, "its requests end at row 11"),
    ],
)
def test_ids_and_ends_that_are_none_end_in_a_sentence(served, tmp_path, more, sentence):
    folder, model, texts = served
    parts = lay_out(model, texts[0][0], "token head size", "applied")
    with pytest.raises(InputError, match=sentence):
        open_file(write(tmp_path / "qk.safetensors", parts, **more), None, str(folder))


WINDOW = {"sliding_window": 4}
LONG = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16}
TYPES = {
    **{
        "mistral": WINDOW,
        "phi3": WINDOW,
        "starcoder2": WINDOW,
        "gemma2": WINDOW | {"head_dim": 8},
        "cohere": {},
    },
    **{"glm": {"head_dim": 8}, "granite": {"attention_multiplier": 0.3}, "qwen3": {}, "llama": {}},
    "llama far": {"rope_parameters": LONG},
    "qwen2": {"use_sliding_window": False} | WINDOW,
    "llama4_text": {"attention_chunk_size": 4, "head_dim": 8},
    **{"cohere2": WINDOW, "smollm3": {}, "gemma3_text": WINDOW | {"head_dim": 8}, "stablelm": {}},
}
NOT_ALONE = {"cohere2", "smollm3", "gemma3_text", "stablelm", "llama4_text"}


def tiny(kind, **more):
    """A small model of a type."""
    size = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": 64}
    counts = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    return hf.AutoModelForCausalLM.from_config(
        hf.AutoConfig.for_model(kind, **size | counts | more), attn_implementation="eager"
    ).eval()


def seen(model, monkeypatch, ids):
    """Queries and keys before and after they are turned, [token, head, size], and weights."""
    before, after = {}, {}
    module = importlib.import_module(type(model).__module__)
    attend, turn = module.eager_attention_forward, getattr(module, "apply_rotary_pos_emb", None)

    def keep(states, query, key):
        layer = len(states) // 2
        for part, each in (("q", query), ("k", key)):
            states[layer, part] = each[0].transpose(0, 1).contiguous().numpy()

    def attended(module, query, key, *args, **kwargs):
        keep(after, query, key)
        return attend(module, query, key, *args, **kwargs)

    def turned(query, key, *args, **kwargs):
        keep(before, query, key)
        return turn(query, key, *args, **kwargs)

    monkeypatch.setattr(module, "eager_attention_forward", attended)
    monkeypatch.setattr(module, "apply_rotary_pos_emb", turned, raising=False)
    with torch.no_grad():
        weights = model(torch.tensor([ids]), output_attentions=True).attentions
    return before, after, [each[0].numpy() for each in weights]


@pytest.mark.parametrize("kind", TYPES)
def test_rows_of_other_models_are_their_own_or_refused(kind, tmp_path, monkeypatch):
    model = tiny(kind.split()[0], **TYPES[kind])
    model.config.save_pretrained(tmp_path)
    before, after, weights = seen(model, monkeypatch, IDS[0])
    found = open_file(write(tmp_path / "after.safetensors", after, "model"), None, str(tmp_path))
    for layer, expected in enumerate(weights):
        mine = np.stack([found.weights(Head(f"L{layer}H{head}")) for head in range(4)])
        np.testing.assert_allclose(mine, expected, atol=1e-6)
    path = write(tmp_path / "before.safetensors", before or after, "model", {"rotary": "none"})
    if kind in NOT_ALONE:
        with pytest.raises(InputError, match="cannot be had alone: write states after it"):
            open_file(path, None, str(tmp_path))
        return
    found = open_file(path, None, str(tmp_path))
    for layer, expected in enumerate(weights):
        np.testing.assert_allclose(found.weights(Head(f"L{layer}H1")), expected[1], atol=1e-6)


@pytest.mark.parametrize(("kind", "more"), [("gpt_oss", "sinks"), ("bloom", "ALiBi"), ("falcon", "ALiBi")])
def test_models_whose_rows_depend_on_more_are_refused(kind, more, served, tmp_path):
    _, model, texts = served
    hf.AutoConfig.for_model(kind, **{"alibi": True} if kind == "falcon" else {}).save_pretrained(tmp_path)
    path = write(tmp_path / "qk.safetensors", lay_out(model, texts[0][0], "token head size", "applied"))
    with pytest.raises(InputError, match=f"depend on .*{more}"):
        open_file(path, None, str(tmp_path))


def test_names_of_requests_may_hold_numbers(served, tmp_path):
    folder, model, texts = served
    tensors = {}
    for name, (states, _) in zip(("chat-12/3.layers", "cmpl_7.layers"), texts, strict=True):
        for (layer, part), array in lay_out(model, states, "token head size", "applied").items():
            tensors[f"{name}.{layer}.self_attn.{part}"] = array
    save_file(tensors, tmp_path / "qk.safetensors")
    for number, (_, weights) in enumerate(texts, 1):
        found = open_file(tmp_path / "qk.safetensors", None, str(folder), number)
        np.testing.assert_allclose(found.weights(Head("L2H1")), weights[2][1], atol=1e-6)


def test_a_file_that_is_not_there_is_said_to_be_missing(served, tmp_path):
    with pytest.raises(InputError, match="no such file"):
        open_file(tmp_path / "qk.safetensors", None, str(served[0]))


def test_two_tensors_of_one_part_are_refused(served, tmp_path):
    folder, model, texts = served
    parts = lay_out(model, texts[0][0], "token head size", "applied")
    path = write(tmp_path / "qk.safetensors", parts, **{"layers.1.self_attn.attn.q_rot": parts[1, "q"]})
    with pytest.raises(InputError, match="are q of one layer: keep one"):
        open_file(path, None, str(folder))


def test_requests_may_have_more_keys_than_queries(served, tmp_path):
    folder, model, texts = served
    laid = [lay_out(model, states, "token head size", "applied") for states, _ in texts]
    parts = {
        at: np.concatenate([each[at][-2:] if at[1] == "q" else each[at] for each in laid]) for at in laid[0]
    }
    ends = {"cu_seqlens_q": np.array([0, 2, 4]), "cu_seqlens_k": np.array([0, 10, 16])}
    path = write(tmp_path / "qk.safetensors", parts, **ends)
    for number, (_, weights) in enumerate(texts, 1):
        found = open_file(path, None, str(folder), number)
        np.testing.assert_allclose(found.weights(Head("L1H3")), weights[1][3][-2:], atol=1e-6)


def test_a_layout_that_sizes_do_not_tell_is_said_to_be_assumed(served, tmp_path):
    _, model, texts = served
    parts = lay_out(model, texts[0][0], "head token size", "applied")
    grouped = open_file(write(tmp_path / "grouped.safetensors", parts))  # fewer heads of keys tell
    np.testing.assert_allclose(grouped.weights(Head("L0H0")), texts[0][1][0][0], atol=1e-6)
    for layer in range(3):
        parts[layer, "k"] = parts[layer, "k"].repeat(2, 0)
    told = open_file(write(tmp_path / "told.safetensors", parts, "vllm", {"layout": "head token size"}))
    np.testing.assert_allclose(told.weights(Head("L0H0")), texts[0][1][0][0], atol=1e-6)
    alike = open_file(write(tmp_path / "alike.safetensors", parts))
    assert any("layout token head size" in note for note in alike.trace.description.model_notes)


def test_widths_need_the_heads(served, tmp_path):
    _, model, texts = served
    path = write(tmp_path / "qk.safetensors", lay_out(model, texts[0][0], "token width", "applied"))
    with pytest.raises(InputError, match="name the model"):
        open_file(path)
    metadata = {"heads": "4", "key_heads": "2"}
    path = write(
        tmp_path / "told.safetensors", lay_out(model, texts[0][0], "token width", "applied"), "vllm", metadata
    )
    np.testing.assert_allclose(open_file(path).weights(Head("L0H0")), texts[0][1][0][0], atol=1e-6)
