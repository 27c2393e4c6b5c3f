"""A foreign model folder or a hub id: whether it exists, what it may say, and in one sentence why it fails.

It may name only its own files, no repository; its settings and vocabularies must have plausible sizes.
Everything it makes the library do before the first layer runs shares one deadline. Tokenizer code in Rust
or C cannot be stopped in this process.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope import limits
from attnscope.errors import AttnscopeError, InputError, ModelError, first_line, out_of_memory, readable
from attnscope.registry import BUNDLED, nearest_name

CONFIGS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "adapter_config.json",
)
"""The files of a model folder that say what to build, load or call."""

VOCABULARIES = (".json", ".txt", ".model", ".spm", ".tiktoken", ".bpe")
WEIGHTS = (".safetensors", ".bin")

ACTING = re.compile(
    r"backbone|repo|kernel|custom_generate|base_model|checkpoint|tower|index_path|text_model"
    r"|vision_model|model_id|model_name|[a-z]_name_or_path|auto_map"
)
"""Fields whose text the library would download or run if it names a repository."""

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?:[@:].*)?|[\w.-]+--[\w.]+")
"""The name of a hub repository: ``owner/name``, optionally with a revision, a kernel or a class."""

IMPLEMENTATION = re.compile(r"(?:paged\|)?\w*")
"""The names of the library's own implementations; for any other name it downloads a kernel."""

LEAST_BYTES = {
    re.compile(r"layers?$|(^|[._])(depths?|block_sizes)$"): 16 << 10,
    re.compile(r"num_labels$"): 256,
    re.compile(r"vocab_size$|positions?(_embeddings)?$"): 64,
}
"""Fields that count objects to build, and the least bytes of each: a layer is many objects."""

MOST_COUNTED, MOST_LOOPS = 1 << 18, 1 << 26
"""Most that one field of a config counts, and that a list's elements and the largest number together do."""

UNCOUNTED = re.compile(
    r"theta|position|length|_len|vocab|token|2id|ids?$|seq|context|ctx|window|chunk|pixel|edge|base|factor$|seed|sampl"
)
"""Fields whose numbers are large and no loop: lengths, ids, frequencies."""


@contextmanager
def foreign_work(what: str) -> Iterator[None]:
    """Raise ``ModelError`` for foreign code that runs out of memory or time, or breaks its library."""
    try:
        with limits.deadline():
            yield
    except BaseException as error:
        if isinstance(error, limits.OutOfTime):
            sentence = f"{what} {error}"
        elif amount := out_of_memory(error):
            sentence = f"{what} runs {amount}"
        elif type(error).__name__ == "PanicException":  # a panic in Rust
            sentence = f"{what} breaks the library that runs it"
        else:
            raise
        raise ModelError(sentence) from error


@contextmanager
def input_work(work: str, refusal: str) -> Iterator[None]:
    """``foreign_work`` work on the user's input: any other exception becomes an ``InputError``, a refusal."""
    try:
        with foreign_work(work):
            yield
    except ModelError:
        raise
    except Exception as error:  # foreign code may raise anything
        raise InputError(f"{refusal}: {first_line(error)}") from error


@contextmanager
def pickles_refused(name: str) -> Iterator[None]:
    """Raise ``ModelError`` where a model's class itself loads a pickled file, beside the weights."""
    import torch

    original = torch.load

    def refuse(file: Any, *_: Any, **__: Any) -> None:
        pickled = Path(file).name if isinstance(file, str | os.PathLike) else "a pickled file"
        raise ModelError(f"{name} loads {pickled}, a pickle: pass --allow-pickle, if you trust its author")

    torch.load = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.load = original


