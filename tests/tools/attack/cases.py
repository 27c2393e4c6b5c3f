"""The cases: each writes its files into its own folder, and names the command that reads them."""

# ruff: noqa: E501 - tables of many short values are read best in few lines

import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from attnscope.cli import build
from tests.tools.attack.hostile import NAMES, NUMBERS, STRANGE, TEMPLATES, damage, dump, mutate, value, word

TEXT = "The cat sat on the mat because it was tired."
OTHER = "The dog sat on the mat because it was tired."


class Case(NamedTuple):
    """A command, and a word on what was changed for it."""

    arguments: list[str]
    changed: str
    act: Callable[[], None] | None = None  # in place of the command line


BASES = ("gpt2", "bert", "llama", "mistral", "gemma2", "albert", "longformer", "t5", "mamba")


def make_bases(place: Path) -> Path:
    """The valid things that cases are made from: model folders, files of weights and traces."""
    import safetensors.numpy

    from attnscope.models import load
    from attnscope.models.trace_recording import record_trace
    from attnscope.storage.trace import write_trace
    from tests.tools.outputs.inputs import MODULE, make_models

    make_models(place, BASES)
    shutil.copytree(Path(__file__).parents[3] / "attnscope" / "pretrained" / "own-causal", place / "own")
    for name in ("gpt2", "own", "t5", "mistral"):
        model = load(str(place / name))
        texts = (TEXT, "It was tired.") if name == "t5" else (TEXT,)
        write_trace(record_trace(model, model.prepare(*texts)), place / f"{name}.trace")
    (place / "module.py").write_text(MODULE)
    looked = [sys.executable, "-m", "attnscope", *LOOK, "-m", str(place / "own")]
    kept = os.environ | {"ATTNSCOPE_CACHE": str(place / "cache")}
    subprocess.run(looked, env=kept, check=True, stdout=subprocess.DEVNULL)
    weights = np.random.default_rng(0).random((2, 4, 6, 6), np.float32)
    weights /= weights.sum(-1, keepdims=True)
    np.save(place / "weights.npy", weights)
    named = {"encoder.00": weights[0], "encoder.01": weights[1]}
    np.savez(place / "weights.npz", **named, tokens=np.array(TEXT.split()[:6]))
    safetensors.numpy.save_file(named, place / "weights.safetensors")
    return place


