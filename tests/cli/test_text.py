"""A text from an argument, a file or standard input, and what is wrong with one that cannot be read."""

import io

import click
import pytest

from attnscope.cli.options import SourceOptions
from attnscope.cli.source import read_text
from attnscope.errors import InputError


def read(text, second_text, file, line):
    return read_text(SourceOptions(text=text, second_text=second_text, file=file, line=line))


@pytest.fixture
def written(tmp_path):
    def write(content: bytes):
        path = tmp_path / "text.txt"
        path.write_bytes(content)
        return path

    return write


def test_an_argument_is_the_text_and_a_second_one_its_pair():
    assert read("one", None, None, None) == ("one", None)
    assert read("one", "two", None, None) == ("one", "two")


def test_a_file_is_read_without_its_last_newline_or_byte_order_mark(written):
    assert read(None, None, written("\ufeffSchrödinger\nagain\n".encode()), None) == (
        "Schrödinger\nagain",
        None,
    )


def test_a_dash_reads_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
    assert read("-", None, None, None) == ("from a pipe", None)


def test_one_line_can_be_picked_and_a_tab_in_it_parts_a_pair(written):
    path = written(b"first\nleft\tright\n")
    assert read(None, None, path, 1) == ("first", None)
    assert read(None, None, path, 2) == ("left", "right")


LATIN = "cafe\u00e9".encode("latin-1")
UNREAD = [  # a text, a second one, what is in a file, a line of it, and what is said
    ("  ", None, None, None, "the text is empty: give at least one word"),
    ("one", "", None, None, "the second text is empty"),
    ("caf\udce9", None, None, None, "the text is not UTF-8"),
    (None, None, None, None, "give a text, --file FILE, or -"),
    ("text", None, b"text", None, "not both"),
    (None, None, b"", None, r"the text is empty: .*text\.txt: give at least one word"),
    (None, None, b" \n\t\n", None, r"the text is empty: .*text\.txt: give at least one word"),
    (None, None, LATIN, None, "is not UTF-8 text: byte 4 is 0xe9"),
    *((None, None, b"a\nb\n", line, "the input has lines 1 to 2") for line in (0, 3, -1)),
]


@pytest.mark.parametrize(("text", "second", "content", "line", "sentence"), UNREAD)
def test_what_cannot_be_read_is_said(written, text, second, content, line, sentence):
    file = None if content is None else written(content)
    with pytest.raises((InputError, click.BadParameter), match=sentence):
        read(text, second, file, line)


def test_what_is_no_file_is_named(tmp_path):
    for file, sentence in (
        (tmp_path / "nothing.txt", r"no such file: .*nothing\.txt"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(InputError, match=sentence):
            read(None, None, file, None)


def test_a_closed_standard_input_is_a_sentence(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed: give a text, or --file FILE"):
        read("-", None, None, None)


def test_a_path_that_is_given_as_a_text_asks_whether_the_file_was_meant(written, monkeypatch):
    path = str(written(b"words"))
    with pytest.raises(InputError, match=r"is a file: did you mean --file .*text\.txt\?"):
        read(path, None, None, None)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.encode())))
    assert read("-", None, None, None) == (path, None)
    assert read("nothing.txt", None, None, None) == ("nothing.txt", None)
