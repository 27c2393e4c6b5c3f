"""Watching a loop or a trainer leaves the training bit-identical."""

import contextlib
import copy
import json
import warnings
from pathlib import Path

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

import attnscope
from attnscope.errors import AttnscopeError, InputError, ModelError, SelectionError
from attnscope.notebook.watch import AlarmError
from tests.models.folders import gpt2, mean_entropy


def build(dropout=0.1):
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 40}
    shares = dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), dropout)
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **shares, use_cache=False)).train()


def batches(count):
    chosen = torch.Generator().manual_seed(1)
    return [torch.randint(1, 40, (3, 9), generator=chosen) for _ in range(count)]


def saved(folder, **changes):
    """A model that reads texts, with its tokenizer."""
    folder = gpt2(folder / "model", **changes)
    return hf.AutoModelForCausalLM.from_pretrained(folder).train(), hf.AutoTokenizer.from_pretrained(folder)


def learn(model, steps, accumulate=1, dtype=None):
    """A bare loop."""
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for number, ids in enumerate(batches(steps * accumulate), 1):
        with torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_watch_counts_training_passes_and_restores_the_model():
    model = build()
    before = dict(model.__dict__)
    with attnscope.watch(model, every=1) as log:
        model(input_ids=batches(1)[0])
        model.eval()(input_ids=batches(1)[0])
        model.train()(input_ids=batches(1)[0])
    assert list(log.scores) == [0, 1]
    assert model.__dict__ == before


def test_watch_reports_frame_and_curves(tmp_path):
    model, told = build(), []
    with attnscope.watch(model, every=2, report=told.append) as log:
        learn(model, 5)
    assert told[2]["L1H0/entropy"] == log.scores[4][2]["scores"]["entropy"][0]
    assert set(log.frame().columns) == {"measure", "head", "step", "value", "baseline", "appears"}
    log.save(tmp_path / "curves.png")
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]
    assert (tmp_path / "curves.png").read_bytes() == log._repr_png_()


def test_alarm_warns_or_calls_back(tmp_path):
    model, told, alarm = build(), [], "entropy > 0.1"
    named = r"step 0: L\dH\d has entropy"
    with pytest.warns(UserWarning, match=named), attnscope.watch(model, alarm=alarm):
        learn(model, 1)
    with attnscope.watch(model, alarm=alarm, on_alarm=told.append, path=tmp_path / "log") as log:
        learn(model, 1)
    assert len(told) == 4
    assert told == log.alarms == json.loads((tmp_path / "log").read_text())["alarms"]
    with attnscope.watch(model, alarm="entropy < 0 or confidence > 2") as log:
        learn(model, 1)
    assert not log.alarms


def test_non_finite_scores_raise_alarm_with_step_and_layer(tmp_path):
    model = build()
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight[0, 0] = torch.nan
    path = tmp_path / "log.jsonl"
    named = r"step 0: L1H0: .*entropy.* not finite, in .*h\.1\.attn"
    with pytest.warns(UserWarning, match=named), attnscope.watch(model, path=path) as log:
        learn(model, 1)
    assert all("L1H" in each for each in log.alarms)
    scores = json.loads(path.read_text(), parse_constant=pytest.fail)["scores"]  # NaN is not JSON
    assert scores[2]["scores"]["entropy"][0] is None
    assert scores[0]["scores"]["entropy"][0] is not None
    assert log.track.of("entropy")