def _on_text(chance: Random, text: str, *more: str) -> list[str]:
    data = (".svg", ".png", ".pdf", ".html", ".npz", ".json", ".csv", ".safetensors")
    out, picture = (["-o", f"out{chance.choice(kinds)}"] for kinds in (data, data[:2]))
    commands = (
        ["show"], ["show", *out], ["show", "--head", "L0H1", *picture], ["show", "--token", "1"], ["show", "--json"],
        ["show", "--words"], ["stats"], ["stats", "--csv"], ["stats", "--save-trace", "out.trace"], ["flow"], ["flow", "--json"],
        ["show", "--hide-special", "--large"], ["stats", "--map", "entropy", *picture], ["show", "--latex"],
        ["spans"], ["spans", "--parts", "sentence", "--json"], ["export", "-o", "out", "--format", "json,csv,svg", "--head", "0"],
        ["compare", "--with-text", OTHER], ["logits"], ["stats", "--jsonl", "--texts"], ["loss"], ["info"],
        ["ablate", "--layer", "0"], ["cut", "* -> -1"], ["patch", "--with-text", OTHER],
    )  # fmt: skip
    command = list(chance.choice(commands))
    if command[0] == "info":
        return ["info", *more[1:2]]
    if command[-1] == "--texts" or command[0] == "loss":
        Path("texts.txt").write_bytes(text.encode("utf-8", "surrogatepass") + b"\n" + TEXT.encode())
        return ["loss", more[1], "texts.txt"] if command == ["loss"] else [*command, "texts.txt", *more]
    if chance.random() < 0.15:
        asked = f"{text} -> cat" if chance.random() < 0.5 else "cat -> The"
        command, text = ["find", asked, text], ""
    elif chance.random() < 0.1:
        command, text = ["check", "L0H1.entropy > 0.1", text], ""
    elif chance.random() < 0.3:
        Path("text.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
        return [*command, *more, "--file", "text.txt"]
    words = [*command, *more, *(["--", text] if text else [])]
    return [_typed(each) for each in words]


def _typed(text: str) -> str:
    """A text as a command line can hold it: no NUL, and surrogates only for bytes that are no UTF-8."""
    return re.sub("[\0\ud800-\udc7f\udd00-\udfff]", "", text) or " "


FIELDS = (
    "num_labels", "id2label", "dtype", "torch_dtype", "model_type", "architectures", "auto_map", "_name_or_path", "text_config",
    "attn_implementation", "_attn_implementation", "quantization_config", "kernel_config", "rope_scaling", "rope_parameters",
    "layer_types", "sliding_window", "is_decoder", "head_dim", "hidden_act", "num_key_value_heads", "tie_word_embeddings",
)  # fmt: skip
"""What a config may hold, though not every one does."""


def model_folder(chance: Random, bases: Path) -> Case:
    """A model's folder: settings, tokenizer, template, index or weights that lie, and files that are none."""
    base, folder, told, more = chance.choice([*BASES, "gpt2", "own"]), Path("model"), "", list[str]()
    shutil.copytree(bases / base, folder)
    ways = {"config": 3, "tokenizer": 2, "template": 1, "index": 1, "link": 1, "weights": 1}
    (way,) = chance.choices([*ways], [*ways.values()])
    if way == "template":
        template = chance.choice(TEMPLATES)
        if chance.random() < 0.5:
            (folder / "chat_template.jinja").write_bytes(template.encode("utf-8", "surrogatepass"))
        else:
            file = folder / "tokenizer_config.json"
            settings = json.loads(file.read_bytes()) if file.exists() else {}
            settings["chat_template"] = value(chance) if chance.random() < 0.3 else template
            file.write_bytes(dump(settings))
        more, told = ["--chat"], template[:60]
    elif way == "index":
        told = _index(folder, chance)
    elif way == "link":
        file = chance.choice(sorted(folder.iterdir()))
        told = f"{file.name} {_replace(file, chance)}"
    elif way == "weights":
        file = folder / "model.safetensors"
        content, told = _spoiled(file.read_bytes(), file.suffix, chance)
        file.write_bytes(content)
    else:
        names = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
        names = ["config.json"] if way == "config" else names
        file = chance.choice([folder / name for name in names if (folder / name).exists()])
        content = file.read_bytes()
        if chance.random() < 0.1:
            file.write_bytes(damage(content, chance))
        else:
            tree = json.loads(content)
            told = ", ".join(mutate(tree, chance, FIELDS if way == "config" else ()))
            file.write_bytes(dump(tree))
    if base == "t5":
        more += ["--second-text", "It was tired."] if chance.random() < 0.2 else []
    return Case(_on_text(chance, TEXT, "-m", "model", *more), f"{base} {way}: {told}")


def _replace(file: Path, chance: Random) -> str:
    """Put what is no file of that kind in the place of a file."""
    if file.is_dir():
        shutil.rmtree(file)
    else:
        file.unlink()
    links = {"zero": "/dev/zero", "loop": file.name, "passwd": "/etc/passwd"}
    links |= {"secret": "/proc/self/environ", "tty": "/dev/tty"}
    nested = chance.choice(("[" * 200_000, '{"a":' * 100_000 + "1" + "}" * 100_000))
    made = {"folder": file.mkdir, "pipe": partial(os.mkfifo, file), "empty": file.touch, "nothing": list}
    made |= {"nested": partial(file.write_text, nested)}
    made |= {way: partial(file.symlink_to, target) for way, target in links.items()}
    way = chance.choice([*made])
    made[way]()
    return way


def _index(folder: Path, chance: Random) -> str:
    from safetensors import safe_open

    file = folder / "model.safetensors"
    with safe_open(file, "np") as opened:
        names = list(opened.keys())
    if chance.random() < 0.7:
        file.rename(folder / "part.safetensors")
    targets = ("part.safetensors", "../../../etc/passwd", "/etc/passwd", "/dev/zero", "sub/part.safetensors", "", ".", "..", 7, None,
               "part.safetensors\n", "nothing.safetensors", "config.json", "x" * 5000, "\x1b[2J", "part.safetensors/", [])  # fmt: skip
    index: Any = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "part.safetensors")}
    told = chance.choice(targets)
    for name in names[: chance.randint(0, 3)]:
        index["weight_map"][name] = told
    if chance.random() < 0.3:
        mutate(index, chance)
    (folder / "model.safetensors.index.json").write_bytes(dump(index))
    return repr(told)[:60]


DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "U16", "U8", "BOOL", "F8_E4M3", "F4", "x", "", 3, None)
LIES: dict[str, tuple[Any, ...]] = {
    "dtype": DTYPES,
    "shape": ([10**9, 10**9], [2**32, 2**32], [6, 6, 4], [0], [], [-1], [1] * 100, [2**63]),
    "data_offsets": ([0, 10**12], [10, 0], [-8, 0], [0, 0], [0], [2**64, 2**65], [1.5, 2]),
    "__metadata__": ({"a": "b" * 10**6}, {"attnscope": "{"}, {"a": 1}, [], None, {"attnscope": "1" * 10**5}),
    "name": ("../x", "\x1b[2J", "encoder.99999999", "", "x" * 10_000, "tokens"),
}
"""What a header of safetensors claims of an array, of all of them, or calls one."""


def _lying_safetensors(content: bytes, chance: Random) -> bytes:
    """The same with a header that claims other shapes, types, places or lengths."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    for _ in range(chance.choice((1, 1, 3))):
        entry, way = header[chance.choice(list(header))], chance.choice([*LIES, "mutate"])
        if way == "mutate" or not isinstance(entry, dict):
            mutate(header, chance)
        elif way == "name":
            header[chance.choice(LIES[way])] = entry
        else:
            (header if way == "__metadata__" else entry)[way] = chance.choice(LIES[way])
        if not header:
            break
    made = dump(header)
    told = len(made)
    if chance.random() >= 0.8:
        told = chance.choice((0, 2**63, 10**9, told - 1, told + 1))
    return struct.pack("<Q", told) + made + content[8 + size :]


def _from_file(chance: Random, file: str) -> list[str]:
    picture = ["-o", f"out{chance.choice(('.svg', '.png', '.html', '.json', '.csv', '.npz'))}"]
    commands = (
        ["show"], ["show", *picture], ["show", "--head", "L0H1"], ["show", "--token", "0"], ["show", "--json"], ["stats"],
        ["stats", "--csv"], ["flow"], ["find", "cat -> The"], ["find", "1 -> 0"], ["spans"], ["show", "--words"],
        ["compare", "L0H0", "L0H1"], ["compare", "--with-trace", file], ["export", "-o", "out", "--format", "svg,json,npz"],
        ["check", "L0H0.entropy > 0"], ["stats", "--pooled", "out.npz"], ["show", "--hide-special"], ["info"],
        ["stats", "--sort", "entropy", "--top", "2"], ["stats", "--by-position", "entropy"], ["show", "--kind", "cross"],
    )  # fmt: skip
    return [*chance.choice(commands), "--from", file]


def weights_file(chance: Random, bases: Path) -> Case:
    """A file of weights: lying shapes and types, archives that unpack to more, damaged bytes, odd numbers."""
    suffix = chance.choice((".npy", ".npz", ".npz", ".safetensors", ".safetensors"))
    content, told = _spoiled((bases / f"weights{suffix}").read_bytes(), suffix, chance)
    file = f"weights{chance.choice((*[suffix] * 9, '.trace', '.npy'))}"
    Path(file).write_bytes(content)
    return Case(_from_file(chance, file), f"{file}: {told}")


def _spoiled(content: bytes, suffix: str, chance: Random) -> tuple[bytes, str]:
    """A file of arrays of which the bytes, the header or the numbers are not what they were, and which."""
    told = chance.choice(("damaged", "lying header", "odd numbers"))
    if told == "damaged":
        return damage(content, chance), told
    if told == "odd numbers":
        return _arrays(suffix, chance), told
    if suffix == ".safetensors":
        return _lying_safetensors(content, chance), told
    names = ("encoder.00", "encoder.01", "cross.00", "0", "tokens", *STRANGE)
    arrays = {chance.choice(names): _npy(chance) for _ in range(3)}
    return next(iter(arrays.values())) if suffix == ".npy" else _zip(arrays, chance), told


def _npy(chance: Random) -> bytes:
    """Bytes of one array that claim any shape and any type."""
    descr = chance.choice(("<f4", "<f8", "<f2", ">f4", "|O", "<U9999999", "|V1000", "<c8", "<M8[s]", "|b1", "<i8", "x", "<f4,<f8"))  # fmt: skip
    shapes = ((2, 4, 6, 6), (10**9,) * 3, (2**62,), (0, 10**12), (-1,), (2, 4, 6), (10**5, 10**5), (1,) * 40, (2**31, 6, 6), (True, 4))  # fmt: skip
    header = f"{{'descr': {descr!r}, 'fortran_order': {chance.choice((True, False, 7))}, 'shape': {chance.choice(shapes)}, }}"
    if chance.random() < 0.15:
        odd = "(" * 5000, "__import__('os').system('true')", "{" * 100, "'a' * 10**9", "9" * 10_000
        header = chance.choice((*odd, header + "x" * 60_000))
    version = chance.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    length = len(header) + 1 if chance.random() < 0.9 else 2**16 - 1
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", min(length, 2**16 - 1))
    begun = b"\x93NUMPY" + version + size + header.encode() + b"\n"
    return begun + chance.randbytes(chance.choice((0, 100, 1152, 4000)))


def _zip(arrays: dict[str, bytes], chance: Random) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", chance.choice((0, 8, 12, 14))) as archive:
        for name, content in arrays.items():
            clean = name.encode("utf-8", "ignore").decode().replace("\0", "")[:60000] or "x"
            archive.writestr(f"{clean}.npy", content + b"\0" * chance.choice((0, 0, 0, 3 * 10**7)))
    return packed.getvalue()


SHAPES = (
    (2, 4, 6, 6), (4, 6, 6), (4, 6, 9), (1, 1, 1), (3, 1, 6, 6), (6, 6), (0, 6, 6), (2, 4, 0, 6), (300, 2, 2),
    (1, 4, 600, 600), (2,) * 8,
)  # fmt: skip
LAYERS = ["encoder.00", "encoder.01", "encoder.131071", "cross.00", "decoder.07", "attention_0"]
LAYERS += ["0", "layer.3", "x"]


def _array(chance: Random, shapes: Sequence[tuple[int, ...]], kinds: Sequence[str]) -> Any:
    """Numbers of any shape and type, one of them odd."""
    made = np.random.default_rng(chance.randrange(99)).random(chance.choice(shapes))
    made = made / made.sum(-1, keepdims=True) if made.ndim and chance.random() < 0.7 else made * 10 - 5
    if made.size:
        odd = (np.nan, np.inf, -np.inf, -1, 2, 1e300, 1e-320, 0)
        made.flat[chance.randrange(made.size)] = chance.choice(odd)
    kind = chance.choice(kinds)
    with np.errstate(all="ignore"):
        return (np.nan_to_num(made) if kind in ("int8", "uint64", "bool") else made).astype(kind)


def _arrays(suffix: str, chance: Random) -> bytes:
    """A sound file of arrays that are not attention, or nearly."""
    kinds = ("float32", "float32", "float16", "float64", "int8", "bool", "complex64", "uint64", "U3")
    kinds = kinds if suffix != ".safetensors" else kinds[:6]
    arrays = {chance.choice(LAYERS): _array(chance, SHAPES, kinds) for _ in range(chance.randint(1, 4))}
    if suffix != ".safetensors" and chance.random() < 0.5:
        count = chance.choice((6, 6, 1, 9))
        arrays["tokens"] = np.array([word(chance).replace("\0", "")[:50] for _ in range(count)])
    return _file(suffix, arrays)


def _file(suffix: str, arrays: dict[str, Any]) -> bytes:
    """The bytes of a file of arrays; of .npy, of the first one."""
    made = io.BytesIO()
    if suffix == ".npy":
        np.save(made, next(iter(arrays.values())))
    elif suffix == ".npz":
        np.savez(made, **arrays)
    elif suffix == ".pt":
        import torch

        torch.save({name: torch.from_numpy(np.array(each)) for name, each in arrays.items()}, made)
    else:
        from safetensors.numpy import save

        return bytes(save({name: np.ascontiguousarray(each) for name, each in arrays.items()}))
    return made.getvalue()


def trace(chance: Random, bases: Path) -> Case:
    """A trace of which claims, arrays or bytes were changed."""
    from safetensors.numpy import load, save

    from attnscope.storage.trace.file import KEY_FIELD

    base = chance.choice(("gpt2", "own", "t5", "mistral"))
    content = (bases / f"{base}.trace").read_bytes()
    size = int.from_bytes(content[:8], "little")
    described = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][KEY_FIELD])
    arrays, way = dict(sorted(load(content).items())), chance.random()
    if way < 0.2:
        content, told = _spoiled(content, ".safetensors", chance)
    else:
        told = ", ".join(_claims(described, arrays, chance)) if way < 0.75 else ""
        if way > 0.6:
            name = chance.choice(list(arrays))
            arrays[name], how = _other(arrays[name], chance)
            told += f"{name} {how}"
        arrays = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
        content = save(arrays, {KEY_FIELD: json.dumps(described)})
    Path("kept.trace").write_bytes(content)
    return Case(_from_file(chance, "kept.trace"), f"{base}: {told}")


def _claims(described: Any, arrays: Any, chance: Random) -> list[str]:
    """Change a description; most often below its calls, where it is read the most."""
    calls = described["calls"]
    part = chance.choice((described, chance.choice(calls), chance.choice(calls)))
    if (rows := part.get("rows")) and chance.random() < 0.4:
        key = chance.choice(("query", "key", "scale", "stop", "diagonal", "softcap", "sinks"))
        rows[key] = chance.choice((*arrays, None, *NUMBERS))
        return [f"rows.{key}"]
    return mutate(part, chance, CLAIMED)


CLAIMED = ("heads", "batch", "layer", "tokens", "offset", "window", "step", "written", "difference")


def _other(array: Any, chance: Random) -> tuple[Any, str]:
    spots = slice(None) if chance.random() < 0.2 or not array.size else chance.randrange(array.size)
    odd, kind = array.copy(), array.dtype.kind
    odd.reshape(-1)[spots] = chance.choice((np.nan, np.inf, -np.inf, 6e4, -6e4)) if kind == "f" else 0
    np.seterr(all="ignore")  # what is made here is odd on purpose
    ways = {
        "odd": odd,
        "large": np.full_like(array, np.iinfo(array.dtype).max if kind in "iu" else 6e4),
        "type": array.astype(
            chance.choice(("float64", "float16", "int32", "uint8", "int64", "bool", "uint16"))
        ),
        "shape": np.concatenate([array] * 2, chance.randrange(array.ndim)) if array.ndim else array[None],
        "flat": array.reshape(-1),
        "zero": array * 0,
    }
    way = chance.choice([*ways])
    return ways[way], way


def text(chance: Random, bases: Path) -> Case:
    """Words that nobody writes, through every way in and out."""
    texts = [word(chance)]
    if chance.random() < 0.6:
        texts = [TEXT[: chance.randrange(40)], *texts, TEXT[-chance.randrange(1, 40) :]]
    said = "".join(texts)
    more = ["--truncate", "--max-tokens", "40"]
    name = chance.choice(("own", "gpt2", "bert"))
    options = _on_text(chance, said, "-m", str(bases / name), *more)
    if options[0] == "info":
        title = ["--title", _typed(said), "-o", "out.svg", "--", _typed(said)]
        options = ["show", *more, "-m", str(bases / name), *title]
    elif chance.random() < 0.15 and "-o" in options:
        at = options.index("-o")
        options[at:at] = ["--title", _typed(word(chance))]
    return Case(options, f"{name}: {said[:60]!r}")


VALUES = (
    "L0H0", "0", "1", "-1", "999999999999999999999", "1e9", "nan", "L99H99", "0.0", "5-3", "entropy", "previous>0.5",
    "entropy<1 and role=next", "encoder", "own", "own-causal", "/", ".", "..", "/dev/null", "/nowhere/x.png", "a:b", "x.npz",
    "cpu", "cuda:7", "float32", "viridis", "row", "previous", "__import__('os')", "1)(", "and and", "",
)  # fmt: skip
WORDS = (
    "entropy", "previous", "role", "L0H2", "any", "all", "count", "(", ")", ".", ">", "<", ">=", "=", "!=", "and", "0.5",
    "1e999", "nan", "-1", "next", "__import__('os').system('touch owned')", "lambda: 0", "{0}", "==", "or",
)  # fmt: skip
COMMANDS = ("show", "stats", "info", "loss")
LOOK = ("show", TEXT)


def options(chance: Random, bases: Path) -> Case:
    """Options in any number and order with values that fit, nearly fit, or do not."""
    known = {name for command in COMMANDS for option in build(command).params for name in option.opts}
    pools = sorted(known), VALUES, (_typed(word(chance)),)
    given = [chance.choice(chance.choice(pools)) for _ in range(chance.choice((0, 1, 1, 2, 3, 7)))]
    for place, option in enumerate(given[:-1]):
        if option in ("-o", "--out"):
            given[place + 1] = "out.png"
    command = chance.choice((*COMMANDS, "nothing"))
    return Case([command, "--offline", *given, TEXT], " ".join(given)[:60])


def tensors(chance: Random, bases: Path) -> Case:
    """Tensors for a module's inputs, damaged or of any type, shape and content."""
    suffix = chance.choice((".npz", ".safetensors", ".pt"))
    kinds = ["float32", "float64", "float16", "int64", "bool", "uint8"][: chance.choice((1, 6))]
    shapes = [(1, 5, 16)] if chance.random() < 0.5 else [(1, 5, 16), (1, 7, 16), *SHAPES[:5], (), (9,)]
    content = _file(suffix, {name: _array(chance, shapes, kinds) for name in ("queries", "keys")})
    told = "damaged" if chance.random() < 0.5 else "odd"
    Path(f"inputs{suffix}").write_bytes(damage(content, chance) if told == "damaged" else content)
    command = ["show", "-m", f"{bases / 'module.py'}:Cross", "--inputs", f"inputs{suffix}"]
    return Case(command, f"{suffix} {told}")


