"""Where a model comes from: a folder or the hub, and its config, tokenizer and image processor.

A folder chooses no code and no network: what names a repository in it is refused, and nothing that it asks
for reaches another machine, unless the caller trusts it by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.errors import AttnscopeError, ModelError, first_line
from attnscope.models.foreign import (
    CONFIGS,
    bounded,
    explained,
    read_config,
    require_no_repository,
    require_own_weights,
    require_plain_files,
)
from attnscope.models.huggingface.hub import require_on_hub
from attnscope.models.huggingface.missing import explain_missing
from attnscope.offline import network_closed

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
