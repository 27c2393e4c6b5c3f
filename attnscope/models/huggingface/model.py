"""A transformers model: its inputs, generation with its key-value cache, and its predictions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention import Axis, Kind, Site, Token
from attnscope.capture import Record, Steps, recording
from attnscope.capture.hooks.torch_functions import head_edits, with_forward
from attnscope.capture.record import tolerance
from attnscope.errors import InputError, ModelError, first_line
from attnscope.limits import foreign_output
from attnscope.models.huggingface.pictures import PictureText, reads_pictures_in_texts
from attnscope.models.huggingface.reader import FolderReader, read_image, start_token, write_chat
from attnscope.models.inputs import (
    NO_LIMIT,
    Chat,
    Limit,
    ModelInput,
    Objective,
    Paths,
    text_axes,
    with_grids,
)
from attnscope.models.model import Model, accepts, reads_sound, require_attention
from attnscope.models.regions import NONE, SEVERAL, Sketches, find_entry, find_grids
from attnscope.models.request import read_chat
from attnscope.models.text.tokens import GREEDY, Sampling, TextTokens, describe_generation, strip_end
from attnscope.progress import report

PROBED = 64  # tokens on which it is tried whether parts of the scores are those of a whole pass


def most_positions(module: nn.Module) -> int | None:
    """The most tokens that the model has positions for, by its position table or its config."""
    for name, table in module.named_modules():
        if isinstance(table, nn.Embedding) and name.rpartition(".")[2] in {"position_embeddings", "wpe"}:
            reserved = 0 if table.padding_idx is None else table.padding_idx + 1
            return table.num_embeddings - reserved
    config: Any = module.config
    names = (config.get_text_config(), "max_position_embeddings"), (config, "max_target_positions")
    limit = next((getattr(of, name) for of, name in names if getattr(of, name, None) is not None), None)
    return limit if isinstance(limit, int) and limit > 0 else None


def is_row(tensor: Tensor, tokens: int) -> bool:
    """Whether a tensor has one number per token of a single text, [1, token]; pixels do not."""
    return tensor.ndim == 2 and tensor.shape[1] == tokens


class HuggingFaceModel(Model):
    """A transformers model with its tokenizer, if it reads text, and its image processor, if it reads images.

    ``load_processor`` loads the processor for images, sounds, or texts with either, on first use; ``writer``
    is the model with its language-model head, and ``preferred`` the generation config of its folder.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        tokenizer: Any,
        notes: Sequence[str],
        writer: Any,
        load_processor: Callable[[str], Any],
        preferred: Any,
    ) -> None:
        config: Any = module.config
        super().__init__(name, module, most_positions(module), notes)
        self.writer = writer
        self.reader = FolderReader(name, tokenizer)
        self.preferred = preferred
        self.load_processor = load_processor
        self._reads = [name for name in ("input_ids", "pixel_values") if accepts(module, name)]
        writes = accepts(module, "decoder_input_ids")  # not so the queries of a detector
        self.encoder_decoder = bool(getattr(config, "is_encoder_decoder", False)) and writes
        self.settings: dict[str, Any] = {"use_cache": False} if accepts(module, "use_cache") else {}
        self._trunk: nn.Module | None = None
        self._looked = False

    def prepare(self, text: str, second: str | None = None, limit: Limit = NO_LIMIT) -> ModelInput:
        """The inputs and labelled axes of a text; a second text is its pair, or a decoder's target.

        Without a target an encoder-decoder model reads the text on both sides, and a note says so; for
        generation it gets its start token.
        """
        if not self._reads:
            main = getattr(self.module, "main_input_name", "tensors")
            raise InputError(f"{self.name} reads {main}, not text: give it with --inputs FILE")
        if "input_ids" not in self._reads:
            raise InputError(f"{self.name} reads images, not text: give it one with --image FILE")
        if self.encoder_decoder or second is None:
            return self._label(self._read([text], limit), second, limit.truncate)
        encoded = self._read([text, second], limit)
        of_second = [token.segment == 1 and not token.special for token in encoded.tokens]
        begin = of_second.index(True) if any(of_second) else 0
        if begin == 0 or not encoded.tokens[begin - 1].special:
            note = f"{self.name} joins the two texts without a separator"
            encoded = encoded._replace(notes=(*encoded.notes, note))
        return self._label(encoded)

    def repeat_random(self, count: int, seed: int = 0) -> ModelInput:
        """``count`` random tokens twice, between a text's special tokens; on both sides of a pair."""
        if "input_ids" not in self._reads:
            return super().repeat_random(count, seed)
        config: Any = self.module.config
        rows = getattr(config.get_text_config(), "vocab_size", None)
        size = min(len(self.reader.tokenizer), rows or len(self.reader.tokenizer))
        frame = self.reader.read(["a"])
        return self._label(self._repeat(frame, self.reader.vocabulary, size, count, seed))

    def prepare_image(
        self, path: Paths, text: str | None = None, chat: Chat | None = None, *, video: bool = False
    ) -> ModelInput:
        """An image for the model's image tower, or images with a text for a model that reads both."""
        if "pixel_values" not in self._reads:
            if accepts(self.module, "flattened_patches") or reads_pictures_in_texts(self.module):
                way = "in a form that attnscope does not make: give them with --inputs FILE"
                raise InputError(f"{self.name} takes images {way}")
            return super().prepare_image(path, video=video)
        paths = [path] if isinstance(path, Path) else path
        in_texts = reads_pictures_in_texts(self.module)
        if self.encoder_decoder and not in_texts:  # the text is what it generates
            written = () if text is None else self._read([text]).tokens[:-1]
            return self._begin_decoder(self._read_picture(paths), (self._begin, *written))
        if text is None:
            towers = "input_ids" in self._reads
            if towers and not hasattr(self.module, "get_image_features"):
                raise InputError(f"{self.name} reads a text beside the image: give both")
            return self._read_picture(paths, "get_image_features" if towers else "__call__")
        if "input_ids" not in self._reads:
            raise InputError(f"{self.name} reads images alone: leave out the text beside --image")
        if in_texts:
            processor = self.load_processor("text")
            reader = PictureText(self.module, processor, self.reader, self.settings, video)
            prepared = reader.read(paths, text, chat)
            return self._begin_decoder(prepared, (self._begin,)) if self.encoder_decoder else prepared
        if chat is not None:
            return super().prepare_chat(text)
        return self._read_picture_and_text(paths, self._read([text]))

    def _read_picture(self, paths: Sequence[Path], entry: str = "__call__") -> ModelInput:
        """One picture alone, through the whole model or the method ``entry`` of its image tower."""
        if len(paths) != 1:
            raise InputError(f"{self.name} reads one image at a time here: there are {len(paths)}")
        prepared = read_image(paths[0], self.load_processor("image"), self.module, entry)
        return self._place_grids(prepared)

    def _place_grids(self, prepared: ModelInput) -> ModelInput:
        """A picture alone with the grids of all layers: those of later ones are coarser."""
        picture = prepared.inputs.get("pixel_values")
        if picture is None or picture.ndim != 4 or len(picture) != 1:
            return prepared

        def run(pixels: Tensor, sketches: Sketches) -> None:
            each = {name: x.expand(len(pixels), *x.shape[1:]) for name, x in prepared.inputs.items()}
            self.run(replace(prepared, inputs={**each, "pixel_values": pixels}), [sketches])

        lengths = {len(axis) for two in prepared.axes.values() for axis in two}
        try:
            grids, unplaced = find_grids(run, picture, lengths)
        except ModelError:
            return prepared  # it says why where it is read
        counts = " or ".join(f"{length:,}" for length in unplaced)
        notes = (f"{counts} positions are numbered: where they lie in the picture is unknown",)
        return with_grids(replace(prepared, notes=(*prepared.notes, *notes[: len(unplaced)])), grids)

    def _read_picture_and_text(self, paths: Sequence[Path], encoded: TextTokens) -> ModelInput:
        """One picture and one text: each through its own tower, or a text that attends to the picture."""
        prepared, words = self._read_picture(paths), encoded.tokens
        inputs = {**prepared.inputs, **self._tensors(encoded.fields)}
        axes: dict[Kind, tuple[Axis, Axis]] = {**prepared.axes, "decoder": (words, words)}
        patches = prepared.tokens
        prepared = replace(prepared, inputs=inputs, axes=axes, notes=(*prepared.notes, *encoded.notes))
        alone = hasattr(self.module, "get_text_features") or not patches
        entry = None if alone else find_entry(self.module, inputs, "pixel_values")
        if entry is None:
            return prepared
        if entry.kind == "cross" and len(entry.states) == len(patches):
            return replace(prepared, axes=axes | {"cross": (words, patches)})
        owners = {*entry.token_owners().flatten().tolist()} - {NONE, SEVERAL}
        if not owners or len(entry.states) != len(patches) + len(words):
            return prepared
        if (behind := min(owners) >= len(words)) or max(owners) < len(patches):
            both = (*words, *patches) if behind else (*patches, *words)
            return replace(prepared, axes=axes | {"decoder": (both, both)}, tokens=both)
        return prepared

    def _begin_decoder(self, prepared: ModelInput, tokens: tuple[Token, ...]) -> ModelInput:
        """The encoder's inputs (a picture among them) and the tokens with which its decoder begins."""
        axes: dict[Kind, tuple[Axis, Axis]] = {**prepared.axes, "decoder": (tokens, tokens)}
        if prepared.tokens:
            axes |= {"encoder": (prepared.tokens, prepared.tokens), "cross": (tokens, prepared.tokens)}
        inputs = {**prepared.inputs, "decoder_input_ids": self._tensor([token.id for token in tokens])}
        return replace(prepared, inputs=inputs, axes=axes)

    def prepare_tensors(self, tensors: Mapping[str, Tensor]) -> ModelInput:
        """The user's own tensors; the ids of a single text are labelled from the vocabulary."""
        prepared = replace(super().prepare_tensors(tensors), settings=self.settings)
        if self.encoder_decoder:
            return replace(prepared, axes={}, tokens=())
        if "input_ids" not in prepared.inputs or not prepared.tokens:
            return prepared
        tokens = self.reader.vocabulary.extend((), [token.id for token in prepared.tokens])
        return replace(prepared, axes=text_axes(tokens), tokens=tokens)

    def prepare_chat(self, text: str, chat: Chat | None = None, limit: Limit = NO_LIMIT) -> ModelInput:
        """A text as a user's message, in the tokenizer's chat template."""
        tokenizer, chat = self.reader.tokenizer, chat or Chat()
        if not getattr(tokenizer, "chat_template", None):
            return super().prepare_chat(text)
        messages, more = read_chat(text, chat.system)
        written = write_chat(self.name, tokenizer, messages, chat.reply, **more)
        prepared = self._label(self._read([written], limit, templated=True))
        if messages[-1]["role"] != "assistant" or len(messages) < 2 or self.encoder_decoder:
            return prepared
        prompt = write_chat(self.name, tokenizer, messages[:-1], True, **more)
        count = len(self.reader.read([prompt], templated=True).tokens) if written.startswith(prompt) else 0
        return replace(prepared, written=count) if 0 < count < len(prepared.tokens) else prepared

    def generate(self, prepared: ModelInput, count: int, sampling: Sampling = GREEDY) -> ModelInput:
        """The text with up to ``count`` generated tokens, recorded during generation."""
        if self.writer is None:
            lacks = "was loaded without its generating head: load it with generative=True"
            raise ModelError(f"{self.name} {lacks}")
        ends = self._end_ids
        side = "decoder_input_ids" if self.encoder_decoder else "input_ids"
        start: tuple[Token, ...] = prepared.axes["decoder"][0]  # type: ignore[assignment]
        tokens, notes = (start, ()) if self.encoder_decoder else strip_end(start, ends)
        self._require_positions(len(tokens), count)
        inputs = dict(prepared.inputs)
        if len(tokens) < len(start):
            inputs |= {name: x[:, : len(tokens)] for name, x in inputs.items() if is_row(x, len(start))}
        try:
            self.learn_kinds(prepared)
            with self.threads(prepared), foreign_output():
                new, steps, record = self._write(inputs, side, count, sampling, ends)
        except Exception as error:
            raise ModelError(f"{self.name} cannot continue a text: {first_line(error)}") from error
        require_attention(self.name, self.module, record)
        if not any(layer.site.kind == "decoder" for layer in record.sites):
            raise ModelError(
                f"{self.name} reads in both directions and cannot continue a text: choose a decoder, "
                "such as own-causal"
            )
        whole = self.reader.vocabulary.extend(tokens, new)
        note = describe_generation(whole[len(tokens) :], len(tokens), count, sampling)
        notes = (*prepared.notes, *notes, note)
        result = self._extend(
            replace(prepared, inputs=inputs, written=inputs[side].shape[1]), side, whole, new
        )
        if steps is None:
            note = f"{self.name} has no key-value cache: one pass over all tokens is shown"
            return replace(result, notes=(*notes, note))
        record.note_cross_attention(result.axes)
        return replace(result, notes=notes, replay=steps.replay(record, result.axes))

    @property
    def _end_ids(self) -> set[int]:
        """The tokens that end a text, by the model and by its tokenizer."""
        tokenizer = self.reader.tokenizer
        ids = (self.writer.generation_config.eos_token_id, getattr(tokenizer, "eos_token_id", None))
        return {end for one in ids for end in (one if isinstance(one, list) else [one]) if end is not None}

    def _extend(
        self, prepared: ModelInput, side: str, whole: tuple[Token, ...], new: Sequence[int]
    ) -> ModelInput:
        """The input of a single text with ``new`` ids on its ``side``, which then reads ``whole``."""
        inputs, axes = dict(prepared.inputs), dict(prepared.axes)
        count = inputs[side].shape[1]
        for name, tensor in inputs.items():
            if name == side:
                inputs[name] = torch.cat([tensor, self._tensor(new).to(tensor.dtype)], 1)
            elif not self.encoder_decoder and is_row(tensor, count):  # one number per token, as a mask has
                inputs[name] = torch.cat([tensor, tensor[:, -1:].expand(-1, len(new))], 1)
        axes["decoder"] = whole, whole
        if "encoder" in axes and not self.encoder_decoder:
            axes["encoder"] = whole, whole
        if "cross" in axes:
            axes["cross"] = whole, axes["cross"][1]
        tokens = prepared.tokens if self.encoder_decoder else whole
        return replace(prepared, inputs=inputs, axes=axes, tokens=tokens)

    def _write(
        self, inputs: Mapping[str, Tensor], side: str, count: int, sampling: Sampling, ends: Collection[int]
    ) -> tuple[list[int], Steps | None, Record]:
        """Up to ``count`` tokens that go on from ``inputs[side]``, and the recorded steps.

        ``count`` + 1 tokens are generated and the last is dropped, so that the one before it is read too and
        has its row. A model that reads the whole text again at every step gives no ``Steps``.
        """
        from transformers import GenerationConfig, GenerationMixin

        steps, writer = Steps(), self.writer
        draw = {"temperature": sampling.temperature, "top_k": 0, "top_p": 1.0} if sampling.temperature else {}
        config = GenerationConfig(
            max_new_tokens=count + 1, do_sample=sampling.temperature > 0, num_beams=1, **draw
        )
        device, start = inputs[side].device, inputs[side].shape[1]

        def on_step(ids: Tensor, scores: Tensor, **more: Any) -> bool:
            """Stands among the criteria that end a text, and ends none."""
            if (written := ids.shape[1] - start) <= count:
                report("token", written, count)
            return False

        with (
            torch.inference_mode(),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            recording(self.module, [steps], warn=False) as record,
        ):
            torch.manual_seed(sampling.seed)
            # speech models have their own loop over pieces of the sound, without steps
            generate = partial(GenerationMixin.generate, writer) if reads_sound(writer) else writer.generate
            whole = generate(**inputs, generation_config=config, stopping_criteria=[on_step])  # [1, token]
        steps.drop_behind(whole.shape[1] - 1)  # the last token was not read
        new = whole[0, start:].tolist()
        new = new[:-1] if len(new) > count or new[-1] in ends else new
        counts: dict[Site, list[int]] = {}
        for layer in record.sites:
            counts.setdefault(layer.site, []).append(layer.queries)
        cached = all(queries == 1 for _, *later in counts.values() for queries in later)
        return new, steps if cached else None, record

    @property
    def _begin(self) -> Token:
        return start_token(self.module, self.reader.tokenizer)

    def _label(self, source: TextTokens, target: str | None = None, truncate: bool = False) -> ModelInput:
        """Label the model's input; with a decoder, also its ``target``."""
        tokens, notes = source.tokens, source.notes
        if not self.encoder_decoder:
            towers = all(hasattr(self.module, f"get_{what}_features") for what in ("text", "image"))
            entry = "get_text_features" if towers else "__call__"
            inputs = self._tensors(source.fields, entry)
            return ModelInput(inputs, text_axes(tokens), tokens, notes, self.settings, entry=entry)
        decoder_text = TextTokens(())
        if target is not None:
            decoder_text = self._read([target], Limit(truncate=truncate))
            notes += tuple(note for note in decoder_text.notes if note not in notes)
        elif self.writer is None:
            decoder_text = source
            notes = (*notes, "the decoder gets the same text: give a second text as its target")
        axes: dict[Kind, tuple[Axis, Axis]] = {"encoder": (tokens, tokens)}
        prepared = ModelInput(self._tensors(source.fields), axes, tokens, notes, self.settings)
        return self._begin_decoder(prepared, (self._begin, *decoder_text.tokens[:-1]))

    def _read(self, texts: Sequence[str], limit: Limit = NO_LIMIT, *, templated: bool = False) -> TextTokens:
        return self.reader.read(texts, self.fit(texts, limit), templated=templated)

    @property
    def objective(self) -> Objective:
        """Masked tokens for a masked model, otherwise next tokens. Raises ``ModelError`` without a head."""
        if self.writer is None:
            raise ModelError(f"{self.name} was loaded without its output head: load it with predicting=True")
        mask = None
        if self._fills_masks():
            mask = self.reader.tokenizer.mask_token_id
            if mask is None:
                raise ModelError(f"{self.name} predicts masked tokens, but its tokenizer has no mask token")
        side = "decoder_input_ids" if self.encoder_decoder else "input_ids"
        return Objective(side, mask, self.reader.vocabulary)

    def _fills_masks(self) -> bool:
        """Whether the model with its head was made for masked tokens; XLM's class says so in its config."""
        from transformers import AutoModelForMaskedLM

        kind, config = type(self.writer), self.writer.config
        registered = AutoModelForMaskedLM._model_mapping.get(type(config), None) is kind
        other = self.encoder_decoder or getattr(config, "causal", False)
        return kind.__name__.endswith("ForMaskedLM") or (registered and not other)

    def logits(self, prepared: ModelInput, copies: Tensor, at: Tensor) -> Tensor:
        """One pass: scores over the vocabulary.  [target], [target] -> [target, vocabulary]"""
        scores: Tensor = self.writer(**prepared.inputs, **prepared.settings).logits
        return scores[copies.to(scores.device), at.to(scores.device)]

    def logit_parts(self, prepared: ModelInput, copies: Tensor, at: Tensor, size: int) -> Iterator[Tensor]:
        """The same, of so many targets at a time: of one text, the head reads no more rows together."""
        pictured = any(map(torch.is_floating_point, prepared.inputs.values()))
        if self._trunk is None or len(at) <= size or pictured or copies.any():
            return (yield from super().logit_parts(prepared, copies, at, size))
        forward, ran = self._trunk.forward, list[Any]()

        def run_once(*args: Any, **kwargs: Any) -> Any:
            if not ran:
                ran.append(forward(*args, **kwargs))
            return ran[0]

        for start in range(0, len(at), size):
            with with_forward(self._trunk, run_once):
                some = at[start : start + size].cpu()
                scores = self.writer(**prepared.inputs, **prepared.settings, logits_to_keep=some).logits
            yield scores[0]

    def find_trunk(self, prepared: ModelInput) -> None:
        """Find what gives the head its states: run once, it scores a few tokens as the whole model does."""
        if self._looked or self.encoder_decoder or not accepts(self.writer, "logits_to_keep"):
            return
        self._looked, base = True, self.writer.base_model
        probe = replace(prepared, inputs={name: x[:1, :PROBED] for name, x in prepared.inputs.items()})
        at = torch.arange(PROBED - 1, -1, -1)
        for self._trunk in (base, getattr(base, "decoder", None)):
            with suppress(Exception), torch.inference_mode(), head_edits(lambda call, output: None) as gates:
                whole = self.logits(probe, at * 0, at)
                calls = len(gates.heads)
                parts = torch.cat([*self.logit_parts(probe, at * 0, at, 5)])
                near = tolerance(whole.dtype) * float(whole.abs().max())
                if len(gates.heads) == 2 * calls > 0 and torch.allclose(parts, whole, atol=near, rtol=0):
                    return
        self._trunk = None

    def _tensors(self, fields: Mapping[str, list[int]], entry: str = "__call__") -> dict[str, Tensor]:
        device = self.device  # once, because it searches the module
        columns = {name: ids for name, ids in fields.items() if accepts(self.module, name, entry)}
        return {name: torch.tensor([ids], device=device) for name, ids in columns.items()}

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.device)  # [1, token]
