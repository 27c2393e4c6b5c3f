"""A model that is watched while it is trained learns what it learns without, bit for bit."""

import contextlib
import copy
import json
import warnings

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers
from torch._dynamo.testing import CompileCounterWithBackend

import attnscope
from attnscope.errors import AttnscopeError, InputError, SelectionError
from attnscope.notebook.watch import Alarmed
from tests.models.folders import gpt2

SIZES = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 40}


def build(dropout=0.1):
    torch.manual_seed(0)
    config = hf.GPT2Config(
        **SIZES, resid_pdrop=dropout, attn_pdrop=dropout, embd_pdrop=dropout, use_cache=False
    )
    return hf.GPT2LMHeadModel(config).train()


def batches(count):
    chosen = torch.Generator().manual_seed(1)
    return [torch.randint(1, 40, (3, 9), generator=chosen) for _ in range(count)]


def learn(model, steps, accumulate=1, dtype=None):
    """A bare loop."""
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for number, ids in enumerate(batches(steps * accumulate), 1):
        around = torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext()
        with around:
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_only_passes_in_training_mode_count_and_nothing_is_left_behind():
    model = build()
    before = dict(model.__dict__)
    with attnscope.watch(model, every=1) as log:
        model(input_ids=batches(1)[0])
        model.eval()(input_ids=batches(1)[0])
        model.train()(input_ids=batches(1)[0])
    assert list(log.figures) == [0, 1]
    assert model.__dict__ == before
    with pytest.raises(ZeroDivisionError), attnscope.watch(model):
        1 / 0  # noqa: B018
    assert model.__dict__ == before


def test_lines_reports_frames_and_curves(tmp_path):
    model, told = build(), []
    with attnscope.watch(model, every=2, path=tmp_path / "log.jsonl", report=told.append) as log:
        learn(model, 5)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4]
    assert lines[1]["figures"] == log.figures[2]
    assert told[2]["L1H0/entropy"] == log.figures[4][2]["figures"]["entropy"][0]
    assert set(log.frame().columns) == {"measure", "head", "step", "value", "baseline", "appears"}
    log.save(tmp_path / "curves.png")
    assert (tmp_path / "curves-entropy.png").exists()
    assert "svg" in log._repr_html_() or "img" in log._repr_html_()


def test_an_alarm_warns_or_calls_or_stops(tmp_path):
    model = build()
    with (
        pytest.warns(UserWarning, match=r"step 0: L\dH\d has entropy"),
        attnscope.watch(model, alarm="entropy > 0.1"),
    ):
        learn(model, 1)
    told = []
    with attnscope.watch(model, alarm="entropy > 0.1", on_alarm=told.append, path=tmp_path / "log") as log:
        learn(model, 1)
    assert len(told) == 4
    assert told == log.alarms == json.loads((tmp_path / "log").read_text())["alarms"]
    with attnscope.watch(model, alarm="entropy < 0 or confidence > 2") as log:
        learn(model, 1)
    assert not log.alarms
    with (
        pytest.raises(Alarmed, match="step 0"),
        attnscope.watch(model, alarm="entropy > 0.1", on_alarm="stop"),
    ):
        learn(model, 3)


def test_weights_that_are_no_numbers_are_an_alarm_that_names_step_and_layer(tmp_path):
    model = build()
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight[0, 0] = torch.nan
    path = tmp_path / "log.jsonl"
    named = r"step 0: L1H0 has .*entropy.* of no finite number, in .*h\.1\.attn"
    with pytest.warns(UserWarning, match=named), attnscope.watch(model, path=path) as log:
        learn(model, 1)
    assert all("L1H" in each for each in log.alarms)
    figures = json.loads(path.read_text(), parse_constant=pytest.fail)["figures"]  # NaN is not JSON
    assert figures[2]["figures"]["entropy"][0] is None
    assert figures[0]["figures"]["entropy"][0] is not None
    assert log.track.of("entropy")