def require_plain_files(folder: Path) -> None:
    """Raise ``ModelError`` for pipes, devices, huge files, and indices that lead out of the folder."""
    try:
        files = [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")]
    except OSError as error:
        raise ModelError(f"cannot read the folder {folder}: {first_line(error)}") from error
    for file in sorted(files):
        if file.is_dir() or file.suffix not in (*VOCABULARIES, *WEIGHTS, ".jinja"):
            continue
        if file.exists() and not file.is_file():
            raise ModelError(f"{folder} holds {file.name}, which is not a regular file: remove it")
        small = file.name in CONFIGS or file.suffix == ".jinja"
        most = limits.CONFIG_BYTES if small else limits.VOCABULARY_BYTES
        if file.suffix not in WEIGHTS and file.stat().st_size > most:
            size = readable(file.stat().st_size)
            raise ModelError(f"{folder} holds {file.name} of {size}: at most {readable(most)} are read")
    for file in sorted(folder.glob("*.index.json")):
        index = read_config(str(folder), file)
        parts = index.get("weight_map")
        if not isinstance(parts, dict) or not isinstance(index.get("metadata"), dict):
            raise ModelError(f"{folder} holds {file.name} without the objects metadata and weight_map")
        for part in parts.values():
            if not isinstance(part, str) or Path(part).name != part:
                raise ModelError(f"{folder} holds {file.name}, which names {part!r:.80}: no file beside it")


def read_config(name: str, file: Path) -> dict[str, Any]:
    """A JSON file of settings. Raises ``ModelError``."""
    which = f"{name} cannot be loaded: its {file.name} is"
    try:
        settings = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{which} not JSON ({first_line(error)})") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{which} {type(settings).__name__}, not an object")
    return settings


