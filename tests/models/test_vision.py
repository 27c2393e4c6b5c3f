"""Images: which files are read, how they are cut, and the names of patches."""

import struct
import zlib

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import nn

from attnscope.attention import Head
from attnscope.errors import AttnscopeError, InputError, ModelError
from attnscope.models import load
from attnscope.models.huggingface.reader import _patch_grid, open_image
from attnscope.models.inputs import join_texts
from attnscope.questions.info import survey_model
from attnscope.questions.selection import Selection
from attnscope.questions.token import one_token
from tests.models import folders, images
from tests.models.folders import eager, eager_maps, made_once, maps


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    return made_once(tmp_path_factory, images.vision)


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    return images.picture(tmp_path_factory.mktemp("images") / "corner.png")


BEFORE = {
    "vit": ["[CLS]"],
    "deit": ["[CLS]", "[DIST]"],
    "beit": ["[CLS]"],
    "dinov2": ["[CLS]"],
    "dinov2-with-registers": ["[CLS]", "[REG0]", "[REG1]", "[REG2]", "[REG3]"],
    "dinov3": ["[CLS]", "[REG0]", "[REG1]", "[REG2]", "[REG3]"],
    "clip-vision": ["[CLS]"],
    "siglip-vision": [],
}


@pytest.mark.parametrize("name", BEFORE)
def test_patches_are_tokens_in_row_order_after_special_ones(folder_of, picture, name):
    model = load(folder_of(name))
    prepared = model.prepare_image(picture)
    patches = [f"{row},{column}" for row in range(4) for column in range(4)]
    assert prepared.picture.grid == (4, 4)
    assert [token.text for token in prepared.tokens] == BEFORE[name] + patches
    assert [token.text for token in prepared.tokens if token.special] == BEFORE[name]
    assert len({token.id for token in prepared.tokens}) == len(prepared.tokens)
    output = eager(folder_of(name), pixel_values=prepared.inputs["pixel_values"])
    kept, *_ = eager_maps(model, prepared, output)
    assert kept.queries == kept.keys == prepared.tokens


@pytest.mark.parametrize("name", ["vit", "deit", "dinov2-with-registers", "dinov3", "siglip-vision"])
def test_patch_name_matches_its_place_in_the_image(folder_of, picture, name):
    """Changing the pixels under one patch changes the embedding of that patch alone."""
    model = load(folder_of(name))
    prepared = model.prepare_image(picture)
    values = prepared.inputs["pixel_values"]
    changed = values.clone()
    changed[:, :, 16:32, 32:48] += 1.0
    place = [token.text for token in prepared.tokens].index("1,2")
    with torch.inference_mode():
        inner = getattr(model.module, "vision_model", model.module)  # in older releases
        before, after = (inner.embeddings(pixels) for pixels in (values, changed))
    before, after = (out[0] if isinstance(out, tuple) else out for out in (before, after))
    assert (before != after).any(-1)[0].nonzero().flatten().tolist() == [place]


@pytest.mark.parametrize("name", ["vit", "dinov2", "clip-vision", "siglip-vision"])
def test_shown_image_equals_model_input(folder_of, tmp_path, name):
    gradient = images.picture(tmp_path / "square.png", 64, 64)  # nothing to scale or to crop
    pixels = load(folder_of(name)).prepare_image(gradient).picture.pixels
    assert np.array_equal(pixels, np.asarray(Image.open(gradient)))


@pytest.mark.parametrize(
    "cut",
    [
        nn.Conv2d(3, 4, 2, 2),
        nn.Conv2d(3, 4, (4, 6), (2, 5), padding=(1, 2)),
        nn.Conv2d(3, 4, 5, padding="valid"),
    ],
    ids=str,
)
def test_patch_grid_follows_first_large_convolution(cut):
    module = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(4, 4, 2), cut)
    for rows, columns in ((64, 48), (33, 50), (16, 16)):
        assert _patch_grid(module, rows, columns) == cut(torch.zeros(1, 3, rows, columns)).shape[2:]
    assert _patch_grid(module, 1, 48) is None
    assert _patch_grid(module[:2], 64, 48) is None


def test_clip_towers_are_shown_alone_or_together(folder_of, picture):
    model = load(folder_of("clip"))
    image, text = model.prepare_image(picture), model.prepare("a tired cat")
    both = model.prepare_image(picture, "a tired cat")
    theirs = eager(folder_of("clip"), **both.inputs)
    towers = {"vision_model": theirs.vision_model_output, "text_model": theirs.text_model_output}
    if theirs.text_model_output.attentions is None:
        pytest.skip("this transformers reports no attention of two towers at once")
    for prepared, expected in ((image, {"vision_model"}), (text, {"text_model"}), (both, set(towers))):
        found = [(*kept.site.name.partition("."), kept) for kept in maps(model, prepared)]
        assert {tower for tower, *_ in found} == expected
        for tower, *_, kept in found:
            own = towers[tower].attentions[kept.site.layer]
            torch.testing.assert_close(kept.weights, own, atol=1e-5, rtol=0)
    kinds = {kept.site.kind: kept for kept in maps(model, both)}
    assert [token.text for token in kinds["decoder"].keys] == ["[CLS]", "a", "tired", "cat", "[SEP]"]
    assert kinds["encoder"].keys == image.tokens


def test_clip_texts_run_in_a_batch_through_their_tower(folder_of):
    model = load(folder_of("clip"))
    texts = [model.prepare(text) for text in ("a tired cat", "a cat slept")]
    alone = [[kept.weights[0] for kept in maps(model, text)] for text in texts]
    batch = join_texts(texts)
    together = maps(model, batch.prepared)
    assert batch.texts == 2
    assert {kept.site.name.partition(".")[0] for kept in together} == {"text_model"}
    for number, each in enumerate(alone):
        for one, kept in zip(each, together, strict=True):
            torch.testing.assert_close(kept.weights[number], one, atol=1e-6, rtol=0)