class KeepsATable(torch.nn.Module):
    """Attention that keeps a table for the next pass of the same length, as rotations are often kept."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(40, 8)
        self.attend = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.table = None

    def forward(self, input_ids, labels=None):
        x = self.embed(input_ids)
        if self.table is None:
            self.table = torch.ones_like(x[:1]).cumsum(1)
        x = x * self.table
        states = self.attend(x, x, x)[0]
        return states if labels is None else {"loss": states.sum()}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("how", ["wrapped", "inside", "method"])
def test_compiled_model_is_watched_uncompiled_with_one_warning(how):
    model, ran = KeepsATable(), []

    def counting(graph, inputs):
        return lambda *given: ran.append(1) or graph(*given)

    called = model
    if how == "method":
        model.compile(backend=counting)
    else:
        called = torch.compile(model, backend=counting)
    ids = torch.tensor([[2, 3, 4, 5]])
    for _ in range(2):  # without the table, and with it
        called(ids)
    assert len(ran) == 2
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with attnscope.watch(called if how == "wrapped" else model, every=2) as log:
            for _ in range(5):
                called(ids).sum().backward()
    assert list(log.scores) == [0, 2, 4]
    assert sum("ran uncompiled" in str(each.message) for each in said) == 1
    assert len(ran) == 4
    called(ids)
    assert len(ran) == 5  # it is compiled still


def test_probe_text_scores_are_of_the_model_at_that_step(tmp_path):
    model, tokenizer = saved(tmp_path)
    texts = ["The cat sat on the mat.", "Words look back, and heads look at words."]
    then = copy.deepcopy(model)
    learn(then, 2)
    with attnscope.watch(model, every=2, texts=texts, tokenizer=tokenizer, measures=["entropy"]) as log:
        learn(model, 3)
    assert list(log.scores) == [0, 2]
    entropy = mean_entropy(then, (tokenizer(text, return_tensors="pt").input_ids for text in texts), 1, 2)
    assert log.scores[2][6]["head"] == "L1H2"
    assert log.scores[2][6]["scores"]["entropy"][0] == pytest.approx(entropy, abs=1e-5)
    assert all(part.training for part in model.modules())


def test_long_probe_text_is_cut_with_a_note(tmp_path):
    model, tokenizer = saved(tmp_path, n_positions=16)
    with attnscope.watch(model, texts=["word " * 40, "a cat"], tokenizer=tokenizer) as log:
        model(input_ids=batches(1)[0])
    assert "1 text was cut at the limit of tokens" in log.notes


def of_numbers():
    """A tokenizer whose words are ids."""
    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(8)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_probe_pass_leaves_no_inference_tensors():
    """A tensor of inference mode would end the training with an error of torch."""
    model = KeepsATable()
    with attnscope.watch(model, texts=["2 3 4 5"], tokenizer=of_numbers()) as log:
        model(torch.tensor([[2, 3, 4, 5]])).sum().backward()
    assert list(log.scores) == [0]


def test_invalid_watch_option_is_one_sentence():
    for options, error, sentence in (
        ({"every": 0}, AttnscopeError, "every is 0"),
        ({"measures": ["entropie"]}, SelectionError, "entropy"),
        ({"texts": ["a"]}, InputError, "pass tokenizer="),
    ):
        model = build()
        with pytest.raises(error, match=sentence), attnscope.watch(model, **options):
            learn(model, 1)
    with attnscope.watch(build()) as log, pytest.raises(AttnscopeError, match="no step has been measured"):
        log.frame()


STEPS = 4


class Bare:
    """Steps of a loop of one's own, in which each pass counts."""

    library = "torch"

    def __init__(self, folder):
        self.folder, self.library = folder, pytest.importorskip(self.library)

    def run(self, options, steps=STEPS, *, model=None, **more):
        """What is learned, and the log of what was watched."""
        model = build() if model is None else model
        log = self.train(model, options, steps, **more)
        return [*model.state_dict().values(), torch.get_rng_state()], log

    def train(self, model, options, steps, accumulate=1, bf16=False):
        around = contextlib.nullcontext() if options is None else attnscope.watch(model, **options)
        with contextlib.suppress(AlarmError), around as log:
            learn(model, steps, accumulate, torch.bfloat16 if bf16 else None)
        return log


class Transformers(Bare):
    """Steps of the Trainer of transformers."""

    library = "accelerate"

    def train(self, model, options, steps, accumulate=1, bf16=False, logger=None, second=None, **more):
        sizes = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": accumulate}
        quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        more |= {"max_steps": steps, "bf16": bf16, "use_cpu": True}
        settings = hf.TrainingArguments(self.folder / "out", **sizes, **quiet, **more)
        rows = [{"input_ids": row, "labels": row} for ids in batches(steps * accumulate) for row in ids]
        trainer = hf.Trainer(model, settings, train_dataset=rows)
        trainer._get_train_sampler = torch.utils.data.SequentialSampler
        called = None if options is None else attnscope.callback(**options)
        for each in filter(None, (called, second, logger)):
            trainer.add_callback(each)
        if logger is not None:
            called.history.report = trainer.log
        trainer.train()
        return called and called.history


