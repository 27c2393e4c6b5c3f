"""The kinds of hostile input: each a hypothesis property that any input of the kind must hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.tools.fuzz.attempt import attempt

NASTY = (
    "\x00", "\x1b[31m", "\x1b]0;title\x07", "\r", "\b", "\u202e", "\u200d", "\ufeff", "\ud800",
    "\udcff", "[bold red]", "[/]", "$\\frac{1}{0}$", "<script>alert(1)</script>", "&lt;", "</style>",
    "{}", "%s", "[MASK]", "[CLS]", "[SEP]", "\U0001f469\u200d\U0001f467", "\u6f22", "\u0646",
    "\u0301" * 50, "\t", "\n", "\x85", "\u2028", "..", "/", "~", "-", "--", "'", '"', "\\",
)  # fmt: skip

character = st.characters() | st.characters(categories=["Cs", "Cc", "Cf", "Co", "Mn", "Lo"])
piece = st.sampled_from(NASTY) | st.text(character, min_size=1, max_size=12)
text = st.builds(
    lambda pieces, times: ("".join(pieces) * times)[:5000],
    st.lists(piece, min_size=1, max_size=30),
    st.sampled_from([1, 1, 1, 1, 3, 40]),
)


def told(value: str) -> str:
    """A text as a command line can hand it over: no NUL, and surrogates only for bytes that are no UTF-8."""
    return "".join(char for char in value if char != "\0" and not "\ud800" <= char < "\udc80") or " "


def texts(data: Any, folder: Path) -> None:
    """Any Unicode as an argument, as a file, or as standard bytes, in every view of it."""
    value = data.draw(text, "text")
    view = data.draw(
        st.sampled_from(
            [[], ["--words"], ["--hide-special"], ["--json"], ["--head", "L1H1"], ["--token", "1"], ["stats"]]
        ),
        "view",
    )
    command, view = ("stats", []) if view == ["stats"] else ("show", view)
    if data.draw(st.booleans(), "as a file"):
        (folder / "text.txt").write_bytes(value.encode("utf-8", "surrogatepass"))
        source = ["--file", str(folder / "text.txt")]
    else:
        source = ["--", told(value)]
    attempt([command, "--truncate", "--max-tokens", "60", *view, *source], folder)


def pages(data: Any, folder: Path) -> None:
    """Any Unicode on its way into a picture, a page or data."""
    value = data.draw(text, "text")
    suffixes = [".html", ".npz", ".json", ".csv", ".safetensors", ".svg"]
    name = "out" + data.draw(st.sampled_from(suffixes), "suffix")
    view = [] if name != "out.svg" else ["--head", "L0H0"]
    source = ["--max-tokens", "12", "-o", str(folder / name), *view, "--", told(value)]
    attempt(["show", *source], folder, may_write=[name])
    page = folder / name
    if page.exists() and name == "out.html":
        content = page.read_text(encoding="utf-8")
        assert "<script>alert" not in content
        assert content.count("<script") == content.count("</script")


OPTIONS = (
    "--layer", "--head", "--kind", "--token", "--words", "--hide-special", "--scale", "--cmap",
    "--plain", "--json", "--model", "--tokenizer", "--inputs", "--device", "--dtype", "--line",
    "--max-tokens", "--truncate", "--where", "--sort", "--top", "--map", "--csv", "--explain", "--list",
    "--exact-kernel", "-m", "-o", "-f", "--out",
)  # fmt: skip
VALUES = (
    "L0H0", "0", "1", "-1", "999999999999999999999", "1e9", "nan", "L99H99", "0.0", "5-3", "entropy",
    "previous>0.5", "entropy<1 and role=next", "encoder", "own", "own-causal", "/", ".", "..",
    "/dev/null", "/nowhere/x.png", "a:b", "x.npz", "cpu", "cuda:7", "float32", "viridis", "row",
    "previous", "__import__('os')", "1)(", "and and", "",
)  # fmt: skip


def options(data: Any, folder: Path) -> None:
    """Options in any number and order with values that fit, nearly fit, or do not."""
    command = data.draw(st.sampled_from(["show", "stats", "info", "loss", "nothing"]), "command")
    given = data.draw(
        st.lists(st.sampled_from(OPTIONS) | st.sampled_from(VALUES) | text.map(told), max_size=7), "given"
    )
    # what a value names for writing stays inside the folder that is watched
    for place, option in enumerate(given[:-1]):
        if option in ("-o", "--out"):
            given[place + 1] = str(folder / "out.png")
    attempt([command, *given, "The cat sat."], folder, may_write=["out.png"])


def damaged(data: Any, content: bytes) -> bytes:
    """A file cut short, with bits turned over, with a piece doubled, or with other bytes in it."""
    way = data.draw(st.sampled_from(["cut", "flip", "double", "replace", "empty", "head"]), "damage")
    if way == "empty" or not content:
        return b""
    place = data.draw(st.integers(0, len(content) - 1), "place")
    if way == "head":  # where formats keep their sizes
        place = place % min(64, len(content))
    if way == "cut":
        return content[:place]
    if way == "double":
        return content[:place] + content[max(0, place - 100) :]
    if way == "replace":
        return content[:place] + data.draw(st.binary(min_size=1, max_size=20), "bytes") + content[place:]
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255), "bits")
    return bytes(changed)


def changed_json(data: Any, content: bytes) -> bytes:
    """A JSON file with one value replaced by another kind of value, or a key taken away."""
    values = json.loads(content)
    spot = values
    while True:
        if not isinstance(spot, (dict, list)) or not spot:
            return json.dumps(data.draw(ANY_JSON, "value")).encode()
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        key = data.draw(st.sampled_from(keys[:200]), "key")
        if isinstance(spot[key], (dict, list)) and spot[key] and data.draw(st.booleans(), "deeper"):
            spot = spot[key]
            continue
        if data.draw(st.booleans(), "remove"):
            del spot[key]
        else:
            spot[key] = data.draw(ANY_JSON, "value")
        return json.dumps(values).encode()


ANY_JSON = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        -1,
        7,
        2**31,
        2**63,
        1e308,
        0.5,
        "",
        "x",
        "../../etc",
        "\x1b[31m",
        [],
        {},
        [1],
        {"a": 1},
    ]
)


def tensors(data: Any, folder: Path) -> None:
    """Tensor files for a module's inputs, damaged or of any type, shape and content."""
    suffix = data.draw(st.sampled_from([".npz", ".safetensors", ".pt"]), "suffix")
    path = folder / f"inputs{suffix}"
    arrays = {"query": _array(data), "key": _array(data), "value": _array(data)}
    _write(path, arrays)
    if data.draw(st.booleans(), "damaged"):
        path.write_bytes(damaged(data, path.read_bytes()))
    module = f"{Path(__file__).with_name('module.py')}:Cross"
    attempt(["show", "-m", module, "--inputs", str(path)], folder)


