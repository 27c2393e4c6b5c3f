"""A folder cannot choose code or the network: names of repositories are refused."""

import json
import shutil
import sys

import pytest
import transformers

from attnscope.errors import AttnscopeError, ModelError
from attnscope.models import load
from tests.models.folders import changed, gpt2
from tests.tools.survey import in_a_fork

KERNEL = "someone/kernel"
CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
IMAGES, PROCESSOR = "preprocessor_config.json", "processor_config.json"
REFUSED = [  # a file, what it says, and the field that the sentence names
    (CONFIG, {"attn_implementation": KERNEL}, "attn_implementation"),
    (CONFIG, {"_attn_implementation_internal": KERNEL}, "_attn_implementation_internal"),
    (CONFIG, {"attn_implementation": {"": KERNEL}}, "attn_implementation"),
    (CONFIG, {"attn_implementation": "paged|someone/kernel"}, "attn_implementation"),
    (CONFIG, {"attn_implementation": "sdpa|someone/kernel @v1"}, "attn_implementation"),
    (CONFIG, {"attn_implementation": "someone/kernel\n"}, "attn_implementation"),
    (CONFIG, {"text_config": {"attn_implementation": {"x": "a/b:c/d"}}}, "text_config.attn_implementation.x"),
    (CONFIG, {"backbone": "someone/back bone\n", "use_pretrained_backbone": True}, "backbone"),
    (CONFIG, {"experts_implementation": KERNEL}, "experts_implementation"),
    (CONFIG, {"kernel_config": {"attention": [KERNEL]}}, "kernel_config.attention"),
    (CONFIG, {"auto_map": {"AutoConfig": "someone/code--file.Config"}}, "auto_map.AutoConfig"),
    (CONFIG, {"mm_vision_tower": "someone/tower"}, "mm_vision_tower"),
    (CONFIG, {"text_model_name": "someone/text"}, "text_model_name"),
    (CONFIG, {"vision_model_name_or_path": "someone/vision"}, "vision_model_name_or_path"),
    (CONFIG, {"base_model": "someone/base"}, "base_model"),
    (CONFIG, {"index_path": "someone/index"}, "index_path"),
    (CONFIG, {"load_checkpoint": "someone/weights"}, "load_checkpoint"),
    ("adapter_config.json", {"base_model_name_or_path": "someone/base"}, "base_model_name_or_path"),
    ("generation_config.json", {"custom_generate": "someone/generate"}, "custom_generate"),
    (TOKENIZER, {"auto_map": {"AutoTokenizer": ["someone/t--t.T", None]}}, "auto_map"),
    (IMAGES, {"repo_path": "someone/labels"}, "repo_path"),
    (PROCESSOR, {"speaker": {"repo_or_path": "someone/voice"}}, "speaker.repo_or_path"),
    (PROCESSOR, {"audio_tokenizer_name_or_path": "someone/a"}, "audio_tokenizer_name_or_path"),
]
KEPT_IN = [  # what names nothing of that kind, and must reach nothing either
    (CONFIG, {"_name_or_path": "someone/else"}),
    (CONFIG, {"model_type": "planted", "auto_map": {"AutoConfig": "planted.Config"}}),
    (CONFIG, {"model_type": "detr", "backbone": "resnet50", "use_pretrained_backbone": True}),
    (CONFIG, {"model_type": "dpt", "backbone": "owner-less", "use_timm_backbone": False}),
    (CONFIG, {"model_type": "rag"}),
    (CONFIG, {"model_type": "nothing-known"}),
    (CONFIG, {"quantization_config": {"quant_method": "mxfp4"}}),
    (CONFIG, {"attn_implementation": "flash_attention_2"}),
    (TOKENIZER, {"name_or_path": "someone/else", "tokenizer_class": "PlantedTokenizer"}),
    (TOKENIZER, {"auto_map": {"AutoTokenizer": ["planted.T", None]}, "tokenizer_class": "T"}),
    (TOKENIZER, {"fix_mistral_regex": True}),
]


