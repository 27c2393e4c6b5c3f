"""``show --generate`` and ``show --chat`` as a user meets them."""

import json
from pathlib import Path

import numpy as np
import pytest
import transformers

from tests.models.test_generation import DECODERS, writer_folder

TEXT = "The cat sat on the mat"
REPEATED = Path(__file__).parents[2] / "sample_inputs/repeated.txt"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return writer_folder(tmp_path_factory.mktemp("mistral"), DECODERS["mistral"]())


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    writer_folder(folder, DECODERS["llama"]())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = TEMPLATE
    config = DECODERS["llama"]()
    config.vocab_size = len(tokenizer)
    from tests.models import folders

    return folders.save(folder, transformers.LlamaForCausalLM(config), tokenizer)


def test_everything_at_a_glance_shows_the_written_tokens_too(run):
    out = run("show", TEXT, "-m", "own-causal", "--generate", "5").out
    assert "3 layers × 4 heads · 12 tokens" in out
    assert "generated 5 tokens, greedy, from token 7 on: " in " ".join(out.split())
    repeated = ("-f", REPEATED, "--max-tokens", "60")  # which the induction heads find
    opened = run("show", *repeated, "-m", "own-causal", "--generate", "5").out
    assert f"attnscope show -f {REPEATED} --max-tokens 60 --generate 5 -m own-causal --head" in opened


def test_a_head_a_token_and_the_weights_are_those_of_one_generation(run, folder, tmp_path):
    command = ["show", TEXT, "-m", folder, "--generate", "6"]
    answer = json.loads(run(*command, "--head", "L1H2", "--json").out)
    weights = np.array(answer["weights"], float)  # nothing where closed becomes NaN
    count = len(answer["queries"])
    assert weights.shape == (count, count)
    row, column = np.indices(weights.shape)
    assert np.array_equal(np.isnan(weights), (column > row) | (column <= row - 4))
    np.testing.assert_allclose(np.nansum(weights, 1), 1, atol=1e-5)
    token = json.loads(run(*command, "--token", str(count - 1), "--layer", "1", "--head", "2", "--json").out)
    for bar in token["looks_at"]:
        assert bar["weight"] == pytest.approx(weights[-1, bar["position"]], abs=1e-6)
    assert run(*command, "-o", tmp_path / "heads.npz").code == 0
    with np.load(tmp_path / "heads.npz") as arrays:
        found = next(arrays[name] for name in arrays.files if name.endswith("01"))
        np.testing.assert_allclose(found[2], np.nan_to_num(weights), atol=1e-6)
    assert run(*command, "--head", "L0H0", "-o", tmp_path / "head.png").code == 0
    assert run(*command, "--head", "L0H0", "--words").code == 0


def test_a_seed_draws_the_same_text_again(run):
    drawn = ["show", TEXT, "-m", "own-causal", "--generate", "8", "--temperature", "1.5", "--head", "L0H0"]
    one, again, other = (run(*drawn, "--seed", seed).out for seed in ("3", "3", "4"))
    assert one == again
    assert one != other
    assert "temperature 1.5, seed 3" in one


def test_a_seed_may_be_any_number_of_64_bits(run):
    drawn = ["show", TEXT, "-m", "own-causal", "--generate", "2", "--temperature", "1", "--head", "L0H0"]
    assert f"seed {2**64 - 1}" in run(*drawn, "--seed", str(2**64 - 1)).out


def test_a_chat_is_shown_with_its_template_and_its_special_tokens(run, chat_folder):
    answer = json.loads(run("show", "The cat", "-m", chat_folder, "--chat", "--head", "L0H0", "--json").out)
    tokens = answer["queries"]
    assert "".join(tokens).startswith("<|im_start|>user")
    assert tokens.count("<|im_end|>") == 1
    hidden = json.loads(
        run("show", "The cat", "-m", chat_folder, "--chat", "--head", "L0H0", "--json", "--hide-special").out
    )
    assert not {"<|im_start|>", "<|im_end|>"} & set(hidden["queries"])


def test_a_system_message_comes_first_and_a_reply_is_opened_for_writing(run, chat_folder):
    command = [
        "show",
        "The cat",
        "-m",
        chat_folder,
        "--chat",
        "--system",
        "Be a mat.",
        "--head",
        "L0H0",
        "--json",
    ]
    read = "".join(json.loads(run(*command).out)["queries"])
    assert read.startswith("<|im_start|>system")
    assert read.index("mat") < read.index("user")
    assert "assistant" not in read
    written = json.loads(run(*command, "--generate", "4").out)
    assert "assistant" in "".join(written["queries"])
    assert any("generated 4 tokens" in note for note in written["notes"])


def test_a_template_that_refuses_is_quoted(run, chat_folder, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(chat_folder)
    tokenizer.chat_template = "{{ raise_exception('only about dogs') }}"
    transformers.AutoModelForCausalLM.from_pretrained(chat_folder).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    run("show", "The cat", "-m", tmp_path, "--chat").refuses("refuses this: only about dogs")


def test_what_was_read_and_what_was_written_are_told_apart_and_the_text_comes_first(run):
    ran = run("show", "Once upon a time", "-m", "own-causal", "--generate", "4")
    read, wrote = ran.out.splitlines()[0].split(" │ ")
    assert read.split()[-4:] == ["Once", "upon", "a", "time"]
    assert wrote
    one = run("show", "Once upon a time", "-m", "own-causal", "--generate", "4", "--head", "L0H0")
    assert one.out.splitlines()[0].split(" │ ") == [read, wrote]
    assert "bold, from token 5 on: written by the model" in " ".join(one.out.split())
    assert " │ " not in run("show", "Once upon a time", "-m", "own-causal").out


def test_thumbnails_have_a_line_above_what_the_model_wrote(run):
    out = run("show", "Once upon a time", "-m", "own-causal", "--generate", "4").out
    (names,) = (line for line in out.splitlines() if line.startswith("   H0"))
    assert names.split() == [word for head in range(4) for word in (f"H{head}", 8 * "━")]
    assert names.index("━") - names.index("H0") == 10  # two columns each: [CLS] Once upon a time
    assert "━ above columns: written by the model, from token 5 on" in " ".join(out.split())
    assert "━" not in run("show", "Once upon a time", "-m", "own-causal").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", TEXT),
        ("show", TEXT, "--head", "L2H1"),
        ("show", TEXT, "--token", "cat"),
        ("ablate", TEXT, "--head", "L2H1"),
        ("compare", TEXT),
        ("compare", TEXT, "L1H3", "L2H1"),
        ("compare", TEXT, "--head", "3"),
        ("compare", TEXT, "--with-model", "own"),
        ("compare", TEXT, "--with-text", "The dog sat on the mat."),
        ("stats", TEXT),
        ("stats", TEXT, "--map", "entropy"),
        ("find", "cat -> mat", TEXT),
        ("spans", TEXT),
    ],
)
def test_every_answer_names_the_model_and_the_text(run, arguments):
    said = " ".join(run(*arguments).out.split())
    assert "own" in said
    assert "“The cat sat" in said


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("Yes, I (he) do!", "own · “Yes, I ( he) do!” · "),
        ("猫は座った。", "own · “猫は座った。” · "),
        ("word " * 50, "own · “word word word word word word w…” · "),
    ],
)
def test_a_long_text_is_quoted_by_its_beginning(run, text, quoted):
    assert run("show", text).out.startswith(quoted)
