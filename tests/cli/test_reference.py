"""Which command has which option, and the page that lists them."""

import pytest

from attnscope.cli.commands import NAMES
from tests.tools.command_reference import MANUAL, README, manual, page, rows

OPTIONS = {
    name: {word.spelling.split()[0].rstrip(","): word for word in rows(name).values()} for name in NAMES
}
LOOKING = {"show", "find", "spans", "flow", "stats", "compare", "browse", "export", "info", "check"}
"""The commands that look at a model's attention on a text."""

SOURCES = (
    "-f --line --from --image --inputs --max-tokens --truncate "
    "--generate --temperature --seed --chat --system"
)
MODELS = (
    "-m --tokenizer --device --device-map --dtype --revision --trust-remote-code --allow-pickle --offline"
)
EVERYWHERE = {
    SOURCES: LOOKING,
    MODELS: LOOKING,
    "--kind": LOOKING - {"info"},
    "--layer": LOOKING - {"info"},
    "--json": LOOKING - {"browse"},
    "--csv": {"stats", "compare"},
    "--texts --field --limit": {"stats", "compare", "check"},
    "--strict --checkpoint": {"stats", "check"},
    "--cmap --dpi --size --font": {"show", "find", "spans", "flow", "stats", "compare", "browse", "export"},
    "--plain": {"show", "find", "spans", "flow", "stats", "compare"},
    "--words --hide-special": {"show", "flow", "compare", "browse", "export"},
    "--scale": {"show", "flow", "browse", "export"},
    "-o": {"show", "find", "spans", "flow", "stats", "compare", "browse", "export", "train"},
}


@pytest.mark.parametrize(
    ("option", "names"), [(option, names) for each, names in EVERYWHERE.items() for option in each.split()]
)
def test_an_option_stands_in_every_command_where_it_makes_sense(option, names):
    assert {name for name, options in OPTIONS.items() if option in options} & (LOOKING | {"train"}) >= names


@pytest.mark.parametrize("option", sorted({option for options in OPTIONS.values() for option in options}))
def test_an_option_means_the_same_in_each_command_that_looks(option):
    words = [OPTIONS[name][option].spelling for name in LOOKING if option in OPTIONS[name]]
    values = {word.split(", ")[-1].partition(" ")[2] for word in words}
    # what is compared with: the figures in a file in check, another word in logits
    assert len(values) <= 1 + (option == "--against"), f"{option} takes {values}"


def test_the_help_begins_with_what_people_use_most():
    often = [option for option, word in OPTIONS["show"].items() if word.panel == "Options"]
    assert often == [
        "-f", "--from", "--layer", "--head", "--token",
        "--words", "--hide-special", "--scale", "--json", "-o", "-m",
    ]  # fmt: skip


@pytest.mark.parametrize(("file", "text"), [(README, page()), (MANUAL, manual())], ids=["page", "manual"])
def test_page_and_manual_are_what_the_code_says(file, text):
    assert file.read_text("utf-8") == text, "write it anew: python -m tests.tools.command_reference"
