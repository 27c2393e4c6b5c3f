"""``attnscope compare``: the numbers of the library, as pictures, JSON, CSV and arrays."""

import json

import numpy as np
import pytest

TEXT = "The cat sat on the mat because it was tired."
OTHER = "The dog sat on the very old mat because it was tired."


def test_a_layer_that_sees_other_tokens_than_the_texts_cannot_be_aligned(run, tmp_path):
    even = {f"encoder.0{layer}": np.full((2, n, n), 1 / n, np.float32) for layer, n in enumerate((6, 3))}
    np.savez(tmp_path / "pooled.npz", **even)
    both = [str(tmp_path / "pooled.npz"), "--with-trace", str(tmp_path / "pooled.npz")]
    refused = run("compare", "--from", *both)
    assert (refused.code, refused.out) == (2, "")
    assert "layer 1 sees 3 × 3 tokens of 6 × 6, which cannot be aligned: choose others" in refused.err
    assert run("compare", "--from", *both, "--layer", "0").code == 0


def numbers(run, *arguments):
    ran = run("compare", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def test_texts_that_are_too_long_for_a_command_to_copy_are_compared_as_others_are(run):
    long = f"{TEXT} {'The dog barked at the moon. ' * 12}"
    other = long.replace("sat", "ran")
    changed = numbers(run, long, "--with-text", other)["heads"]
    assert any(head["change"] for head in changed)
    assert run("compare", long, "--head", "3").out.startswith("4 heads compared")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], {"heads", "distances", "error", "groups", "points"}),
        (["L0H1", "L2H3"], {"heads", "rows", "by_row", "one", "other", "difference", "queries", "keys"}),
        (["--with-text", OTHER], {"heads", "change", "error"}),
        (["--with-text", OTHER, "--head", "1.3"],
         {"heads", "change", "error", "difference", "queries", "keys"}),
        (["--with-model", "own"], {"heads", "others", "distances", "error", "matches"}),
    ],
)  # fmt: skip
def test_arrays_are_saved(run, tmp_path, arguments, names):
    path = tmp_path / "found.npz"
    assert run("compare", TEXT, *arguments, "-o", path).code == 0
    with np.load(path) as found:
        assert set(found.files) == names
        assert found["heads"].shape[1] == 2
        if "difference" in names and "one" in names:
            assert np.array_equal(found["difference"], found["one"] - found["other"])


def test_the_kind_of_attention_stays_in_the_commands_that_are_offered(run, pair_folder):
    target = "A small tokenizer"
    out = run("compare", TEXT, "--second", target, "-m", pair_folder, "--kind", "cross").out
    (line, *_) = (line for line in out.splitlines() if "attnscope compare" in line)
    assert "--kind cross" in line
    one, other = line.split()[-2:]
    found = numbers(run, TEXT, one, other, "--second", target, "-m", pair_folder, "--kind", "cross")
    assert (found["kind"], found["heads"]) == ("cross", [one, other])