def corpus(chance: Random, bases: Path) -> Case:
    """Files of many texts: broken lines, odd fields, any Unicode, and a checkpoint that is none."""
    broken = (b'{"text": "cut', b'{"other": 1}', b"[]", chance.randbytes(20))

    def line() -> bytes:
        if chance.random() < 0.6:
            return dump({"text": chance.choice((word(chance), TEXT, value(chance)))})
        return chance.choice(broken)

    lines = [line() for _ in range(chance.randint(0, 5))]
    file = chance.choice(("corpus.jsonl", "corpus.txt"))
    Path(file).write_bytes(b"\n".join(lines))
    more = chance.choice(([], ["--strict"], ["--limit", "2"], ["--json"]))
    if chance.random() < 0.5:
        more = [*more, "--checkpoint", "sums.json"]
        if chance.random() < 0.5:
            Path("sums.json").write_bytes(dump(value(chance)))
    return Case(["stats", "--texts", file, "--truncate", "--max-tokens", "40", *more], f"{len(lines)} lines")


def conditions(chance: Random, bases: Path) -> Case:
    """Conditions and claims of any words: they are parsed, and never run."""
    count = chance.randint(1, 7)
    words = [chance.choice(WORDS) if chance.random() < 0.7 else _typed(word(chance)) for _ in range(count)]
    said = " ".join(words) if chance.random() < 0.8 else "any.entropy > 0.5"
    if chance.random() < 0.5:
        return Case(["check", TEXT, "--", said], said[:60])
    return Case(["stats", TEXT, f"--where={said}"], said[:60])


