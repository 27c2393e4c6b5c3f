"""The cost that info estimates from a config, and faults of models' own reports."""

import re
import sys
from functools import wraps
from math import ceil

import pytest
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    FunnelConfig,
    GPT2Config,
    Lfm2Config,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MixtralConfig,
    ModernBertDecoderConfig,
    RoFormerConfig,
    T5Config,
    ViTConfig,
    XmodConfig,
)

from attnscope.capture import RowSums, recording
from attnscope.errors import InputError, ModelError, SizeError
from attnscope.models.inputs import BATCH_TOKENS
from attnscope.models.text.reader import wrap_module
from attnscope.models.untrusted_folder import ModelSource
from attnscope.questions.cost import (
    SAMPLED_TEXTS,
    EmptyPass,
    TimedRuns,
    cost_answer,
    count_heads,
    estimate_corpus_cost,
    estimate_cost,
    measure_pace,
)
from attnscope.questions.info import fault, survey_model
from attnscope.storage.corpus import read_corpus
from tests.models.folders import gpt2, inkling

LLAMA = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
FUNNEL = {"block_sizes": [1, 1], "d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64, "vocab_size": 100}
ENDS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id"), 0)
CONFIGS = {
    "gpt2": GPT2Config(n_layer=2, n_head=4, n_embd=64, n_positions=256, vocab_size=100),
    "llama": LlamaConfig(**LLAMA, vocab_size=100, max_position_embeddings=256, dtype="bfloat16"),
    "t5": T5Config(d_model=32, d_ff=64, num_layers=2, num_heads=2, d_kv=16, vocab_size=100),
    "several classes": FunnelConfig(**FUNNEL, architectures=["FunnelModel"]),
    "pooler": BertConfig(**LLAMA, vocab_size=100),
    "frozen positions": RoFormerConfig(**LLAMA, vocab_size=100),
    "numbers within limits": ModernBertDecoderConfig(**LLAMA, vocab_size=100, **ENDS),
    "no heads": MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=100),
}


TIME = TimedRuns._time


@pytest.fixture(autouse=True)
def paced(monkeypatch):
    """A machine whose pace and time for an operation are known, and not measured each time."""
    monkeypatch.setattr("attnscope.questions.cost.measure_pace", lambda dtype: 1e9)
    monkeypatch.setattr(TimedRuns, "_time", lambda self, function, shapes: 1e-6)


@pytest.fixture
def cost_of(tmp_path):
    """The cost of a config on so many tokens."""

    def estimate(config, tokens):
        config.save_pretrained(tmp_path)
        return estimate_cost(ModelSource(str(tmp_path), None, False), tokens)

    return estimate


@pytest.mark.parametrize("name", CONFIGS)
def test_estimated_parameters_equal_the_built_model(name, cost_of):
    config = CONFIGS[name]
    cost = cost_of(config, 10)
    built = AutoModel.from_config(config, dtype=config.dtype or torch.float32)
    assert cost.parameters == sum(each.numel() for each in built.parameters())
    assert cost.weights == sum(each.numel() * each.element_size() for each in built.parameters())
    assert all(each.passes >= 1 for each in cost.commands)


def test_estimated_operations_equal_the_closed_form(cost_of):
    config, tokens = CONFIGS["gpt2"], 100
    layer = 2 * tokens * 12 * config.n_embd**2 + 4 * tokens**2 * config.n_embd
    assert cost_of(config, tokens).operations == 2 * layer


def test_each_operation_of_a_pass_is_timed_as_often_as_it_runs(monkeypatch):
    monkeypatch.setattr(TimedRuns, "_time", lambda self, function, shapes: float("addmm" in str(function)))
    config, ids = CONFIGS["gpt2"], torch.zeros(2, 50, dtype=torch.long)
    model = AutoModel.from_config(config).eval()
    with torch.profiler.profile() as profile, torch.inference_mode():
        model(ids)
    ran = {each.key: each.count for each in profile.key_averages()}["aten::addmm"]
    assert ran == 4 * config.n_layer
    measured = EmptyPass(model).run({"input_ids": ids})
    assert measured.seconds(1.0, measured.operations) == ran
    assert measured.seconds(1.0, 3 * measured.operations) == 3 * ran  # those of a longer text


EXPERTS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_local_experts": 4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operations_of_experts_equal_the_closed_form(dtype, cost_of, monkeypatch):
    few = MixtralConfig(**EXPERTS, **HEADS, vocab_size=100, num_experts_per_tok=1, dtype=dtype)
    many, tokens = MixtralConfig(**{**few.to_dict(), "num_experts_per_tok": 3}), 200
    monkeypatch.setattr(TimedRuns, "_time", lambda self, function, shapes: count_products(function, shapes))
    costs = [cost_of(each, tokens) for each in (few, many)]
    products = 2 * 2 * tokens * 3 * 32 * 64 * 2  # of two more experts a token, three matrices, two layers
    assert costs[1].operations - costs[0].operations == products
    more = costs[1].commands[0].seconds - costs[0].commands[0].seconds
    assert products <= more <= products + 2 * 2 * 3 * 4 * 32 * 64 * 2  # an expert's share is a whole number


