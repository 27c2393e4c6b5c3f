"""Every answer notes mixing outside of the shown attention, and only that."""

import json
import warnings

import pytest
import torch
from torch import nn

import attnscope
from attnscope.models import ModelInput, load, seal
from attnscope.models.model import Model
from attnscope.models.seal import UNTESTED_NOTE
from attnscope.questions.audit import audit
from tests.capture.placing.mixing_modules import COUNT, MIXED, STATES, pool_by_a_sum, pool_by_an_einsum
from tests.capture.placing.test_mixing_places import PLACES
from tests.capture.tiny import FAMILIES, inputs
from tests.models.folders import gpt2
from tests.models.mixers import CLEAN, OTHERS, SIZE, UNSEEN, Attention, Language, Other, Residual, make

pytestmark = pytest.mark.sealed

IDS = torch.randint(0, 99, (1, 12), generator=torch.Generator().manual_seed(0))
SAID = ": tokens also mix here, outside the attention shown"
WHERE = {"before": "before", "between": "layer 1, "}


def recorded(module, *given, **options):
    """The notes of a recording of one pass."""
    with torch.no_grad(), warnings.catch_warnings(), attnscope.record(module, **options) as run:
        warnings.simplefilter("ignore")
        module(*given)
    return run.notes


def said(module, *given):
    """Where tokens also mix, as the notes of a recording say."""
    found = [note.removesuffix(SAID) for note in recorded(module.eval(), *given) if note.endswith(SAID)]
    return found[0] if found else None


@pytest.mark.sweep(13)
@pytest.mark.parametrize("place", WHERE)
@pytest.mark.parametrize(
    ("kind", "name"), [*(("unseen", n) for n in UNSEEN), *(("other", n) for n in OTHERS)]
)
def test_mixing_module_is_named_with_its_place(kind, name, place):
    torch.manual_seed(0)
    assert said(Language(**{place: make(kind, name)}), IDS).startswith(WHERE[place])


BEHIND = [
    place for place in PLACES if not place.startswith(("the model", "in a s", "in a list", "in a module"))
]
POOLED = {pool_by_a_sum, pool_by_an_einsum}


@pytest.mark.sweep(19)  # odd, as there are eight places: each of them
@pytest.mark.parametrize("place", BEHIND)
@pytest.mark.parametrize("way", [way for way in MIXED if way not in POOLED])
def test_mixer_without_weights_is_named_in_every_place(way, place):
    torch.manual_seed(0)
    build, paths = PLACES[place]
    model = build(way).eval()
    found = seal.measure_seal(Model("", model, None), ModelInput({}, {}, (), arguments=(STATES,)), {COUNT})
    if way.__name__ == "shorten" and place == "in the model's own forward":
        assert not found.mixers  # a part of it is found, behind all attention, and hands on less
    else:
        assert [path for path in paths if any(f"{each}.".startswith(f"{path}.") for each in found.mixers)]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", CLEAN)
def test_sealed_model_has_no_note(name):
    torch.manual_seed(0)
    model = Language(before=CLEAN[name](), between=CLEAN[name]()).eval()
    notes = recorded(model, IDS)
    assert not [note for note in notes if "channel to channel" not in note]


MIXING = {"whisper": ("encoder.conv1", "encoder.conv2")}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_seal_names_only_true_mixers_of_families(family):
    tiny = FAMILIES[family]
    given = inputs(tiny.inputs, batch=1)
    found = seal.measure_seal(Model("", tiny.build(), None), ModelInput(given, {}, ()), {9, 6})
    assert found == seal.Seal(MIXING.get(family, ()))


