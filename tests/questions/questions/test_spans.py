"""Parts of a text and the attention between them, against NumPy on the rows of every head."""

import json
import random
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from attnscope.attention import Head, Token
from attnscope.errors import InputError, SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.models.request import read_chat
from attnscope.questions.find import parse_questions
from attnscope.questions.parts import (
    Span,
    cut_text,
    read_marks,
    read_parts,
    segments,
    spans_of,
    spans_of_roles,
)
from attnscope.questions.selection import Selection
from attnscope.questions.spans import SpanMaps, span_maps, written_attention
from attnscope.storage.trace.layout import Message
from tests.measures.rounding import near
from tests.models import folders
from tests.models.images import picture
from tests.models.vision_language import vision_language

TEXT = 'The cat sat on the mat. It was tired because it ran.\n\n"Who slept?" he said! The cat did.'


def looks_of(name, way="sentence", selection=None):
    """The text as a model reads it, its parts, and how much each looks at each."""
    model = load(name)
    prepared = model.prepare(TEXT)
    spans = spans_of(prepared.tokens, TEXT, cut_text(TEXT, way))
    return prepared, spans, span_maps(model, prepared, spans, selection)


def rows_of(model, prepared):
    """The rows of every head.  -> [head, query, key]"""
    heads = 8 if model.name == "own" else 4
    return np.concatenate([kept.weights[0].double().numpy() for kept in folders.maps(model, prepared, heads)])


def test_sentences_split_before_capitals_and_quotes():
    assert list(cut_text(TEXT, "sentence")) == [
        ("1 The cat sat on the mat.", 0),
        ("2 It was tired because it…", 24),
        ('3 "Who slept?" he said!', 54),
        ("4 The cat did.", 76),
    ]


@pytest.mark.parametrize(("way", "count"), [("line", 2), ("paragraph", 2), ("sentence", 4)])
def test_every_token_is_in_one_part(way, count):
    prepared, spans, _ = looks_of("own", way)
    assert len(spans) == count + 2
    assert (spans[0].name, spans[-1].name) == ("[CLS]", "[SEP]")
    assert [span.stop for span in spans[:-1]] == [span.start for span in spans[1:]]
    assert (spans[0].start, spans[-1].stop) == (0, len(prepared.tokens))
    for span, (_, begin) in zip(spans[1:-1], cut_text(TEXT, way), strict=True):
        first = prepared.tokens[span.start].text.strip()
        assert TEXT[begin:].lstrip().startswith(first)


def test_marks_name_parts_and_are_removed_from_the_text(own):
    text, parts = read_marks("[[fact: The cat slept.]] It rained. [[question: Who slept?]]")
    assert text == "The cat slept. It rained. Who slept?"
    spans = spans_of(own.prepare(text).tokens, text, parts)
    assert [span.name for span in spans] == ["[CLS]", "fact", "rest 2", "question", "[SEP]"]
    endless = "[[a: " * 100_000  # is read at once
    text, parts = read_marks(f"{endless}[[fact: A cat.]]")
    assert text.endswith("A cat.")
    assert [name for name, _ in parts] == ["", "fact"]
    for unmarked in ("nothing is marked [[here]]", endless):
        with pytest.raises(InputError, match="no marks"):
            read_marks(unmarked)


def test_texts_of_a_pair_are_parts(minilm):
    prepared = minilm.prepare("The cat sat.", "The dog barked.")
    names = [span.name for span in segments(prepared.tokens)]
    assert names == ["[CLS]", "first text", "[SEP]", "second text", "[SEP]#2"]


@pytest.mark.parametrize("name", ["own", "own-causal"])
def test_span_weights_and_baselines_equal_brute_force(name):
    prepared, spans, seen = looks_of(name)
    rows = rows_of(load(name), prepared)
    size = len(prepared.tokens)
    even = np.tril(np.ones((size, size))) if name == "own-causal" else np.ones((size, size))
    even /= even.sum(1, keepdims=True)
    for a, one in enumerate(spans):
        for b, other in enumerate(spans):
            block = ..., slice(one.start, one.stop), slice(other.start, other.stop)
            np.testing.assert_allclose(seen.weights[:, a, b], rows[block].sum(-1).mean(-1), atol=1e-6)
            np.testing.assert_allclose(seen.baseline[:, a, b], even[block].sum(-1).mean(), atol=1e-6)
    np.testing.assert_allclose(seen.weights.sum(-1), 1, atol=1e-5)


