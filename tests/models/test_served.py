"""Queries and keys from a server give the rows of the model that ran."""

import importlib
import json
from pathlib import Path

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


def tiny(kind, **more):
    size = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": 64}
    counts = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    return hf.AutoModelForCausalLM.from_config(
        hf.AutoConfig.for_model(kind, **size | counts | more), attn_implementation="eager"
    ).eval()


def seen(model, ids):
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

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(module, "eager_attention_forward", attended)
        patch.setattr(module, "apply_rotary_pos_emb", turned, raising=False)
        weights = model(torch.tensor([ids]), output_attentions=True).attentions
    return before, after, [each[0].numpy() for each in weights]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder of a model of grouped keys, windows and rotary positions; what is seen of it in two texts."""
    folder = Path(gpt2(tmp_path_factory.mktemp("served")))  # for its tokenizer
    windows = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    model = tiny("qwen2", num_hidden_layers=3, **windows)
    model.save_pretrained(folder)
    return folder, [seen(model, ids) for ids in IDS]


def lay_out(states, layout):
    """Queries and keys, [token, head, size], in a layout."""
    if layout == "token head size":  # axes of one around it are left out
        return {at: each[None, None] for at, each in states.items()}
    if layout == "token width":
        return {at: each.reshape(len(each), -1) for at, each in states.items()}
    return {at: np.ascontiguousarray(each.swapaxes(0, 1)) for at, each in states.items()}


def write(path, parts, names: str = "vllm", metadata=None, **more) -> str:
    """A file as a serving plugin writes one."""
    long = {"q": "query", "k": "key"}
    tensors = {
        NAMES[names].format(layer=layer, part=part, long=long[part]): array
        for (layer, part), array in parts.items()
    }
    save_file(tensors | more, path, metadata)
    return str(path)


@pytest.fixture
def parts(served):
    """The queries and keys of the first text as most servers write them."""
    return dict(served[1][0][1])


def opened(folder, parts, names="vllm", metadata=None, request=None, **more):
    """The pass of a file as a serving plugin writes one; its model's folder may not be named."""
    path = write(folder / "qk.safetensors", parts, names, metadata, **more)
    return open_file(path, None, str(folder) if (folder / "config.json").exists() else None, request)


def require_rows(found, head, expected):
    np.testing.assert_allclose(found.weights(Head(head)), expected, atol=1e-6)


def require_all(found, weights):
    for layer, expected in enumerate(weights):
        for head, rows in enumerate(expected):
            require_rows(found, f"L{layer}H{head}", rows)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("rotary", ["applied", "none"])
@pytest.mark.parametrize("layout", ["token head size", "head token size", "token width"])
def test_served_rows_equal_the_model(served, layout, rotary, names):
    folder, texts = served
    before, after, weights = texts[0]  # sizes tell which axes are heads, where a config says how many
    states = lay_out(after if rotary == "applied" else before, layout)
    require_all(opened(folder, states, names, {"rotary": rotary}), weights)


def packed(texts, last=0):
    """The keys of several texts in one tensor, and their queries, of each text the last ones."""
    laid = [after for _, after, _ in texts]
    return {at: np.concatenate([each[at][-last if at[1] == "q" else 0 :] for each in laid]) for at in laid[0]}


def test_packed_request_is_selected_by_number(served):
    folder, texts = served
    ids = {"cu_seqlens": np.array([0, 10, 16], np.int32), "input_ids": np.array([*IDS[0], *IDS[1]])}
    with pytest.raises(InputError, match="it holds 2 requests: choose one with --line, 1 to 2"):
        opened(folder, packed(texts), **ids)
    found = opened(folder, packed(texts), request=2, **ids)
    require_rows(found, "L1H3", texts[1][2][1][3])
    assert [token.id for token in found.prepared.tokens] == IDS[1]


def test_served_requests_may_have_more_keys_than_queries(served):
    folder, texts = served
    ends = {"cu_seqlens_q": np.array([0, 2, 4]), "cu_seqlens_k": np.array([0, 10, 16])}
    for number, (*_, weights) in enumerate(texts, 1):
        found = opened(folder, packed(texts, 2), request=number, **ends)
        require_rows(found, "L1H3", weights[1][3][-2:])


def test_commands_read_served_files_and_note_assumptions(served, parts, tmp_path, run):
    folder, texts = served
    path = write(tmp_path / "qk.safetensors", parts, input_ids=np.array(IDS[0]))
    shown = run("show", "--from", path, "-m", folder, "--head", "L0H1", "--json")
    shown = [[cell or 0 for cell in row] for row in json.loads(shown.out)["weights"]]
    np.testing.assert_allclose(shown, texts[0][2][0][1], atol=1e-6)
    table = " ".join(run("stats", "--from", path, "-m", folder).out.split())
    assert "weights from the file's queries and keys" in table
    assert "assumed, as the file does not say: rotary applied, scale 1/√8, causal" in table
    assert run("find", "* -> -1", "--from", path, "-m", folder).code == 0