class Convolution(nn.Module):
    """A convolution over tokens."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(SIZE, SIZE, 3, padding=1)

    def forward(self, x):
        return self.conv(x.mT).mT


class Both(nn.Module):
    """Attention and a convolution in one layer."""

    def __init__(self):
        super().__init__()
        self.attention, self.conv = Residual(Attention()), Residual(Convolution())

    def forward(self, x):
        return self.conv(self.attention(x))


class Layers(nn.Module):
    """Lists of layers, one after another."""

    def __init__(self, **lists):
        super().__init__()
        self.embed = nn.Embedding(99, SIZE)
        for name, parts in lists.items():
            self.add_module(name, nn.ModuleList(parts))

    def forward(self, ids):
        x = self.embed(ids)
        for each in [*self.children()][1:]:
            for layer in each:
                x = layer(x)
        return x


def some_linear(m, q, k, v):
    """Half of the heads attend, the others sum products."""
    attending = (q[:, :2] @ k[:, :2].mT).softmax(-1) @ v[:, :2]
    return torch.cat([attending, q[:, 2:].sigmoid() @ (k[:, 2:].mT @ v[:, 2:])], 1)


NAMED = {
    "in every layer": (lambda: Layers(layers=[Both(), Both()]), "layers 0-1, conv.inner.conv"),
    "in one layer": (
        lambda: Layers(layers=[Residual(Attention()), Both(), Residual(Attention())]),
        "layer 1, conv.inner.conv",
    ),
    "one number in two lists": (
        lambda: Layers(one=[Both(), Residual(Attention())], other=[Residual(Attention()), Both()]),
        "layer 0, one.*.conv.inner.conv; layer 1, other.*.conv.inner.conv",
    ),
    "a part that torch scripted": (
        lambda: Language(between=torch.jit.script(Convolution().eval())),
        "layer 1, inner",
    ),
    "linear heads beside others": (
        lambda: Language(between=Attention(some_linear)),
        "layer 1, inner",
    ),
    "behind all layers, of states": (lambda: Language(behind=Convolution()), "behind.conv"),
    "behind all layers, pooled": (lambda: Language(behind=Other(lambda m, x: m.v(x).mean(1))), None),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", NAMED)
def test_mixers_are_named_by_layer_and_path(name):
    torch.manual_seed(0)
    build, where = NAMED[name]
    assert said(build(), IDS) == where


def test_pooler_is_named_only_by_an_audit():
    torch.manual_seed(0)
    model = Language(behind=Other(lambda m, x: m.v(x).mean(1))).eval()
    prepared = ModelInput({"input_ids": IDS}, {}, ())
    assert [mixer.path for mixer in audit(Model("", model, None), prepared).mixers] == ["behind"]


@pytest.mark.parametrize("shape", [(12, 8, SIZE), (8, 40, SIZE)])
def test_seal_changes_tokens_along_their_own_axis(shape):
    """In a large batch, or behind it: nothing mixes from text to text."""
    first = shape[0] == 12
    layer = nn.TransformerEncoderLayer(SIZE, 4, 64, batch_first=not first)
    model = nn.Sequential(nn.Linear(SIZE, SIZE), Turned(first), nn.TransformerEncoder(layer, 2))
    assert said(model, torch.randn(shape)) == "layer 1, conv"
    assert said(model[2], torch.randn(shape)) is None


class Turned(nn.Module):
    """A convolution over the first or the second axis."""

    def __init__(self, first):
        super().__init__()
        self.first, self.conv = first, nn.Conv1d(SIZE, SIZE, 3, padding=1)

    def forward(self, x):
        x = x.transpose(0, 1) if self.first else x
        x = self.conv(x.mT).mT
        return x.transpose(0, 1) if self.first else x


SCRIPT = """
import torch
from tests.models.mixers import Language, make
def reading(language):
    language.embed = torch.nn.Embedding(40000, 32)
    return language.eval()
def model():
    return reading(Language(between=make("unseen", "NumPy")))
def sealed():
    return reading(Language())