def test_pair_of_parts_ranks_heads_and_parts():
    _, _, seen = looks_of("own", selection=Selection(layers=(1, 2)))
    answer = seen.pair(parse_questions("'It was tired' -> 1")[0])
    weights = seen.weights[:, 2, 1]
    assert [looking.weight for looking in answer.heads] == sorted(weights.tolist(), reverse=True)
    best = int(weights.argmax())
    assert answer.heads[0].head == seen.heads[best]
    assert answer.heads[0].rank == 1 + (seen.weights[best, 2] > weights[best]).sum()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_span_heads_with_nan_shares_come_last(at):
    spans = Span("one", 0, 1), Span("two", 1, 2)
    shares = np.insert([0.25, 0.75], at, np.nan)
    weights = np.full((3, 2, 2), shares[:, None, None])
    maps = SpanMaps(spans, tuple(Head(0, head) for head in range(3)), weights, np.ones((3, 2, 2)), "a title")
    listed = [each.weight for each in maps.pair(parse_questions("two -> one")[0]).heads]
    assert listed[:2] == [0.75, 0.25]
    assert np.isnan(listed[2])


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        ("dog -> 1", "no part 'dog': the text has the parts"),
        ("1 -> *", "leave --pair out"),
        ("1 -> 2", "'1' cannot attend to '2': those keys are masked"),  # what comes later
    ],
)
def test_invalid_pair_of_parts_is_refused(pair, why):
    _, _, seen = looks_of("own-causal", "line")
    with pytest.raises(SelectionError, match=why):
        seen.pair(parse_questions(pair)[0])


@pytest.mark.parametrize("name", ["own", "minilm"])
def test_lines_of_unknown_scripts_are_parts(name):
    text = Path("sample_inputs/languages.txt").read_text("utf-8")
    model = load(folders.minilm() if name == "minilm" else name)
    prepared = model.prepare(text, limit=Limit(truncate=True))
    spans = spans_of(prepared.tokens, text, cut_text(text, "line"))[1:-1]
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(spans) >= (12 if name == "minilm" else len(lines))
    for span, line in zip(spans, lines, strict=False):
        first = prepared.tokens[span.start].text.strip().partition(" ")[0]
        assert line.startswith(first), (span, line)


def test_deep_indent_stays_in_its_part(own):
    text = "one two\n" + " " * 60 + "three four"
    spans = spans_of(own.prepare(text).tokens, text, cut_text(text, "line"))
    assert spans[1:3] == (Span("1 one two", 1, 3), Span("2 three four", 3, 5))


def test_excessive_marks_and_parts_files_are_refused(monkeypatch):
    monkeypatch.setattr("attnscope.questions.parts.MOST_MARKED", 100)
    for read, many in ((read_marks, "[[a: b]] " * 20), (read_parts, json.dumps({"a" * 100: [0, 1]}))):
        with pytest.raises(InputError, match=r"has 1\d\d characters.*: shorten it to 100"):
            read(many)


# The bundled causal encoder copies from some sixty tokens back: its heads were trained on no longer repeats.
# Hence ten paragraphs of four words of its vocabulary, a question, and the answer.
PARAGRAPHS = 10


@cache
def words():
    """Words that are one token each, longer ones, which carry more than grammar."""
    known = load("own-causal").reader.tokenizer.get_vocab()
    return sorted(word for word in known if word.isalpha() and len(word) > 3)


def document(seed):
    """A text with marks, and which paragraph holds the fact."""
    chosen = random.Random(seed)
    drawn = chosen.sample(words(), 4 * PARAGRAPHS)
    paragraphs = [drawn[4 * number : 4 * number + 4] for number in range(PARAGRAPHS)]
    place = chosen.randrange(PARAGRAPHS)
    fact = " ".join(paragraphs[place])
    parts = [f"[[paragraph {number}: {' '.join(each)}.]]" for number, each in enumerate(paragraphs)]
    parts += [f"[[question: {' '.join(paragraphs[place][:2])}?]]", f"[[answer: {fact}.]]"]
    return "\n\n".join(parts), place