CODE = "open('owned', 'w')\nimport torch\nM = torch.nn.Linear"
CODES = (
    "evil:M",
    "evil.py:M",
    "./evil.py:M",
    "x:/evil.py:M",
    "os:getcwd",
    "timeit:main",
    "own:M",
    "own/evil.py:M",
)


def _plant(bases: Path) -> None:
    """A folder with models, and with code that leaves a mark where it runs."""
    shutil.copytree(bases / "own", "own")
    Path("x:").mkdir()
    for folder in (".", "x:", "own"):
        Path(folder, "evil.py").write_text(CODE)
    sys.path.insert(0, os.getcwd())  # as with python -m


def settings(chance: Random, bases: Path) -> Case:
    """Files of settings, and a variable, that set anything to anything; some are others', or broken."""
    _plant(bases)
    known = {name for each in COMMANDS for option in build(each).params for name in option.opts}
    values = (
        *VALUES,
        *CODES,
        "owned.svg",
        "owned.trace",
        "own",
        True,
        False,
        5,
        0.5,
        -1,
        10**30,
        ["own"],
        {"a": 1},
    )

    def table() -> str:
        names = chance.sample(sorted(known), chance.randint(1, 3))
        names += ["model"] if chance.random() < 0.5 else []
        lines = [f"{json.dumps(name.lstrip('-'))} = {_toml(chance.choice(values))}" for name in names]
        if chance.random() < 0.5:  # what would be seen, were it taken
            sharp = chance.choice(
                [("model", chance.choice(CODES)), ("out", "owned.svg"), ("save-trace", "owned.trace")]
            )
            lines = [f"{json.dumps(sharp[0])} = {json.dumps(sharp[1])}"]
        return "\n".join(dict.fromkeys(lines)) + "\n"

    content = f"[tool.attnscope]\n{table()}".encode()
    content = damage(content, chance) if chance.random() < 0.2 else content
    Path("pyproject.toml").write_bytes(content)
    Path("pyproject.toml").chmod(chance.choice((0o600, 0o644, 0o666)))
    os.environ["XDG_CONFIG_HOME"] = os.getcwd()
    if chance.random() < 0.5:
        Path("attnscope").mkdir()
        users = re.sub(r'"(out|save-trace|checkpoint|keep|pooled)".*', "", table())  # a user may write
        Path("attnscope/config.toml").write_text(users)
    if chance.random() < 0.3:
        os.environ["ATTNSCOPE_MODEL"] = chance.choice((*CODES, "own", _typed(word(chance))))
    return Case([chance.choice(COMMANDS[:2]), TEXT], content.decode("utf-8", "replace")[:100])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{a = 1}"
    return json.dumps(value)