def test_text_or_image_for_the_wrong_model_is_refused(folder_of, picture, tmp_path):
    seeing = load(folder_of("vit"))
    with pytest.raises(InputError, match="reads images, not text: give it one with --image FILE"):
        seeing.prepare("The cat sat.")
    with pytest.raises(InputError, match="reads images alone: leave out the text"):
        seeing.prepare_image(picture, "The cat sat.")
    transformers.ViTModel(transformers.ViTConfig(**images.VIT)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="it has no preprocessor_config"):
        load(tmp_path).prepare_image(picture)
    for name in ("own", folders.minilm()):
        with pytest.raises(InputError, match="reads text, not images"):
            load(name).prepare_image(picture)


def bomb(side: int) -> bytes:
    """A PNG that claims to be ``side`` × ``side`` pixels and holds next to nothing."""
    bodies = {
        b"IHDR": struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0),
        b"IDAT": zlib.compress(b""),
        b"IEND": b"",
    }
    chunks = [(len(body), name + body) for name, body in bodies.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", size) + chunk + struct.pack(">I", zlib.crc32(chunk)) for size, chunk in chunks
    )


def test_unusable_image_file_is_refused(tmp_path):
    whole = images.picture(tmp_path / "whole.png").read_bytes()
    huge = r"has more than [\d,]+ pixels: scale it down"  # Pillow warns of the one and refuses the other
    for name, content, sentence in (
        ("none.png", None, "no such file"),
        ("", None, "is a folder"),
        ("text.png", b"no image", "cannot read an image from .*: it is none of PNG, "),
        ("ghost.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is none of"),
        ("cut.png", whole[: len(whole) // 2], "cannot read an image from .*: image file is truncated"),
        ("large.png", bomb(10_000), huge),
        ("larger.png", bomb(60_000), huge),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=sentence):
            open_image(tmp_path / name)


def test_image_is_rotated_by_exif_and_converted_to_rgb(tmp_path):
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(pixels).save(tmp_path / "photo.png", exif=exif)
    turned = np.asarray(open_image(tmp_path / "photo.png"))
    assert turned.shape == (6, 4, 3)
    assert turned[0, 3].tolist() == [255, 255, 255]
    Image.fromarray(pixels).convert("P").save(tmp_path / "palette.gif")
    assert np.asarray(open_image(tmp_path / "palette.gif")).shape == (4, 6, 3)


@pytest.mark.parametrize("size", [100_000, 10**9])
def test_huge_image_size_in_folder_is_refused(size, tmp_path, little_memory):
    images.vision(tmp_path / "vit", "vit")
    huge = {"size": {"height": size, "width": size}}
    folder = folders.changed(tmp_path / "vit", "preprocessor_config.json", **huge)
    with pytest.raises(AttnscopeError, match=r"asked for more memory than there is"):
        load(folder).prepare_image(images.picture(tmp_path / "a.png"))


DETECTORS = ("Detr", "TableTransformer", "ConditionalDetr", "DabDetr")


@pytest.mark.sweep
@pytest.mark.parametrize("name", DETECTORS)
def test_detector_queries_are_numbered_and_keys_have_places(name, tmp_path, picture):
    body = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    heads = {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "num_queries": 5} | heads
    config = getattr(transformers, f"{name}Config")(
        backbone_config=body, backbone=None, use_timm_backbone=False, use_pretrained_backbone=False, **sizes
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForObjectDetection")(config).eval()
    processor = getattr(transformers, "DetrImageProcessorPil", transformers.DetrImageProcessor)
    model.save_pretrained(tmp_path)
    processor(size={"height": 64, "width": 96}).save_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    prepared = loaded.prepare_image(picture)
    assert prepared.picture.grid == (8, 12)
    result = survey_model(loaded, prepared)
    assert {sighting.report for sighting in result.sightings} == {"right"}
    assert {call.site.kind for call in result.calls} == {"encoder", "decoder", "cross"}
    seen = one_token(loaded, prepared, Selection(token="3,4", kind="cross", head=Head("L1H2")))
    report = eager(str(tmp_path), type(model), **prepared.inputs).cross_attentions[1][0, 2, :, 3 * 12 + 4]
    assert len(seen.looked_at_by.bars) == 5
    for bar in seen.looked_at_by.bars:
        assert bar.weight == pytest.approx(float(report[bar.position]), abs=1e-5)


def test_decoder_of_a_picture_without_a_tokenizer_writes_numbers(tmp_path, picture):
    reads = transformers.ViTModel(transformers.ViTConfig(**images.VIT))
    words = {"vocab_size": 50, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
    writes = transformers.GPT2LMHeadModel(transformers.GPT2Config(**words, add_cross_attention=True))
    model = transformers.VisionEncoderDecoderModel(encoder=reads, decoder=writes)
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = 7
    images.save_images(tmp_path, model, "ViTImageProcessor", images.WHOLE)
    loaded = load(str(tmp_path), generative=True)
    prepared = loaded.prepare_image(picture)
    assert [token.text for token in prepared.axes["decoder"][0]] == ["id 7"]
    written = loaded.generate(prepared, 2)
    with torch.inference_mode():
        ids = model.eval().generate(prepared.inputs["pixel_values"], max_new_tokens=2, do_sample=False)[0]
    assert [token.text for token in written.axes["decoder"][0]] == [f"id {id_}" for id_ in ids.tolist()]
