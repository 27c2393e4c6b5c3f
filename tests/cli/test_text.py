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


@pytest.mark.parametrize("line", [0, 3, -1])
def test_a_line_that_does_not_exist_is_met_with_those_that_do(written, line):
    with pytest.raises(InputError, match="the input has lines 1 to 2"):
        read(None, None, written(b"a\nb\n"), line)


@pytest.mark.parametrize("content", [b"", b" \n\t\n"])
def test_an_empty_file_is_named(written, content):
    with pytest.raises(InputError, match=r"the text is empty: .*text\.txt: give at least one word"):
        read(None, None, written(content), None)


def test_an_empty_argument_is_refused():
    with pytest.raises(InputError, match="the text is empty: give at least one word"):
        read("  ", None, None, None)
    with pytest.raises(InputError, match="the second text is empty"):
        read("one", "", None, None)


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no such file: .*nothing\.txt"):
        read(None, None, tmp_path / "nothing.txt", None)


def test_a_folder_is_no_text(tmp_path):
    with pytest.raises(InputError, match="is a folder: give a text file"):
        read(None, None, tmp_path, None)


def test_bytes_that_are_not_utf8_are_pointed_at(written):
    with pytest.raises(InputError, match="is not UTF-8 text: byte 4 is 0xe9"):
        read(None, None, written("caf\u00e9".encode("latin-1").replace(b"caf", b"cafe")), None)


def test_an_argument_of_stray_bytes_is_refused_before_a_tokenizer_sees_it():
    with pytest.raises(InputError, match="the text is not UTF-8"):
        read("caf\udce9", None, None, None)


def test_a_text_and_a_file_at_once_is_wrong_usage(written):
    with pytest.raises(click.BadParameter, match="not both"):
        read("text", None, written(b"text"), None)
    with pytest.raises(click.BadParameter, match="give a text, --file FILE, or -"):
        read(None, None, None, None)


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