def attempt(places):
    """Load each folder and read a text, where no audit hook can be taken away: the sentence of each, and what
    connection, program or file of code in it was tried."""
    found = []

    def watch(event, arguments):
        if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec"):
            found[-1]["tried"].append(f"{event} {arguments!r}")
        ran = str(getattr(arguments[0], "co_filename", "")) if event == "exec" else ""
        if ran.startswith(str(places[0].parent)):
            found[-1]["tried"].append(f"ran {ran}")

    sys.addaudithook(watch)
    for place in places:
        found.append({"sentence": None, "tried": []})
        try:
            load(place).prepare("The cat sat.")
        except AttnscopeError as error:
            found[-1]["sentence"] = str(error)
        except BaseException as error:  # such as planted code's own exit
            found[-1]["tried"].append(repr(error))
    return json.dumps(found)


@pytest.mark.usefixtures("unlisted")
def test_folder_naming_a_repository_is_refused_offline(tmp_path):
    load(changed(tmp_path / "plain")).prepare("The cat sat.")  # what that imports counts for no folder
    cases = [*REFUSED, *KEPT_IN]
    places = [changed(tmp_path / f"{number:02}", case[0], **case[1]) for number, case in enumerate(cases)]
    for place in places:
        (place / "planted.py").write_text("raise SystemExit('planted code ran')\n")
    said, status = in_a_fork(lambda: attempt(places), 60, 16 << 30)
    assert status == 0
    for (file, changes, *fields), outcome in zip(cases, json.loads(said), strict=True):
        assert [what for what in outcome["tried"] if not (what.startswith("socket") and not fields)] == []
        for field in fields:
            sentence = outcome["sentence"]
            assert sentence is not None, changes
            assert f"the {file} of" in sentence
            assert f"({field}" in sentence
            assert sentence.endswith("pass --trust-remote-code if you trust its author")


def test_network_request_of_a_folder_is_blocked(tmp_path):
    """A field that nobody thought of reaches the closed network, and that says so."""
    asked = {"backbone": "owner-less", "use_timm_backbone": True, "is_hybrid": True}
    made = changed(tmp_path / "m", model_type="dpt", **asked)
    said = r"chooses no network .*, and huggingface\.co was asked for|cannot be"
    with pytest.raises(ModelError, match=said):
        load(made)


def test_folder_with_origin_or_trust_loads(tmp_path):
    made = changed(tmp_path / "m", _name_or_path="someone/else", id2label={"0": "yes/no"})
    changed(made, TOKENIZER, name_or_path="someone/else")
    assert load(made).prepare("The cat").tokens
    changed(made, base_model="someone/base")
    with pytest.raises(ModelError, match="names 'someone/base'"):
        load(made)
    assert load(made, trust_remote_code=True).prepare("The cat").tokens


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory):
    """A tiny model whose weights are saved in several files, with an index."""
    place = tmp_path_factory.mktemp("parts")
    model = transformers.AutoModel.from_pretrained(gpt2(place))
    (place / "model.safetensors").unlink()
    model.save_pretrained(place, max_shard_size=10_000)
    assert load(place).run
    return place / "model.safetensors.index.json"


OUTSIDE = ("../elsewhere.safetensors", "/dev/zero", "a/b.safetensors", 7, None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *(({"weight_map": {"wte.weight": part}}, "which names .*: no file beside it") for part in OUTSIDE),
        ({"metadata": 3}, "without the objects metadata and weight_map"),
        ({"weight_map": []}, "without the objects metadata and weight_map"),
    ],
)
def test_weight_index_cannot_leave_its_folder(change, sentence, in_parts, tmp_path):
    place = shutil.copytree(in_parts.parent, tmp_path / "model")
    changed(place, in_parts.name, **change)
    with pytest.raises(ModelError, match=f"index.json,? {sentence}"):
        load(place)