def _walk(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every value with the path of its field; those in a list have its path."""
    pending: list[tuple[str, Any]] = [("", settings)]
    for field, value in pending:  # grows; no recursion, as settings may be nested deeper than Python's stack
        yield field, value
        if isinstance(value, Mapping):
            pending += [(f"{field}.{key}" if field else str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            pending += [(field, inner) for inner in value]


def require_buildable(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` for a config that counts or lists more than any model has: building it takes long.

    Whatever a field is called, the library may make as many objects, each as often as a list has elements.
    """
    excess = f"the config.json of {name} asks for more than any model has: "
    largest, lists = Counter[str](), Counter[str]()
    for number, (field, value) in enumerate(_walk(settings)):
        if isinstance(value, list):
            lists[field] += len(value)
        elif isinstance(value, int) and not UNCOUNTED.search(field):
            largest[field] = max(largest[field], abs(value))
        if number > MOST_COUNTED:
            raise ModelError(f"{excess}over {MOST_COUNTED:,} values")
    (most, count), *_ = largest.most_common(1) or [("", 0)]
    (longest, elements), *_ = lists.most_common(1) or [("", 0)]
    if count > MOST_COUNTED:
        raise ModelError(f"{excess}{most} is {count:,}")
    if elements * count > MOST_LOOPS:
        raise ModelError(f"{excess}{most} is {count:,}, and {longest} has {elements:,} elements")


def require_harmless_fields(name: str, file: str, settings: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` for a field that names a repository to fetch, or a number beyond the memory."""
    most = limits.most_memory()
    for field, value in _walk(settings):  # e.g. text_config.attn_implementation
        if not field.isprintable():  # code in Rust would print it as it is
            raise ModelError(f"the {file} of {name} has a field whose name is no text: {field!r:.80}")
        least = next((size for counts, size in LEAST_BYTES.items() if counts.search(field)), 0)
        if most is not None and isinstance(value, int) and value * least > most:
            raise ModelError(
                f"the {file} of {name} asks for more than the memory, {readable(most)}: {field} is {value:,}"
            )
        if not isinstance(value, str):
            continue
        fetches = ACTING.search(field) and REPOSITORY.fullmatch("".join(value.split()))
        if not IMPLEMENTATION.fullmatch(value) if "implementation" in field else fetches:
            raise ModelError(
                f"the {file} of {name} names {value.strip()!r} ({field}), that would be fetched from the hub "
                "or run: pass --trust-remote-code if you trust its author"
            )


HUB = {
    "GatedRepoError": (
        "{name} is on the hub, but its authors ask for consent: accept its terms there, then log in with "
        "'hf auth login'"
    ),
    "RevisionNotFoundError": "{name} has no revision {revision!r} on the hub",
    "HFValidationError": "{none}it is neither a folder here nor a hub id such as 'openai-community/gpt2'",
    "RepositoryNotFoundError": (
        "{none}there is no such folder here, and no public model of that name on the hub"
    ),
    "OfflineModeIsEnabled": "{absent} is switched off (--offline, or HF_HUB_OFFLINE)",
    "Exception": "{absent} cannot be reached ({why})",
}
"""The message for each exception of the hub library; the first that matches counts."""


def require_on_hub(name: str, revision: str | None) -> None:
    """Raise ``ModelError`` at once if ``name`` is neither in the cache nor on a reachable hub.

    The library would retry five times, half a minute in all.
    """
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        if isinstance(hub.try_to_load_from_cache(name, "config.json", revision=revision), str):
            return
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        hub.HfApi().model_info(name, revision=revision, timeout=limits.HUB_SECONDS)
    except Exception as error:  # every transport has its own exceptions for "no answer"
        folders = sorted(Path(hub.constants.HF_HUB_CACHE).glob("models--*"))
        cached = (folder.name.removeprefix("models--").replace("--", "/") for folder in folders)
        near = nearest_name(name, (*BUNDLED, *cached))
        none = f"no model {name!r}: {near}"
        absent = f"{none}there is no such folder here, it is not in the cache, and the hub"
        answers = (say for kind, say in HUB.items() if isinstance(error, getattr(errors, kind, Exception)))
        sentence = next(answers).format(
            name=name, revision=revision, none=none, absent=absent, why=first_line(error)
        )
        raise ModelError(sentence) from None


HEADLESS_USES = "what reads attention alone needs no head, as --weighting norm and flow --method rollout"
"""What a model without a head still answers."""

VOCABULARY_FILE = re.compile(r"tokenizer\.json|tekken\.json|vocab\..*|.*\.(model|spm|tiktoken|bpe)")
"""Vocabulary files, including names that the tokenizer's class does not list."""


PROCESSORS = {
    "image": ("AutoImageProcessor", "the image processor of ", "images"),
    "text": ("AutoProcessor", "the processor of ", "what stands in a text"),
    "sound": ("AutoFeatureExtractor", "the feature extractor of ", "sound"),
}
"""The processor of an image, of an image or sound in a text, or of a sound: class, name, and input."""


@dataclass(frozen=True)
class ModelSource:
    """A hub id or a local folder, and how far it is trusted."""

    name: str
    revision: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False

    @property
    def folder(self) -> Path | None:
        """The folder, if the name is one."""
        return Path(self.name) if Path(self.name).is_dir() else None

    @property
    def options(self) -> dict[str, Any]:
        """The same as keyword arguments of transformers."""
        return {"revision": self.revision, "trust_remote_code": self.trust_remote_code}

    @contextmanager
    def guarded(self, what: str = "") -> Iterator[None]:
        """Close the network if a folder is loaded, and turn the library's exceptions into ``ModelError``."""
        reason = f"the folder {self.name} chooses no network (--trust-remote-code would let it)"
        try:
            with ExitStack() as closed:
                if self.folder is not None and not self.trust_remote_code:
                    closed.enter_context(limits.network_closed(reason))
                if not self.allow_pickle:
                    closed.enter_context(pickles_refused(self.name))
                yield
        except AttnscopeError:
            raise
        except Exception as error:  # whatever a foreign folder raises is the folder's fault
            for one in (error.__cause__, error.__context__):
                if isinstance(one, AttnscopeError):
                    raise one from None
            raise ModelError(_explain(what + self.name, error)) from error

    def load_config(self) -> Any:
        """The config. Raises ``ModelError`` if there is none, or an implausible one."""
        if sys.flags.optimize > 1:
            raise ModelError(
                f"{self.name} cannot be loaded: transformers builds its models from docstrings, which this "
                "python leaves out; run python without -OO"
            )
        import transformers

        if int(transformers.__version__.partition(".")[0]) < 5:
            old = f"transformers {transformers.__version__} is too old"
            raise ModelError(f"{self.name} cannot be loaded: {old}, attnscope needs 5.0 or newer")
        if self.folder is None:
            require_on_hub(self.name, self.revision)
        self.require_harmless()
        with self.guarded(), foreign_work(f"the config.json of {self.name}"):
            config = transformers.AutoConfig.from_pretrained(self.name, **self.options)
            if not all(isinstance(each, str) for each in config.architectures or ()):
                raise ValueError("the architectures of its config.json are no names")
            return config

    def load_tokenizer(self, config: Any) -> Any:
        """The tokenizer, as transformers loads it. Raises ``ModelError``."""
        from transformers import AutoTokenizer, PreTrainedTokenizerBase

        with self.guarded("the tokenizer of "), foreign_work(f"the tokenizer of {self.name}"):
            tokenizer = AutoTokenizer.from_pretrained(self.name, config=config, **self.options)
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            kind = type(tokenizer).__name__
            raise ModelError(f"{self.name} has no tokenizer of its own: {kind} joins those of other models")
        files = [name for name in tokenizer.vocab_files_names.values() if isinstance(name, str)]
        if self.folder is not None and files:  # some read bytes and have no vocabulary
            names = {file.name for file in self.folder.iterdir()}
            if not names.intersection(files) and not any(VOCABULARY_FILE.fullmatch(name) for name in names):
                raise ModelError(  # the library makes an empty one
                    f"{self.name} has no tokenizer: none of {', '.join(files)} is in the folder, so its "
                    "words would all be unknown"
                )
        try:
            tokenizer.unk_token_id  # noqa: B018
        except RecursionError:  # the library looks for it in place of a missing one
            lacks = f"the tokenizer of {self.name} lacks '{tokenizer.unk_token}', its token for unknown words"
            raise ModelError(lacks) from None
        return tokenizer

    def load_processor(self, kind: str) -> Any:
        """The processor of a ``kind`` of ``PROCESSORS``, loaded by transformers. Raises ``ModelError``."""
        import transformers

        automatic, called, what = PROCESSORS[kind]
        with self.guarded(called):
            try:
                with foreign_work(called + self.name):
                    return getattr(transformers, automatic).from_pretrained(self.name, **self.options)
            except (OSError, ValueError) as error:
                if "preprocessor_config" in str(error) or "image processor" in str(error).lower():
                    raise ModelError(
                        f"{self.name} does not say how it reads {what}: it has no preprocessor_config.json "
                        "that transformers knows"
                    ) from error
                raise

    def require_harmless(self) -> None:
        """Read the settings files, and refuse any that names another repository. Raises ``ModelError``."""
        import transformers
        from transformers.utils import cached_file

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        if self.folder is not None:
            require_plain_files(self.folder)
        absent = ("missing_entries", "connection_errors", "gated_repo")
        quiet: dict[str, Any] = {f"_raise_exceptions_for_{what}": False for what in absent}
        with self.guarded():
            for name in (*CONFIGS, "tokenizer.json"):
                file = cached_file(self.name, name, revision=self.revision, **quiet)
                if file is not None:
                    settings = read_config(self.name, Path(file))
                    if name == "tokenizer.json":  # the rest is a vocabulary
                        settings = {"added_tokens": settings.get("added_tokens")}
                    if not self.trust_remote_code:
                        if name == "config.json":
                            require_buildable(self.name, settings)
                        require_harmless_fields(self.name, name, settings)


def _explain(name: str, error: Exception) -> str:
    """One sentence on why a model did not load."""
    import transformers

    message = str(error)
    unknown = "Unrecognized configuration class" in message
    config_class = re.search(r"<class '[\w.]*?(\w+)'>", message)  # the config; its bare model may exist
    kind = getattr(transformers, config_class[1], None) if unknown and config_class else None
    rows = (
        (
            "trust_remote_code" in message,
            f"{name} carries code of its own: read it, then pass --trust-remote-code to run it",
        ),
        (
            kind is not None and kind not in transformers.AutoModel._model_mapping,
            f"{name} cannot be opened as one: a model of its type joins several; save the one that reads in "
            "a folder of its own (save_pretrained), and look at that",
        ),
        (
            unknown,
            f"{name} predicts nothing: it was saved without classes to tell apart, and transformers has no "
            f"language-model head for a model of its type; {HEADLESS_USES}",
        ),
        (
            "no file named" in message or "pytorch_model.bin" in message,
            f"{name} has no safetensors weights: pass --allow-pickle to load pickled ones, "
            "if you trust their author",
        ),
        (True, f"{name} cannot be loaded: {first_line(error)}"),
    )
    return next(sentence for applies, sentence in rows if applies)
