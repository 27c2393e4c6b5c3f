"""The sample texts are what their names say, and nothing hidden is in them."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "sample_inputs"
NAMES = [
    "article.txt",
    "gifts.md",
    "gifts.tsv",
    "induction.md",
    "induction.tsv",
    "languages.txt",
    "pairs.tsv",
    "repeated.txt",
    "repeats.tsv",
    "sentences.txt",
    "source_code.py",
    "tutorial_models.py",
    "words.jsonl",
]

ZERO_WIDTH_JOINER = "\u200d"
SCRIPTS = [
    "LATIN",
    "CYRILLIC",
    "GREEK",
    "ARABIC",
    "HEBREW",
    "DEVANAGARI",
    "CJK UNIFIED IDEOGRAPH",
    "HIRAGANA",
    "KATAKANA",
    "HANGUL SYLLABLE",
    "THAI",
]


def sample(name: str) -> str:
    """The text of a sample, its line ends untouched."""
    return (FOLDER / name).read_bytes().decode("utf-8")


def repetitions(text: str, words: int) -> int:
    """How often the most frequent phrase of that many words occurs in a text."""
    said = text.split()
    return max(Counter(zip(*(said[start:] for start in range(words)), strict=False)).values())


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_composed_utf8_without_trailing_spaces_and_with_one_last_newline(name: str) -> None:
    text = sample(name)
    assert unicodedata.is_normalized("NFC", text)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert all(line == line.rstrip() for line in text.split("\n"))


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_hides_no_control_character(name: str) -> None:
    more = "\t" if name.endswith(".tsv") else ZERO_WIDTH_JOINER if name == "languages.txt" else ""
    meant = "\n" + more
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    found = [char for char in sample(name) if unicodedata.category(char) in hidden and char not in meant]
    assert found == []


def test_the_sentences_are_distinct_and_whole() -> None:
    sentences = sample("sentences.txt").splitlines()
    assert len(set(sentences)) == len(sentences) >= 25
    assert all(line.endswith((".", "?", '."')) for line in sentences)
    assert all(5 <= len(line.split()) <= 40 for line in sentences)


def test_every_pair_has_two_columns() -> None:
    pairs = [line.split("\t") for line in sample("pairs.tsv").splitlines()]
    assert len(pairs) >= 12
    for pair in pairs:
        assert len(pair) == 2
        assert all(text and text == text.strip() for text in pair)
        assert pair[0] != pair[1]


def test_words_that_belong_together_are_pronouns_subjects_and_articles() -> None:
    lines = [json.loads(line) for line in sample("words.jsonl").splitlines()]
    assert len(lines) == 12
    for line in lines:
        words = line["text"].split()
        labels = Counter(label for *_, label in line["pairs"])
        assert labels["pronoun"] == labels["subject"] == 1
        assert labels["article"] >= 1
        for one, _, label in line["pairs"]:
            if label != "subject":
                meant = {"pronoun": {"it", "she", "he", "they"}, "article": {"a", "the"}}[label]
                assert words[one].lower() in meant


def test_some_pairs_differ_in_one_word() -> None:
    pairs = [[text.split() for text in line.split("\t")] for line in sample("pairs.tsv").splitlines()]
    changed = [
        sum(one != other for one, other in zip(first, second, strict=True))
        for first, second in pairs
        if len(first) == len(second)
    ]
    assert changed.count(1) >= 2


def test_the_article_has_some_1500_words_and_names_that_recur() -> None:
    words = sample("article.txt").split()
    assert 1400 <= len(words) <= 1600
    for name in ("Harrow", "Anna", "Fresnel"):
        assert sum(word.startswith(name) for word in words) >= 4


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_languages_hold_letters_of_each_script(script: str) -> None:
    letters = [
        char
        for char in sample("languages.txt")
        if char.isalpha() and unicodedata.name(char).startswith(script)
    ]
    assert len(letters) >= 4


def test_the_languages_hold_joined_toned_and_flag_emoji() -> None:
    text = sample("languages.txt")
    names = [unicodedata.name(char, "") for char in text]
    triples = zip(text, text[1:], text[2:], strict=False)
    joined = [(one, other) for one, joiner, other in triples if joiner == ZERO_WIDTH_JOINER]
    assert len(joined) >= 3
    assert all(ord(one) >= 0x1F000 and ord(other) >= 0x1F000 for one, other in joined)
    assert sum(name.startswith("EMOJI MODIFIER FITZPATRICK") for name in names) >= 2
    flags = sum(name.startswith("REGIONAL INDICATOR SYMBOL") for name in names)
    assert flags >= 2
    assert flags % 2 == 0


def test_the_languages_hold_marks_that_do_not_compose_and_mathematical_symbols() -> None:
    line = sample("languages.txt").splitlines()[-1]
    categories = Counter(unicodedata.category(char) for char in line)
    assert categories["Mn"] >= 5
    assert categories["Sm"] >= 5


def test_the_tale_repeats_a_phrase_and_the_nonsense_comes_three_times() -> None:
    tale, nonsense = sample("repeated.txt").rsplit("\n\n", 1)
    assert repetitions(tale, words=8) >= 3
    lines = nonsense.splitlines()
    assert len(lines) == 3
    assert len(set(lines)) == 1
    words = lines[0].split()
    assert len(set(words)) == len(words) >= 8  # only the earlier line foretells the next word
    assert set(words).isdisjoint(tale.split())


@pytest.mark.subprocess
def test_the_source_code_solves_its_maze_in_the_fewest_steps() -> None:
    command = [sys.executable, "-I", "-W", "error", str(FOLDER / "source_code.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    *maze, report = ran.stdout.splitlines()
    cells = {(row, column): char for row, line in enumerate(maze) for column, char in enumerate(line)}
    free = {cell for cell, char in cells.items() if char != "#"}
    (start,) = (cell for cell, char in cells.items() if char == "S")
    (goal,) = (cell for cell, char in cells.items() if char == "G")
    dotted = {cell for cell, char in cells.items() if char in "S.G"}

    assert steps(start, goal, free) == len(dotted) - 1
    assert steps(start, goal, dotted) == len(dotted) - 1
    assert report == f"The shortest path takes {len(dotted) - 1} steps."


def steps(start: tuple[int, int], goal: tuple[int, int], free: set[tuple[int, int]]) -> int:
    """The fewest steps from start to goal over free cells, by letting water spread."""
    wet, count = {start}, 0
    while goal not in wet:
        flooded = wet | {
            (row + down, column + right)
            for row, column in wet
            for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0))
            if (row + down, column + right) in free
        }
        assert flooded != wet, "the goal cannot be reached"
        wet, count = flooded, count + 1
    return count
