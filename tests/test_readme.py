"""The README shows real output."""

import ast
import re
import shlex

import pytest

from attnscope.cli import build
from tests.tools import readme
from tests.tools.tutorials.__main__ import NAMES, SAMPLES

SAMPLED = [
    found[1] for name in NAMES for found in readme.BLOCK.finditer((SAMPLES / f"{name}.md").read_text("utf-8"))
]
"""The commands of the tutorials."""

ROOMS = sorted((readme.ROOT / "attnscope").rglob("*.md")) + sorted((readme.ROOT / "tests").rglob("*.md"))


@pytest.mark.parametrize(("command", "expected"), list(readme.examples()), ids=lambda text: text[:60])
def test_readme_command_prints_the_documented_output(command, expected):
    difference = readme.difference(expected, readme.output(command))
    assert difference is None, difference


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        *(
            ("entropy 0.14 nats", f"entropy {other} nats", other == "0.15")
            for other in ("0.15", "0.16", "0.140")
        ),
        *(("L2H1  ░▓█", "L2H1  ▒▓▓", True), ("L2H1  ░▓█", "L2H1  ▓▓█", False), ("one\ntwo", "one", False)),
        *(("cat ██▋", "cat ██▊", True), ("cat ██▋", "cat ████", False), ("4 layers", "5 layers", False)),
    ],
)
def test_readme_comparison_uses_numbers_and_shade_levels(expected, printed, same):
    assert (readme.difference(expected, printed) is None) == same


@pytest.mark.parametrize("command", readme.mentions() + SAMPLED)
def test_options_in_readme_and_tutorials_exist(command):
    words = shlex.split(command)
    words = words[words.index("attnscope") + 1 :]
    words = words[: words.index("|")] if "|" in words else words
    parameters = build(words[0]).params
    known = {name for parameter in parameters for name in parameter.opts}
    assert {word for word in words if re.match("--?[a-z]", word)} <= known


def test_files_named_in_documents_exist():
    for document in (*readme.DOCUMENTS, *ROOMS):
        text = document.read_text("utf-8")
        for name in re.findall(r"(?:sample_inputs|\.pictures)/[\w.]+", text):
            assert (readme.ROOT / name).is_file(), name
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert "://" in link or (document.parent / link).exists(), f"{document} names {link}"


def test_readme_python_cell_ends_in_a_picture():
    (code,) = re.findall(r"```python\n(.*?)```", readme.README.read_text("utf-8"), re.S)
    *lines, last = ast.parse(code).body
    names = {}
    exec(compile(ast.Module(lines, []), "README.md", "exec"), names)
    shown = eval(compile(ast.Expression(last.value), "README.md", "eval"), names)
    page = shown._repr_mimebundle_()[0]["text/html"]
    assert re.match(r'<img alt="own · [^"]+" src="data:image/png;base64,', page)
    assert "attends to the previous token" in page
    assert "run.head(&quot;L2H1&quot;)" in page


def test_readme_is_short_with_output_and_setup_commands():
    assert len(readme.README.read_text("utf-8").splitlines()) <= 200
    assert len(list(readme.examples())) >= 3
    assert re.findall("^pip install .*", readme.README.read_text("utf-8"), re.M) == [
        'pip install torch==2.13.0 . && attnscope show "The cat sat on the mat because it was tired."',
        "pip install torch==2.13.0 -e '.[test]' && pytest",
    ]
