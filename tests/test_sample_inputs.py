"""The sample inputs are what their names say, with no hidden characters."""

import json
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import soundfile
import torch
from PIL import Image
from safetensors.torch import load_file

from attnscope.models import load
from attnscope.models.served import open_file
from attnscope.storage.gold import read_gold
from tests.models.folders import maps

FOLDER = Path(__file__).parents[1] / "sample_inputs"
BINARY = (".png", ".wav", ".safetensors")
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.is_file() and path.suffix not in BINARY)
JOINER = "\u200d"  # of zero width
SCRIPTS = "LATIN CYRILLIC GREEK ARABIC HEBREW DEVANAGARI CJK HIRAGANA KATAKANA HANGUL THAI"


def sample(name: str) -> str:
    """The text of a sample, its line ends untouched."""
    return (FOLDER / name).read_bytes().decode("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_sample_is_nfc_without_trailing_spaces_or_hidden_characters(name):
    text = sample(name)
    assert unicodedata.is_normalized("NFC", text)
    assert text == "\n".join(line.rstrip() for line in text.rstrip().split("\n")) + "\n"
    meant = "\n" + ("\t" if name.endswith((".tsv", ".conllu")) else JOINER if name == "languages.txt" else "")
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert [char for char in text if unicodedata.category(char) in hidden and char not in meant] == []


def test_sample_sentences_are_distinct_and_pairs_differ():
    sentences = sample("sentences.txt").splitlines()
    assert len(set(sentences)) == len(sentences) >= 25
    assert all(line.endswith((".", "?", '."')) and 5 <= len(line.split()) <= 40 for line in sentences)
    pairs = [line.split("\t") for line in sample("pairs.tsv").splitlines()]
    assert len(pairs) >= 12
    assert all(one != other and [one, other] == [one.strip(), other.strip()] for one, other in pairs)
    words = [(first.split(), second.split()) for first, second in pairs]
    changed = [sum(map(str.__ne__, *each)) for each in words if len(each[0]) == len(each[1])]
    assert changed.count(1) >= 2


def test_word_pairs_sample_has_pronouns_subjects_and_articles():
    lines = [json.loads(line) for line in sample("words.jsonl").splitlines()]
    assert len(lines) == 12
    meant = {"pronoun": {"it", "she", "he", "they"}, "article": {"a", "the"}}
    for line in lines:
        words, labels = line["text"].split(), Counter(label for *_, label in line["pairs"])
        assert (labels.pop("pronoun"), labels.pop("subject"), [*labels]) == (1, 1, ["article"])
        named = [(words[one].lower(), label) for one, _, label in line["pairs"]]
        assert all(word in meant.get(label, word) for word, label in named)


def test_article_sample_has_1500_words_and_recurring_names():
    words = sample("article.txt").split()
    assert 1400 <= len(words) <= 1600
    for name in ("Harrow", "Anna", "Fresnel"):
        assert sum(word.startswith(name) for word in words) >= 4


def test_languages_sample_covers_scripts_emoji_marks_and_symbols():
    text = sample("languages.txt")
    names = [unicodedata.name(char, "") for char in text]
    for script in SCRIPTS.split():
        assert sum(name.startswith(script) for name in names) >= 4, script
    emoji = "[\U0001f000-\U0010ffff]"
    assert len(re.findall(f"{emoji}{JOINER}(?={emoji})", text)) == text.count(JOINER) >= 3
    assert sum(name.startswith("EMOJI MODIFIER FITZPATRICK") for name in names) >= 2
    flags = sum(name.startswith("REGIONAL INDICATOR SYMBOL") for name in names)
    assert (flags >= 2, flags % 2) == (True, 0)
    categories = Counter(map(unicodedata.category, text.splitlines()[-1]))
    assert min(categories["Mn"], categories["Sm"]) >= 5


def test_repeated_sample_has_repeated_phrases_and_lines():
    tale, nonsense = sample("repeated.txt").rsplit("\n\n", 1)
    said = tale.split()
    assert max(Counter(zip(*(said[start:] for start in range(8)), strict=False)).values()) >= 3
    lines = nonsense.splitlines()
    assert (len(lines), len(set(lines))) == (3, 1)
    words = lines[0].split()
    assert len(set(words)) == len(words) >= 8  # only the earlier line foretells the next word
    assert set(words).isdisjoint(said)


@pytest.mark.subprocess
def test_source_code_sample_solves_its_maze():
    command = [sys.executable, "-I", "-W", "error", str(FOLDER / "source_code.py")]
    *maze, report = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    steps = sum(line.count(char) for line in maze for char in "S.G") - 1
    assert report == f"The shortest path takes {steps} steps."


def test_samples_total_size_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 300_000


def test_names_sample_has_both_orders_of_two_people():
    first, *rows = [line.split("\t") for line in sample("names.tsv").splitlines()]
    assert first == ["A", "B"]
    assert all(one != other for one, other in rows)
    assert {(other, one) for one, other in rows} == {(one, other) for one, other in rows}


@pytest.mark.parametrize("coreference", [False, True])
def test_treebank_sample_reads_without_faults(coreference):
    entries = list(read_gold(FOLDER / "treebank.conllu", coreference=coreference).entries())
    assert [entry.fault for entry in entries if entry.fault] == []
    assert [entry.text for entry in entries] == re.findall("^# text = (.*)", sample("treebank.conllu"), re.M)
    found = Counter(pair.label for entry in entries for pair in entry.pairs)
    assert found["coreference"] >= 9 if coreference else min(found["nsubj"], found["obj"]) >= 9


def test_translation_links_cover_every_word():
    pairs, links = (sample(name).splitlines() for name in ("de.par", "de.links"))
    for pair, line in zip(pairs, links, strict=True):
        linked = zip(*(map(int, re.split("[-?]", link)) for link in line.split()), strict=True)
        sides = [range(len(side.split())) for side in pair.split(" ||| ")]
        assert [{*each} for each in linked] == [{*each} for each in sides]


def test_chat_sample_has_roles_and_served_response():
    for line in map(json.loads, sample("log.jsonl").splitlines()):
        roles = [message["role"] for message in line["messages"]]
        assert (roles[0], roles[-1]) == ("system", "user")
        assert line["response"].endswith(".")


def test_image_and_speech_samples_have_model_input_sizes():
    with Image.open(FOLDER / "cat.png") as picture:
        assert picture.size == (224, 224)
    about = soundfile.info(FOLDER / "speech.wav")
    assert (about.samplerate, about.channels) == (16_000, 1)
    assert 1 < about.duration < 2


def test_served_sample_has_rows_of_its_model():
    own, served = load("own-causal"), open_file(FOLDER / "served.safetensors")
    mine = maps(own, own.prepare("The king said that he would go to the river."), heads=4)
    theirs = maps(served, served.prepared, heads=4)
    states = load_file(FOLDER / "served.safetensors")
    assert len(mine) == len(theirs) == len(states) / 2 == 3
    for layer, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        query, key = (states[f"layers.{layer}.self_attn.attn.{part}"].float() for part in "qk")
        scores = torch.einsum("qhd,khd->hqk", query.abs(), key.abs()) / query.shape[-1] ** 0.5
        off = float(scores.max()) * 2**-10  # both are rounded to float16, and a weight moves by half of it
        assert float((one.weights - other.weights).abs().max()) <= off / 2
