"""Every command on the sample inputs, in every kind of model: a trace answers like its model."""

import shlex
from pathlib import Path

import pytest
import transformers

from tests.capture.tiny import DECODER, FAMILIES, SIZES, tiny
from tests.cli.run import numbers
from tests.models import folders, images
from tests.models.vision_language import vision_language

CAT = "The cat sat on the mat because it was tired."
CODE = ["-f", "sample_inputs/source_code.py", "--max-tokens", "50"]
ARTICLE = ["-f", "sample_inputs/article.txt", "--max-tokens", "60"]

OTHERS = {
    "bloom": tiny("Bloom", hidden_size=32, n_layer=2, n_head=4),
    "mpt": tiny("Mpt", d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    "falcon": tiny("Falcon", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, multi_query=True),
    "gemma3": tiny("Gemma3Text", **DECODER, head_dim=8, sliding_window=4),
    "neox": tiny("GPTNeoX", **SIZES, num_hidden_layers=2, max_position_embeddings=64),
    "squeezebert": tiny(
        "SqueezeBert", **SIZES, num_hidden_layers=2, embedding_size=32, q_groups=1, k_groups=1, v_groups=1
    ),
}
BEGINS = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 0}


def family(folder: Path, name: str) -> str:
    """A folder of a tiny model of a family, random, with a tokenizer that was learnt from a few lines."""
    tokenizer = (folders.t5 if name in PAIRS else folders.gpt2)(folder / "tokenizer")
    wrapped = transformers.AutoTokenizer.from_pretrained(tokenizer)
    config = (FAMILIES | OTHERS)[name].config()
    changes = {"vocab_size": len(wrapped), "decoder_vocab_size": len(wrapped)} | (
        BEGINS if name in PAIRS else {}
    )
    for field, value in changes.items():
        if hasattr(config, field):
            setattr(config, field, value)
    return folders.save(folder / name, transformers.AutoModel.from_config(config), wrapped)


def written(folder: Path) -> str:
    """A model with grouped queries, windows and an output head, which writes on."""
    wrapped = transformers.AutoTokenizer.from_pretrained(folders.gpt2(folder / "tokenizer"))
    config = transformers.MistralConfig(**DECODER | {"vocab_size": len(wrapped)}, sliding_window=6)
    return folders.save(folder / "mistral", transformers.MistralForCausalLM(config), wrapped)


def image(folder: Path) -> list:
    return ["--image", images.picture(folder / "a.png")]


PAIRS, IMAGES = ("bart", "marian"), ("vit", "dinov2", "swin", "yolos", "segformer")
TEXTS = ("bert", "albert", "modernbert", "deberta-v2", "llama", "mistral", "gemma2", "gpt-oss", *OTHERS)
PAIR = ("--second-text", "It slept.")
SOURCES = {
    "own": lambda folder: ["-f", "sample_inputs/languages.txt", "--max-tokens", "60"],
    "own, a pair": lambda folder: ["-f", "sample_inputs/pairs.tsv", "--line", "1", "--max-tokens", "40"],
    "own-causal that writes": lambda folder: [CAT, "-m", "own-causal", "--generate", "5"],
    "minilm": lambda folder: ["-f", "sample_inputs/sentences.txt", "--line", "2", "-m", folders.minilm()],
    "gpt2 in bfloat16": lambda folder: [*CODE, "-m", folders.gpt2(folder), "--dtype", "bfloat16"],
    "t5": lambda folder: [CAT, *PAIR, "-m", folders.t5(folder)],
    "t5 that writes": lambda folder: [CAT, "-m", folders.t5(folder), "--generate", "4"],
    "mistral that writes": lambda folder: [CAT, "-m", written(folder), "--generate", "6"],
    "clip": lambda folder: ["The cat sat.", "-m", images.vision(folder, "clip")],
    "llava": lambda folder: ["What is on the mat?", *image(folder), "-m", vision_language(folder, "llava")],
}
NAMES = (*SOURCES, *TEXTS, *PAIRS, *IMAGES)


def given_to(name: str, folder: Path) -> list:
    """The words of a source, with the files that they name."""
    if name in IMAGES:
        return [*image(folder), "-m", images.vision(folder / name, name)]
    text = ARTICLE if name in TEXTS else [CAT, *PAIR]
    return SOURCES[name](folder) if name in SOURCES else [*text, "-m", family(folder, name)]


ASKED = (
    "show|show --layer 1|show --head L1H0|show --head L1H1 --words --hide-special|show --token 2|stats|"
    "stats --sort coverage90|stats --rows 1-3|stats --by-position entropy|compare|compare --head 1|"
    "compare L0H0 L1H1|check 'any.entropy > 0.5' 'all.confidence > 0.1'|find '* -> -1'|find 'X -> X-1'|"
    "spans|spans --parts segment|flow|export --format csv"
)
LOOKS = [shlex.split(look) for look in ASKED.split("|")]


def place(command: str, asked: list, given: list) -> list:
    """A source where a command takes it: what is asked stands before the text, or behind it."""
    return [*asked, *given] if command in ("check", "find") else [*given, *asked]


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_trace_answers_every_command_like_its_model(run, tmp_path, name, request):
    given, file, turn = given_to(name, tmp_path), tmp_path / "a.trace", NAMES.index(name) // 5
    looks = LOOKS if request.config.getoption("whole") else LOOKS[turn % 5 :: 5]
    kept = run("show", *given, "--save-trace", file, "--json")
    assert kept.code == 0, kept.err
    assert f"saved {file}" in kept.err
    answered = 0
    for command, *asked in looks:
        places = [["-o", tmp_path / which] if command == "export" else [] for which in ("live", "kept")]
        live = run(command, *place(command, asked, given), *places[0], "--json")
        there = run(command, *place(command, asked, ["--from", file]), *places[1], "--json")
        if (command, asked) == ("show", []):
            assert numbers(kept) == numbers(live)
        if live.out:  # not every command has an answer for every input
            answered += 1
            assert there.out, (command, asked, there.err)
            assert (live.code, numbers(live)) == (there.code, numbers(there)), (command, asked)
    assert answered >= len(looks) // 2
    for table in (tmp_path / "live").glob("*.csv"):
        assert table.read_bytes() == (tmp_path / "kept" / table.name).read_bytes()
