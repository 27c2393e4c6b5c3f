"""Old spellings are wrong usage, and a sentence says what became of them."""

import pytest

from attnscope.cli.command import RETIRED


@pytest.mark.parametrize("option", [name for name in RETIRED if name.startswith("--")])
def test_a_retired_option_is_answered_with_its_sentence(run, option):
    ran = run("show", "the cat", option).refuses(RETIRED[option])
    assert "no option" not in ran.err


def test_sounds_with_timed_words_are_answered_with_a_sentence(run, tmp_path):
    file = tmp_path / "timed.jsonl"
    file.write_text('\n{"audio": "a.wav", "words": [["The", 0.12, 0.31]]}\n', encoding="utf-8")
    run("find", "--gold", file).refuses(RETIRED["sounds in --gold"])


@pytest.mark.parametrize(
    ("old", "new"), [("span", "effective_keys"), ("spread", "normalized_entropy"), ("sink", "no_key")]
)
@pytest.mark.parametrize("asked", ["--sort {}", "--map {}", "--where {}<1", "--explain {}", "check any.{}<1"])
def test_a_renamed_measure_is_refused_with_its_new_name(run, asked, old, new):
    command, *rest = asked.format(old).split()
    typed = ("check", *rest, "--text", "a cat") if command == "check" else ("stats", "a cat", command, *rest)
    run(*typed).refuses(f"the measure '{old}' is now '{new}'")
