"""What gold questions give, in the plainest Python: one text and one word at a time."""

from collections import Counter, defaultdict

import numpy as np
import torch

Row = tuple[str, str]  # label, direction


def weights_of(model, prepared, name="attentions") -> np.ndarray:
    """The weights that the model itself reports, [layer, head, query, key]."""
    model.module.set_attn_implementation("eager")
    with torch.inference_mode():
        given = model.module(**prepared.inputs, output_attentions=True)[name]
    model.module.set_attn_implementation("sdpa")
    return torch.cat(list(given)).double().numpy()


def tokens_of_words(tokenizer, text, words, start=0):
    """For each word the tokens that have most of their characters in it, by the tokenizer's own offsets."""
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    special = {number for number, flag in enumerate(encoded["special_tokens_mask"]) if flag}
    mine = {}
    for number, (begin, end) in enumerate(encoded["offset_mapping"]):
        while begin < end and text[begin] == " ":
            begin += 1
        shared = [max(0, min(end, b) - max(begin, a)) for a, b in words]
        if number not in special and max(shared) > 0:
            mine[number] = shared.index(max(shared))
    pieces = encoded.word_ids(0)
    for number, piece in enumerate(pieces):  # a space alone is a piece of the word that it leads
        if piece is not None and number not in mine and number + 1 in mine and pieces[number + 1] == piece:
            mine[number] = mine[number + 1]
    found = [
        [number + start for number, word in mine.items() if word == place] for place in range(len(words))
    ]
    return found, {number + start for number in special} | set(range(start))


def score(texts, ways=2):
    """The figures of every head, (label, way) -> dict of arrays [layer, head].

    A text is (weights, row words, key words, special keys, links, causal); a word is a list of tokens, a link
    (row word, key word, label).
    """
    answers = defaultdict(list)  # (label, way) -> (text, {head array} right, weight, even, offsets)
    for number, (weights, rows, keys, special, links, causal) in enumerate(texts):
        size = weights.shape[-1]
        single = [[k] for k in range(size) if k not in special and not any(k in word for word in keys)]
        for way in range(ways):
            wanted = defaultdict(set)
            for left, right, label in links:
                one, other = (left, right) if way == 0 else (right, left)
                if rows[one] and keys[other]:
                    wanted[label, one].add(other)
            for (label, one), others in wanted.items():
                itself = keys[one] if rows is keys else []
                mean = weights[:, :, rows[one]].mean(2)  # [layer, head, key]
                names = [*range(len(keys)), *range(-len(single), 0)]
                sums = np.stack(
                    [
                        mean[:, :, word].sum(-1) if word and word != itself else np.full(mean.shape[:2], -1)
                        for word in [*keys, *single]
                    ]
                )
                best = np.array(names)[sums.argmax(0)]
                gold = [token for other in others for token in keys[other]]
                even = np.mean(
                    [sum(not causal or k <= q for k in gold) / (q + 1 if causal else size) for q in rows[one]]
                )
                if even == 0:
                    continue
                reach = [o - one for o in others if not causal or min(keys[o]) <= max(rows[one])]
                answers[label, way].append(
                    (number, np.isin(best, list(others)), mean[:, :, gold].sum(-1), even, reach)
                )
    return {key: figures(found) for key, found in answers.items()}


def figures(found):
    asked = len(found)
    offset, count = max(
        Counter(k for *_, reach in found for k in reach).items(), key=lambda pair: (pair[1], -pair[0])
    )
    return {
        "rows": asked,
        "accuracy": sum(right for _, right, *_ in found) / asked,
        "weight": sum(weight for _, _, weight, *_ in found) / asked,
        "baseline": sum(even for *_, even, _ in found) / asked,
        "accuracy_error": error([(text, right) for text, right, *_ in found]),
        "weight_error": error([(text, weight) for text, _, weight, *_ in found]),
        "offset": offset,
        "fixed": count / asked,
    }


def error(found):
    """The standard error of a ratio of sums over texts."""
    by_text = defaultdict(list)
    for text, value in found:
        by_text[text].append(np.asarray(value, float))
    count = len(by_text)
    if count < 2:
        return None
    mean = sum(value for _, value in found) / len(found)
    squares = sum((sum(values) - mean * len(values)) ** 2 for values in by_text.values())
    return np.sqrt(count / (count - 1) * squares) / len(found)