@pytest.mark.slow
def test_answer_attends_most_to_fact_paragraph_in_95_of_100(request, causal):
    """By day in 38 of 40."""
    documents = 100 if request.config.getoption("whole") else 40
    heads = Head("decoder L1H0"), Head("decoder L1H3")  # with the strongest induction
    questions = [parse_questions(f"answer -> 'paragraph {number}'")[0] for number in range(PARAGRAPHS)]
    right = 0
    for seed in range(documents):
        marked, place = document(seed)
        text, parts = read_marks(marked)
        prepared = causal.prepare(text)
        seen = span_maps(causal, prepared, spans_of(prepared.tokens, text, parts), Selection(layers=(1,)))
        looks = [{each.head: each.weight for each in seen.pair(question).heads} for question in questions]
        right += int(np.argmax([sum(look[head] for head in heads) for look in looks])) == place
    assert right >= 0.95 * documents


KING = "The king was old. The king said that he would"


def test_span_shares_and_lookback_ratio_equal_numpy(causal):
    prompt = causal.prepare(KING)
    prepared = causal.generate(prompt, 8)
    start, size = prepared.written, len(prepared.tokens)
    assert size - start == 8
    parts = spans_of(prepared.tokens[:start], KING, cut_text(KING, "sentence"))
    cut = (*parts, Span("written", start, size))
    seen = written_attention(causal, prepared, cut)
    rows = rows_of(causal, prepared)
    for number, part in enumerate(cut):
        expected = rows[:, start:, part.start : part.stop].sum(-1)
        np.testing.assert_allclose(seen.shares[:, :, number], expected, atol=1e-6)
    for head, own in zip(seen.heads, rows, strict=True):
        means = [(own[at, :start].mean(), own[at, start : at + 1].mean()) for at in range(start, size)]
        expected = np.mean([old / (old + new) for old, new in means])
        assert seen.lookback[head] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(InputError, match="wrote nothing"):
        written_attention(causal, prompt, parts)


TALK = ("system", "You are a cat."), ("user", "Who slept?"), ("tool", "the  mat"), ("assistant", "A cat.")
MESSAGES = [Message(*said) for said in (*TALK, TALK[1])]
SAID = [asdict(message) for message in MESSAGES]
ANSWER = {"role": "assistant", "content": "A cat."}
ANSWERED = [*SAID[:2], ANSWER]


def test_chat_messages_are_parts_by_role():
    chat = "<s> You are a cat . <u> Who slept ? <t> the mat <a> A cat . <u> Who slept ? </s>"
    words = chat.split()
    tokens = [Token(word, number, word.startswith("<")) for number, word in enumerate(words)]
    spans = spans_of_roles(tokens, MESSAGES)
    said = {span.name: " ".join(words[span.start : span.stop]) for span in spans}
    assert {name: text for name, text in said.items() if "template" not in name} == {
        "system": "You are a cat .",
        "user": "Who slept ?",
        "tool": "the mat",
        "assistant": "A cat .",
        "user#2": "Who slept ?",
    }
    assert (spans[0].start, spans[-1].stop) == (0, len(tokens))
    with pytest.raises(InputError, match="the user's message cannot be found"):
        spans_of_roles(tokens[:8], MESSAGES)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        *((text, [{"role": "user", "content": text}]) for text in ("Hello", "[1] a note", '{"a" is a word')),
        (SAID, SAID),
        ({"messages": SAID[:2], "response": "A cat."}, ANSWERED),
        ({"messages": SAID[:2], "answer": {"choices": [{"message": ANSWER}]}}, ANSWERED),
        ({"messages": SAID[:2], "choices": [{"message": ANSWER}]}, ANSWERED),
        ({"messages": [*SAID[:2], ANSWER | {"content": [{"type": "text", "text": "A cat."}]}]}, ANSWERED),
    ],
)
def test_chat_is_read_from_messages_or_served_answer(text, messages):
    assert read_chat(text if isinstance(text, str) else json.dumps(text)) == (messages, {})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[{"role": "user"}]', "each with a role and a content"),
        ('{"messages": [{"role": "user", "content": "Who', "was cut or is damaged"),
        ('[{"role": "user", "content": "Who slept?"},', "was cut or is damaged"),
        ('{"prompt": "Who slept?", "response": "A cat."}', "needs a list of messages, it has 'prompt'"),
        ('{"messages": "Who slept?"}', "needs a list of messages"),
        ('{"messages": []}', "each with a role and a content"),
        ('[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]', "not text"),
    ],
)
def test_damaged_chat_log_line_is_refused(text, sentence):
    with pytest.raises(InputError, match=sentence):
        read_chat(text)


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return folders.chat(tmp_path_factory.mktemp("chat") / "chat")


