"""The commands that change a pass: cut and patch."""

import json

import pytest

TEXT = "The cat sat on the mat"


@pytest.mark.parametrize(
    "command", [("cut", "on -> cat"), ("patch", "--with-text", "The dog sat on the mat")]
)
def test_both_commands_print_a_map_a_table_json_and_csv(run, tmp_path, command):
    name, *more = command
    asked = [name, *more[:1], TEXT] if name == "cut" else [name, TEXT, *more]
    asked += ["-m", "own-causal"]
    shown = run(*asked)
    assert shown.code == 0
    assert "at once" in shown.out
    answer = json.loads(run(*asked, "--json").out)
    assert answer["schema"] == f"urn:attnscope:{name}:1"
    assert len(answer["heads"]) == 12
    lines = run(*asked, "--csv").out.splitlines()
    assert lines[0] == "kind,layer,head,effect,score,divergence"
    assert len(lines) == 13
    assert run(*asked, "-o", tmp_path / "map.png").code == 0
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_an_edge_is_set_to_its_mean_over_a_corpus(run, tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text("The dog sat on the cat\n\nThe man slept\nThe cat is on\n")
    shown = run("cut", "on -> cat", TEXT, "-m", "own-causal", "--how", "mean", "--texts", file)
    assert "set to its mean over 1 text)" in " ".join(shown.out.split())
    assert "set to its mean" not in run("cut", "on -> cat", TEXT, "-m", "own-causal").out


def test_a_text_that_a_mean_leaves_out_is_named(run, tmp_path):
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"text": "The dog sat on the cat"}\n{"words": "none"}\n')
    shown = run("cut", "on -> cat", TEXT, "-m", "own-causal", "--how", "mean", "--texts", file)
    assert "skipped line 2: no field 'text'" in shown.err


OTHER = ["--with-text", "The dog sat on the mat"]


@pytest.mark.parametrize(
    ("asked", "count", "header"),
    [
        (["--by", "token"], 3 * 8, "kind,layer,position,token,effect,score,divergence"),
        (["--head", "L0H1,L0H2", "--to", "L2H3:q"], 2, "kind,layer,head,effect,score,divergence"),
        (["--to", "logits", "--noise"], 12, "kind,layer,head,effect,score,divergence"),
        (["--fast", "--exact"], 12, "kind,layer,head,effect,score,divergence,estimate"),
    ],
)
def test_a_patch_by_token_along_a_path_or_estimated_prints_what_it_found(run, tmp_path, asked, count, header):
    asked = ["patch", TEXT, *OTHER, "-m", "own-causal", *asked]
    shown = run(*asked)
    assert shown.code == 0
    assert "recovered" in shown.out
    assert json.loads(run(*asked, "--json").out)["schema"] == "urn:attnscope:patch:1"
    first, *lines = run(*asked, "--csv").out.splitlines()
    assert (first, len(lines)) == (header, count)
    assert run(*asked, "-o", tmp_path / "map.svg").code == 0


def test_a_file_of_pairs_is_averaged_with_standard_errors(run, tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("The cat sat on the\tThe dog sat on the\tmat\tdoor\nThe cat is\tThe dog is\ta\tthe\n")
    shown = run("patch", "--pairs", file, "-m", "own-causal")
    assert "2 pairs of texts" in shown.out
    answer = json.loads(run("patch", "--pairs", file, "-m", "own-causal", "--json").out)
    assert all(each["error"] >= 0 for each in answer["heads"])
    file.write_text("The cat sat on the\tThe dog sat on the\nThe cat\tThe elephantine\n")
    failed = run("patch", "--pairs", file, "-m", "own-causal")
    assert "pair 2: the texts differ in their number of tokens" in failed.err
    assert "'elephantine' 4 pieces" in " ".join(failed.err.split())


@pytest.mark.parametrize(
    "asked",
    [
        ["cut", "{B} -> {A}"],
        ["patch", "--with-text", "The {B} saw the {A} and the", "--against", "{B}"],
        ["ablate", "--head", "L0H0,L1H2"],
    ],
)
def test_prompts_of_a_template_are_averaged_with_standard_errors(run, tmp_path, asked):
    (tmp_path / "words.tsv").write_text("A\tB\ncat\tdog\nman\tcat\n")
    more = ["The {A} saw the {B} and the", "--prompts", tmp_path / "words.tsv", "--target", "{A}"]
    answer = json.loads(run(*asked, *more, "-m", "own-causal", "--json").out)
    assert answer["schema"] == f"urn:attnscope:{asked[0]}:1"
    assert len(answer["heads"]) == (2 if asked[0] == "ablate" else 12)
    assert all(each["error"] >= 0 for each in answer["heads"])
    named = {"cut": "cut {B} -> {A}", "patch": "2 pairs of texts", "ablate": "set heads to zero"}[asked[0]]
    assert named in " ".join(run(*asked, *more, "-m", "own-causal").out.split())
