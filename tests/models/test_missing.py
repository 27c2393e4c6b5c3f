"""What a model needs and is not installed is named, with what to do."""

from importlib.metadata import version

import pytest
import transformers
from transformers.utils import import_utils

from attnscope.errors import ModelError
from attnscope.models.foreign import Source, explain_missing

BY_HAND = {
    "Package `num2words` is required to run it. Install it with `pip install num2words`.": "num2words",
    "You need to install sacremoses to use XLMTokenizer. See its page for installation.": "sacremoses",
    "Pandas is required for the TAPAS tokenizer.": "pandas",
    "These packages were not found in your environment: a, b. Run `pip install a b`": "a b",
}


def raised(library: str) -> ImportError:
    with pytest.raises(ImportError) as caught:
        raise ImportError(import_utils.BACKENDS_MAPPING[library][1].format("Some"))
    return caught.value


@pytest.mark.parametrize("library", ["timm", "librosa", "mistral-common", "sentencepiece", "nltk", "av"])
def test_each_package_that_transformers_requires_is_named_with_its_line_of_pip(library):
    said = explain_missing(raised(library))
    assert said == f"it needs {library}, which is not installed: pip install {library}"


@pytest.mark.parametrize(("message", "packages"), BY_HAND.items())
def test_other_ways_to_say_so_are_read_too(message, packages):
    assert explain_missing(ImportError(message)).endswith(f"not installed: pip install {packages}")


def test_of_what_is_compiled_for_torch_the_release_is_told():
    said = explain_missing(raised("torchvision"))
    expected = f"pip install torchvision, the release that fits torch {version('torch')}"
    assert said == f"it needs torchvision, which is not installed: {expected}"


def test_a_processor_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise raised("torchvision")

    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", refuse)
    with pytest.raises(ModelError, match=r"processor of .* needs torchvision, .*: pip install torchvision, "):
        Source(str(tmp_path)).load_processor("text")


def test_other_errors_say_nothing_of_packages():
    assert explain_missing(ValueError("Run `pip install x`")) is None
    assert explain_missing(ImportError("some other thing")) is None
