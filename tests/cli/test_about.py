"""The input that JSON answers describe: model, texts and files, by checksum; and the parts of a claim."""

import json
import shlex
from hashlib import sha256
from importlib.metadata import version

import pytest
from tokenizers import Tokenizer

import attnscope
from attnscope.network import folder_of
from attnscope.storage.tensors import read_arrays
from tests.cli.test_schema import WORDS
from tests.models import folders

TEXT = "The cat sat on the mat."


def own_tokens(text: str) -> list[str]:
    """The tokens by the library, which has them in small letters."""
    return Tokenizer.from_file(str(folder_of("own") / "tokenizer.json")).encode(text).tokens


def small(token: str) -> str:
    return token if token.startswith("[") else token.lower()


def of_file(path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def of_folder(folder) -> str:
    """What ``sha256sum * | sha256sum`` prints in it."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return sha256("".join(f"{of_file(path)}  {path.name}\n" for path in files).encode()).hexdigest()


def test_json_input_has_version_model_text_and_tokens(run):
    answer = run.json("stats", TEXT)
    assert [*answer][:3] == ["schema", "attnscope", "input"]
    assert answer["attnscope"] == attnscope.__version__
    found = answer["input"] | {"tokens": [small(token) for token in answer["input"]["tokens"]]}
    assert found == {
        "model": "own",
        "revision": None,
        "checksum": of_folder(folder_of("own")),
        "text": TEXT,
        "sha256": sha256(TEXT.encode()).hexdigest(),
        "token_count": len(own_tokens(TEXT)),
        "tokens": own_tokens(TEXT),
    }
    assert attnscope.load("own").read(TEXT).input == answer["input"] | {"checksum": None}


def test_json_says_options_that_change_numbers_and_versions(run, tmp_path):
    asked = ("show", TEXT, "--head", "L1H3", "--hide-special")
    drawn = ("-o", tmp_path / "a.png", "--size", "2", "--dpi", "40", "--title", "", "--no-cache", "-q")
    answers = run.json(*asked), run.json(*asked, *drawn)
    assert [each["options"] for each in answers] == [{"--head": "L1H3", "--hide-special": True}] * 2
    assert answers[0]["versions"] == {name: version(name) for name in ("torch", "transformers")}
    assert run.json("stats", TEXT)["options"] == {}
    assert run.json("stats", TEXT, "--top", "3", "--where", "entropy<1")["options"] == {
        "--top": 3, "--where": "entropy<1",
    }  # fmt: skip


@pytest.mark.parametrize("suffix", ["json", "npz", "safetensors"])
def test_file_of_layers_begins_as_json_does(run, tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    run("show", TEXT, "--words", "-o", path)
    arrays, description = read_arrays(path)
    answer = run.json("show", TEXT, "--head", "L0H0", "--words")
    assert len(arrays) >= 4
    for name in ("attnscope", "input", "versions"):
        assert description[name] == answer[name]
    assert description["options"] == {"--words": True}


@pytest.mark.parametrize("length", [1000, 1001])
def test_long_text_is_identified_by_hash(run, length):
    text = ("naïve cats sat on mats " * 99)[: length - 1] + "."
    found = run.json("show", "--head", "L0H0", text)["input"]
    assert len(text) == length
    assert found.get("text") == (text if length == 1000 else None)
    assert found["sha256"] == sha256(text.encode()).hexdigest()
    assert found["token_count"] == len(own_tokens(text)) > 64
    assert "tokens" not in found


def test_json_input_has_both_texts_of_a_pair(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path))
    for second in ("It slept.", "It slept. " * 120):
        found = run.json("stats", TEXT, "--second-text", second)["input"]
        assert found == run.json("stats", TEXT, "--second-text", second)["input"]  # from the cache
        assert (found["text"], found.get("second_text")) == (TEXT, second if len(second) < 1000 else None)
        assert found["sha256"] == sha256(f"{TEXT}\t{second}".encode()).hexdigest()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(
    "words", ["stats", "check any.self>0", "ablate", "track {own} --measure self", "compare"]
)
def test_json_input_has_corpus_checksum_and_size(run, tmp_path, words, folder):
    texts = [TEXT, "It slept.", "A dog saw it."]
    corpus = tmp_path / ("corpus" if folder else "corpus.txt")
    if folder:
        corpus.mkdir()
        for number, text in enumerate(texts):
            (corpus / f"{number}.txt").write_text(text)
    else:
        corpus.write_text("\n".join(texts))
    command, *more = words.format(own=folder_of("own")).split()
    found = json.loads(run(command, *more, "--texts", corpus, "--json").out)["input"]
    assert found["files"] == {str(corpus): of_folder(corpus) if folder else of_file(corpus)}
    if command != "track":  # its checkpoints may come from a log, and then nothing is read
        assert (found["texts"], found["token_count"]) == (3, sum(len(own_tokens(text)) for text in texts))
    assert not {"text", "tokens"} & {*found}


OTHERS = {  # the files that are told, and the other input
    "compare TEXT --with-text OTHER": ([], {"text": WORDS["OTHER"]}),
    "patch TEXT --with-text OTHER": ([], {"text": WORDS["OTHER"]}),
    "compare TEXT --with-model own": ([], {"text": WORDS["TEXT"], "model": "own"}),
    "show --image a.png -m ./vit": (["a.png"], None),
    "align tone.wav TEXT -m ./whisper": (["tone.wav"], None),
    "circuit pairs.tsv -m own-causal": (["pairs.tsv"], None),
    "find --gold pairs.txt --alignments links.txt -m ./t5": (["pairs.txt", "links.txt"], None),
    "logits '{A} saw a' --prompts names.tsv -m own-causal": (["names.tsv"], None),
    "show --from heads.npz": (["heads.npz"], None),
    "show --from kept.trace": (["kept.trace"], None),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("asked", OTHERS)
def test_json_input_has_files_and_the_other_side(run, place, monkeypatch, asked):
    monkeypatch.chdir(place)
    if "kept.trace" in asked:
        run("show", TEXT, "--save-trace", "kept.trace")
    answer = run.json(*(WORDS.get(word, word) for word in shlex.split(asked)))
    (files, other), found = OTHERS[asked], answer["input"]
    assert found.get("files", {}) == {name: of_file(place / name) for name in files}
    assert ("--from" in asked) == (found["checksum"] is None)
    assert ("other_input" in answer) == (other is not None)
    for name, value in (other or {}).items():
        assert answer["other_input"][name] == value
    if "kept.trace" in asked:
        assert (found["text"], [*map(small, found["tokens"])]) == (TEXT, own_tokens(TEXT))
    if "--prompts" in asked:
        assert found["text"] == "{A} saw a"


def test_hub_model_has_its_commit_as_revision(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub, commit = tmp_path / "models--someone--gpt", "0123456789" * 4
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text(commit)
    folders.gpt2(hub / "snapshots" / commit)
    for _ in range(2):  # from the model, then from the cache
        found = run.json("stats", TEXT, "-m", "someone/gpt", "--offline")["input"]
        assert (found["revision"], found["checksum"]) == (commit, None)


def test_user_code_has_no_checksum(run, tmp_path):
    (tmp_path / "model.py").write_text("from attnscope.models import load\n\nmodel = load('own').module\n")
    found = run.json("stats", TEXT, "-m", f"{tmp_path}/model.py:model")["input"]
    assert (found["revision"], found["checksum"]) == (None, None)


CLAIMS = {  # operator and threshold, and whether a head decides
    "L2H1.previous > 0.5": (">", 0.5, True),
    "any.self >= 0.25": (">=", 0.25, True),
    "all.entropy < 1": ("<", 1.0, True),
    "L2H1.role = previous": ("=", "previous", True),
    "any.role = previous": ("=", "previous", False),
    "count(previous > 0.5) != 2": ("!=", 2, False),
}


def test_claim_json_has_score_head_operator_and_threshold(run, tmp_path):
    (tmp_path / "two.txt").write_text(f"{TEXT}\nA dog saw it.\n")
    heads = run.json("stats", "--texts", tmp_path / "two.txt")["heads"]
    scores = {f"encoder L{each['layer']}H{each['head']}": each["scores"] for each in heads}
    answer = json.loads(run("check", *CLAIMS, "--texts", tmp_path / "two.txt", "--json").out)
    deciding = {"any.self >= 0.25": max(scores, key=lambda head: scores[head]["self"]["value"])}
    deciding |= {"all.entropy < 1": max(scores, key=lambda head: scores[head]["entropy"]["value"])}
    for each, (claim, (operator, threshold, headed)) in zip(answer["claims"], CLAIMS.items(), strict=True):
        assert (each["claim"], each["operator"], each["threshold"]) == (claim, operator, threshold)
        head = deciding.get(claim, "encoder L2H1") if headed else None
        name = claim.partition(".")[2].partition(" ")[0]
        score = scores[head][name] if head and name != "role" else {"value": None, "error": None}
        if claim.startswith("count"):
            score["value"] = sum(each["previous"]["value"] > 0.5 for each in scores.values())
        assert (each["head"], each["value"], each["error"]) == (head, score["value"], score["error"]), claim


def test_snapshot_has_versions_texts_roles_and_changes(run, tmp_path):
    corpus, kept = tmp_path / "corpus.txt", tmp_path / "kept.json"
    corpus.write_text(f"{TEXT}\n")
    run("check", "--texts", corpus, "--save-snapshot", kept)
    saved = json.loads(kept.read_text())
    assert saved["texts"] == [of_file(corpus)]
    assert {*saved["versions"]} == {"attnscope", "torch", "transformers"}
    heads = {f"encoder L{h['layer']}H{h['head']}": h for h in run.json("stats", "--texts", corpus)["heads"]}
    assert {name: head["role"] for name, head in saved["heads"].items()} == {
        name: head["role"] and head["role"]["name"] for name, head in heads.items()
    }
    saved["heads"]["encoder L0H0"]["previous"] += 0.04
    kept.write_text(json.dumps(saved))
    ran = run("check", "--texts", corpus, "--with-snapshot", kept)
    assert (ran.code, " ".join(ran.out.split())) == (
        0,
        "ok snapshot all within 0.05; largest 0.04, encoder L0H0.previous",
    )
    saved["heads"]["encoder L0H1"]["role"] = "sink"
    kept.write_text(json.dumps(saved))
    answer = json.loads(run("check", "--texts", corpus, "--with-snapshot", kept, "--json").out)
    now = heads["encoder L0H1"]["role"]["name"]
    assert answer["changes"] == [{"head": "encoder L0H1", "measure": "role", "before": "sink", "now": now}]
    assert (answer["holds"], answer["notes"]) == (False, [])
    other = " ".join(run("check", TEXT, "--with-snapshot", kept).out.split())
    assert "1 role changed" in other
    assert f"sha256 {of_file(corpus)} there, {sha256(TEXT.encode()).hexdigest()} here" in other