def test_check_runs_the_model_against_served_rows(served, parts, tmp_path, run):
    folder, ids = served[0], {"input_ids": np.array(IDS[0])}

    def check(*more, **tensors):
        path = write(tmp_path / "qk.safetensors", parts, **tensors)
        return run("check", "--from", path, "--with-model", folder, *more)

    agreed = check("-m", folder, **ids)
    assert agreed.code == 0
    assert [line.split()[0] for line in agreed.out.splitlines() if "rows of layer" in line] == ["ok"] * 3
    bare = check()
    assert (bare.code, "does not name its tokens" in bare.err) == (2, True)
    parts[1, "q"] = parts[1, "q"] * 1.5
    claims = json.loads(check("-m", folder, "--json", **ids).out)["claims"]
    assert [claim["holds"] for claim in claims] == [True, False, True]


@pytest.mark.parametrize(
    ("change", "more", "sentence"),
    [
        (lambda keys: None, {}, "stands alone: queries need their keys"),
        (lambda keys: keys[:5], {}, "they are not of one request"),
        (lambda keys: keys[:, :, :4], {}, "do not fit keys"),
        (None, {"layers.1.self_attn.attn.q_rot": np.zeros((10, 4, 8))}, "are q of one layer: keep one"),
        (None, {"input_ids": np.array([1.5, 2.0])}, "not whole numbers of a vocabulary"),
        (None, {"input_ids": np.array([2**62] * 10)}, "not whole numbers of a vocabulary"),
        (None, {"cu_seqlens": np.array([0])}, "not where requests begin and end"),
        (None, {"cu_seqlens": np.array([7, 3])}, "not where requests begin and end"),
        (None, {"cu_seqlens": np.array([0, 11])}, "its requests end at row 11"),
    ],
)
def test_inconsistent_served_file_is_one_sentence(served, parts, change, more, sentence):
    if change is not None:
        keys = change(parts.pop((1, "k")))
        parts |= {} if keys is None else {(1, "k"): keys}
    with pytest.raises(InputError, match=sentence):
        opened(served[0], parts, **more)


WINDOW = {"sliding_window": 4}
LONG = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16}
TYPES = {kind: {} for kind in ("cohere", "qwen3", "llama", "smollm3", "stablelm")}
TYPES |= dict.fromkeys(["mistral", "phi3", "starcoder2", "cohere2"], WINDOW)
TYPES |= dict.fromkeys(["gemma2", "gemma3_text"], WINDOW | {"head_dim": 8})
TYPES |= {
    "glm": {"head_dim": 8},
    "granite": {"attention_multiplier": 0.3},
    "llama far": {"rope_parameters": LONG},
    "qwen2": {"use_sliding_window": False} | WINDOW,
    "llama4_text": {"attention_chunk_size": 4, "head_dim": 8},
}
NOT_ALONE = {"cohere2", "smollm3", "gemma3_text", "stablelm", "llama4_text"}


@pytest.mark.parametrize("kind", TYPES)
def test_served_rows_of_other_models_are_exact_or_refused(kind, tmp_path):
    model = tiny(kind.split()[0], **TYPES[kind])
    model.config.save_pretrained(tmp_path)
    before, after, weights = seen(model, IDS[0])
    require_all(opened(tmp_path, after, "model"), weights)
    if kind in NOT_ALONE:
        with pytest.raises(InputError, match="cannot be applied alone: save states after it"):
            opened(tmp_path, before or after, "model", {"rotary": "none"})
    else:
        require_all(opened(tmp_path, before or after, "model", {"rotary": "none"}), weights)


@pytest.mark.parametrize(("kind", "more"), [("gpt_oss", "sinks"), ("bloom", "ALiBi"), ("falcon", "ALiBi")])
def test_served_models_with_other_inputs_are_refused(kind, more, parts, tmp_path):
    hf.AutoConfig.for_model(kind, **{"alibi": True} if kind == "falcon" else {}).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"depend on .*{more}"):
        opened(tmp_path, parts)


def test_served_request_names_may_have_numbers(served, tmp_path):
    folder, texts = served
    tensors = {
        f"{name}.{layer}.self_attn.{part}": array
        for name, (_, after, _) in zip(("chat-12/3.layers", "cmpl_7.layers"), texts, strict=True)
        for (layer, part), array in after.items()
    }
    save_file(tensors, tmp_path / "qk.safetensors")
    for number, (*_, weights) in enumerate(texts, 1):
        require_all(open_file(tmp_path / "qk.safetensors", None, str(folder), number), weights)


def test_ambiguous_served_layout_is_noted(served, tmp_path):
    _, texts = served
    parts, expected = lay_out(texts[0][1], "head token size"), texts[0][2][0][0]
    require_rows(opened(tmp_path, parts), "L0H0", expected)  # fewer heads of keys tell
    for layer in range(3):
        parts[layer, "k"] = parts[layer, "k"].repeat(2, 0)
    require_rows(opened(tmp_path, parts, metadata={"layout": "head token size"}), "L0H0", expected)
    notes = opened(tmp_path, parts).trace.description.model_notes
    assert any("layout token head size" in note for note in notes)


def test_served_widths_need_head_counts_and_file_must_exist(served, tmp_path):
    _, texts = served
    with pytest.raises(InputError, match="no such file"):
        open_file(tmp_path / "qk.safetensors")
    parts = lay_out(texts[0][1], "token width")
    with pytest.raises(InputError, match="name the model"):
        opened(tmp_path, parts)
    found = opened(tmp_path, parts, metadata={"heads": "4", "key_heads": "2"})
    require_rows(found, "L0H0", texts[0][2][0][0])