def count_products(function, shapes):
    """The operations of a product, from the shapes of what makes its factors."""
    if function is not torch.ops.aten.mm.default:
        return 0
    (rows, *_), (columns, *_) = (each.args for each in shapes[0])
    return 2 * rows[0] * rows[1] * columns[1]


def test_cost_of_a_model_with_layers_of_another_type_is_found(tmp_path):
    """Where a model converts layers while it is built: it stores bfloat16, and convolutions in float32."""
    pytest.importorskip("transformers.models.inkling")
    stored = inkling(tmp_path, dtype="bfloat16")
    cost = estimate_cost(ModelSource(stored, None, False), 40)
    built = AutoModel.from_config(AutoConfig.from_pretrained(stored), dtype=torch.bfloat16)
    assert cost.weights == sum(each.numel() * each.element_size() for each in built.parameters())
    assert {each.dtype for each in built.parameters()} == {torch.bfloat16, torch.float32}
    assert cost.commands[1].command == "the same with --mixers"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_each_operation_of_a_pass_runs_on_numbers_of_its_shape(name, cost_of, monkeypatch):
    ran = []
    monkeypatch.setattr(TimedRuns, "_time", lambda *given: ran.append(TIME(*given)) or ran[-1])
    seconds = cost_of(CONFIGS[name], 20).commands[0].seconds
    assert len(ran) > 10
    assert min(ran) > 0
    assert seconds > sum(ran) / 2  # of two passes, in one of several texts, with some operations twice


def test_large_products_take_their_operations_at_the_measured_pace(monkeypatch):
    monkeypatch.setattr(TimedRuns, "_time", lambda self, function, shapes: float("mm" in str(function)))
    with torch.device("meta"):
        layers = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 4096))
        layers.forward = lambda ids, run=layers.forward: (run(ids),)
        measured = EmptyPass(layers).run({"ids": torch.zeros(1000, 1024)})
    assert measured.operations == 2 * 1000 * 1024 * (1024 + 4096)
    assert measured.seconds(1e6, measured.operations) == pytest.approx(1 + 2 * 1000 * 1024 * 4096 / 1e6)


def test_estimated_gradient_memory_covers_activations_and_logits(cost_of):
    config, tokens = CONFIGS["gpt2"], 200
    cost = cost_of(config, tokens)
    assert cost.activations > cost_of(config, 50).activations
    looks = {each.command: each for each in cost.commands}
    layer = tokens * 4 * (2 + 3 + 1 + 4 + 4) * config.n_embd  # norms, queries to values, heads, feed-forward
    more = looks["logits"].memory - looks["cut, patch, ablate"].memory
    assert more > config.n_layer * layer + tokens * 4 * config.vocab_size


def test_cost_notes_texts_longer_than_the_positions(cost_of):
    assert any("256 positions" in note for note in cost_of(CONFIGS["gpt2"], 300).notes)


def test_seventy_billion_parameters_are_counted_unbuilt(cost_of):
    sizes = {"hidden_size": 32768, "intermediate_size": 114688, "num_hidden_layers": 5}
    config = LlamaConfig(**sizes, num_attention_heads=256, num_key_value_heads=32, dtype="bfloat16")
    cost = cost_of(config, 512)
    layer = (2 + 2 / 8) * 32768**2 + 3 * 32768 * 114688 + 2 * 32768
    assert cost.parameters == 5 * layer + 32000 * 32768 + 32768 == 69_499_977_728
    assert cost.weights == 2 * cost.parameters
    embeddings = 2 * 32000 * 32768
    show, logits, *_ = (each.memory for each in cost.commands)
    assert cost.weights - embeddings < show < cost.weights + 3e9
    assert logits > cost.weights + embeddings  # the output head
    assert "GB" in cost_answer(cost).views[0].rows[0][2]


def test_machine_speed_is_measured():
    assert measure_pace(torch.float32, size=64, seconds=0.01) > 1e6


def test_cost_that_depends_on_numbers_is_refused(cost_of):
    config = XmodConfig(**LLAMA, vocab_size=100, languages=["en"], default_language="en")
    with pytest.raises(ModelError, match=r"not known before a pass: .* depends on its numbers"):
        cost_of(config, 10)


def test_heads_of_layers_that_differ_are_added():
    class Differing:
        num_hidden_layers = 2
        per_layer_config = (LlamaConfig(**LLAMA), LlamaConfig(**LLAMA | {"num_attention_heads": 8}))

        @property
        def num_attention_heads(self):
            raise LookupError

    assert count_heads(Differing()) == 4 + 8
    assert count_heads(LlamaConfig(**LLAMA)) == 2 * 4


def test_cost_of_an_image_model_is_refused(tmp_path):
    ViTConfig(num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="reads no tokens: --cost is of models of text"):
        estimate_cost(ModelSource(str(tmp_path), None, False), 10)


