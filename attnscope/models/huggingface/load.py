"""Loads a Hugging Face model: class, head, tokenizer, processor; classifiers; models larger than memory."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture.placing.split_heads import join_group
from attnscope.errors import ModelError, readable
from attnscope.limits import free_memory
from attnscope.models.huggingface import sounds
from attnscope.models.huggingface.model import HuggingFaceModel
from attnscope.models.inputs import ModelInput, Objective
from attnscope.models.model import accepts, reads_sound
from attnscope.models.untrusted_folder import HEADLESS_USES, ModelSource, foreign_work
from attnscope.text import read_number


def pick_classifier(config: Any) -> Any:
    """The auto class of a model saved with a classification head; ``None`` for any other."""
    import transformers

    names = (f"AutoModelFor{what}Classification" for what in ("Sequence", "Token", "Image"))
    classes = (getattr(transformers, name) for name in names if not config.is_encoder_decoder)
    return next((automatic for automatic in classes if sounds.was_saved_as(automatic, config)), None)


class Classifier(HuggingFaceModel):
    """``writer`` is the model with its classification head."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names from the folder."""
        names = getattr(self.module.config, "id2label", None) or {}
        count = int(getattr(self.module.config, "num_labels", len(names)))
        return tuple(str(names.get(number, number)) for number in range(count))

    def class_scores(self, prepared: ModelInput) -> Tensor:
        """One pass: the score of each class.  -> [text, class] or [text, token, class]"""
        scores: Tensor = self.writer(**prepared.inputs).logits
        return scores

    @property
    def objective(self) -> Objective:
        """Raises ``ModelError``: it does not predict tokens."""
        raise ModelError(f"{self.name} predicts no tokens: it has a head for {len(self.labels):,} classes")


def load_huggingface(
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype | None,
    device_map: str | Mapping[str, str] | None,
    *,
    generative: bool,
    predicting: bool,
) -> HuggingFaceModel:
    """Load a hub id or a local folder. ``dtype`` ``None`` keeps the type of the stored weights.

    ``generative`` loads the language-model head, ``predicting`` the head that it was trained with.
    ``device_map`` spreads the layers over devices and the disk (needs ``can_spread``), or, as tp:2, the heads
    over processes of torchrun, and overrides ``device``. Raises ``ModelError``, one sentence, for anything
    that prevents loading.
    """
    from transformers import AutoModel

    spread = _places_layers(device_map)
    if spread and not can_spread():
        lacks = "a device map needs accelerate and safetensors 0.8, which are not installed"
        raise ModelError(f"{lacks}: pip install 'attnscope[large]'")
    config = source.load_config()
    tokenizer = _load_tokenizer(source, config)
    classifier = pick_classifier(config) if predicting and not generative else None
    options = {"config": config, **_loading_options(dtype, device_map, source.allow_pickle)}
    kind = classifier or pick_class(config, generative, predicting)
    with unmapped() if spread else nullcontext():
        kind, loaded, missing = _load_weights(source, kind, options)
    if device_map is None:
        loaded.to(device)
    headed = kind is not AutoModel
    module = _without_head(loaded) if headed else loaded
    if headed and (generative or predicting) and not sounds.is_ctc(config):
        _require_head(source.name, loaded, missing, of_tokens=classifier is None)
    preferred = getattr(loaded, "generation_config", None)
    if preferred is not None and (generative or reads_sound(module)):
        _forget_preferences(loaded)
    if isinstance(tokenizer, ModelError) and not accepts(module, "input_ids"):
        tokenizer = None  # image models have none
    model = _pick_model(config, module, classifier)(
        source.name,
        module,
        tokenizer,
        _notes_of_weights(loaded, missing),
        loaded if headed and not _lacks_ctc_head(config, missing) else None,
        source.load_processor,
        preferred,
    )
    model.forkable = device_map is None
    return model


def read_parts(device_map: str | Mapping[str, str] | None) -> int:
    """Over how many processes a device map splits the heads: 2 for tp:2, 0 for any other."""
    if not isinstance(device_map, str) or not device_map.startswith("tp:"):
        return 0
    number = read_number(device_map.removeprefix("tp:"))
    if number is None or number < 2:
        raise ModelError(f"{device_map!r:.40} splits no heads: write tp:N, as tp:2 for two processes a model")
    return number


