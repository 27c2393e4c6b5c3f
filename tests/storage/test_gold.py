"""Gold files: their content, and the faults of unreadable lines."""

import json
import re

import pytest

from attnscope.errors import InputError
from attnscope.storage import files
from attnscope.storage.corpus import read_corpus
from attnscope.storage.files import Line, read_lines
from attnscope.storage.gold import read_gold
from tests.questions.gold import treebank


def asked_of(gold):
    """What is asked, in words: each with those that are right."""
    names = [gold.text[start:stop] for start, stop in gold.words]
    return [(names[pair.left[0]], [names[word] for word in pair.right]) for pair in gold.pairs]


def faults(path, **how):
    return [text.fault for text in read_gold(path, **how).entries()]


def row(form, head="0", relation="root", misc="_", number="1"):
    return f"{number}\t{form}\t_\t_\t_\t_\t{head}\t{relation}\t_\t{misc}\n"


def test_treebank_is_read_word_by_word(tmp_path):
    (tmp_path / "small.conllu").write_text(treebank.conllu(), "utf-8")
    texts = list(read_gold(tmp_path / "small.conllu").entries())
    for number, gold in enumerate(texts):
        links = [(pair.left[0], pair.right[0], pair.label) for pair in gold.pairs]
        assert (gold.text, list(gold.words), links) == treebank.plain(number)
        assert gold.fault == ""
    assert texts[-1].done == (tmp_path / "small.conllu").stat().st_size


def test_multiword_token_gives_its_characters_to_the_first_word(tmp_path):
    whole, rest = row("du", "_", "_", number="1-2"), row("le", "1", "det", number="2")
    (tmp_path / "a.conllu").write_text(whole + row("de") + rest + row("chat", "1", "obl", number="3"))
    (gold,) = read_gold(tmp_path / "a.conllu").entries()
    assert gold.text == "du chat"
    assert [gold.text[start:stop] for start, stop in gold.words] == ["du", "", "chat"]


DOCUMENTS = """# newdoc id = hard
# global.Entity = GRP-etype-infstat
# sent_id = 1
# text = Ann and Bob don't know the mayor's wife.
1	Ann	_	PROPN	_	_	5	nsubj	_	Entity=(e3-person-new(e1-person-new)
2	and	_	CCONJ	_	_	3	cc	_	_
3	Bob	_	PROPN	_	_	1	conj	_	Entity=(e2-person-new)e3)
3.1	they	_	PRON	_	_	_	_	_	Entity=(e9-person-new)
4-5	don't	_	_	_	_	_	_	_	_
4	do	_	AUX	_	_	5	aux	_	_
5	n't	_	PART	_	_	6	advmod	_	_
6	know	_	VERB	_	_	0	root	_	_
7	the	_	DET	_	_	8	det	_	Entity=(e4-person-new(e5-person-new
8-9	mayor's	_	_	_	_	_	_	_	_
8	mayor	_	NOUN	_	_	10	nmod:poss	_	_
9	's	_	PART	_	_	8	case	_	Entity=e5)
10	wife	_	NOUN	_	_	6	obj	_	Entity=e4)|SpaceAfter=No
11	.	_	PUNCT	_	_	6	punct	_	_

# text = She, says he, turned the offer down.
1	She	_	PRON	_	_	5	nsubj	_	Entity=(e4-person-giv)
2	says	_	VERB	_	_	5	parataxis	_	_
3	he	_	PRON	_	_	2	nsubj	_	Entity=(e5-person-giv)
4	and	_	CCONJ	_	_	5	cc	_	_
5	called	_	VERB	_	_	0	root	_	Entity=(e6[1/2]-event-new)
6	Bob	_	PROPN	_	_	5	obj	_	Entity=(e2-person-giv)
7	up	_	ADP	_	_	5	compound:prt	_	Entity=(e6[2/2]-event-new)
8	today	_	ADV	_	_	5	advmod	_	SpaceAfter=No
9	.	_	PUNCT	_	_	5	punct	_	_

1	It	_	PRON	_	_	2	nsubj	_	Entity=(e6-event-giv)
2	surprised	_	VERB	_	_	0	root	_	_
3	both	_	DET	_	_	2	obj	_	Entity=(e3-person-giv
4	of	_	ADP	_	_	5	case	_	_
5	them	_	PRON	_	_	3	nmod	_	Entity=e3)

# newdoc id = one
# global.Entity = etype-eid-head-other
1	Ann	_	PROPN	_	_	2	nsubj	_	Entity=(person-e1-1-)
2	saw	_	VERB	_	_	0	root	_	_
3	the	_	DET	_	_	5	det	_	Entity=(animal-e2-3-
4	old	_	ADJ	_	_	5	amod	_	_
5	dog	_	NOUN	_	_	2	obj	_	Entity=e2)

1	She	_	PRON	_	_	2	nsubj	_	Entity=(person-e1-1-)
2	fed	_	VERB	_	_	0	root	_	_
3	her	_	PRON	_	_	4	nmod:poss	_	Entity=(animal-e2-2-(person-e1-1-)
4	pet	_	NOUN	_	_	2	obj	_	Entity=e2)|SpaceAfter=No
5	.	_	PUNCT	_	_	2	punct	_	_

# newdoc id = two
1	She	_	PRON	_	_	0	root	_	Entity=(person-e1-1-)

"""


