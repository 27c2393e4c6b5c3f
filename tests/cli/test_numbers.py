"""Numbers that are none, or that are far too long, wherever a command takes one."""

import pytest

from attnscope.attention import Head
from attnscope.errors import SelectionError
from attnscope.text import read_number

TEXT = "The cat sat on the mat."
LONG = "9" * 5000
PLACES = [
    ("show", TEXT, "--token", LONG),
    ("show", TEXT, "--layer", LONG),
    ("show", TEXT, "--layers", f"0-{LONG}"),
    ("show", TEXT, "--head", LONG),
    ("show", TEXT, "--head", f"L0H{LONG}"),
    ("show", TEXT, "--head", f"{LONG}.0"),
    ("show", TEXT, "--head", LONG, "--layer", "0"),
    ("ablate", TEXT, "--head", f"L{LONG}H0"),
    ("show", TEXT, "--line", LONG),
    ("show", TEXT, "--line", "9" * 25),
    ("show", TEXT, "--max-tokens", "9" * 25),
    ("logits", TEXT, "--target", LONG),
    ("show", TEXT, "--generate", "9" * 25, "-m", "own-causal"),
    ("show", TEXT, "--from-second", "nan"),
    ("show", TEXT, "--dpi", "nan"),
    ("show", TEXT, "--size", "nan"),
    ("show", TEXT, "--temperature", "1e999"),
    ("show", TEXT, "--temperature", "nan"),
    ("stats", TEXT, "--rows", f"0-{LONG}"),
    ("stats", TEXT, "--where", f"entropy<{LONG}"),
    ("stats", TEXT, "--where", "entropy>nan"),
    ("stats", TEXT, "--where", "entropy<1e999"),
    ("stats", TEXT, "--where", "entropy<1_0"),
    ("stats", TEXT, "--where", f"offset={LONG}>0"),
    ("stats", TEXT, "--sort", f"offset=-{LONG}"),
    ("stats", TEXT, "--top", "9" * 25),
    ("check", f"L0H{LONG}.entropy > 1", "--text", TEXT),
    ("check", f"count(entropy > 1) > {LONG}", "--text", TEXT),
    ("find", f"{LONG} -> cat", TEXT),
    ("find", f"* -> +{LONG}", TEXT),
    ("find", f"cat#{LONG} -> cat", TEXT),
    ("spans", TEXT, "--by", "sentence", "--pair", f"{LONG} -> *"),
    ("compare", TEXT, "--head", LONG),
    ("compare", TEXT, f"L0H{LONG}", "L0H0"),
    ("flow", TEXT, "--layer", LONG),
    ("flow", TEXT, "--token", LONG),
    ("export", TEXT, "--heads", LONG, "-o", "out"),
    ("browse", TEXT, "--layer", LONG),
    ("align", "--audio", "a.wav", "--heads", f"L0H{LONG}"),
    (f"--{LONG}",),
    (LONG,),
]


@pytest.mark.parametrize("typed", PLACES, ids=lambda typed: " ".join(part[:12] for part in typed))
def test_a_number_that_counts_nothing_ends_in_a_sentence_that_can_be_read(run, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = run(*typed)
    assert ended.code == 2
    assert "unexpected" not in ended.err
    assert len(ended.err) < 2000


def test_a_number_is_a_few_ascii_digits():
    assert read_number("007") == 7
    assert [read_number(text) for text in ("", "-1", "+1", "1_0", "٣", "²", "1.0", "1" * 10)] == [None] * 8


def test_a_head_has_a_number_that_can_be_read():
    assert Head("L000000001H3") == Head(1, 3)
    with pytest.raises(SelectionError, match="is not a head"):
        Head("L0H" + "0" * 10_000)