def _places_layers(device_map: str | Mapping[str, str] | None) -> bool:
    return device_map is not None and not read_parts(device_map)


def _loading_options(
    dtype: torch.dtype | None, device_map: str | Mapping[str, str] | None, allow_pickle: bool
) -> dict[str, Any]:
    """Keyword arguments of ``from_pretrained``: how weights are read, and where they go."""
    options: dict[str, Any] = {"dtype": "auto" if dtype is None else dtype}
    options["use_safetensors"] = None if allow_pickle else True
    if parts := read_parts(device_map):
        from transformers.distributed import DistributedConfig

        join_group(parts)
        return options | {"distributed_config": DistributedConfig(tp_size=parts)}
    if device_map is not None:
        options["device_map"] = device_map
    if isinstance(device_map, str):
        options["max_memory"] = find_room()
    return options


def _lacks_ctc_head(config: Any, missing: Sequence[str]) -> bool:
    """Whether a CTC head has no weights in the files: its letters would be random."""
    return sounds.is_ctc(config) and any(key.startswith(("lm_head", "ctc_head")) for key in missing)


def _without_head(loaded: Any) -> Any:
    """The base model, unless the embedding layers stand around it, or it only wraps a decoder."""
    base = loaded.base_model
    ids = ("input_ids", "decoder_input_ids")
    return loaded if any(accepts(loaded, each) and not accepts(base, each) for each in ids) else base


def _notes_of_weights(loaded: nn.Module, missing: Sequence[str]) -> list[str]:
    """What is said of weights that are missing, and of those that stay on the disk."""
    notes = [f"{len(missing)} weights are not in the files, and random: {missing[0]}, ..."] if missing else []
    on_disk = sum(each.numel() * each.itemsize for each in loaded.parameters() if each.is_meta)
    if on_disk:
        notes.append(f"{readable(on_disk)} of the weights stay on disk and are read in each pass")
    return notes


def _pick_model(config: Any, module: nn.Module, classifier: Any) -> type[HuggingFaceModel]:
    """The kind of model that reads what the module takes."""
    if sounds.stands_for_sounds(config):
        return sounds.SoundTextModel
    if reads_sound(module) or (sounds.accepts_sound(module) and classifier is None):
        return sounds.SpeechModel
    return HuggingFaceModel if classifier is None else Classifier


def _load_tokenizer(source: ModelSource, config: Any) -> Any:
    """The tokenizer, or why there is none, which is raised when one is needed."""
    try:
        return source.load_tokenizer(config)
    except ModelError as error:
        return error


def _load_weights(source: ModelSource, kind: Any, options: Mapping[str, Any]) -> tuple[Any, Any, list[str]]:
    """The model, the auto class that loaded it in the end, and the weights missing from the files."""
    from transformers import AutoModel, AutoModelForImageTextToText

    name, config = source.name, options["config"]

    def load(kind: Any) -> tuple[Any, list[str], bool]:
        loaded, info = kind.from_pretrained(name, output_loading_info=True, **options, **source.options)
        missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
        return loaded, missing, bool(missing and info["unexpected_keys"])

    with source.guarded(), foreign_work(f"loading {name}"):
        loaded, missing, renamed = load(kind)
        seeing = sounds.was_saved_as(AutoModelForImageTextToText, config)
        if kind is AutoModel and renamed and seeing:  # this release knows its weights by names with a head
            kind = AutoModelForImageTextToText
            loaded, missing, _ = load(kind)
    return kind, loaded, missing