@pytest.mark.parametrize("how", ["wrapped", "inside", "method"])
def test_a_compiled_model_runs_uncompiled_while_it_is_watched_and_says_so_once(how):
    model, counting = build(), CompileCounterWithBackend("eager")
    called = model
    if how == "method":
        model.compile(backend=counting)
    else:
        called = torch.compile(model, backend=counting)
    ids = batches(1)[0]
    called(input_ids=ids)  # is compiled now
    ran = counting.frame_count
    assert ran
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with attnscope.watch(called if how == "wrapped" else model, every=2) as log:
            for _ in range(5):
                called(input_ids=ids, labels=ids).loss.backward()
    assert list(log.figures) == [0, 2, 4]
    assert sum("run uncompiled" in str(each.message) for each in said) == 1
    compiled_for_labels = counting.frame_count
    called(input_ids=ids, labels=ids)
    assert counting.frame_count == compiled_for_labels  # and it is compiled still


def test_probe_texts_have_the_figures_of_the_model_at_that_step(tmp_path):
    folder = gpt2(tmp_path / "model")
    model = hf.AutoModelForCausalLM.from_pretrained(folder).train()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    texts, kept = ["The cat sat on the mat.", "Words look back, and heads look at words."], []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with attnscope.watch(model, every=2, texts=texts, tokenizer=tokenizer, measures=["entropy"]) as log:
        for ids in batches(3):
            kept.append(copy.deepcopy(model))
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert list(log.figures) == [0, 2]
    eager = kept[2].eval()
    eager.set_attn_implementation("eager")
    rows = []
    for text in texts:
        with torch.no_grad():
            weights = eager(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions[1]
        rows += torch.special.entr(weights[0, 2].double()).sum(-1)[1:].tolist()
    assert log.figures[2][6]["head"] == "L1H2"
    assert log.figures[2][6]["figures"]["entropy"][0] == pytest.approx(sum(rows) / len(rows), abs=1e-5)
    assert all(part.training for part in model.modules())


def test_a_probe_longer_than_positions_is_cut_and_says_so(tmp_path):
    folder = gpt2(tmp_path / "model", n_positions=16)
    model = hf.AutoModelForCausalLM.from_pretrained(folder).train()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    with attnscope.watch(model, texts=["word " * 40, "a cat"], tokenizer=tokenizer) as log:
        model(input_ids=batches(1)[0])
    assert "1 text was cut at the limit of tokens" in log.notes


class KeepsATable(torch.nn.Module):
    """Attention that keeps a table for the next pass of the same length, as rotations are often kept."""

    def __init__(self):
        super().__init__()
        self.embed, self.attend = (
            torch.nn.Embedding(8, 8),
            torch.nn.MultiheadAttention(8, 2, batch_first=True),
        )
        self.table = None

    def forward(self, ids):
        x = self.embed(ids)
        if self.table is None:
            self.table = torch.ones_like(x[:1]).cumsum(1)
        x = x * self.table
        return self.attend(x, x, x)[0]


def test_what_a_probe_leaves_in_a_model_is_fit_for_training():
    """A tensor of inference mode would end the training with an error of torch."""
    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(8)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = KeepsATable()
    with attnscope.watch(model, texts=["2 3 4 5"], tokenizer=tokenizer) as log:
        model(torch.tensor([[2, 3, 4, 5]])).sum().backward()
    assert list(log.figures) == [0]


def test_a_wrong_call_is_one_sentence():
    with pytest.raises(AttnscopeError, match="every is 0"), attnscope.watch(build(), every=0):
        pass
    with pytest.raises(SelectionError, match="entropy"), attnscope.watch(build(), measures=["entropie"]):
        pass
    with attnscope.watch(build()) as log, pytest.raises(AttnscopeError, match="no step was watched"):
        log.frame()
    model = build()
    with pytest.raises(InputError, match="give tokenizer="), attnscope.watch(model, texts=["a"]):
        learn(model, 1)
