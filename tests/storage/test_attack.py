"""Files damaged at random: each is read, or refused in one sentence, without end or gigabytes for none."""

import json
import random

import numpy as np
import pytest
from safetensors.numpy import save_file

from attnscope.attention import Head
from attnscope.errors import AttnscopeError
from attnscope.models import load
from attnscope.models.keeping import keep_trace
from attnscope.storage.arrays import read_weights
from attnscope.storage.gold import read_gold
from attnscope.storage.trace import read_trace, write_trace
from tests.tools.attack.hostile import damage

resource = pytest.importorskip("resource", reason="Windows limits no memory")

MOST = 512 << 20  # bytes that all files of a kind may take together


def read_all_weights(path):
    return [weights.values.sum() for layers in read_weights(path).kinds.values() for _, weights in layers]


def read_all_rows(path):
    trace = read_trace(path)
    for call in trace.description.calls:
        head = Head(call.layer, 0, call.kind)
        trace.weights(head), trace.allowed(head)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """A sound file of each form."""
    folder = tmp_path_factory.mktemp("sound")
    rows = np.random.default_rng(0).random((2, 4, 4)).astype(np.float32)
    np.save(folder / "a.npy", rows)
    np.savez(folder / "a.npz", a=rows, tokens=np.array(list("abcd")))
    (folder / "a.json").write_text(json.dumps({"a": rows.tolist()}))
    model = load("own")
    write_trace(keep_trace(model, model.prepare("The cat sat.")), folder / "a.trace")
    save_file({"a": rows}, folder / "a.safetensors")
    (folder / "a.jsonl").write_text('{"text": "The cat sat.", "pairs": [[2, 1, "subject"]]}\n' * 3)
    word = "\t_\t_\t_\t_\t0\troot\t_\tEntity=(e1)\n"
    (folder / "a.conllu").write_text(f"# newdoc\n1\tcat{word}\n1\tdog{word}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "read", "count"),
    [
        (("a.npy", "a.npz", "a.json", "a.safetensors"), read_all_weights, 200),
        (("a.trace",), read_all_rows, 200),
        (("a.jsonl", "a.conllu"), lambda path: list(read_gold(path).entries()), 300),
    ],
)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(names, read, count, seeds, tmp_path):
    chance = random.Random(7)
    sentences: list[str] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for number in range(count):
        sound = seeds / names[number % len(names)]
        path = tmp_path / f"{number}{sound.suffix}"
        path.write_bytes(damage(sound.read_bytes(), chance))
        try:
            read(path)
        except AttnscopeError as error:
            sentences.append(str(error))
        path.unlink()
    assert not [sentence for sentence in sentences if "\n" in sentence]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < MOST
