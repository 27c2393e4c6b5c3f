"""What a model reads: a text, a chat, pictures, a sound or tensors, and how much it generates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.errors import InputError
from attnscope.models.inputs import Chat, Limit, ModelInput, SoundPart, label_input, read_labels
from attnscope.models.model import Model
from attnscope.models.text.tokens import Sampling
from attnscope.storage.trace.layout import DOCUMENT, Message
from attnscope.text import MOST_CHARACTERS

if TYPE_CHECKING:
    from torch import Tensor


CHAT_EXAMPLE = '[{"role": "user", "content": "Who slept?"}]'


BEGINS_JSON = re.compile(r"\s*(\{\s*[\"}]|\[\s*[\[{\]\"\d])")
CHAT_WORDS = re.compile(r"\"(?:messages|role|content)\"")
"""What tells a chat in JSON from a text that begins with a bracket."""

SERVED = ("response", "answer", "completion", "output")
"""Log fields for the served answer; ``choices`` of the usual API are known, too."""


def read_chat(text: str, system: str | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The messages of a chat, each with its role and its content, and its tools and documents by name.

    A text that is a JSON list of messages is a whole chat; so is a line of a log, an object with its
    ``messages`` and the served answer. Any other text is one user message, after ``system`` if given.
    Raises ``InputError`` for JSON that holds something else, or that was cut.
    """
    messages: Any = None
    more: dict[str, Any] = {}
    if BEGINS_JSON.match(text):
        try:
            messages = json.loads(text)
        except (ValueError, RecursionError):
            if CHAT_WORDS.search(text):
                raise InputError(f"a chat in JSON was cut or is damaged: {text.strip()[:40]!r}...") from None
    if isinstance(messages, dict):
        more = {
            name: messages[name] for name in ("tools", "documents") if isinstance(messages.get(name), list)
        }
        turns = messages.get("messages")
        if not isinstance(turns, list):
            has = f", it has {', '.join(map(repr, list(messages)[:5]))}" if messages else ""
            raise InputError(f"a line of a log needs a list of messages{has}; a text is {CHAT_EXAMPLE}")
        messages = [*turns, *_served(messages)]
    if messages is None:
        messages = [{"role": "user", "content": text}]
    messages = [_flat(each) if isinstance(each, Mapping) else each for each in messages]
    if not messages or not all(
        isinstance(message, Mapping) and {type(message.get(name)) for name in ("role", "content")} == {str}
        for message in messages
    ):
        raise InputError(
            f"a chat in JSON is a list of messages, each with a role and a content: {CHAT_EXAMPLE}"
        )
    return [*([] if system is None else [{"role": "system", "content": system}]), *messages], more


def _served(line: Mapping[str, Any]) -> list[Any]:
    """The answer that a log line holds beside its messages, as one more message."""
    for answer in (line, *(line.get(name) for name in SERVED)):
        if isinstance(answer, str):
            return [{"role": "assistant", "content": answer}]
        choices = answer.get("choices") if isinstance(answer, Mapping) else None
        if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
            return [choices[0].get("message")]
    return []


def read_document(document: object) -> str:
    """The text of a document that a log line holds, by the names that templates use."""
    fields = document if isinstance(document, Mapping) else {"text": document}
    texts = (fields.get(name) for name in ("text", "content", "contents", "body"))
    return str(next(filter(None, texts), ""))


def _flat(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content is one text: text parts are joined, tool calls have none."""
    content = message.get("content")
    if isinstance(content, list):
        parts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise InputError("a message has a part that is not text: a chat in JSON may hold text only")
        content = "".join(parts)
    return {**message, "content": "" if content is None and "tool_calls" in message else content}


@dataclass(frozen=True, kw_only=True)
class InputRequest:
    """A text, or another input, and how much to generate.

    ``inputs`` are tensors by argument name, or a file of them, ``labels`` a file that names positions;
    the seconds are those of the sound; ``repeat_random`` tokens are read twice instead of a text.
    """

    text: str | None = None
    second: str | None = None
    pictures: Sequence[Path] = ()
    video: bool = False
    audio: Path | None = None
    from_second: float = 0.0
    to_second: float | None = None
    inputs: Mapping[str, Tensor] | Path | None = None
    labels: Path | None = None
    repeat_random: int | None = None
    chat: bool = False
    system: str | None = None
    generate: int | None = None
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int | None = None
    truncate: bool = False

    @property
    def files(self) -> list[Path]:
        """The files that are read."""
        values = (*self.pictures, self.audio, self.inputs, self.labels)
        return [each for each in values if isinstance(each, Path)]

    def prepare(
        self, model: Model, spinner: Callable[[str], AbstractContextManager[Any]] = nullcontext
    ) -> ModelInput:
        """The model's input, including generated tokens; ``spinner`` shows what is waited for."""
        prepared = replace(self.read(model), request=self)
        if self.generate is not None:
            with spinner(f"{model.title} writes up to {self.generate:,} tokens"):
                prepared = model.generate(prepared, self.generate, Sampling(self.temperature, self.seed))
        if self.chat and self.text is not None:
            turns, more = read_chat(self.text, self.system)
            texts = [read_document(each) for each in more.get("documents", ())]
            answered = prepared.written is not None and self.generate is None  # the last message is it
            messages = [Message(each["role"], each["content"]) for each in turns[: len(turns) - answered]]
            messages += [Message(DOCUMENT, text) for text in texts if text]
            prepared = replace(prepared, messages=tuple(messages))
        if self.pictures or self.audio is not None or self.inputs is not None or self.chat:
            return replace(prepared, text=None)
        return replace(prepared, text=self.text if self.second is None else f"{self.text}\n{self.second}")

    def read(self, model: Model) -> ModelInput:
        """The input without any generation. Raises ``InputError``."""
        size = len(self.text or "")
        if (self.pictures or self.audio or self.chat) and size > MOST_CHARACTERS:
            raise InputError(f"the text has {size:,} characters: shorten it to {MOST_CHARACTERS:,}")
        chat = Chat(self.system, self.generate is not None) if self.chat else None
        if self.pictures:
            return model.prepare_image(self.pictures, self.text, chat, video=self.video)
        if self.audio is not None:
            part = SoundPart(self.from_second, self.to_second, self.truncate)
            return model.prepare_audio(self.audio, self.text, part)
        if self.inputs is not None:
            from attnscope.storage.tensors import read_tensors

            tensors = self.inputs
            read = model.prepare_tensors(read_tensors(tensors) if isinstance(tensors, Path) else tensors)
            return read if self.labels is None else label_input(read, read_labels(self.labels))
        if self.repeat_random is not None:
            return model.repeat_random(self.repeat_random, self.seed)
        if self.text is None:
            raise InputError("nothing to read: give a text, an image, or tensors by name")
        limit = Limit(self.max_tokens, self.truncate)
        if chat is None:
            return model.prepare(self.text, self.second, limit)
        return model.prepare_chat(self.text, chat, limit)
