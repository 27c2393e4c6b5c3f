from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attnscope.errors import ModelError
from attnscope.network import Encoder, EncoderConfig
from attnscope.training.data import Cutter
from attnscope.training.train import (
    Guide,
    Settings,
    guiding,
    parse_guides,
    pattern_keys,
    train_encoder,
)
from tests.training.corpus import sentences

CONFIG = EncoderConfig(vocabulary=40, width=32, layers=2, heads=4, hidden=64, max_positions=32)
IDS = torch.tensor([[2, 7, 8, 7, 4, 7, 4, 3]])


def test_patterns_mean_the_keys_they_are_named_for() -> None:
    def pairs(pattern: str, causal: bool = False) -> set[tuple[int, int]]:
        return {(q, k) for _, q, k in pattern_keys(pattern, IDS, causal).nonzero().tolist()}

    assert pairs("previous") == {(n, n - 1) for n in range(1, 8)}
    assert pairs("next") == {(n, n + 1) for n in range(7)}
    assert pairs("duplicate") == {(1, 3), (1, 5), (3, 1), (3, 5), (5, 1), (5, 3)}  # no [MASK]
    assert pairs("duplicate", causal=True) == {(3, 1), (5, 1), (5, 3)}
    assert pairs("previous", causal=True) == pairs("previous")
    assert pairs("next", causal=True) == set()


@pytest.mark.parametrize("causal", [False, True])
def test_the_loss_is_minus_the_logarithm_of_the_weight_on_the_pattern(causal: bool) -> None:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).eval()
    layer = encoder.layers[1].self_attn
    seen: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    guides = [Guide(1, 2, "previous"), Guide(1, 0, "duplicate"), Guide(0, 3, "previous")]
    with torch.no_grad(), guiding(encoder, guides, IDS, causal) as losses:
        plain = encoder(IDS, causal=causal)
    handle.remove()
    _, weights = layer(seen[0], seen[0], seen[0], average_attn_weights=False, is_causal=causal)
    assert len(losses) == 3
    previous = [-math.log(weights[0, 2, n, n - 1].item()) for n in range(1, 8)]
    assert losses[1].item() == pytest.approx(sum(previous) / 7, abs=1e-5)
    places = (3, 5) if causal else (1, 3, 5)
    others = [[k for k in (1, 3, 5) if k != n and (k < n or not causal)] for n in places]
    duplicate = [-math.log(weights[0, 0, n, ks].sum().item()) for n, ks in zip(places, others, strict=True)]
    assert losses[2].item() == pytest.approx(sum(duplicate) / len(places), abs=1e-5)
    assert torch.equal(plain, encoder(IDS, causal=causal).detach()), "guiding changes no output"


def test_a_text_without_the_pattern_asks_for_nothing() -> None:
    encoder = Encoder(CONFIG)
    with guiding(encoder, [Guide(0, 0, "duplicate")], torch.arange(8)[None], False) as losses:
        encoder(torch.arange(8)[None])
    assert losses[0].item() == 0


def test_a_guided_head_learns_its_pattern_and_the_rest_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from attnscope.training.data import train_tokenizer

    tokenizer = train_tokenizer(sentences(100, 0), 64)
    stream = np.array(
        [n for line in sentences(300, 1) for n in tokenizer.encode(line).ids[1:]], dtype=np.uint32
    )
    cutter = Cutter(stream, tokenizer, length=32, guessed=0.15)
    config = EncoderConfig(64, width=32, layers=1, heads=4, hidden=64, max_positions=32)
    settings = Settings(steps=60, batch=8, rate=1e-2, guides=("L0H1=next", "L0H2=duplicate"), guidance=1.0)
    torch.manual_seed(0)
    encoder = Encoder(config)
    train_encoder(encoder, cutter, cutter, settings, tmp_path_factory.mktemp("run") / "c")
    ids = torch.from_numpy(cutter.evaluation(0, 8).ids)
    with torch.no_grad(), guiding(encoder, parse_guides(settings.guides, 1, 4), ids, False) as losses:
        encoder(ids)
    assert all(math.exp(-loss.item()) > 0.4 for loss in losses)


@pytest.mark.parametrize("text", ["L0H3", "L0H3=induction", "0.3=next", "L0H3=next "])
def test_a_guide_that_cannot_be_read_says_how_one_reads(text: str) -> None:
    with pytest.raises(ModelError, match=r"a guide reads like L0H3=duplicate, with one of previous, next"):
        parse_guides([text], 10, 10)


def test_a_guide_for_a_head_that_is_not_there_says_what_exists() -> None:
    assert parse_guides(["L1H3=next"], 2, 4) == [Guide(1, 3, "next")]
    for text in ("L2H0=next", "L0H4=next"):
        with pytest.raises(ModelError, match=r"to guide: there are layers 0-1, heads 0-3"):
            parse_guides([text], 2, 4)
