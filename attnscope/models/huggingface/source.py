"""A hub id or a folder: whether it is there, what it loads, and in one sentence why it does not."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from attnscope.errors import AttnscopeError, ModelError, first_line
from attnscope.limits import HUB_SECONDS
from attnscope.models.foreign import (
    CONFIGS,
    bounded,
    explained,
    read_config,
    require_no_repository,
    require_own_weights,
    require_plain_files,
)
from attnscope.network.folder import BUNDLED
from attnscope.offline import network_closed
from attnscope.registry import nearest_name

ANSWERS = {
    "HFValidationError": (
        "no model {name!r}: {near}it is neither a folder here nor a hub id such as 'openai-community/gpt2'"
    ),
    "GatedRepoError": (
        "{name} is on the hub, but its authors ask for consent: accept its terms there, then log in with "
        "'hf auth login'"
    ),
    "RevisionNotFoundError": "{name} has no revision {revision!r} on the hub",
    "RepositoryNotFoundError": (
        "no model {name!r}: {near}there is no such folder here, and no public model of that name on the hub"
    ),
    "OfflineModeIsEnabled": (
        "no model {name!r}: {near}there is no such folder here, it is not in the cache, and the hub is "
        "switched off (--offline, or HF_HUB_OFFLINE)"
    ),
}
"""What each exception of the hub's library says; the first that fits counts."""


def require_on_hub(name: str, revision: str | None) -> None:
    """Raise ``ModelError`` at once if ``name`` is neither in the cache nor on a hub that answers.

    The library would try five times, half a minute in all, before it says so.
    """
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        if isinstance(hub.try_to_load_from_cache(name, "config.json", revision=revision), str):
            return
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        hub.HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except Exception as error:  # every transport has its own exceptions for "nobody answers"
        near = nearest_name(name, (*BUNDLED, *_cached()))
        for kind, sentence in ANSWERS.items():
            if isinstance(error, getattr(errors, kind)):
                raise ModelError(sentence.format(name=name, revision=revision, near=near)) from None
        raise ModelError(
            f"no model {name!r}: {near}there is no such folder here, it is not in the cache, and the hub "
            f"cannot be reached ({first_line(error)})"
        ) from None


def _cached() -> Iterator[str]:
    """The models of the hub that are on this machine."""
    from huggingface_hub.constants import HF_HUB_CACHE

    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*")):
        yield folder.name.removeprefix("models--").replace("--", "/")


PIP = re.compile(r"pip install ([^`]+)`")
"""What transformers says to install, once its lines are joined."""

NAMED = (
    re.compile(r"requires (?:the )?(?:🤗 )?([\w.-]+?) library"),
    re.compile(r"need to install ([\w.-]+)"),
    re.compile(r"([\w.-]+) is (?:required|not installed)"),
)
"""How it names what it gives no line of pip for."""

