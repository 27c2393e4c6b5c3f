"""Hostile values, JSON, bytes and words."""

# ruff: noqa: E501 - tables of many short values are read best in few lines

import json
import struct
from random import Random
from typing import Any

STRANGE = (
    "", " ", "\n", "\t", "\0", "\x1b[2J", "\x1b]0;title\x07", "\r", "\b", "\x85", "\x9b31m", "\u2028", "\u202e",
    "\u2066", "\u200b", "\u200d", "\ufeff", "\ufffe", "\U0001fffe", "\U000e0041", "\ud800", "\udc80", "\udfff",
    "\u0301" * 60, "שלום", "مرحبا", "漢字かな", "👩‍👩‍👧", "\U0001f1e9\U0001f1ea", "ﷺ", "[bold red]", "[/]", "$\\frac{1}{0}$",
    "<script>alert(1)</script>", "]]>", "&#0;", "=1+1", "@SUM(A1)", "+1", "-2", "{}", "%s", "%n", "{0.__class__}",
    "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>", "<|endoftext|>", "##", "Ġ", "▁", "..", "/", "~", "--", "'", '"',
    "\\", "`id`", "$(id)", "x" * 3000, "a b " * 300, "-> ", " -> ", "null", "NaN", "1e999",
)  # fmt: skip

NAMES = (
    "owner/name", "owner/name@main", " owner/name", "owner/name ", "owner/name\n", "owner/name :f", "sdpa|owner/name",
    "owner--name.Class", "owner/name--module.Class", "../../../etc/passwd", "/etc/passwd", "file:///etc/passwd",
    "https://127.0.0.1:9/x", "hf://owner/name", "flash_attention_2", "eager", "sdpa", "flex_attention", "bert", "gpt2",
    "GPT2Model", "AutoModel", "gelu", "no_activation", "float8", "meta", "auto", "cuda:7", "__class__", "os.system",
)  # fmt: skip

NUMBERS = (
    0, 1, -1, 2, 3, 7, 64, 10**4, 10**6, 10**9, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64,
    10**30, 10**400, 0.5, -0.5, 1e-320, 1e30, 1e308, float("nan"), float("inf"), float("-inf"), True, False,
)  # fmt: skip


def number(chance: Random, near: Any = None) -> Any:
    """A number; often one near to the one that stood there."""
    if isinstance(near, (int, float)) and chance.random() < 0.4:
        return chance.choice((near + 1, near - 1, 2 * near, -near, near / 2, near * 1000))
    return chance.choice(NUMBERS)


def word(chance: Random) -> str:
    """A few strange pieces, some in the midst of letters."""
    pieces = [chance.choice((*STRANGE, "cat", "The ", " it")) for _ in range(chance.randint(1, 6))]
    if chance.random() < 0.2:
        pieces += [chr(chance.randrange(0x110000)) for _ in range(20)]
    return "".join(pieces)


def value(chance: Random, near: Any = None, depth: int = 0) -> Any:
    """Anything that JSON can hold; half of the time of the kind that stood there."""
    same = isinstance(near, (int, float)) and not isinstance(near, bool) and chance.random() < 0.5
    kind = "number" if same else chance.choice(("number", "word", "name", "none", "list", "object", "twice"))
    if kind == "number":
        return number(chance, near)
    if kind == "word":
        return word(chance)
    if kind == "name":
        return chance.choice(NAMES)
    if kind == "twice" and isinstance(near, (list, str)):
        return near * chance.choice((0, 2, 50))
    if kind == "none" or depth > 2:
        return None
    if kind == "list":
        count = chance.choice((0, 1, 2, 3, 2 if depth else 300))
        return [value(chance, near, depth + 1) for _ in range(count)]
    return {
        chance.choice((*NAMES, *STRANGE)): value(chance, near, depth + 1) for _ in range(chance.randint(0, 3))
    }


def mutate(tree: Any, chance: Random, more: tuple[str, ...] = ()) -> list[str]:
    """Change a tree of JSON in one to three places; returns which. ``more`` are fields to be set at the root."""
    told = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        spot, path = tree, ""
        if not tree:
            break
        if more and isinstance(tree, dict) and chance.random() < 0.4:
            key: Any = chance.choice(more)
        else:
            key = _key(tree, chance)
            while isinstance(spot[key], (dict, list)) and spot[key] and chance.random() > 0.15:
                spot, path = spot[key], f"{path}.{key}"
                key = _key(spot, chance)
        act = chance.random()
        before = spot[key] if not isinstance(spot, dict) or key in spot else None
        if act < 0.12 and before is not None:
            del spot[key]
        elif act < 0.2 and isinstance(spot, list):
            spot.insert(key, before)
        elif act < 0.24 and isinstance(spot, dict):
            spot[word(chance)] = before
        else:
            spot[key] = value(chance, before)
        told.append(f"{path}.{key}"[-80:])
    return told


def _key(spot: Any, chance: Random) -> Any:
    return chance.choice(list(spot) if isinstance(spot, dict) else range(len(spot)))


def dump(tree: Any) -> bytes:
    """JSON as Python writes it, surrogates and infinities too."""
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def damage(content: bytes, chance: Random) -> bytes:
    """Bytes cut, turned, doubled, or with others in their midst; most often where formats keep their sizes."""
    for _ in range(chance.choice((1, 1, 2, 10))):
        size = max(1, len(content))
        place = chance.randrange(min(size, 400) if chance.random() < 0.6 else size)
        begun, rest = content[:place], content[place:]
        kind = chance.randrange(7)
        if kind == 0:
            content = begun + bytes([chance.randrange(256)]) + rest[1:]
        elif kind == 1:
            content = begun + rest[chance.choice((1, 8, 1000)) :]
        elif kind == 2:
            content = begun + rest[: chance.choice((1, 50))] + rest
        elif kind == 3:
            content = begun if chance.random() < 0.3 else begun + b"\xff" * 8 + rest[8:]
        elif kind == 4:
            content = begun + struct.pack("<q", chance.choice((0, -1, 2**31, 2**62, 100))) + rest[8:]
        elif kind == 5:
            content = begun + chance.randbytes(8) + rest
        elif digits := [at for at in range(min(len(content), 3000)) if content[at : at + 1].isdigit()]:
            place = chance.choice(digits)  # of a header in JSON
            number = json.dumps(chance.choice((*NUMBERS[:-6], None, [], "a"))).encode()
            content = content[:place] + number + content[place + 1 :]
    return content


TEMPLATES = (
    "{{ messages[0].content }}", "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", "{{ x * 10**9 }}",
    "{{ range(10**12) | list }}", "{{ 9**9**9 }}", "{{ self.__init__.__globals__ }}", "{{ messages | tojson(indent=10**9) }}",
    "{{ '%999999999d' % 1 }}", "{{ '{:>9999999999}'.format(1) }}", "{{", "{% if %}", "", "{{ strftime_now('%Y' * 10**7) }}",
    "{{ messages | map(attribute='content') | join('\x1b[2J' * 100) }}", "{{ messages | sort(attribute='nothing') }}",
    "{{ (1, 2) | batch(10**9, 'x') | list }}", "{{ 'x' | indent(10**10) }}", "{{ lipsum(n=10**7) }}", "{{ messages[10**30] }}",
    "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!' | wordwrap(1) * 10**8 }}", "{{ dict(a=1).update }}",
    "{% generation %}{{ messages }}{% endgeneration %}", "\ud800", "{{ '\\ud800' }}", "{{ '\\ufffe' }}",
)  # fmt: skip
"""Beside those of tests/models/test_hostile_folders.py."""
