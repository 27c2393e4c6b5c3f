"""The logit lens, against the final norm and the unembedding written out."""

import pytest
import torch
import transformers as hf

from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.models.targets import place_prediction
from attnscope.questions.logits import logit_lens
from tests.models.folders import mamba, minilm
from tests.questions.intervention.shapes import SIZES, T5, saved
from tests.questions.test_writes import CAUSAL, TEXT

PLAIN = {  # the layers, the final norm and the unembedding of a model
    "gpt2": lambda model: (model.transformer.h, model.transformer.ln_f, model.lm_head),
    "llama": lambda model: (model.model.layers, model.model.norm, model.lm_head),
}


def by_hand(writer, inputs, parts, at):
    """Every layer's output by plain hooks, through the norm and the unembedding.  -> [layer, vocabulary]"""
    layers, norm, unembed = parts(writer)
    streams = []
    hooks = [layer.register_forward_hook(lambda *args: streams.append(args[-1])) for layer in layers]
    with torch.no_grad():
        writer(**inputs)
        for hook in hooks:
            hook.remove()
        rows = [(one[0] if isinstance(one, tuple) else one)[0, at] for one in streams]
        return unembed(norm(torch.stack(rows)))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("text", [TEXT, "cat"])
def test_each_layer_is_read_through_the_final_norm_and_the_unembedding(name, text, tmp_path):
    model = load(saved(tmp_path, CAUSAL[name]()), predicting=True)
    prepared = model.prepare(text)
    at = 1 if text == "cat" else 2
    seen = logit_lens(model, prepared, str(at), None)
    expected = by_hand(model.writer, prepared.inputs, PLAIN[name], at)
    target = int(expected[-1].argmax())
    assert [each.layer for each in seen.layers] == [0, 1]
    for each, logits in zip(seen.layers, expected, strict=True):
        assert each.log_probability == pytest.approx(float(logits.log_softmax(-1)[target]), abs=1e-5)
        assert each.rank == 1 + int((logits > logits[target]).sum())
        shares, ids = logits.softmax(-1).topk(5)
        assert [share for _, share in each.likeliest] == pytest.approx(shares.tolist(), abs=1e-5)
        spelled = [model.reader.tokenizer.decode([id_]).strip() for id_ in ids.tolist()]
        assert [token for token, _ in each.likeliest] == spelled


OTHERS = {
    "albert": lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**SIZES, embedding_size=16)),
    "bert": lambda: "bert",
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5 | {"num_layers": 3}, num_decoder_layers=2)),
}


@pytest.mark.parametrize("name", [*CAUSAL, *OTHERS])
def test_behind_the_last_layer_stands_the_models_own_prediction(name, tmp_path):
    model = load(saved(tmp_path, {**CAUSAL, **OTHERS}[name]()), predicting=True)
    prepared = model.prepare(TEXT)
    seen = logit_lens(model, prepared, "mat", "cat")
    at = place_prediction(model, prepared, "mat")
    with torch.no_grad():
        own = model.writer(**prepared.inputs).logits[0, at].double()
    words = [model.reader.tokenizer.convert_tokens_to_ids(word) for word in ("mat", "cat")]
    last = seen.layers[-1]
    assert len(seen.layers) == 2
    assert last.log_probability == pytest.approx(float(own.log_softmax(-1)[words[0]]), abs=1e-5)
    assert last.difference == pytest.approx(float(own[words[0]] - own[words[1]]), abs=1e-4)


def test_nothing_is_left_on_the_model():
    model = load("own-causal")
    prepared = model.prepare(TEXT)
    at = torch.tensor([len(prepared.tokens) - 1])
    with torch.no_grad():
        before = model.logits(prepared, torch.tensor([0]), at)
        logit_lens(model, prepared, None)
        assert torch.equal(model.logits(prepared, torch.tensor([0]), at), before)
    assert not any("forward" in vars(module) for module in model.module.modules())


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [(lambda at: minilm(), "load it with predicting"), (lambda at: mamba(at), "no list of layers")],
    ids=["no head", "no attention"],
)
def test_a_model_without_a_head_or_layers_is_refused(folder, sentence, tmp_path):
    model = load(folder(tmp_path), predicting=sentence.startswith("no"))
    with pytest.raises(ModelError, match=sentence):
        logit_lens(model, model.prepare(TEXT), None)