BUILT_FOR_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Packages that are compiled for one release of torch."""

IMPORTERS = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
"""Modules that stand between the one that imports and the one that is imported."""


def explain_missing(error: BaseException) -> str | None:
    """What is not installed, or does not load, and what to do; ``None`` if an error says no such thing."""
    if not isinstance(error, ImportError):
        return None
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    packages = _find_named(" ".join(str(root).split()))
    if packages:
        verb = "is" if len(packages) == 1 else "are"
        return f"it needs {' and '.join(packages)}, which {verb} not installed: {_advise('', packages)}"
    if isinstance(root, ModuleNotFoundError) and root.name is not None:
        return f"it needs the Python module {root.name}: install the package that has it"
    broken = _find_broken(root)
    if broken is None:
        return None
    return f"the {broken} that is installed does not load ({first_line(root)}): {_advise('-U ', [broken])}"


def _find_named(message: str) -> list[str]:
    """The packages that a message of transformers says to install, each once."""
    words = [word for command in PIP.findall(message) for word in command.split()]
    packages = [word for word in words if not word.startswith("-") and "://" not in word]
    for pattern in () if packages else NAMED:
        packages += [name.lower() for name in pattern.findall(message)]
    return list(dict.fromkeys(packages))


def _find_broken(root: BaseException) -> str | None:
    """The package that transformers imported and that raised, as pip calls it."""
    broken, trace = None, root.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if module == "transformers":
            broken = None
        elif module not in IMPORTERS:
            broken = broken or module
        trace = trace.tb_next
    return packages_distributions().get(broken, [broken])[0] if broken else None


def _advise(options: str, packages: list[str]) -> str:
    """The line of pip, and which release is meant."""
    fitting = any(package in BUILT_FOR_TORCH for package in packages)
    release = f", the release that fits torch {version('torch')}" if fitting else ""
    return f"pip install {options}{' '.join(packages)}{release}"


WITHOUT = "what looks at attention alone needs none, as --weigh norm and flow --method rollout"
"""What still can be asked of a model without a head."""

VOCABULARY_FILE = re.compile(r"tokenizer\.json|tekken\.json|vocab\..*|.*\.(model|spm|tiktoken|bpe)")
"""Files of vocabularies, also under names that the tokenizer's class does not say."""