def _array(data: Any) -> np.ndarray:
    fitting = st.sampled_from([[1, 5, 8], [1, 7, 8]])
    shape = data.draw(st.lists(st.integers(0, 9), max_size=4) | fitting, "shape")
    kind = data.draw(st.sampled_from(["float32", "float64", "float16", "int64", "bool", "uint8"]), "dtype")
    array = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=shape)
    array = array if kind.startswith("float") else array > 0
    array = array.astype(kind)
    if kind.startswith("float") and array.size and data.draw(st.booleans(), "odd"):
        array.flat[0] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 1e30]))
    return array


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    else:
        import torch

        torch.save({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, path)


def corpora(data: Any, folder: Path) -> None:
    """Files of many texts: broken lines, odd fields, any Unicode, and a checkpoint that may be damaged."""
    if data.draw(st.booleans(), "JSON lines"):
        path = folder / "corpus.jsonl"
        line = st.builds(lambda value: json.dumps({"text": value}).encode(), text | ANY_JSON)
        broken = (
            st.binary(max_size=40) | st.just(b'{"text": "cut') | st.just(b'{"other": 1}') | st.just(b"[]")
        )
        lines = data.draw(st.lists(line | broken, max_size=5), "lines")
    else:
        path = folder / "corpus.txt"
        lines = data.draw(
            st.lists(text.map(lambda value: value.encode("utf-8", "surrogatepass")), max_size=5)
        )
    path.write_bytes(b"\n".join(lines))
    arguments = ["stats", "--texts", str(path), "--truncate", "--max-tokens", "40"]
    arguments += data.draw(st.sampled_from([[], ["--strict"], ["--limit", "2"], ["--json"]]), "options")
    checkpoint = folder / "sums.json"
    if data.draw(st.booleans(), "checkpoint"):
        arguments += ["--checkpoint", str(checkpoint)]
        if data.draw(st.booleans(), "there already"):
            checkpoint.write_bytes(json.dumps(data.draw(ANY_JSON)).encode())
    attempt(arguments, folder, may_write=["sums.json"])
    if checkpoint.is_file() and checkpoint.stat().st_size > 100:
        change = changed_json if data.draw(st.booleans(), "valid JSON") else damaged
        checkpoint.write_bytes(change(data, checkpoint.read_bytes()))
        attempt(arguments, folder, may_write=["sums.json"])


WORDS = (
    "entropy", "previous", "role", "L0H2", "any", "all", "count", "(", ")", ".", ">", "<", ">=", "=", "!=",
    "and", "0.5", "1e999", "nan", "-1", "next", "__import__('os').system('touch owned')", "lambda: 0", "{0}",
    "==", "or",
)  # fmt: skip


def conditions(data: Any, folder: Path) -> None:
    """Conditions and claims of any words: they are parsed, and never run."""
    word = st.sampled_from(WORDS)
    said = data.draw(st.lists(word | piece.map(told), min_size=1, max_size=7).map(" ".join), "condition")
    if data.draw(st.booleans(), "a claim"):
        attempt(["check", "--text", "The cat sat on the mat.", "--", said], folder)
    else:
        attempt(["stats", "The cat sat on the mat.", f"--where={said}"], folder)


def masks(data: Any, folder: Path) -> None:
    """Shapes and masks of any kind through torch's kernel: what is captured is what it weighs with."""
    import torch
    from torch import nn

    from attnscope.capture import Keep, recording
    from attnscope.measures import Measurement

    draw = data.draw
    batch, heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    queries, keys, width = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    query = torch.randn(batch, heads * group, queries, width, generator=noise) * draw(
        st.sampled_from([1, 30])
    )
    key = torch.randn(batch, heads, keys, width, generator=noise)
    form = draw(st.sampled_from(["none", "bool", "float", "causal"]), "mask")
    mask = None
    if form in ("bool", "float"):
        lead = draw(st.sampled_from([(1, 1), (batch, 1), (batch, heads * group)]), "lead")
        mask = torch.rand(*lead, queries, keys, generator=noise) > draw(st.sampled_from([0.0, 0.5, 0.95]))
        if form == "float":
            mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    scale = draw(st.sampled_from([None, 0.3, 1.0]), "scale")

    class Module(nn.Module):
        def forward(self, query, key, value):
            return nn.functional.scaled_dot_product_attention(
                query, key, value, mask, is_causal=form == "causal", scale=scale, enable_gqa=group > 1
            )

    # with unit vectors as values, the kernel's output is its weights
    unit = torch.eye(keys).expand(batch, heads, keys, keys)
    module, keep, measured = Module(), Keep(lambda site: range(heads * group)), Measurement()
    with torch.inference_mode(), recording(module, [keep, measured]):
        seen = module(query, key, unit)
    (kept,) = keep.maps
    # a row that is closed everywhere has no weights, whatever a kernel makes of it
    live = kept.allowed.any(-1).expand(seen.shape[:-1])
    assert torch.allclose(kept.weights[live], seen[live], atol=1e-5)
    for head in measured.figures():
        for name, figure in head.figures.items():
            assert np.isfinite(figure.value), f"{name} is {figure.value}"


KINDS: dict[str, Callable[[Any, Path], None]] = {
    "text": texts,
    "output": pages,
    "options": options,
    "tensors": tensors,
    "corpus": corpora,
    "conditions": conditions,
    "masks": masks,
}