def test_role_parts_follow_the_chat_template(run, chat):
    read = ("spans", json.dumps(SAID), "-m", chat, "--chat", "--parts", "role", "--generate", "3")
    parts = [part["name"] for part in run.json(*read)["parts"] if "template" not in part["name"]]
    assert parts[:5] == ["system", "user", "tool", "assistant", "user#2"]
    asked = ("spans", "Who slept?", "-m", chat)
    system = ("--chat", "--system", "You are a cat.")
    assert "user -> system" in run(*asked, *system, "--parts", "role", "--pair", "user -> system").out
    assert run(*asked, "--parts", "role").code == 2
    assert run(*asked, "--chat").code == 2


SERVED = [json.dumps({"messages": SAID[:2], "response": answer}) + "\n" for answer in ("A cat.", "The mat.")]


def test_served_answer_equals_model_weights(run, chat, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"messages": SAID[:1]}) + "\n" + SERVED[0])
    asked = ("-f", log, "--line", "2", "--chat", "-m", chat)
    answer = run.json("spans", *asked, "--parts", "role", "--written")
    tokenizer = transformers.AutoTokenizer.from_pretrained(chat)
    prompt = tokenizer.apply_chat_template(ANSWERED[:2], tokenize=False, add_generation_prompt=True)
    whole = tokenizer(tokenizer.apply_chat_template(ANSWERED, tokenize=False), return_tensors="pt").input_ids
    start, maps = len(tokenizer(prompt).input_ids), folders.eager(chat, input_ids=whole).attentions
    for head in answer["heads"]:
        written = maps[head["layer"]][0, head["head"], start:, start:].double().sum(-1)
        np.testing.assert_allclose(np.array(head["shares"])[:, -1], written, atol=1e-5)
    assert [name for name in answer["parts"] if "template" not in name] == ["system", "user", "assistant"]
    assert run("show", *asked, "--token", "A").code == 0
    bare = run("spans", "-f", log, "--line", "1", "--chat", "-m", chat, "--parts", "role", "--written")
    bare.refuses("wrote nothing")


def test_chat_log_is_a_corpus(run, chat, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join([*SERVED, '{"text": "no chat"}\n["broken"]\n', SERVED[0][:-30]]))
    asked = ("--chat", "-m", chat)
    ran = run("stats", "--texts", log, *asked, "--json")
    read = [run.json("stats", "-f", log, "--line", number, *asked)["heads"] for number in (1, 2)]
    for many, *ones in zip(json.loads(ran.out)["heads"], *read, strict=True):
        assert len({(each["layer"], each["head"]) for each in (many, *ones)}) == 1
        scores = [each["scores"]["entropy"] for each in ones]
        rows = sum(each["rows"] for each in scores)
        mean = sum(each["value"] * each["rows"] for each in scores) / rows
        longest = max(each["rows"] for each in scores)
        assert many["scores"]["entropy"]["value"] == near(mean, "entropy", longest)
        assert many["scores"]["entropy"]["texts"] == 2
    assert all(f"skipped line {number}" in ran.err for number in (3, 4, 5))
    assert run("show", "-f", log, "--line", "5", *asked).code == 2


def test_chat_tools_and_documents_reach_the_template(run, tmp_path):
    given = (
        "{% for t in tools or [] %}tool {{ t['name'] }} {% endfor %}"
        "{% for d in documents or [] %}document {{ d['text'] }} {% endfor %}"
    )
    folder = folders.chat(tmp_path / "tools", given + folders.CHAT)
    line = {"messages": SAID[:2], "tools": [{"name": "weather"}], "documents": [{"text": "the mat"}]}
    spelled = "".join(token.text for token in load(folder).prepare_chat(json.dumps(line)).tokens)
    assert "toolweatherdocumentthemat" in spelled.replace(" ", "")
    log, documents = tmp_path / "log.jsonl", [{"text": "Who slept?"}, {"title": "no text"}]
    log.write_text(json.dumps(line | {"documents": documents, "response": "A cat."}))
    asked = ("-f", log, "--line", "1", "--chat", "-m", folder, "--parts", "role", "--written")
    parts = run.json("spans", *asked)["parts"]
    assert [part for part in parts if "template" not in part] == [
        "document",
        "system",
        "user",
        "assistant",
    ]  # the user asks what the document says