def test_faults_of_reported_attentions_are_named():
    weights = torch.softmax(torch.randn(2, 4, 5, 5), -1)
    call = weights, torch.ones(1, 1, 5, 1, dtype=torch.bool)
    assert fault(weights, *call) is None
    mean = weights.mean(1, keepdim=True)
    for averaged in (mean[:, 0], mean, mean.expand(2, 4, 5, 5)):
        assert fault(averaged, *call) == "the mean over the heads"
    assert fault(weights[:, 0], *call) == "one map for all heads"
    assert fault(torch.randn(2, 5, 16), *call).startswith("a tensor of the shape [2, 5, 16]")
    assert fault(weights.log(), *call) == "scores from before the softmax"
    assert fault(weights.mT / 3, *call) == "other weights than those that were used"


@pytest.mark.parametrize("error", [None, MemoryError])
def test_report_pass_has_the_limits_of_a_shown_pass(error, monkeypatch):
    monkeypatch.setattr("attnscope.capture.tracker.MOST_CALLS", 20)
    sizes = {"hidden_size": 8, "embedding_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.AlbertConfig(vocab_size=99, num_hidden_layers=30, **sizes)
    module = transformers.AlbertModel(config)
    ran = []

    def run(*call):
        ran.append(1)
        if error is not None:
            raise error

    module.encoder.albert_layer_groups[0].register_forward_hook(run)
    model = wrap_module(module.eval(), None, None, None)
    prepared = model.prepare_tensors({"input_ids": torch.ones(1, 3, dtype=torch.int64)})
    with pytest.raises(error or SizeError):
        survey_model(model, prepared)
    assert len(ran) == (1 if error else 20)


SCANS = {"num_heads": 4, "head_dim": 16, "state_size": 4, "n_groups": 1, "num_hidden_layers": 2}
CONVS = {"intermediate_size": 32, "num_attention_heads": 2, "layer_types": ["conv", "full_attention", "conv"]}
KERNELS = {
    "mamba2_chunk_scan": (Mamba2Config, SCANS, 1 + 3, 4),  # zero values, and 40 tokens on 16 channels
    "causal_conv1d_fn": (Lfm2Config, CONVS | {"num_key_value_heads": 2, "num_hidden_layers": 3}, 1 + 40, 1),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_runs_of_kernels_are_those_that_mixers_take(kernel, cost_of, monkeypatch):
    made, sizes, each, heads = KERNELS[kernel]
    config, tokens = made(hidden_size=32, vocab_size=100, **sizes), 40
    cost = cost_of(config, tokens)
    model, ran = AutoModel.from_config(config).eval(), []
    module = sys.modules[type(model).__module__]
    function = getattr(module, kernel)

    @wraps(function)
    def count(*args, **named):
        ran.append(1)
        return function(*args, **named)

    monkeypatch.setattr(module, kernel, count)
    with torch.inference_mode(), recording(model, [RowSums()], warn=False, mixers=True):
        model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    assert len(ran) - 2 == 2 * each  # without the pass's own
    assert f"--mixers: {len(ran) - 2} runs of kernels" in " ".join(cost.notes)
    plain, mixed = cost.commands[:2]
    assert mixed.command == "the same with --mixers"
    assert mixed.seconds > plain.seconds
    assert mixed.memory - plain.memory == 4 * heads * tokens**2  # the rows of one layer


def test_cost_of_model_of_attention_alone_has_no_kernels(cost_of):
    assert all("--mixers" not in each.command for each in cost_of(CONFIGS["gpt2"], 20).commands)


@pytest.mark.parametrize("count", [40, 4000])
def test_corpus_cost_estimates_texts_and_tokens(tmp_path, count):
    folder, words = gpt2(tmp_path / "model"), "the cat sat on the mat and it was tired"
    lines = [words[: 7 + 4 * (number % 8)].strip() for number in range(count)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    cost = estimate_corpus_cost(ModelSource(str(folder), None, False), read_corpus(tmp_path / "a.txt"))
    whole, one, *_ = cost.commands
    tokens = sum(len(ids) for ids in transformers.AutoTokenizer.from_pretrained(folder)(lines)["input_ids"])
    exact = count <= SAMPLED_TEXTS
    assert whole.command == "stats --texts"
    found, estimated = (int(each.replace(",", "")) for each in re.findall(r"([\d,]+) t", cost.notes[0])[:2])
    assert found == pytest.approx(count, rel=0 if exact else 0.02)
    assert whole.passes == ceil(found / (BATCH_TOKENS // round(tokens / count)))
    assert whole.memory > one.memory
    assert estimated == pytest.approx(tokens, rel=1e-9 if exact else 0.02)
    assert ("all were counted" in cost.notes[0]) == exact


def test_corpus_cost_needs_a_readable_text(tmp_path):
    folder = gpt2(tmp_path / "model")
    (tmp_path / "a.jsonl").write_text("{")
    with pytest.raises(InputError, match=r"the first texts of .* cannot be read"):
        estimate_corpus_cost(ModelSource(str(folder), None, False), read_corpus(tmp_path / "a.jsonl"))
