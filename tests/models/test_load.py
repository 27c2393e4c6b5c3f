"""Loading by name: what loads, and the one-sentence error if something does not."""

import shutil
import sys
from contextlib import suppress

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from attnscope.errors import InputError, ModelError
from attnscope.models import load
from attnscope.models.huggingface.load import pick_class
from attnscope.models.inputs import Limit
from attnscope.network import Encoder, EncoderConfig, save_encoder
from tests.models.folders import changed, gpt2, minilm, t5
from tests.questions.intervention.shapes import saved


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    return gpt2(tmp_path_factory.mktemp("gpt2"))


def test_own_model_reads_text_and_pair():
    model = load("own")
    alone = model.prepare("The cat sat.")
    assert [t.text for t in alone.tokens] == ["[CLS]", "The", "cat", "sat", ".", "[SEP]"]
    pair = model.prepare("The cat sat.", "It slept.")
    assert pair.inputs["segments"].tolist() == [[0] * 6 + [1] * (len(pair.tokens) - 6)]


def test_saved_encoder_loads_from_its_folder(tmp_path):
    tokenizer = load("own").reader.tokenizer
    encoder = Encoder(EncoderConfig(tokenizer.get_vocab_size(), 32, 1, 4, 64))
    save_encoder(tmp_path / "mine", encoder, tokenizer)
    assert torch.equal(load(tmp_path / "mine").module.embedding.weight, encoder.embedding.weight)


def test_folder_loads_in_the_requested_dtype(causal):
    for options, dtype in (({}, torch.float32), ({"dtype": "bfloat16"}, torch.bfloat16)):
        assert load(causal, **options).module.wte.weight.dtype == dtype


def test_loading_silences_transformers_except_errors(causal):
    logging = transformers.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_info()
        logging.enable_progress_bar()
        load(causal)
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.ERROR, False)
    finally:
        logging.set_verbosity(before[0])
        (logging.enable_progress_bar if before[1] else logging.disable_progress_bar)()


def test_encoder_decoder_without_target_reads_text_with_a_note(tmp_path):
    model = load(t5(tmp_path))
    prepared = model.prepare("The cat sat.", "It was tired.")
    queries, keys = prepared.axes["cross"]
    assert keys == prepared.axes["encoder"][0]
    assert queries == prepared.axes["decoder"][1]
    assert (queries[0].text, queries[0].special) == ("<pad>", True)
    assert len(queries) == prepared.inputs["decoder_input_ids"].shape[1]
    assert "the decoder gets the same text" in model.prepare("The cat sat.").notes[0]


@pytest.mark.parametrize(
    ("kind", "causal"),
    [("Flaubert", False), ("XLM", False), ("XLM", True)],
    ids=["another name", "XLM", "causal"],
)
def test_causal_or_masked_objective_follows_config(kind, causal, tmp_path):
    sizes = {"vocab_size": 8192, "emb_dim": 32, "n_layers": 2, "n_heads": 4}
    config = getattr(transformers, f"{kind}Config")(causal=causal, **sizes)
    folder = saved(tmp_path, lambda: getattr(transformers, f"{kind}WithLMHeadModel")(config))
    assert (load(folder, predicting=True).objective.mask is None) == causal


def test_every_generative_type_gets_its_class():
    automatic = transformers.AutoModelForSeq2SeqLM
    for kind, made in automatic._model_mapping.items():
        with suppress(ImportError, ValueError):  # of types whose default config needs another package
            config = kind(architectures=[made.__name__])
            assert kind in pick_class(config, generative=False, predicting=True)._model_mapping


@pytest.mark.parametrize(
    ("saved_as", "predicting", "kind"),
    [
        ("BertForMaskedLM", True, "AutoModelForMaskedLM"),
        ("BertModel", True, "AutoModelForMaskedLM"),
        (None, True, "AutoModelForMaskedLM"),
        ("BertLMHeadModel", True, "AutoModelForCausalLM"),
        ("BertForCausalLM", True, "AutoModelForCausalLM"),
        ("BertLMHeadModel", False, "AutoModel"),
    ],
)
def test_saved_head_class_is_preferred(saved_as, predicting, kind):
    config = transformers.BertConfig(architectures=saved_as and [saved_as])
    assert pick_class(config, generative=False, predicting=predicting) is getattr(transformers, kind)


def test_text_pair_without_separator_is_noted(causal):
    assert "without a separator" in load(causal).prepare("The cat", " sat").notes[0]
    assert load(minilm()).prepare("The cat", "sat").notes == ()


@pytest.mark.parametrize("name", ["own", "causal"])
def test_truncated_text_has_a_note_with_lengths(name, causal):
    model = load(causal if name == "causal" else name)
    cut = model.prepare("cat " * 600, limit=Limit(truncate=True))
    assert len(cut.tokens) == model.positions
    assert f"cut: the first {model.positions:,} of" in cut.notes[0]


@pytest.mark.parametrize("limit", [Limit(), Limit(100)])
def test_too_long_text_error_has_both_lengths(causal, limit):
    with pytest.raises(InputError, match=r"the text has \d+ tokens and .* reads at most 64: .*--truncate"):
        load(causal).prepare("cat " * 200, limit=limit)
    assert len(load(causal).prepare("cat " * 200, limit=Limit(50)).tokens) == 50


