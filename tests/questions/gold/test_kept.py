"""A run over a file of questions goes on from its checkpoint; several processes have the answers of one."""

import hashlib
import json

import pytest

from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.corpus import CorpusRun
from attnscope.questions.gold import find_gold
from attnscope.questions.selection import Selection
from attnscope.storage.gold import read_gold
from tests.questions.corpus.test_processes import launch
from tests.questions.gold import treebank


@pytest.fixture(scope="module")
def model():
    return load("own")


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """The treebank three times over, so that it has batches of several texts."""
    file = tmp_path_factory.mktemp("bank") / "small.conllu"
    file.write_text(treebank.conllu() * 3, "utf-8")
    return file


@pytest.mark.parametrize(
    ("window", "held_out"), [(4, False), (100, True)], ids=["between windows", "within one, held out"]
)
def test_a_run_that_stops_goes_on_to_the_very_same_figures(
    model, bank, tmp_path, monkeypatch, window, held_out
):
    monkeypatch.setattr("attnscope.questions.corpus.WINDOW_TEXTS", window)
    monkeypatch.setattr("attnscope.questions.corpus.EVERY", 0.0)
    whole = find_gold(model, read_gold(bank), held_out=held_out)
    kept = tmp_path / "sums.json"

    def stop(progress):
        if progress.texts > 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_gold(model, read_gold(bank), held_out=held_out, run=CorpusRun(checkpoint=kept, watch=stop))
    assert 0 < json.loads(kept.read_text())["state"]["progress"]["texts"] <= 6
    seen = []
    run = CorpusRun(checkpoint=kept, watch=lambda progress: seen.append(progress.texts))
    assert find_gold(model, read_gold(bank), held_out=held_out, run=run) == whole
    assert min(seen) > 4
    again = CorpusRun(checkpoint=kept, watch=lambda progress: pytest.fail("a pass ran"))
    assert find_gold(model, read_gold(bank), held_out=held_out, run=again) == whole


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "own-causal"}, "another model"),
        ({"relations": ("nsubj",)}, "another set of relations"),
        ({"selection": Selection(layers=(1,))}, "another selection of heads"),
        ({"limit": 3}, "another limit"),
        ({"text": "another"}, "another file of questions"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(model, bank, tmp_path, change, sentence):
    kept, file = tmp_path / "sums.json", tmp_path / "bank.conllu"
    file.write_text(treebank.conllu(), "utf-8")
    find_gold(model, read_gold(file), run=CorpusRun(checkpoint=kept))
    other = load(change.pop("model")) if "model" in change else model
    if change.pop("text", None):
        file.write_text(treebank.conllu() * 2, "utf-8")
    run = CorpusRun(checkpoint=kept, limit=change.pop("limit", None))
    with pytest.raises(InputError, match=f"belongs to a run with {sentence}"):
        find_gold(other, read_gold(file), run=run, **change)


@pytest.fixture(scope="module")
def checkpoint(model, bank, tmp_path_factory):
    """What a run over three questions keeps."""
    kept = tmp_path_factory.mktemp("kept") / "sums.json"
    find_gold(model, read_gold(bank), run=CorpusRun(checkpoint=kept, limit=3))
    return kept.read_bytes()


LIES = {
    "no sums": lambda sums: sums.pop("sums"),
    "no slots": lambda sums: sums.update(slots=[]),
    "a slot twice": lambda sums: sums["slots"].append(sums["slots"][0]),
    "a third direction": lambda sums: sums["slots"].append(["nsubj", 2]),
    "lost pairs below none": lambda sums: sums.update(lost=-1),
    "a kind that does not exist": lambda sums: sums.update(skipped=["sideways"]),
    "labels that are numbers": lambda sums: sums.update(others=[1]),
    "heads that are texts": lambda sums: sums["sums"][0].update(heads=["0"]),
    "no heads": lambda sums: sums["sums"][0].update(heads=[]),
    "fewer heads than sums": lambda sums: sums["sums"][0].update(heads=[0]),
    "ragged sums": lambda sums: sums["sums"][0]["table"][0].pop(),
    "a site of another kind": lambda sums: sums["sums"][0]["site"].update(kind="sideways"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_checkpoint_that_was_tampered_with_is_refused_though_its_checksum_fits(
    model, bank, checkpoint, tmp_path, lie
):
    kept, content = tmp_path / "sums.json", json.loads(checkpoint)
    LIES[lie](content["state"]["sums"])
    content["sha256"] = hashlib.sha256(json.dumps([content["of"], content["state"]]).encode()).hexdigest()
    kept.write_text(json.dumps(content))
    with pytest.raises(InputError, match="holds sums that this command never wrote: delete it"):
        find_gold(model, read_gold(bank), run=CorpusRun(checkpoint=kept, limit=3))


@pytest.mark.nightly
@pytest.mark.subprocess
def test_two_processes_print_the_table_of_one(bank, run):
    asked = ("find", "--gold", bank, "--relation", "nsubj,obj", "--json")
    shared = launch("attnscope", *asked)
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout == run(*asked).out
    assert json.loads(shared.stdout)["labels"]