class Lightning(Bare):
    """Steps of the Trainer of Lightning."""

    library = "lightning"

    def train(self, net, options, steps, accumulate=1, bf16=False, logger=False, second=None):
        called = None if options is None else attnscope.callback(**options)

        class Learner(self.library.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = net

            def training_step(self, ids, number):
                return self.net(input_ids=ids, labels=ids).loss

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), 1e-2)

        torch.manual_seed(2)
        parts = ("checkpointing", "progress_bar", "model_summary")
        more = {f"enable_{part}": False for part in parts} | {"logger": logger, "accelerator": "cpu"}
        more |= {"max_steps": steps, "accumulate_grad_batches": accumulate, "default_root_dir": self.folder}
        more["precision"] = "bf16-mixed" if bf16 else "32-true"
        trainer = self.library.Trainer(callbacks=[*filter(None, (called, second))], **more)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice on workers and logging
            warnings.filterwarnings("always", "cannot write ")
            trainer.fit(Learner(), torch.utils.data.DataLoader(batches(steps * accumulate), batch_size=None))
        return called and called.history


@pytest.fixture(params=[Bare, Transformers, Lightning])
def framework(request, tmp_path):
    return request.param(tmp_path)


HOW = {"plain": {}, "accumulation": {"accumulate": 2}, "bfloat16": {"bf16": True}, "checkpointing": {}}
HOW |= {"probe texts": {"bf16": True}}


