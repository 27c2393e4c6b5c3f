"""Trains two tiny models to repeat random tokens, and asks which head feeds their induction heads.

``python -m tests.tools.induction``: a Llama (rotary, grouped queries) and a GPT-NeoX (rotary, parallel
blocks) of two layers, a minute each. In both, the head that looks one token back must be the first of
`compare --composition` for the keys of every induction head (Olsson et al. 2022).
"""

from __future__ import annotations

import torch
import transformers as hf
from torch.nn import functional as F

from attnscope.attention import Head
from attnscope.models import ModelInput
from attnscope.questions.composition import find_feeds
from tests.questions.audit.tiny import Bare

WORDS, STEPS, RATE = 48, 1000, 3e-3
SIZES = {
    "vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
MODELS = {
    "Llama, grouped queries": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=False)
    ),
    "GPT-NeoX, parallel blocks": lambda: hf.GPTNeoXForCausalLM(
        hf.GPTNeoXConfig(**SIZES, use_parallel_residual=True, rotary_pct=1.0)
    ),
}


def train(model: torch.nn.Module) -> None:
    """Teach a model that the second half of a text is the first."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(1)
    model.train()
    for step in range(STEPS):
        length = int(torch.randint(8, 20, (1,), generator=generator))
        ids = torch.randint(0, WORDS, (32, length), generator=generator).repeat(1, 2)
        logits = model(ids).logits[:, length - 1 : -1]
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, length:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, step / 100) * (1 - step / STEPS)
        optimizer.step()
    model.eval()


def patterns(model: torch.nn.Module, ids: torch.Tensor) -> dict[str, dict[Head, float]]:
    """The mean weight on the token before, and on the one behind the earlier copy, of each head, by eager."""
    model.set_attn_implementation("eager")  # type: ignore[operator]
    with torch.no_grad():
        layers = model(ids, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")  # type: ignore[operator]
    half = ids.shape[1] // 2
    seen: dict[str, dict[Head, float]] = {"previous": {}, "induction": {}}
    for layer, weights in enumerate(layers):
        before = weights[0].diagonal(-1, 1, 2).mean(-1).tolist()
        again = weights[0, :, half:].diagonal(1, 1, 2).mean(-1).tolist()
        for head, (one, other) in enumerate(zip(before, again, strict=True)):
            seen["previous"][Head(layer, head)], seen["induction"][Head(layer, head)] = one, other
    return seen


def main() -> None:
    """Train both, and print who feeds whom."""
    torch.set_num_threads(1)
    half = torch.randint(0, WORDS, (1, 16), generator=torch.Generator().manual_seed(5))
    ids = half.repeat(1, 2)
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model = make()
        train(model)
        with torch.no_grad():
            right = float((model(ids).logits[0, 15:-1].argmax(-1) == ids[0, 16:]).float().mean())
        seen = patterns(model, ids)
        before = max(seen["previous"], key=seen["previous"].__getitem__)
        print(f"{name}: {right:.0%} of the second half right")
        print(f"  looks one token back: {before.name}, {seen['previous'][before]:.2f} of its weight")
        prepared = ModelInput({"input_ids": ids}, {}, ())
        for head, share in seen["induction"].items():
            if share > 0.4:
                feeds = find_feeds(Bare(model), prepared, head)
                first = feeds.feeds[0]
                said = f"{first.head.name} feeds its {first.way}, {first.score:.2f}, "
                said += f"random {first.baseline:.2f}"
                agrees = first.way == "K" and first.head.name == before.name
                print(f"  {head.name} ({share:.2f} induction): {said}: {'right' if agrees else 'WRONG'}")


if __name__ == "__main__":
    main()
