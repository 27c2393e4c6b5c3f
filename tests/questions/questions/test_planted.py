"""Documents with a fact in one of ten paragraphs: the copying heads show where the answer was read.

The bundled causal encoder copies from some sixty tokens back (its heads were trained on no longer repeats),
so that the documents are short: ten paragraphs of four words of its vocabulary, a question, and the answer.
It answers nothing about prose.
"""

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import attnscope
from attnscope.models import load
from attnscope.questions.find import parse_questions
from attnscope.questions.parts import read_marks, spans_of
from attnscope.questions.selection import Selection
from attnscope.questions.spans import span_maps
from attnscope.questions.stats import measure_heads

DOCUMENTS = 100
PARAGRAPHS = 10


@cache
def words():
    """Words that are one token each, longer ones, which carry more than grammar."""
    file = Path(attnscope.__file__).parent / "pretrained" / "own-causal" / "tokenizer.json"
    return sorted(
        word for word in Tokenizer.from_file(str(file)).get_vocab() if word.isalpha() and len(word) > 3
    )


def document(seed):
    """A text with marks, and which paragraph holds the fact."""
    chosen = random.Random(seed)
    drawn = chosen.sample(words(), 4 * PARAGRAPHS)
    paragraphs = [drawn[4 * number : 4 * number + 4] for number in range(PARAGRAPHS)]
    place = chosen.randrange(PARAGRAPHS)
    fact = paragraphs[place]
    parts = [f"[[paragraph {number}: {' '.join(each)}.]]" for number, each in enumerate(paragraphs)]
    parts += [f"[[question: {' '.join(fact[:2])}?]]", f"[[answer: {' '.join(fact)}.]]"]
    return "\n\n".join(parts), place


def copying_heads(model):
    """The heads with the strongest induction on words at random that come twice: found, not known."""
    drawn = random.Random(-1).sample(words(), 40)
    heads = measure_heads(model, model.prepare(" ".join(drawn * 2)), Selection()).heads
    return [head.address for head in heads if head.role and head.role.name == "induction"]


@pytest.mark.slow
def test_the_paragraph_that_holds_the_fact_is_looked_at_most_in_95_of_100_documents():
    model = load("own-causal")
    heads = copying_heads(model)
    assert [head.name for head in heads] == ["L1H0", "L1H3"]
    questions = [parse_questions(f"answer -> 'paragraph {number}'")[0] for number in range(PARAGRAPHS)]
    right = 0
    for seed in range(DOCUMENTS):
        marked, place = document(seed)
        text, parts = read_marks(marked)
        prepared = model.prepare(text)
        seen = span_maps(model, prepared, spans_of(prepared.tokens, text, parts))
        looks = [{each.head: each.weight for each in seen.pair(question)[0].heads} for question in questions]
        right += int(np.argmax([sum(look[head] for head in heads) for look in looks])) == place
    assert right >= 95