@pytest.mark.sweep(7)
@pytest.mark.parametrize("steps", [STEPS, pytest.param(200, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", HOW)
def test_training_is_bit_identical_under_watch(framework, name, steps):
    how, every, model = HOW[name], 2 if steps == STEPS else 20, build()
    options = {"every": every, "path": framework.folder / "log.jsonl"}
    if name == "checkpointing":
        model.gradient_checkpointing_enable()
    if name == "probe texts":
        model, tokenizer = saved(framework.folder)
        options |= {"texts": ["The cat sat on the mat."], "tokenizer": tokenizer}
    one, _ = framework.run(None, steps, model=copy.deepcopy(model), **how)
    other, log = framework.run(options, steps, model=model, **how)
    assert all(map(torch.equal, one, other))
    passes = steps * (how.get("accumulate", 1) if type(framework) is Bare else 1)
    assert list(log.scores) == list(range(0, passes, every))
    lines = [json.loads(line) for line in (framework.folder / "log.jsonl").read_text().splitlines()]
    assert [(line["step"], line["scores"]) for line in lines] == [*log.scores.items()]
    in_training = name != "probe texts"  # which are read without dropout
    assert ("dropout was on: the weights are those before dropout" in log.notes) == in_training


def test_watch_measures_the_first_batch_of_a_step(framework):
    options = {"every": 2, "measures": ["entropy", "induction"]}
    _, log = framework.run(options, accumulate=2, model=build(dropout=0.0))
    for head in log.scores[0]:
        entropy = mean_entropy(build(dropout=0.0), batches(1), head["layer"], int(head["head"][-1]))
        assert head["scores"]["entropy"][0] == pytest.approx(entropy, abs=1e-5)
    assert any("induction" in head["scores"] for head in log.scores[0])  # ids say which tokens come again


def test_alarm_stops_training_after_its_step(framework):
    _, log = framework.run({"every": 2, "alarm": "entropy > 0.1", "on_alarm": "stop"})
    assert list(log.scores) == [0]
    assert log.stopped.startswith("step 0: L0H0 has entropy")


@pytest.mark.usefixtures("released")
def test_model_is_restored_after_failed_training(framework):
    model = build()
    before = dict(vars(model))

    def fail(*_):
        raise ZeroDivisionError

    hook = model.transformer.h[1].register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        framework.run({}, model=model)
    hook.remove()
    assert {name: value for name, value in vars(model).items() if name in before} == before
    assert "_compiled_call_impl" not in vars(model)
    assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl


@pytest.mark.parametrize("first", ["outer", "inner"])
def test_overlapping_watches_may_end_in_any_order(tmp_path, first):
    model, tokenizer = saved(tmp_path)
    outer, inner = (
        attnscope.watch(model, every=1),
        attnscope.watch(model, every=2, texts=["a"], tokenizer=tokenizer),
    )
    before, logs = dict(vars(model)), [outer.__enter__(), inner.__enter__()]
    ids, (ended, stays) = batches(1)[0], (outer, inner) if first == "outer" else (inner, outer)
    model(ids)
    ended.__exit__(None, None, None)
    model(ids)
    model(ids)
    stays.__exit__(None, None, None)
    model(ids)
    assert [list(each.scores) for each in logs] == ([[0], [0, 2]] if first == "outer" else [[0, 1, 2], [0]])
    assert vars(model) == before


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("trainer", [Transformers, Lightning])
def test_two_callbacks_of_one_trainer_are_independent(trainer, tmp_path):
    framework = trainer(tmp_path)
    alone = framework.run({"every": 1})[1]
    model, other = build(), attnscope.callback(every=2)
    before = dict(vars(model))
    learned, log = framework.run({"every": 1}, model=model, second=other)
    assert log.scores == alone.scores
    assert other.history.scores == {step: alone.scores[step] for step in (0, 2)}
    assert all(map(torch.equal, learned, framework.run(None)[0]))
    assert {name: value for name, value in vars(model).items() if name in before} == before
    assert "_compiled_call_impl" not in vars(model)
    assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl


@pytest.mark.parametrize("where", ["a full disk", "no folder"])
def test_unwritable_log_warns_without_ending_training(framework, where):
    full = Path("/dev/full")
    path = full if where == "a full disk" else framework.folder / "gone" / "log.jsonl"
    if where == "a full disk" and not full.exists():
        pytest.skip("no device is always full")
    learned, _ = framework.run(None)
    with pytest.warns(UserWarning, match=f"cannot write {path}"):
        other, log = framework.run({"every": 2, "path": path})
    assert list(log.scores) == [0, 2]
    assert all(map(torch.equal, learned, other))


@pytest.mark.parametrize("trainer", [Transformers, Lightning])
def test_trainer_logger_gets_every_score_and_folder_last_run(trainer, tmp_path):
    framework, logged, base = trainer(tmp_path), [], hf.TrainerCallback
    if trainer is Lightning:
        base = framework.library.pytorch.loggers.logger.DummyLogger

    class Logger(base):
        def log_metrics(self, metrics, step=None):
            logged.append((step, metrics))

        def on_log(self, args, state, control, logs=None, **more):
            logged.append((state.global_step, logs))

    framework.run({"every": 2})
    _, log = framework.run({"every": 2}, logger=Logger())
    assert log.path.is_relative_to(tmp_path)
    assert len(log.path.read_text().splitlines()) == 2
    told = [each for each in logged if "L0H0/entropy" in each[1]]
    assert [step for step, _ in told] == [0, 2]
    assert told[1][1]["L1H0/entropy"] == log.scores[2][2]["scores"]["entropy"][0]


def test_compiling_trainer_runs_watched_steps_uncompiled(tmp_path):
    compiles = {"torch_compile": True, "torch_compile_backend": "eager"}
    with pytest.warns(UserWarning, match="ran uncompiled"):
        _, log = Transformers(tmp_path).run({"every": 2}, model=KeepsATable(), **compiles)
    assert list(log.scores) == [0, 2]


def test_data_parallel_copies_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hf.TrainingArguments, "n_gpu", 2)
    with pytest.raises(ModelError, match="torchrun"):
        attnscope.callback().on_train_begin(hf.TrainingArguments(tmp_path, use_cpu=True), None, None)