def agent(chance: Random, bases: Path) -> Case:
    """Names of models, texts and pictures that an agent may think of."""
    _plant(bases)
    Path("link").symlink_to("/etc")
    Path("own/link.json").symlink_to("/etc/passwd") if chance.random() < 0.2 else None
    names = (
        *CODES,
        *NAMES,
        *VALUES,
        "own",
        "./own",
        "link",
        "link/passwd",
        "../own",
        "own/../own",
        "x.trace",
        str(bases / "own"),
    )
    tool = chance.choice(("load", "show", "stats", "find", "compare", "cut"))
    words = {} if tool == "load" else {"text": chance.choice((TEXT, TEXT, *names, word(chance)))}
    named = chance.choice(
        (chance.choice(names), chance.choice(names), word(chance), chance.choice(CODES) + word(chance))
    )
    words |= {"model": chance.choice(("own", named, named))}
    more = {
        "show": ("head", "token", "image"),
        "find": ("question",),
        "compare": ("other", "other_model"),
        "cut": ("edge", "target"),
    }
    for name in more.get(tool, ()):
        if name in ("question", "edge") or chance.random() < 0.4:
            words[name] = chance.choice((*names, word(chance), "it -> cat", "L0H1", "cat"))
    return Case([], f"{tool} {words!r:.200}", partial(_answer, tool, words))