def test_positions_exclude_reserved_padding_rows(tmp_path):
    gpt2(tmp_path)  # for its tokenizer
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.RobertaConfig(**sizes, vocab_size=400, max_position_embeddings=66, pad_token_id=1)
    transformers.RobertaModel(config).save_pretrained(tmp_path)
    assert load(str(tmp_path)).positions == 64


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("empty", {}, r"holds no model: it has no config\.json"),
        ("adapted", {}, r"holds an adapter of peft: save merge_and_unload\(\)"),
        ("weights.bin", {}, "is a file, not a model"),
        ("./nowhere", {}, r"no model folder \./nowhere"),  # and it is not looked for on the hub
        ("a name with spaces", {}, "neither a folder here nor a hub id"),
        ("own", {"device": "mars"}, r"no device 'mars' here: this machine has .*cpu"),
        ("own", {"dtype": "float8"}, "no dtype 'float8': there are auto, float32"),
    ],
)
def test_invalid_model_name_is_refused_immediately(tmp_path, monkeypatch, name, options, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "adapted").mkdir()
    (tmp_path / "adapted" / "adapter_config.json").write_text("{}")
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=sentence):
        load(name, **options)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("RepositoryNotFoundError", "no public model of that name on the hub"),
        ("GatedRepoError", "its authors ask for consent"),
        ("RevisionNotFoundError", "has no revision 'v9' on the hub"),
        (None, r"not in the cache, and the hub cannot be reached \(Name or service"),
    ],
)
def test_hub_errors_are_one_sentence(monkeypatch, error, sentence):
    def answer(self, *arguments, **keywords):
        if error is None:
            raise ConnectionError("Name or service not known")
        kind = getattr(huggingface_hub.errors, error)
        raise kind.__new__(kind)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", answer)
    with pytest.raises(ModelError, match=sentence):
        load("nobody/nothing", revision="v9")


@pytest.fixture
def copied(causal, tmp_path):
    """A folder of one's own, and its weights."""
    shutil.copytree(causal, tmp_path, dirs_exist_ok=True)
    return tmp_path, load_file(tmp_path / "model.safetensors")


def test_pickled_weights_need_allow_pickle(copied):
    place, state = copied
    (place / "model.safetensors").unlink()
    torch.save(state, place / "pytorch_model.bin")
    with pytest.raises(ModelError, match="has no safetensors weights: pass --allow-pickle"):
        load(place)
    assert load(place, allow_pickle=True).module.config.n_layer == 2


def test_pickle_beside_weights_needs_allow_pickle(copied, monkeypatch):
    place, _ = copied
    torch.save({"voice": torch.ones(2)}, place / "spk_dict.pt")
    original = transformers.GPT2Model.__init__

    def read_voices(self, config):  # as Qwen2.5-Omni does
        torch.load(place / "spk_dict.pt", weights_only=True)
        original(self, config)

    monkeypatch.setattr(transformers.GPT2Model, "__init__", read_voices)
    with pytest.raises(ModelError, match=r"loads spk_dict\.pt, a pickle: pass --allow-pickle"):
        load(place)
    assert load(place, allow_pickle=True).module.config.n_layer == 2
    assert torch.load(place / "spk_dict.pt")["voice"].sum() == 2  # and the function is torch's own again


def test_folder_code_needs_trust_remote_code(tmp_path):
    auto = {"AutoConfig": "planted.Config", "AutoModel": "planted.Model"}
    place = changed(tmp_path / "model", model_type="planted", auto_map=auto)
    (place / "planted.py").write_text("import sys\nsys.planted_code_ran = True\nraise SystemExit(9)\n")
    with pytest.raises(ModelError, match="carries code of its own: read it, then pass --trust-remote-code"):
        load(place)
    assert not hasattr(sys, "planted_code_ran")


def test_missing_weights_are_noted_and_damaged_file_refused(copied):
    place, state = copied
    kept = {name: weights for name, weights in state.items() if "h.1.attn" not in name}
    save_file(kept, place / "model.safetensors", {"format": "pt"})
    assert f"{len(state) - len(kept)} weights are not in the files, and random" in load(place).notes[0]
    (place / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(place)


def test_old_transformers_is_refused_in_one_sentence(copied, monkeypatch):
    monkeypatch.setattr("transformers.__version__", "4.57.6")
    with pytest.raises(ModelError, match=r"transformers 4\.57\.6 is too old, attnscope needs 5\.0 or newer"):
        load(copied[0])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_token_limit_includes_special_tokens(count, tmp_path):
    for name in ("own", "own-causal", minilm(), t5(tmp_path / "t5"), gpt2(tmp_path / "gpt2")):
        model = load(name)
        prepared = model.prepare("The cat sat on the mat.", limit=Limit(count))
        assert len(prepared.tokens) == count, name
        assert any(f"cut: the first {count} of " in note for note in prepared.notes)
        fields = [field for key, field in prepared.inputs.items() if not key.startswith("decoder")]
        assert {field.shape[1] for field in fields} == {count}
        model.run(prepared, [])