@dataclass(frozen=True)
class Source:
    """A hub id or a local folder, and how far it is trusted."""

    name: str
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def folder(self) -> Path | None:
        """The folder, if the name is one."""
        return Path(self.name) if Path(self.name).is_dir() else None

    @property
    def options(self) -> dict[str, Any]:
        """The same, as keywords of transformers."""
        return {"revision": self.revision, "trust_remote_code": self.trust_remote_code}

    @contextmanager
    def shielded(self, what: str = "") -> Iterator[None]:
        """Close the network if a folder is loaded, and turn what the library raises into ``ModelError``."""
        reason = f"the folder {self.name} chooses no network (--trust-remote-code would let it)"
        try:
            if self.folder is None or self.trust_remote_code:
                yield
            else:
                with network_closed(reason):
                    yield
        except AttnscopeError:
            raise
        except Exception as error:  # whatever a foreign folder provokes is the folder's fault, not ours
            for one in (error.__cause__, error.__context__):
                if isinstance(one, AttnscopeError):
                    raise one from None
            raise ModelError(_explain(what + self.name, error)) from error

    def load_config(self) -> Any:
        """The config. Raises ``ModelError`` if there is none, or one that no honest model has."""
        if sys.flags.optimize > 1:
            raise ModelError(
                f"{self.name} cannot be loaded: transformers builds its models from docstrings, which this "
                "python leaves out; run python without -OO"
            )
        if self.folder is None:
            require_on_hub(self.name, self.revision)
        self.require_harmless()
        import transformers

        what = f"the config.json of {self.name}"
        with self.shielded(), bounded(what, timed=True):
            return transformers.AutoConfig.from_pretrained(self.name, **self.options)

    def load_tokenizer(self, config: Any) -> Any:
        """The tokenizer, as transformers loads it. Raises ``ModelError``."""
        from transformers import AutoTokenizer

        with self.shielded("the tokenizer of "), explained(f"the tokenizer of {self.name}"):
            tokenizer = AutoTokenizer.from_pretrained(self.name, config=config, **self.options)
        self._require_vocabulary(tokenizer)
        try:
            tokenizer.unk_token_id  # noqa: B018
        except RecursionError:  # the library looks for it in place of what is not there
            lacks = f"the tokenizer of {self.name} lacks '{tokenizer.unk_token}', its token for unknown words"
            raise ModelError(lacks) from None
        return tokenizer

    def _require_vocabulary(self, tokenizer: Any) -> None:
        """Raise ``ModelError`` if a folder has no file of its tokenizer, and gets an empty one."""
        wanted = [name for name in tokenizer.vocab_files_names.values() if isinstance(name, str)]
        if self.folder is None or not wanted:  # some read bytes, and have no vocabulary
            return
        names = {file.name for file in self.folder.iterdir()}
        if not names.intersection(wanted) and not any(VOCABULARY_FILE.fullmatch(name) for name in names):
            raise ModelError(
                f"{self.name} has no tokenizer: none of {', '.join(wanted)} is in the folder, so its words "
                "would all be unknown"
            )

    def load_processor(self, with_text: bool = False) -> Any:
        """What prepares images, or images in texts, as transformers loads it. Raises ``ModelError``."""
        import transformers

        kind = transformers.AutoProcessor if with_text else transformers.AutoImageProcessor
        what = "the processor of " if with_text else "the image processor of "
        with self.shielded(what):
            try:
                with bounded(what + self.name):
                    return kind.from_pretrained(self.name, **self.options)
            except (OSError, ValueError) as error:
                if "preprocessor_config" in str(error) or "image processor" in str(error).lower():
                    what = "what stands in a text" if with_text else "images"
                    raise ModelError(
                        f"{self.name} does not say how it reads {what}: it has no preprocessor_config.json "
                        "that transformers knows"
                    ) from error
                raise

    def load_extractor(self) -> Any:
        """What prepares sound, as transformers loads it. Raises ``ModelError``."""
        import transformers

        what = "the feature extractor of "
        with self.shielded(what), bounded(what + self.name):
            return transformers.AutoFeatureExtractor.from_pretrained(self.name, **self.options)

    def _find(self, name: str) -> Path | None:
        """A file of the model, that is fetched if it is on the hub; ``None`` if there is none."""
        from transformers.utils import cached_file

        file = cached_file(
            self.name,
            name,
            revision=self.revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        return None if file is None else Path(file)

    def require_harmless(self) -> None:
        """Read the files of settings, and refuse what names other repositories. Raises ``ModelError``."""
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        if self.folder is not None:
            require_plain_files(self.folder)
            require_own_weights(self.folder)
        with self.shielded():
            for name in CONFIGS:
                file = self._find(name)
                if file is not None:
                    settings = read_config(self.name, file)
                    if not self.trust_remote_code:
                        require_no_repository(self.name, name, settings)


def _explain(name: str, error: Exception) -> str:
    """One sentence on why a model did not load."""
    message, missing = str(error), explain_missing(error)
    unknown = "Unrecognized configuration class" in message
    rows = (
        (missing is not None, f"{name} cannot be loaded: {missing}"),
        (
            "trust_remote_code" in message,
            f"{name} carries code of its own: read it, then pass --trust-remote-code to run it",
        ),
        (
            "EncoderDecoderConfig'" in message,
            f"{name} cannot be loaded: a model of its type joins two models, which attnscope does not open "
            "as one; save its encoder in a folder of its own (save_pretrained), and look at that",
        ),
        (
            unknown and not _has_plain_model(message),
            f"{name} cannot be opened as one: transformers has no plain model of its type, which joins "
            "several; save the one that reads and hears in a folder of its own (save_pretrained), and look "
            "at that",
        ),
        (
            unknown,
            f"{name} predicts nothing: it was saved without classes to tell apart, and transformers has no "
            f"language-model head for a model of its type; {WITHOUT}",
        ),
        (
            "no file named" in message or "pytorch_model.bin" in message,
            f"{name} has no safetensors weights: pass --allow-pickle to load pickled ones, "
            "if you trust whoever made them",
        ),
        (True, f"{name} cannot be loaded: {first_line(error)}"),
    )
    return next(sentence for met, sentence in rows if met)


def _has_plain_model(message: str) -> bool:
    """Whether transformers has a model without a head for the config class that it names in an error."""
    import transformers

    named = re.search(r"<class '[\w.]*?(\w+)'>", message)
    kind = getattr(transformers, named[1], None) if named else None
    return kind is None or kind in transformers.AutoModel._model_mapping
