"""A model folder is the text of its author: its name and its vocabulary steer nothing."""

import shutil

import pytest
import transformers
from tokenizers import processors

from tests.models.folders import gpt2
from tests.test_text import steering

EVIL = (
    "$\\frac{1}{0}$ \\unknown{"  # a formula
    "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e"  # what a terminal obeys
    "[bold red][/][link=http://x]"  # markup
    "</script><script>alert(1)</script><img src=x onerror=alert(1)>"  # code in a page
    "{0} %s %(x)d {{"  # a format
)
VIEWS = [
    ["show"],
    ["show", "--plain"],
    ["show", "--head", "L1H1"],
    ["show", "--token", "0"],
    ["show", "--json"],
    ["stats"],
    ["stats", "--csv"],
    ["stats", "--json"],
]


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A model whose name, and the special token before every text, are hostile."""
    token = EVIL
    made = gpt2(tmp_path_factory.mktemp("made"), vocab_size=500)
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    tokenizer.add_special_tokens({"cls_token": token})
    start = {"id": "S", "ids": [tokenizer.cls_token_id], "tokens": [token]}
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(["S", "$A"], None, [start])
    folder = tmp_path_factory.mktemp("evil") / token.replace("/", "|")
    shutil.copytree(made, folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_no_name_and_no_token_steers_a_terminal(run, evil, view):
    ran = run(*view, "-m", evil, "The cat sat.")
    assert ran.code == 0, ran.err
    assert not steering(ran.out + ran.err)


def test_info_says_what_it_says(run, evil):
    ran = run("info", evil)
    assert ran.code == 0
    assert not steering(ran.out + ran.err)


def test_no_token_and_no_name_becomes_code_in_a_page(run, evil, tmp_path):
    assert run("show", "-m", evil, "The cat sat.", "-o", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<script>alert" not in page
    assert "<img src=x" not in page
