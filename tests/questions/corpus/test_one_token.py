"""A text of one token cannot show its kind of attention, and is placed where the longer texts are."""

import pytest
import transformers

from attnscope.models import load
from attnscope.questions.corpus import CorpusRun
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.storage.corpus import ListedTexts
from tests.models.folders import gpt2, save, t5

LONG = "The cat sat on the mat because it was tired."
ONE = "T"
SIZES = {"vocab_size": 400, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4}


def of(build):
    """A function that writes a tiny folder of the model, with a byte-level tokenizer that adds no tokens."""

    def write(folder):
        gpt2(folder)
        return save(folder, build(), transformers.AutoTokenizer.from_pretrained(folder))

    return write


FOLDERS = {
    "bloom": of(
        lambda: transformers.BloomModel(
            transformers.BloomConfig(vocab_size=400, hidden_size=32, n_layer=2, n_head=4)
        )
    ),
    "mpt": of(
        lambda: transformers.MptModel(
            transformers.MptConfig(vocab_size=400, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)
        )
    ),
    "gpt2": gpt2,
    "bert": of(lambda: transformers.BertModel(transformers.BertConfig(**SIZES, num_hidden_layers=2))),
    "llama": of(lambda: transformers.LlamaModel(transformers.LlamaConfig(**SIZES, num_hidden_layers=2))),
    "t5": t5,
    "own": lambda folder: "own",
    "own-causal": lambda folder: "own-causal",
}


def heads_of(folder, *texts, **options):
    """Kind, layer and head of every figure over the texts, of a model that was loaded anew."""
    stats = corpus_stats(load(folder), ListedTexts(list(texts), "texts"), run=CorpusRun(**options))
    return [(figures.site.kind, figures.site.layer, figures.head) for figures in stats.heads]


@pytest.mark.parametrize("family", FOLDERS)
@pytest.mark.slow
def test_texts_of_one_token_have_the_heads_of_a_long_text(tmp_path, family):
    folder = FOLDERS[family](tmp_path)
    expected = heads_of(folder, LONG)
    assert len(set(expected)) == len(expected)
    assert heads_of(folder, ONE, LONG) == expected
    assert heads_of(folder, LONG, ONE) == expected
    assert heads_of(folder, LONG, max_tokens=1) == expected