def pick_class(config: Any, generative: bool, predicting: bool) -> Any:
    """The auto class for the wanted head; of types with several, that which was saved, or the masked one."""
    import transformers as library

    def has(automatic: Any) -> bool:
        return type(config) in automatic._model_mapping

    speech, seeing = library.AutoModelForSpeechSeq2Seq, library.AutoModelForImageTextToText
    saved, of_text = config.architectures or (), has(library.AutoModelForSeq2SeqLM)
    speaks = sounds.was_saved_as(speech, config) or (has(speech) and not of_text)
    bare = has(library.AutoModelForCTC) or not (generative or predicting)
    next_word, several = library.AutoModelForCausalLM, library.AutoModelForMultimodalLM
    causal = has(next_word) and any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in saved)
    masked = predicting and has(library.AutoModelForMaskedLM) and not causal
    rows = (
        (config.is_encoder_decoder and speaks, speech),  # its head tells the language of the sound
        (sounds.is_ctc(config), library.AutoModelForCTC),  # its letters name the frames
        (bare and not has(library.AutoModel) and has(several), several),  # some have no class without a head
        (bare, library.AutoModel),
        (config.is_encoder_decoder and (of_text or not has(seeing)), library.AutoModelForSeq2SeqLM),
        (has(seeing), seeing),
        (sounds.stands_for_sounds(config) and has(several), several),
        (masked, library.AutoModelForMaskedLM),
        (of_text and not has(next_word), library.AutoModelForSeq2SeqLM),  # some that hear are only there
        (True, next_word),
    )
    return next(automatic for fits, automatic in rows if fits)


def _require_head(name: str, writer: Any, missing: Sequence[str], *, of_tokens: bool) -> None:
    """Raise ``ModelError`` if weights of the language-model or classification head are missing."""
    base, head = writer.base_model, writer.get_output_embeddings()
    inside = {id(weights) for weights in base.parameters()} if base is not writer else set()
    outside = {id(weights) for weights in (head.parameters() if head is not None else ())}
    for key, weights in writer.named_parameters():
        if key in missing and (id(weights) in outside or (base is not writer and id(weights) not in inside)):
            kind = "tokens: it has no language-model" if of_tokens else "classes: its weights have no"
            raise ModelError(f"{name} predicts no {kind} head (no {key}); {HEADLESS_USES}")


def _forget_preferences(writer: Any) -> None:
    """Remove the folder's generation preferences: penalties, forced words, samplers."""
    from transformers import GenerationConfig

    stored = writer.generation_config
    names = ["bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"]
    if reads_sound(writer):  # it learned not to write what is not speech
        names += ["suppress_tokens", "begin_suppress_tokens"]
    settings = {name: getattr(stored, name, None) for name in names}
    if settings["decoder_start_token_id"] is None:  # two models joined by hand
        settings["decoder_start_token_id"] = getattr(writer.config, "decoder_start_token_id", None)
    writer.generation_config = GenerationConfig(**settings)


def can_spread() -> bool:
    """Whether there are accelerate, and a safetensors that can read one weight without mapping its file."""
    from safetensors import safe_open

    return bool(importlib.util.find_spec("accelerate")) and "backend" in signature(safe_open).parameters


HELD = 0.5  # the share of free memory for weights; a layer from disk and the pass need the rest


def find_room() -> dict[int | str, int]:
    """Bytes of weights that each device may hold."""
    from accelerate.utils import get_max_memory

    room: dict[int | str, int] = get_max_memory()
    free = free_memory()
    if free is not None and "cpu" in room:
        room["cpu"] = min(room["cpu"], int(HELD * free))
    return room


@contextmanager
def unmapped() -> Iterator[None]:
    """Make accelerate read only the weights it needs, during loading and in every later pass.

    By default it maps whole files, all at once, and mapped memory counts as taken.
    """
    from accelerate import big_modeling
    from safetensors import safe_open
    from transformers import modeling_utils

    read: Any = lambda *arguments, **more: safe_open(*arguments, **{**more, "backend": "pread"})  # noqa: E731

    class FileWeights(big_modeling.OffloadedWeightsLoader):  # type: ignore[misc]
        def __getitem__(self, key: str) -> Any:
            place = self.index[key]
            if "safetensors_file" not in place:  # merged from several weights, in a separate folder
                return super().__getitem__(key)
            with read(place["safetensors_file"], framework="pt") as file:
                weights = file.get_tensor(place["weight_name"])
            return weights.to(getattr(torch, place["dtype"]))

    logger = logging.getLogger(big_modeling.__name__)  # reports weights on disk, as our note does
    before, level = (modeling_utils.safe_open, big_modeling.OffloadedWeightsLoader), logger.level
    logger.setLevel(logging.ERROR)
    modeling_utils.safe_open, big_modeling.OffloadedWeightsLoader = read, FileWeights
    try:
        yield
    finally:
        modeling_utils.safe_open, big_modeling.OffloadedWeightsLoader = before
        logger.setLevel(level)