@pytest.mark.parametrize(("begin", "ending"), [("", "\n"), ("\ufeff", "\r\n")])
def test_coreference_mentions_may_be_nested_or_split(tmp_path, begin, ending):
    """The answers are a person's: a mention's head word counts, of a split one that of its first piece."""
    (tmp_path / "a.conllu").write_bytes((begin + DOCUMENTS.replace("\n", ending)).encode())
    gold, first, second = read_gold(tmp_path / "a.conllu", coreference=True).entries()
    assert gold.fault == ""
    assert gold.text == (
        "Ann and Bob don't know the mayor's wife. She says he and called Bob up today. "
        "It surprised both of them"
    )
    one_each = {"She": "wife", "he": "mayor", "Bob": "Bob", "It": "called", "both": "Ann"}
    assert asked_of(gold) == [(later, [earlier]) for later, earlier in one_each.items()]
    assert [pair.left[0] - pair.right[0] for pair in gold.pairs] == [2, 6, 14, 5, 22]
    assert first.text == "Ann saw the old dog She fed her pet."
    assert asked_of(first) == [("She", ["Ann"]), ("her", ["Ann", "She"]), ("pet", ["dog"])]
    assert (second.text, second.pairs) == ("She", ())


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (row("cat", misc="Entity=(e1-x"), "entity 'e1' begins at word 1 and ends nowhere"),
        (row("cat", misc="Entity=e1"), "the Entity of word 1 is 'e1': write (e1-person"),
        ("1\tcat\t_\t_\t_\t_\t0\troot\t_\n", "line 1: it has 9 columns"),
        (row("cat", "7"), "no head among the 1 words"),
        (row("cat", "-1"), "no head among the 1 words"),
        (row("cat", number="2"), "word '2' does not follow word 0"),
        (row("cat", relation="ro\x07ot"), "a label is 1 to 60 characters"),
        (row("cat", misc="Entity=e1)"), "entity 'e1' ends at word 1 and begins nowhere"),
        ("".join(row("cat", number=n) for n in range(1, 5000)), "a sentence may have 2,000 lines, and"),
        (row("b" * 1_100_000), "and 1,048,576 characters in them"),
        (row("cat", number="9" * 5000 + "-" + "9" * 5001), "does not follow word 0"),
        (row("cat", "9" * 5000), "no head among"),
    ],
)
def test_damaged_sentence_is_a_fault_and_the_next_is_read(tmp_path, content, fault):
    (tmp_path / "bad.conllu").write_text(content + "\n" + row("cat"))
    bad, good = read_gold(tmp_path / "bad.conllu").entries()
    assert fault in bad.fault
    assert (good.fault, good.text) == ("", "cat")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "not JSON"),
        ("[1]", 'write {"text"'),
        ('{"text": "a cat"}', 'write {"text"'),
        ('{"text": "", "pairs": []}', "the text is empty"),
        ('{"text": "\\ud800", "pairs": []}', "half a character"),
        ('{"text": "a cat", "pairs": [[0]]}', "a pair is"),
        ('{"text": "a cat", "pairs": [[0, 2]]}', "2 is no place in its text: name one of the words 0 to 1"),
        ('{"text": "a cat", "pairs": [[0, true]]}', "true is no place"),
        ('{"text": "a cat", "pairs": [[0, [1, 2]]]}', "[1, 2] is no place"),
        ('{"text": "a cat", "pairs": [[0, [3, 99]]]}', "[3, 99] is no place"),
        ('{"text": "a cat", "pairs": [[0, 1, 5]]}', "the label of a pair is a text"),
        ('{"text": "' + "cat " * 200 + '", "pairs": [[0, [0, 500]]]}', "up to 400 characters"),
    ],
)
def test_invalid_gold_line_is_a_fault(tmp_path, line, fault):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    assert fault in faults(tmp_path / "a.jsonl")[0]