def _answer(tool: str, words: dict[str, Any]) -> None:
    from attnscope.cli.commands.mcp import ServerOptions, answer

    sentence, content = answer(ServerOptions(folder=Path.cwd()), tool, words)
    if sentence:
        print(f"attnscope: {sentence}", file=sys.stderr)
        raise SystemExit(2)
    print(content[0] if isinstance(content, list) else content)


def cache(chance: Random, bases: Path) -> Case:
    """Cached passes that are cut, damaged, of another key, or of lies under a digest that fits."""
    from safetensors.numpy import load, save

    from attnscope.storage.cache import _digest
    from attnscope.storage.trace.file import KEY_FIELD

    shutil.copytree(bases / "cache", "cache")
    os.environ["ATTNSCOPE_CACHE"] = str(Path("cache").resolve())
    (entry,) = Path("cache").rglob("*.trace")
    content, way = entry.read_bytes(), chance.choice(("damaged", "lies", "lies", "open", "link", "folder"))
    told = way
    if way == "damaged":
        entry.write_bytes(damage(content, chance))
    elif way == "open":
        chance.choice((entry, entry.parent)).chmod(0o777)
    elif way == "link":
        entry.rename("elsewhere")
        entry.symlink_to(Path("elsewhere").resolve())
    elif way == "folder":
        entry.unlink()
        entry.mkdir()
    else:
        size = int.from_bytes(content[:8], "little")
        about = json.loads(content[8 : 8 + size])["__metadata__"]
        described, arrays = json.loads(about[KEY_FIELD]), dict(sorted(load(content).items()))
        told = ", ".join(_claims(described, arrays, chance))
        if chance.random() < 0.3:
            name = chance.choice([*arrays])
            arrays[name], how = _other(arrays[name], chance)
            told += f"{name} {how}"
        content = save(
            {name: np.ascontiguousarray(each) for name, each in arrays.items()},
            about | {KEY_FIELD: json.dumps(described)},
        )
        entry.write_bytes(content)
    if way in ("damaged", "lies") and chance.random() < 0.8:
        key = entry.name.partition("-")[0]
        entry.rename(entry.with_name(f"{key}-{_digest(entry.read_bytes())}.trace"))
    looks = (
        LOOK,
        LOOK,
        ("show", "--head", "L0H1", TEXT),
        ("stats", TEXT),
        ("flow", TEXT),
        ("find", "it -> cat", TEXT),
    )
    return Case([*chance.choice(looks), "-m", str(bases / "own")], told)


KINDS: dict[str, tuple[Callable[[Random, Path], Case], int]] = {
    "folder": (model_folder, 200),
    "weights": (weights_file, 200),
    "trace": (trace, 200),
    "text": (text, 300),
    "options": (options, 300),
    "tensors": (tensors, 200),
    "corpus": (corpus, 200),
    "conditions": (conditions, 300),
    "settings": (settings, 100),
    "agent": (agent, 100),
    "cache": (cache, 100),
}
"""What makes the cases of each kind, and how many there are where nobody says."""
