"""Every type of transformers that hears, tiny and random, with its own feature extractor or processor.

``python -m tests.tools.sounds [TYPES] --table tests/tools/sounds.md`` builds each type that transformers
lists with what prepares sounds, or in a table of models that hear; of the size that ``tests.tools.coverage``
makes, but with the feature sizes and lengths of its own. Each is saved to a folder, and asked as ``show
--audio`` asks it, with two seconds of noise: which attention is seen; are frames named by their time, by
letters, or numbered with a note; how far is a head from the model's own eager one (WavLM reports the mean of
its heads; of SeamlessM4T v2, sdpa itself differs from eager, and what is seen gives the kernel's own output;
of Nemotron's, eager gives NaN in closed rows, and sdpa, whose output what is seen gives to 3e-7, does not).
What is refused is quoted.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import soundfile
import torch
import transformers

from attnscope.attention import Token
from attnscope.axes import HEARD
from attnscope.capture import Keep
from attnscope.errors import AttnscopeError, first_line
from attnscope.models import Model, ModelInput, load
from tests.models import hearing
from tests.tools.sound_folders import save
from tests.tools.survey import Row, survey

COLUMNS = ("type", "class", "attention", "tokens that hear", "from eager", "else")


def types() -> list[str]:
    """The types that are listed with what prepares sounds, or in a table of models that hear."""
    from transformers.models.auto import feature_extraction_auto as extractors
    from transformers.models.auto import modeling_auto as auto

    heads = ("AUDIO_CLASSIFICATION", "AUDIO_FRAME_CLASSIFICATION", "AUDIO_XVECTOR")
    tables = ("CTC", "SPEECH_SEQ_2_SEQ", *heads)
    found = set(extractors.FEATURE_EXTRACTOR_MAPPING_NAMES)
    for table in tables:
        found |= set(getattr(auto, f"MODEL_FOR_{table}_MAPPING_NAMES"))
    return sorted(found | set(HANDMADE))


HANDMADE = {maker()[0].model_type: maker for maker in (*hearing.SECONDS, hearing.voxtral)}


def name_tokens(prepared: ModelInput) -> str:
    """How the tokens that hear are called."""
    axes = {axis for pair in prepared.axes.values() for axis in pair if not isinstance(axis, range)}
    heard: list[Token] = [token for token in max(axes, key=len, default=()) if token.id >= HEARD]
    if not heard:
        return "numbered, with a note" if prepared.notes else "numbered"
    first = heard[min(1, len(heard) - 1)].text
    return f"{len(heard)}, the second: {first}"


def measure_eager(model: Model, folder: Path, prepared: ModelInput) -> str:
    """How far the first map of each kind is from the same of the model's own eager attention."""
    keep = Keep(lambda site: range(1))
    model.run(prepared, [keep])
    if not keep.maps:
        return "no map"
    plain = type(model.module).from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        output = getattr(plain, prepared.entry)(
            **prepared.inputs, **prepared.settings, output_attentions=True
        )
    off = []
    for kind, names in (
        ("encoder", ("encoder_attentions", "attentions")),
        ("decoder", ("decoder_attentions", "attentions")),
        ("cross", ("cross_attentions",)),
    ):
        seen = next((one for one in keep.maps if one.site.kind == kind), None)
        given = next((maps for maps in (getattr(output, field, None) for field in names) if maps), None)
        theirs = given[0] if given else None
        if seen is not None and theirs is not None and theirs[0, :1].shape == seen.weights[0].shape:
            off.append(float((theirs[0, 0] - seen.weights[0, 0]).abs().max()))
    return f"{max(off):.1e}" if off else "gives none of that shape"


def check(name: str, sound: Path) -> list[str]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as place:
        folder, kind = Path(place), "?"
        try:
            if name in HANDMADE:
                hearing.save(folder, HANDMADE[name])
            else:
                kind = save(folder, name)
        except Exception as error:
            return [name, kind, "", "", "", f"not built: {type(error).__name__}: {first_line(error)[:80]}"]
        try:
            model = load(str(folder))
            kind = type(model.module).__name__
            text = "the cat" if name in HANDMADE or reads_both(model) else None
            prepared = model.prepare_audio(sound, text)
            record = model.run(prepared, [])
        except AttnscopeError as error:
            return [name, kind, "", "", "", first_line(error).replace(place, "FOLDER").replace("|", "¦")]
        except Exception as error:
            return [name, kind, "", "", "", f"fails: {type(error).__name__}: {first_line(error)[:80]}"]
        kinds = Counter(layer.site.kind for layer in record.sites)
        seen = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        notes = "; ".join(note for note in prepared.notes if "language is" not in note)
        try:
            eager = measure_eager(model, folder, prepared)
        except Exception as error:
            eager = f"{type(error).__name__}"
        named = name_tokens(prepared).replace("|", "¦")
        return [name, kind, seen, named, eager, notes.replace(place, "FOLDER")]


def reads_both(model: Model) -> bool:
    """Whether a model reads a text beside the sound."""
    from attnscope.models.huggingface.sounds import SoundTextModel

    return isinstance(model, SoundTextModel)


def sort(row: list[str]) -> str:
    """What a row says, in a few words."""
    _, _, seen, named, _, more = row
    if not seen:
        return "not built here" if more.startswith("not built") else "end in a sentence"
    numbered = named.startswith("numbered") or "sound ·" in named
    return "shown, numbered" if numbered else "shown with times"


def packages() -> str:
    """The packages that some of the types ask for, and whether they were there."""
    return ", ".join(
        f"{name} {version(name)}" if find_spec(name) else f"no {name}"
        for name in ("torchaudio", "torchvision", "timm")
    )


def work(name: str) -> Row:
    """What becomes of one type with two seconds of noise."""
    with tempfile.TemporaryDirectory() as place:
        sound = Path(place) / "noise.wav"
        soundfile.write(sound, 0.1 * np.random.default_rng(0).standard_normal(32000), 16000)
        return {"row": check(name, sound)}


def write(rows: list[Row]) -> str:
    """The table, and how many there are of each kind."""
    listed = [each.get("row") or [each["name"], "?", "", "", "", each["note"]] for each in rows]
    lines = ["# Sounds\n\nMade by `python -m tests.tools.sounds`; its docstring says what is asked."]
    lines += [f"Beside transformers {transformers.__version__}: {packages()}.\n"]
    lines += ["| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS)]
    lines += [f"| {' | '.join(row)} |" for row in listed]
    counts = Counter(map(sort, listed)).most_common()
    return "\n".join([*lines, "\n" + "; ".join(f"{count} {what}" for what, count in counts) + ".\n"])


if __name__ == "__main__":
    survey("sounds", types, work, write, seconds=200)
