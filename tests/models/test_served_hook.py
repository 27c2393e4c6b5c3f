"""Files of vLLM-Hook, made here from the description of the format, give the rows of the model that ran."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from attnscope.errors import InputError
from attnscope.models.served import open_file
from tests.models.test_served import IDS, require_rows, seen, tiny

HEADS, KEY_HEADS, SIZE, LAYERS = 4, 2, 8, 2
CONFIG = {
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "hidden_size": HEADS * SIZE,
    "head_dim": SIZE,
    "attention_multiplier": SIZE**-0.5,
}


@pytest.fixture(scope="module")
def passes():
    """What is seen of a model of grouped keys in two texts: queries, keys and weights."""
    model = tiny("llama", num_hidden_layers=LAYERS)
    return [seen(model, ids) for ids in IDS]


def write_hook(folder, passes, ranks, step=None, **changes):
    """The folders that the ranks of a server write; keys repeat where ranks outnumber heads.

    With a ``step``, the last token of the first text is generated, and is a request of its own: with its
    key ``alone``, or with the keys that are ``cached``.
    """
    lengths = [len(ids) for ids in IDS]
    if step:
        passes = [*passes, passes[0]]
    first = {"q": lengths[0] - 1, "k": lengths[0] - 1 if step == "alone" else 0}  # rows that a step lacks
    saved = {part: lengths + [lengths[0] - first[part]] * bool(step) for part in "qk"}
    for rank in range(ranks):
        tensors, order = {}, []
        for layer in range(LAYERS):
            name = f"model.layers.{layer}.self_attn.attn"
            flat = name.replace(".", "__")
            for part, heads in (("q", HEADS), ("k", KEY_HEADS)):
                own = max(1, heads // ranks)
                begin = rank * heads // ranks
                padded = np.zeros((len(passes), max(lengths), own * SIZE), np.float32)
                for request, (_, after, _) in enumerate(passes):
                    states = after[layer, part][:, begin : begin + own]  # [token, head, size]
                    states = states[-saved[part][request] :]
                    padded[request, : len(states)] = states.reshape(len(states), -1)
                tensors[f"{flat}__{part}"] = padded
            keys = {f"key_{part}": f"{flat}__{part}" for part in "qk"}
            order.append({**keys, "module_name": name, "layer_num": layer})
        about = {"config": CONFIG, "layer_order": order, "batch_size": len(passes)}
        about |= {"hookq_mode": "all_tokens", "tp_rank": rank}
        split = {f"{part}_seq_lens": each for part, each in saved.items()}
        about |= split if step == "cached" else {"seq_lens": saved["q"]}
        place = folder if ranks == 1 else folder / f"tp_rank_{rank}"
        place.mkdir(exist_ok=True)
        save_file(tensors, place / "qk.safetensors")
        (place / "qk.json").write_text(json.dumps(about | changes))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_are_joined_and_requests_chosen(passes, tmp_path, ranks):
    write_hook(tmp_path, passes, ranks)
    for request, (*_, weights) in enumerate(passes, 1):
        opened = open_file(tmp_path, request=request)
        for layer in range(LAYERS):
            for head in range(HEADS):
                require_rows(opened, f"L{layer}H{head}", weights[layer][head])
    with pytest.raises(InputError, match="it holds 2 requests: choose one with --line, 1 to 2"):
        open_file(tmp_path)
    if ranks > 1:  # the file of any rank stands for all
        any_rank = open_file(tmp_path / "tp_rank_1" / "qk.safetensors", request=1)
        require_rows(any_rank, "L0H0", passes[0][2][0][0])


@pytest.mark.parametrize("ranks", [1, 2])
def test_step_of_generation_is_its_row_of_all_keys(passes, tmp_path, ranks):
    write_hook(tmp_path, passes, ranks, step="cached")
    weights = passes[0][2]
    for layer in range(LAYERS):
        require_rows(open_file(tmp_path, request=3), f"L{layer}H1", weights[layer][1][-1:])
        require_rows(open_file(tmp_path, request=1), f"L{layer}H1", weights[layer][1])


def test_step_of_generation_without_its_keys_is_refused(passes, tmp_path):
    write_hook(tmp_path, passes, 1, step="alone")
    require_rows(open_file(tmp_path, request=2), "L0H1", passes[1][2][0][1])
    with pytest.raises(InputError, match="request 3 is one token without the keys before it, a step of gen"):
        open_file(tmp_path, request=3)
    with pytest.raises(
        InputError, match="it holds 3 requests, 1 of them of one token: choose one with --line"
    ):
        open_file(tmp_path)


def test_command_shows_a_folder_of_ranks(passes, tmp_path, run):
    write_hook(tmp_path, passes, 2)
    shown = run("show", "--from", tmp_path, "--line", "2", "--head", "L1H3", "--json")
    assert shown.code == 0, shown.err
    weights = np.array(json.loads(shown.out)["weights"], float)  # null where masked
    assert np.nan_to_num(weights) == pytest.approx(passes[1][2][1][3], abs=1e-5)


def test_heads_wider_than_the_sidecar_says_are_refused(passes, tmp_path):
    for ranks in (1, 2):
        place = tmp_path / str(ranks)
        place.mkdir()
        write_hook(place, passes, ranks, config=CONFIG | {"head_dim": SIZE // 2})
        with pytest.raises(InputError, match=r"are wider than its head_dim 4: qk\.json does not know"):
            open_file(place, request=1)


def test_missing_rank_is_named(passes, tmp_path):
    write_hook(tmp_path, passes, 2)
    (tmp_path / "tp_rank_1").rename(tmp_path / "elsewhere")
    sentence = "tp_rank_0 have 2 of 4 heads: the folder of a rank is missing"
    with pytest.raises(InputError, match=sentence):
        open_file(tmp_path, request=1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hookq_mode": "last_token"}, "its hookq_mode is 'last_token': only all_tokens has every query"),
        ({"seq_lens": [99, 1]}, "has 10 tokens of a longer request"),
        ({"seq_lens": [1, "2"]}, "where whole numbers belong"),
        ({"seq_lens": [4, 2, 3]}, "has the shape"),
        ({"layer_order": []}, "has no tensor"),
        ({"layer_order": [{"layer_num": 0, "key_q": "a", "key_k": "b"}]}, "has no tensor 'a'"),
        ({"config": {**CONFIG, "head_dim": 7}}, "has the shape"),
        ({"config": {}}, "where whole numbers belong"),
    ],
)
def test_sidecar_that_does_not_fit_is_one_sentence(passes, tmp_path, change, sentence):
    write_hook(tmp_path, passes, 1, **change)
    with pytest.raises(InputError, match=sentence):
        open_file(tmp_path, request=1)
