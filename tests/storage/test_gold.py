"""Files of questions: what they hold, and what is said of lines that nobody can read."""

import pytest

from attnscope.errors import InputError
from attnscope.storage.gold import read_gold
from tests.questions.gold import treebank


def words(text, spans):
    return [text[start:stop] for start, stop in spans]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("begin", ["", "\ufeff"], ids=["plain", "with a mark at its begin"])
def test_a_treebank_is_read_word_by_word(tmp_path, begin, ending):
    written = begin + treebank.conllu().replace("\n", ending)
    (tmp_path / "small.conllu").write_bytes(written.encode())
    texts = list(read_gold(tmp_path / "small.conllu").entries())
    for number, gold in enumerate(texts):
        text, spans, links = treebank.plain(number)
        assert gold.fault == ""
        assert gold.text == text
        assert list(gold.words) == spans
        assert [(pair.left[0], pair.right[0], pair.label) for pair in gold.pairs] == links
    assert texts[-1].done == (tmp_path / "small.conllu").stat().st_size


def test_a_word_that_is_not_spelled_out_gives_its_characters_to_the_first(tmp_path):
    lines = ["1-2\tdu\t", "1\tde\t0\troot", "2\tle\t1\tdet", "3\tchat\t1\tobl"]
    rows = []
    for line in lines:
        number, form, *rest = line.split("\t")
        head, relation = rest if len(rest) == 2 else ("_", "_")
        rows.append(f"{number}\t{form}\t_\t_\t_\t_\t{head}\t{relation}\t_\t_")
    (tmp_path / "a.conllu").write_text("\n".join(rows) + "\n")
    (gold,) = read_gold(tmp_path / "a.conllu").entries()
    assert gold.text == "du chat"
    assert words(gold.text, gold.words) == ["du", "", "chat"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("1\tcat\t_\t_\t_\t_\t0\troot\t_\n", "line 1: it has 9 columns"),
        ("1\tcat\t_\t_\t_\t_\t7\tdet\t_\t_\n", "no head among the 1 words"),
        ("1\tcat\t_\t_\t_\t_\t-1\tdet\t_\t_\n", "no head among the 1 words"),
        ("2\tcat\t_\t_\t_\t_\t0\troot\t_\t_\n", "word '2' does not follow word 0"),
        ("1\tcat\t_\t_\t_\t_\t0\tro\x07ot\t_\t_\n", "a label is 1 to 60 characters"),
        ("".join(f"{n}\tcat\t_\t_\t_\t_\t0\troot\t_\t_\n" for n in range(1, 2002)), "may have 2,000 lines"),
        ("9" * 5000 + "-" + "9" * 5001 + "\tcat" + "\t_" * 8 + "\n", "does not follow word 0"),
        ("1\tcat\t_\t_\t_\t_\t" + "9" * 5000 + "\troot\t_\t_\n", "no head among"),
    ],
)
def test_a_damaged_sentence_is_said_and_the_next_one_read(tmp_path, content, fault):
    (tmp_path / "bad.conllu").write_text(content + "\n1\tcat\t_\t_\t_\t_\t0\troot\t_\t_\n")
    bad, good = read_gold(tmp_path / "bad.conllu").entries()
    assert fault in bad.fault
    assert good.fault == ""
    assert good.text == "cat"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "not JSON"),
        ("[1]", 'write {"text"'),
        ('{"text": "a cat"}', 'write {"text"'),
        ('{"text": "", "pairs": []}', "missing or empty"),
        ('{"text": "\\ud800", "pairs": []}', "half a character"),
        ('{"text": "a cat", "pairs": [[0]]}', "a pair is"),
        (
            '{"text": "a cat", "pairs": [[0, 2]]}',
            "2 is no place in its text: name one of the words 0 to 1, or",
        ),
        ('{"text": "a cat", "pairs": [[0, true]]}', "true is no place"),
        ('{"text": "a cat", "pairs": [[0, [1, 2]]]}', "[1, 2] is no place"),
        ('{"text": "a cat", "pairs": [[0, [3, 99]]]}', "[3, 99] is no place"),
        ('{"text": "a cat", "pairs": [[0, 1, 5]]}', "a label is a text"),
        ('{"text": "' + "cat " * 200 + '", "pairs": [[0, [0, 500]]]}', "up to 400 characters"),
    ],
)
def test_a_line_that_says_nothing_is_a_sentence(tmp_path, line, fault):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    (gold,) = read_gold(tmp_path / "a.jsonl").entries()
    assert fault.replace("a label is a text", "the label of a pair is a text") in gold.fault


@pytest.mark.parametrize(
    ("text", "links", "fault"),
    [
        ("a cat", "0-0", "write source ||| target"),
        ("a ||| b ||| c", "0-0", "write source ||| target"),
        ("a ||| b", "0-1", "outside of 1 source and 1 target words"),
        ("a ||| b", "0:0", "'0:0' is not a link"),
    ],
)
def test_links_that_lead_nowhere_are_said(tmp_path, text, links, fault):
    (tmp_path / "texts").write_text(text + "\n")
    (tmp_path / "links").write_text(links + "\n")
    (gold,) = read_gold(tmp_path / "texts", alignments=tmp_path / "links").entries()
    assert fault in gold.fault


def test_a_file_of_links_that_is_too_short_is_said(tmp_path):
    (tmp_path / "texts").write_text("a ||| b\nc ||| d\n")
    (tmp_path / "links").write_text("0-0\n")
    first, second = read_gold(tmp_path / "texts", alignments=tmp_path / "links").entries()
    assert first.fault == ""
    assert "ends before" in second.fault


def test_what_is_no_file_of_questions_is_said(tmp_path):
    (tmp_path / "a.txt").write_text("a cat\n")
    with pytest.raises(InputError, match="--alignments FILE"):
        read_gold(tmp_path / "a.txt")
    with pytest.raises(InputError, match="no such file"):
        read_gold(tmp_path / "b.conllu")
