"""Where pictures stand in a text: the signs of a processor, or its chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnscope.errors import InputError, ModelError
from attnscope.models.huggingface.reader import write_chat
from attnscope.models.inputs import Chat
from attnscope.models.inspection import accepts

IDS = {"image": ("image_token_id", "image_token_index"), "video": ("video_token_id", "video_token_index")}
"""What configs call the id of a token that stands for a picture, or for a video."""

SIGNS = {
    "image": ("boi_token", "image_token", "fake_image_token", "image_placeholder_token"),
    "video": ("video_token",),
}
"""What processors call the sign that becomes the tokens of a picture, or of a video."""

UNMADE = "takes images in a form that attnscope does not make: give them with --inputs FILE"
"""What is said of models that read pictures, but no pixels."""


@dataclass(frozen=True)
class Prompts:
    """Writes texts with ``count`` pictures, or with one video, for the ``processor`` of a model."""

    name: str
    processor: Any
    module: nn.Module
    count: int
    video: bool = False

    @property
    def what(self) -> str:
        """What stands in the text, in the words of chat templates."""
        return "video" if self.video else "image"

    def write(self, text: str) -> list[str]:
        """What may be meant by the text with its pictures: the first is meant of those of one length.

        They stand where the text has the processor's signs or ``<image>``, or before it; there the processor
        may put them itself. Raises ``InputError`` if the text has signs for more or fewer pictures.
        """
        signs = self._signs()
        written = [sign for sign in (*signs, *self._plain()) if sign in text]
        if written:
            if all(text.count(sign) != self.count for sign in written):
                self._refuse(text.count(written[0]), written[0])
            return [text]
        places = text.count(f"<{self.what}>")
        if places not in (0, self.count):
            self._refuse(places, f"<{self.what}>")
        if places:
            return [text.replace(f"<{self.what}>", sign) for sign in signs] or [text]
        return [*(sign * self.count + text for sign in signs), text]

    def _refuse(self, places: int, sign: str) -> None:
        raise InputError(
            f"the text has {places} × {sign} and there {'is' if self.count == 1 else 'are'} {self.count} "
            f"{self.what}{'s' * (self.count > 1)}: write it once for each, or leave it out to have them "
            "before the text"
        )

    def _signs(self) -> list[str]:
        """What the template puts for a picture, and what the processor and the config name."""
        config: Any = self.module.config
        tokenizer = getattr(self.processor, "tokenizer", None)

        def spell(name: str) -> Any:
            id_ = getattr(config, name, None)
            return tokenizer.convert_ids_to_tokens(id_) if tokenizer and isinstance(id_, int) else None

        found = [self._in_template(), *self._plain(), *map(spell, IDS[self.what])]
        signs = [sign for sign in dict.fromkeys(found) if isinstance(sign, str) and sign]
        for what in ("vision", self.what):
            start, end = (
                spell(f"{what}_{side}_token_id") or getattr(tokenizer, f"{what}_{side}_token", None)
                for side in ("start", "end")
            )
            if isinstance(start, str) and isinstance(end, str):  # which tell a picture from the next one
                return [sign if start in sign else start + sign + end for sign in signs]
        return signs

    def _plain(self) -> list[str]:
        """The processor's own signs, with nothing around them."""
        named = (getattr(self.processor, name, None) for name in SIGNS[self.what])
        return [sign for sign in named if isinstance(sign, str) and sign]

    def _in_template(self) -> str | None:
        """What the chat template puts for a picture between two texts, if it has one and puts it there."""
        if not getattr(self.processor, "chat_template", None):
            return None
        message = {"role": "user", "content": [_text("one"), {"type": self.what}, _text("two")]}
        try:
            written = write_chat(self.name, self.processor, [message], reply=False)
        except (InputError, ModelError):
            return None
        between = re.search(r"one(.*)two", written, re.DOTALL)
        return between[1].strip() or None if between else None

    def write_chat(self, text: str, chat: Chat) -> str:
        """The text as a user's message with its pictures, by the chat template of the processor."""
        if not getattr(self.processor, "chat_template", None):
            raise InputError(f"{self.name} has no chat format: leave out --chat to give it the text as it is")
        sign = {"type": self.what}
        parts = text.split(f"<{self.what}>")
        if len(parts) == 1:
            parts = [*[""] * self.count, text]
        elif len(parts) != self.count + 1:
            self._refuse(len(parts) - 1, f"<{self.what}>")
        content = [sign if part is None else _text(part) for one in parts for part in (None, one)][1:]
        content = [part for part in content if part == sign or str(part["text"]).strip()]
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if chat.system is not None:
            messages.insert(0, {"role": "system", "content": [_text(chat.system)]})
        return write_chat(self.name, self.processor, messages, chat.reply)


def _text(words: str) -> Mapping[str, str]:
    return {"type": "text", "text": words}


def reads_pictures_in_texts(module: nn.Module) -> bool:
    """Whether a model has a token that stands for a picture in its text, or looks across from its text."""
    named = any(getattr(module.config, name, None) is not None for name in IDS["image"])
    one_tower = hasattr(module, "get_image_features") and not hasattr(module, "get_text_features")
    return named or one_tower or accepts(module, "image_attention_mask")