@pytest.mark.parametrize(
    ("text", "links", "fault"),
    [
        ("a ||| b ||| c", "0-0", r"write source \|\|\| target"),
        ("a ||| b", "0-1", "outside of 1 source and 1 target words"),
        ("a ||| b", "0:0", "'0:0' is not a link"),
        ("a ||| b\nc ||| d", "0-0", "links ends before .*texts"),
        ("a ||| b", "0-0\n0-0", "texts ends before .*links"),
        ("a ||| b", "0-0\n", "texts ends before .*links"),  # of which the second has none
    ],
)
def test_invalid_alignment_links_are_faults(tmp_path, text, links, fault):
    (tmp_path / "texts").write_text(text + "\n")
    (tmp_path / "links").write_text(links + "\n")
    *before, last = faults(tmp_path / "texts", alignments=tmp_path / "links")
    assert re.search(fault, last)
    assert not any(before)


def test_invalid_gold_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a cat\n")
    with pytest.raises(InputError, match="--alignments FILE"):
        read_gold(tmp_path / "a.txt")
    with pytest.raises(InputError, match="no such file"):
        read_gold(tmp_path / "b.conllu")
    with pytest.raises(InputError, match="Entity column"):
        read_gold(tmp_path / "a.txt", coreference=True)


@pytest.mark.parametrize("end", ["last", "y" * 205])
def test_too_long_line_is_skipped_and_the_next_is_read(monkeypatch, tmp_path, end):
    monkeypatch.setattr(files, "MOST_LINE_BYTES", 100)
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n" + b"x" * 350 + b"\n\xff\n" + b"y" * 99 + b"\n" + end.encode())
    one, long, broken, whole, last = read_lines(path)
    assert one == Line(1, "one", 8)
    assert long == Line(2, "", 359, "it has more than 100 bytes")
    assert (broken.number, broken.fault) == (3, "byte 0 is not UTF-8 text")
    assert whole == Line(4, "y" * 99, 461)
    assert last == (Line(5, end, 465) if len(end) < 100 else Line(5, "", 666, long.fault))
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a b"}\n' + json.dumps({"text": "a" * 200, "pairs": []}) + "\n")
    assert [entry.fault for entry in read_corpus(path).entries()] == ["", long.fault]
    assert faults(path)[1] == long.fault


def test_too_long_gold_text_is_a_fault(tmp_path):
    long = "a b " * 300_000
    (tmp_path / "gold.jsonl").write_text(json.dumps({"text": long, "pairs": [[0, 1]]}))
    (tmp_path / "texts").write_text(f"{long}|||a\na b ||| a b\n")
    (tmp_path / "links").write_text("0-0\n0-0\n")
    said = "a text has 1,200,000 characters, and may have 1,048,576"
    assert faults(tmp_path / "gold.jsonl") == [said]
    one, other = faults(tmp_path / "texts", alignments=tmp_path / "links")
    assert one.startswith("a text has 1,199,999")
    assert other == ""


@pytest.mark.parametrize("spare", [0, -1])
@pytest.mark.parametrize("limit", ["MOST_SENTENCE_WORDS", "MOST_CHARACTERS"])
def test_gold_sentence_length_limit_is_exact(limit, spare, tmp_path, monkeypatch):
    rows = [row("cat"), row("dog", "1", "dep", number="2"), row("bird", "1", "dep", number="3")]
    size = {"MOST_SENTENCE_WORDS": len(rows), "MOST_CHARACTERS": sum(len(each) - 1 for each in rows)}[limit]
    monkeypatch.setattr(f"attnscope.storage.gold.{limit}", size + spare)
    (tmp_path / "a.conllu").write_text("".join(rows) + "\n" + row("fish"))
    first, second = faults(tmp_path / "a.conllu")
    assert first.startswith("a sentence may have ") == (spare < 0)
    assert first == "" or spare < 0
    assert second == ""