"""


@pytest.fixture
def module(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    return tmp_path / "mine.py"


def test_every_answer_notes_mixing_outside_attention(run, module, tmp_path):
    note = f"layer 1, inner{SAID}"
    for name, expected in (("model", True), ("sealed", False)):
        given = ["it was the cat", "-m", f"{module}:{name}"]
        for command in (["show", "--head", "L0H1"], ["show", "--token", "1"], ["stats"]):
            asked = [command[0], *given, *command[1:]]
            assert (note in json.loads(run(*asked, "--json").out)["notes"]) is expected, command
            assert (SAID[2:] in " ".join(run(*asked).out.split())) is expected, command
        page = tmp_path / f"{name}.html"
        run("show", *given, "-o", page)
        assert (SAID[2:] in page.read_text()) is expected
        kept = attnscope.load(f"{module}:{name}").read("it was the cat")
        for notes in (kept.notes, kept.head("L0H1").notes, kept.overview().notes, kept.stats().notes):
            assert (note in notes) is expected
        kept.save(tmp_path / "a.trace")
        assert (note in attnscope.open(tmp_path / "a.trace").notes) is expected


def test_recording_warns_with_the_notes_of_its_run():
    torch.manual_seed(0)
    model = Language(between=make("other", "cumsum")).eval()
    with warnings.catch_warnings(record=True) as told, attnscope.record(model) as run:
        warnings.simplefilter("always")
        model(IDS)
    assert {str(each.message) for each in told} == set(run.notes) == set(run.head("L0H0").notes)
    assert f"layer 1, inner{SAID}" in run.notes


class Counted(Language):
    """A model that counts its passes, and knows how long each text was."""

    def __init__(self, **parts):
        super().__init__(**parts)
        self.lengths = []
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input_ids, mask=None, past_key_values=None, more=None):
        self.lengths.append(input_ids.shape[1])
        self.calls += 1
        torch.rand(1)
        return super().forward(input_ids)


def test_seal_probes_once_with_few_tokens_and_restores_module():
    torch.manual_seed(0)
    model, ids = Counted(before=make("other", "roll")).eval(), torch.arange(50)[None]
    random = torch.get_rng_state()
    first = recorded(model, ids)
    assert model.lengths[0] == 50
    assert set(model.lengths[1:]) == {16}
    assert float(model.calls) == 1
    asked = len(model.lengths)
    torch.set_rng_state(random)
    torch.rand(1)
    after = torch.get_rng_state()
    torch.set_rng_state(random)
    assert recorded(model, ids) == first
    assert len(model.lengths) == asked + 1
    assert torch.equal(torch.get_rng_state(), after)


REFUSED = {
    "training": (lambda m: m.train()(IDS), "the model was in training mode"),
    "cache": (lambda m: m(IDS, past_key_values=object()), "its first call continued from a cache"),
    "objects": (lambda m: m(IDS, more=object()), "its first call had arguments other than plain tensors"),
    "part": (lambda m: m.layers[0](m.embed(IDS)), "the model itself was not called"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_recording_without_seal_notes_the_reason(why):
    call, reason = REFUSED[why]
    model = Counted().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a note is enough: who trains is not to be warned in each block
        with torch.no_grad(), attnscope.record(model) as run:
            call(model)
    assert UNTESTED_NOTE.format(reason=reason) in run.notes


def test_seal_can_be_switched_off():
    model = Counted(before=make("other", "roll")).eval()
    assert recorded(model, IDS, seal=False) == ()
    assert model.lengths == [12]


@pytest.mark.parametrize("limit", ["SEAL_SECONDS", "SEAL_BYTES"])
def test_seal_skips_too_expensive_models(monkeypatch, limit):
    monkeypatch.setattr(seal, limit, 0)
    (note,) = recorded(Counted().eval(), IDS)
    assert note.startswith(UNTESTED_NOTE.partition("{")[0])


def test_seal_of_a_folder_is_cached_for_all_texts(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNSCOPE_CACHE", str(tmp_path / "kept"))
    folder, looks, look = gpt2(tmp_path / "model"), [], seal.measure_seal
    monkeypatch.setattr(seal, "measure_seal", lambda *given: looks.append(given) or look(*given))
    for text in ("The cat", "The dog sat on it."):
        model = load(folder)
        assert model.run(model.prepare(text), []).notes == []
    assert len(looks) == 1
    (stored,) = (tmp_path / "kept" / "seals").iterdir()
    stored.write_text("[3]")
    model = load(folder)
    model.run(model.prepare("It"), [])
    assert len(looks) == 2


def test_mixer_tables_of_the_tests_are_correct():
    """Of the unseen nothing is shown, and what is clean attends where it says so."""
    for table, sites in ((UNSEEN, 2), (OTHERS, 2)):
        for name in table:
            model = Language(between=make("unseen" if table is UNSEEN else "other", name)).eval()
            with torch.no_grad(), warnings.catch_warnings(), attnscope.record(model, seal=False) as run:
                warnings.simplefilter("ignore")
                model(IDS)
            assert len({head.layer for head in run.heads}) == sites, name
