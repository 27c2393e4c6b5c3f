"""A bare loop and the callback of both trainers learn what they learn without, and measure the batch."""

import contextlib
import json
import warnings

import pytest
import torch
import transformers as hf

import attnscope
from attnscope.errors import ModelError
from attnscope.notebook.watch import Alarmed
from tests.models.folders import gpt2
from tests.notebook.test_watch import batches, build, learn

STEPS = 7


class Bare:
    """Steps of a loop of one's own, in which each pass counts."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, options, steps=STEPS, accumulate=1, bf16=False, *, model=None):
        """What is learned, and the log of what was watched."""
        model = build() if model is None else model
        around = contextlib.nullcontext() if options is None else attnscope.watch(model, **options)
        with contextlib.suppress(Alarmed), around as log:
            learn(model, steps, accumulate, torch.bfloat16 if bf16 else None)
        return [*model.state_dict().values(), torch.get_rng_state()], log


class Transformers:
    """Steps of the Trainer of transformers."""

    def __init__(self, folder):
        pytest.importorskip("accelerate")
        self.folder = folder

    def run(self, options, steps=STEPS, accumulate=1, bf16=False, *, model=None, **more):
        """The same."""
        settings = hf.TrainingArguments(
            self.folder / "out",
            max_steps=steps,
            per_device_train_batch_size=3,
            gradient_accumulation_steps=accumulate,
            bf16=bf16,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            **more,
        )
        rows = [{"input_ids": row, "labels": row} for ids in batches(steps * accumulate) for row in ids]
        model = build() if model is None else model
        sampler = torch.utils.data.SequentialSampler(rows)
        trainer = hf.Trainer(model, settings, train_dataset=rows)
        trainer._get_train_sampler = lambda *_: sampler
        called = None if options is None else attnscope.callback(**options)
        if called is not None:
            trainer.add_callback(called)
        trainer.train()
        return [*model.state_dict().values(), torch.get_rng_state()], called and called.history


class Lightning:
    """Steps of the Trainer of Lightning."""

    def __init__(self, folder):
        self.lightning = pytest.importorskip("lightning")
        self.folder = folder

    def run(self, options, steps=STEPS, accumulate=1, bf16=False, *, model=None, logger=False):
        """The same."""
        net = build() if model is None else model
        called = None if options is None else attnscope.callback(**options)

        class Learner(self.lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = net

            def training_step(self, ids, number):
                return self.net(input_ids=ids, labels=ids).loss

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), 1e-2)

        torch.manual_seed(2)
        trainer = self.lightning.Trainer(
            max_steps=steps,
            accumulate_grad_batches=accumulate,
            precision="bf16-mixed" if bf16 else "32-true",
            callbacks=[] if called is None else [called],
            default_root_dir=self.folder,
            accelerator="cpu",
            logger=logger,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice on workers and logging
            trainer.fit(Learner(), torch.utils.data.DataLoader(batches(steps * accumulate), batch_size=None))
        return [*net.state_dict().values(), torch.get_rng_state()], called and called.history


@pytest.fixture(params=[Bare, Transformers, Lightning])
def framework(request, tmp_path):
    return request.param(tmp_path)


HOW = {
    "plain": {},
    "accumulation": {"accumulate": 3},
    "bfloat16": {"bf16": True},
    "gradient checkpointing": {},
}


@pytest.mark.parametrize("steps", [STEPS, pytest.param(200, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", HOW)
def test_weights_and_random_numbers_are_those_of_an_unwatched_run(framework, name, steps):
    how, every, models = HOW[name], 3 if steps == STEPS else 20, [build(), build()]
    if name == "gradient checkpointing":
        for model in models:
            model.gradient_checkpointing_enable()
    options = {"every": every, "path": framework.folder / "log.jsonl"}
    one, _ = framework.run(None, steps, model=models[0], **how)
    other, log = framework.run(options, steps, model=models[1], **how)
    assert all(map(torch.equal, one, other))
    passes = steps * (how.get("accumulate", 1) if isinstance(framework, Bare) else 1)
    assert list(log.figures) == list(range(0, passes, every))
    lines = [json.loads(line) for line in (framework.folder / "log.jsonl").read_text().splitlines()]
    assert [(line["step"], line["figures"]) for line in lines] == [*log.figures.items()]
    assert "dropout was on: the weights are those before it" in log.notes


def test_figures_are_those_of_the_first_batch_of_a_step(framework):
    options = {"every": 3, "measures": ["entropy", "induction"]}
    _, log = framework.run(options, accumulate=2, model=build(dropout=0.0))
    eager = build(dropout=0.0)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        weights = eager(input_ids=batches(1)[0], output_attentions=True).attentions
    for head in log.figures[0]:
        rows = weights[head["layer"]][:, int(head["head"][-1])].double()
        entropy = torch.special.entr(rows).sum(-1)[:, 1:].mean()
        assert head["figures"]["entropy"][0] == pytest.approx(float(entropy), abs=1e-5)
    assert any("induction" in head["figures"] for head in log.figures[0])  # ids say which tokens come again


def test_probe_texts_change_nothing_of_what_is_learned(framework):
    folder = gpt2(framework.folder / "model")
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    ways = []
    for options in (None, {"every": 3, "texts": ["The cat sat on the mat."], "tokenizer": tokenizer}):
        model = hf.AutoModelForCausalLM.from_pretrained(folder).train()
        learned, log = framework.run(options, model=model, bf16=True)
        ways.append(learned)
    assert all(map(torch.equal, *ways))
    assert list(log.figures) == [0, 3, 6]
    assert not any("dropout" in note for note in log.notes)  # a probe is read without


def test_an_alarm_stops_a_run_after_its_step(framework):
    _, log = framework.run({"every": 3, "alarm": "entropy > 0.1", "on_alarm": "stop"})
    assert list(log.figures) == [0]
    assert log.stopped.startswith("step 0: L0H0 has entropy")


@pytest.mark.parametrize("trainer", [Transformers, Lightning])
def test_lines_are_in_the_folder_of_the_run_and_a_new_run_begins_anew(trainer, tmp_path):
    for _ in range(2):
        _, log = trainer(tmp_path).run({"every": 3})
    assert log.path.is_relative_to(tmp_path)
    assert len(log.path.read_text().splitlines()) == 3


def test_a_run_that_fails_leaves_nothing_behind(framework):
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


def test_loggers_of_lightning_get_every_figure(tmp_path):
    framework = Lightning(tmp_path)
    logged = []

    class Logger(framework.lightning.pytorch.loggers.logger.DummyLogger):
        def log_metrics(self, metrics, step=None):
            logged.append((step, metrics))

    _, log = framework.run({"every": 3}, logger=Logger())
    told = [each for each in logged if "L0H0/entropy" in each[1]]
    assert [step for step, _ in told] == [0, 3, 6]
    assert told[1][1]["L1H0/entropy"] == log.figures[3][2]["figures"]["entropy"][0]


def test_what_a_trainer_logs_to_gets_every_figure(tmp_path):
    logged = []

    class Logger(hf.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **more):
            logged.append((state.global_step, logs))

    rows = [{"input_ids": row, "labels": row} for ids in batches(4) for row in ids]
    settings = hf.TrainingArguments(
        tmp_path, max_steps=4, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True
    )
    trainer = hf.Trainer(build(), settings, train_dataset=rows, callbacks=[Logger()])
    called = attnscope.callback(every=2, report=trainer.log)
    trainer.add_callback(called)
    trainer.train()
    told = [each for each in logged if "L0H0/entropy" in each[1]]
    assert [step for step, _ in told] == [0, 2]
    assert told[1][1]["L1H0/entropy"] == called.history.figures[2][2]["figures"]["entropy"][0]


def test_a_trainer_that_compiles_runs_the_watched_steps_uncompiled(tmp_path):
    with pytest.warns(UserWarning, match="run uncompiled"):
        _, log = Transformers(tmp_path).run({"every": 3}, torch_compile=True, torch_compile_backend="eager")
    assert list(log.figures) == [0, 3, 6]


def test_copies_on_several_devices_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hf.TrainingArguments, "n_gpu", 2)
    with pytest.raises(ModelError, match="torchrun"):
        attnscope.callback().on_train_begin(hf.TrainingArguments(tmp_path, use_cpu=True), None, None)
