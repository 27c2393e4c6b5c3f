"""Files for the recorded commands: tensors, images, texts, weights, the same bytes wherever they are made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

LINES = [
    "The cat sat on the mat because it was tired.",
    "A small tokenizer wants only a few lines to learn from, and these are some of them.",
    "Attention heads look at words, and words look back; the dog sat under the old tree.",
    "On Monday the ferryman rang the little brass bell that hangs by the landing.",
]

MODULE = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (y.view(*x.shape[:2], 4, 8).transpose(1, 2) for y in self.qkv(x).split(32, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.blocks = nn.Embedding(9000, 32), nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(32, 9000)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, queries, keys):
        return self.attend(queries, keys, keys)[0]


def breaks():
    raise ValueError("no weights here")


number = 3
"""

API = """
import sys
import warnings

import torch

import attnscope

warnings.simplefilter("ignore")
model = attnscope.load(sys.argv[1])
run = model.read("The cat sat on the mat.")
print(run, run.head("L1H1"), run.token("on"), run.stats(), run.compare(), sep="\\n")
print(run.head("L1H1").weights.tolist())
run.save("cat.trace")
print(attnscope.open("cat.trace").head("L1H1"))
print(all(getattr(attnscope, name) for name in attnscope.__all__))
"""


def make_files(folder: Path) -> None:
    """A module of one's own, tensors, images, texts in every form of a corpus, weights of other tools."""
    random, (rows, columns) = np.random.default_rng(0), np.mgrid[0:48, 0:80]
    folder.mkdir()
    (folder / "module.py").write_text(MODULE)
    (folder / "api.py").write_text(API)
    tensors = {name: torch.from_numpy(random.normal(size=(1, count, 16)).astype(np.float32))
               for name, count in (("queries", 3), ("keys", 7))}  # fmt: skip
    save_file(tensors, folder / "tensors.safetensors")
    np.savez(folder / "tensors.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
    torch.save(tensors, folder / "tensors.pt")
    np.savez(folder / "numbered.npz", *(tensor.numpy() for tensor in tensors.values()))
    np.savez(folder / "unknown.npz", values=np.zeros(3, np.float32))
    pixels = np.stack([columns * 255 // 80, rows * 255 // 48, np.zeros_like(rows)], -1)
    pixels[:12, :20] = (0, 0, 255)
    image = Image.fromarray(pixels.astype(np.uint8))
    image.save(folder / "corner.png")
    image.convert("L").save(folder / "grey.bmp")
    texts = [*LINES, "", "One more, with “quotes” and — dashes."]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    other = [*(json.dumps({"said": text}) for text in LINES), "no json", '{"text": "a"}', '{"said": 3}']
    (folder / "faults.jsonl").write_text("\n".join(other))
    (folder / "bytes.txt").write_bytes(b"The cat sat.\nThe d\xe9g sat.\n\nThe dog sat on the mat.\n")
    (folder / "empty.txt").write_text("\n  \n")
    (folder / "evil.txt").write_text("The \x1b[31mcat\x1b[0m sat on $x^2$ <b>and</b> [bold]looked[/bold].\n")
    (folder / "folder" / "inside").mkdir(parents=True)
    for number, text in enumerate(LINES):
        (folder / "folder" / ("inside" if number % 2 else "") / f"{number}.txt").write_text(text)
    try:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": texts, "said": LINES + LINES[:2]}),
                            folder / "texts.parquet")  # fmt: skip
    except ImportError:
        pass
    scores = random.normal(size=(2, 3, 6, 6))
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.save(folder / "layers.npy", weights.astype(np.float32))
    named = {f"layer{number}": each for number, each in enumerate(weights.astype(np.float32))}
    np.savez(folder / "named.npz", **named, tokens=np.array(list("abcdef")))
    save_file({name: torch.from_numpy(each) for name, each in named.items()}, folder / "named.safetensors")
    (folder / "layers.json").write_text(json.dumps(weights[:, None].round(4).tolist()))
    np.savez(folder / "negative.npz", scores)
    np.savez(folder / "nan.npz", layer0=np.where(scores[0] > 1, np.nan, weights[0]))
    np.savez(folder / "causal.npz", layer0=(tril := np.tril(weights[0])) / tril.sum(-1, keepdims=True))
    (folder / "broken.npz").write_bytes((folder / "named.npz").read_bytes()[:200])
    (folder / "broken.json").write_text('{"layer0": [[1, ')