def test_span_shares_of_written_tokens_are_printed(run, monkeypatch):
    asked = ("spans", KING, "-m", "own-causal", "--generate", "6", "--written")
    for width in ("50", "80", "160"):
        monkeypatch.setenv("COLUMNS", width)
        out = run(*asked).out
        assert max(map(len, out.splitlines())) <= int(width)
    assert "\nA [CLS]" in out
    assert "lookback ratio" in out
    assert run.json(*asked)["parts"][-1] == "written"
    assert run(*asked[:4], "--written").code == 2


def test_parts_file_names_parts_by_character_range(run, tmp_path):
    file = tmp_path / "parts.json"
    file.write_text(json.dumps({"fact": [0, 16], "rest of it": [18, 45]}))
    parts = run.json("spans", KING, "-m", "own-causal", "--parts", file)["parts"]
    assert [part["name"] for part in parts] == ["[CLS]", "fact", "rest 2", "rest of it", "[SEP]"]
    assert read_parts('{"b": [5, 9], "a": [9, 12]}') == (("", 0), ("b", 5), ("a", 9), ("", 12))
    swapped, shared = '{"a": [5, 3]}', '{"a": [0, 5], "b": [3, 9]}'
    for wrong in ("no", "[]", "{}", swapped, shared, '{"a": 1}', '{"a": ["x", "y"]}'):
        with pytest.raises(InputError, match="a file of parts is JSON"):
            read_parts(wrong)


def test_long_text_parts_equal_brute_force(tmp_path):
    size, count = 1200, 12
    folder = folders.gpt2(tmp_path, n_positions=size)
    model = load(folder)
    prepared = model.prepare(
        "The cat sat on the mat because it was tired. " * 200, limit=Limit(size, truncate=True)
    )
    drawn = np.random.default_rng(0).choice(np.arange(3, size), count - 3, replace=False)
    edges = [0, 1, 2, *sorted(drawn.tolist()), size]
    seen = span_maps(
        model, prepared, [Span(str(number), *each) for number, each in enumerate(pairwise(edges))]
    )
    assert "fused pass" in seen.title
    rows = torch.cat(folders.eager(folder, **prepared.inputs).attentions).double().flatten(0, 1).numpy()
    even = np.tril(np.ones((size, size))) / np.arange(1, size + 1)[:, None]
    for found, own in ((seen.weights, rows), (seen.baseline, np.broadcast_to(even, rows.shape))):
        sums = np.add.reduceat(np.add.reduceat(own, edges[:-1], axis=-1), edges[:-1], axis=-2)
        np.testing.assert_allclose(found, sums / np.diff(edges)[:, None], atol=1e-6)


def test_image_and_text_are_modality_parts(run, tmp_path):
    folder, image = vision_language(tmp_path / "llava", "llava"), picture(tmp_path / "picture.png")
    asked = ("spans", "--image", image, "what is on the mat ?", "-m", folder, "--parts", "modality")
    numbers = run.json(*asked)
    sizes = {part["name"]: part["stop"] - part["start"] for part in numbers["parts"]}
    assert [name for name in sizes if "<" not in name] == ["image", "text"]
    for head in numbers["heads"]:
        assert np.array(head["weights"]).sum(-1) == pytest.approx(np.ones(len(sizes)), abs=1e-5)
    assert sizes["image"] == 16  # 4 × 4 patches
    assert "text -> image" in run(*asked, "--pair", "text -> image").out
    assert run(*asked[:5], "-m", folder).code == 2


def test_tiles_of_one_image_are_one_part(run, tmp_path):
    image = ("--image", picture(tmp_path / "picture.png"))
    folder = vision_language(tmp_path / "idefics3", "idefics3")
    given = ("what is on the mat ?", *image, *image, "-m", folder)
    parts = [part["name"] for part in run.json("spans", *given, "--parts", "modality")["parts"]]
    assert [name for name in parts if not name.startswith("<")] == ["image 1", "image 2", "text"]
