"""attnscope's own network: its config, its attention with weights per head, the encoder, and its folder.

Formula and names of the attention after Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
To try another kind of attention, override ``scores`` or ``project`` of ``MultiHeadAttention`` in a subclass,
and give it to an ``EncoderLayer``; capture sees it like any other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from attnscope.errors import AttnscopeError, InputError, ModelError, OutputError
from attnscope.limits import CONFIG_BYTES, VOCABULARY_BYTES
from attnscope.registry import BUNDLED
from attnscope.storage.files import read_json, read_regular, write_whole
from attnscope.storage.tensors import read_safetensors

POSITIONS = ("rotary", "sinusoidal", "none")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}

SIZE_LIMITS = {
    "vocabulary": (1, 2**31), "width": (1, 2**16), "layers": (1, 1024), "heads": (1, 2**16),
    "hidden": (1, 2**20), "max_positions": (1, 2**20), "segments": (0, 2),
}  # fmt: skip
"""The least and the most that each whole number may be."""


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and kinds of one encoder; an invalid value raises ``ModelError``.

    ``hidden`` is the width of the feed-forward layer, ``segments`` the number of distinguishable texts in
    one input (0: none). ``causal`` masks the future of every token; ``trained`` is False for random
    weights.
    """

    vocabulary: int = 8192
    width: int = 256
    layers: int = 4
    heads: int = 8
    hidden: int = 1024
    max_positions: int = 512
    positions: str = "rotary"
    rotary_base: float = 10000.0
    segments: int = 2
    causal: bool = False
    norm_first: bool = True
    activation: str = "gelu"
    dropout: float = 0.0
    trained: bool = False

    def __post_init__(self) -> None:
        for name, (low, high) in SIZE_LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ModelError(f"{name} is a whole number from {low} to {high}, not {value!r}")
        for name in ("causal", "norm_first", "trained"):
            if type(getattr(self, name)) is not bool:
                raise ModelError(f"{name} is true or false, not {getattr(self, name)!r}")
        for name, choices in (("positions", POSITIONS), ("activation", tuple(ACTIVATIONS))):
            if getattr(self, name) not in choices:
                raise ModelError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name, least, most in (("dropout", 0.0, 0.9), ("rotary_base", 1.5, 1e9)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not least <= value <= most:
                raise ModelError(f"{name} is a number from {least} to {most}, not {value!r}")
        if self.width % self.heads:
            raise ModelError(f"{self.heads} heads do not divide a width of {self.width}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ModelError(
                f"rotary positions need an even width a head, not {self.width // self.heads}: "
                "choose other heads or width, or other positions"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EncoderConfig:
        """Build from ``asdict``'s form; unknown fields, and missing sizes, raise ``ModelError``."""
        names = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - names)
        if unknown:
            raise ModelError(f"unknown field {unknown[0]!r}: there are {', '.join(sorted(names))}")
        for name in ("vocabulary", "width", "layers", "heads", "hidden"):
            if name not in values:
                raise ModelError(f"the field {name!r} is missing")
        return cls(**values)


class MultiHeadAttention(nn.MultiheadAttention):
    """Attention of several heads, each over its own slice of the width.

    Takes the arguments of ``torch.nn.MultiheadAttention``, holds its parameters and returns what it returns.
    Two additions: ``is_causal=True`` needs no mask beside it, and a subclass may override ``scores``, for
    example for relative attention. Raises ``ValueError`` if the sizes of its inputs or masks do not fit.
    """

    use_kernel = True  # false: plain products, whose backward pass is faster on a CPU

    def __init__(self, embed_dim: int, num_heads: int, *args: Any, **options: Any) -> None:
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"{num_heads} heads do not divide a width of {embed_dim}")
        super().__init__(embed_dim, num_heads, *args, **options)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from queries to keys.  [query, batch, width] (batch first or unbatched too) -> the same

        Masks and weights are as in torch: True masks a key, a float is added to the scores; ``is_causal``
        is a promise that ``attn_mask`` is the causal mask, which the kernel may use in its place. A fully
        masked row is NaN where weights are asked for and 0 in the kernel.
        """
        batched = query.dim() == 3
        if not batched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        self._check(query, key, value, key_padding_mask, attn_mask)

        kernel = self.use_kernel and not need_weights and type(self).scores is MultiHeadAttention.scores
        causal_kernel = is_causal and kernel and key_padding_mask is None
        if causal_kernel:
            attn_mask = None
        elif is_causal and attn_mask is None:
            shape = (query.shape[1], key.shape[1])
            attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).triu(1)
        mask = self._mask(key_padding_mask, attn_mask, query)

        q, k, v = self.project(query, key, value)  # [batch, head, token, head width]
        k, v, mask = self._extend(k, v, mask)
        weights: Tensor | None = None
        if kernel:
            dropout = self.dropout if self.training else 0.0
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal_kernel)
        else:
            scores = self.scores(q, k)  # [batch, head, query, key]
            weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = F.dropout(weights, self.dropout, self.training)
            mixed = weights @ v
        out = self.out_proj(mixed.transpose(1, 2).flatten(2))  # [batch, query, width]

        if not need_weights:
            weights = None
        elif weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values by head.  [batch, token, width] -> 3 × [batch, head, token, head width]"""
        if self.in_proj_weight is not None:
            if query is key and key is value:
                packed = F.linear(query, self.in_proj_weight, self.in_proj_bias)
                q, k, v = (self._split(x) for x in packed.chunk(3, -1))
                return q, k, v
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            self._split(F.linear(x, weight, bias))
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        return q, k, v

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores before masks and softmax; override for relative attention.  -> [batch, head, query, key]"""
        return (q * math.sqrt(1 / self.head_dim)) @ k.mT

    def _split(self, x: Tensor) -> Tensor:
        """[batch, token, width] -> [batch, head, token, head width]"""
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, self.num_heads, self.head_dim).transpose(1, 2)

    def _extend(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append the learned key and the zero key, if any, open to every query."""
        tails: list[tuple[Tensor, Tensor]] = []
        if self.bias_k is not None and self.bias_v is not None:
            tails.append((self._split(self.bias_k), self._split(self.bias_v)))
        if self.add_zero_attn:
            tails.append((k.new_zeros(1, self.num_heads, 1, self.head_dim),) * 2)
        for k_tail, v_tail in tails:
            k = torch.cat([k, k_tail.to(k.dtype).expand(len(k), -1, -1, -1)], dim=2)
            v = torch.cat([v, v_tail.to(v.dtype).expand(len(v), -1, -1, -1)], dim=2)
            mask = None if mask is None else F.pad(mask, (0, 1))
        return k, v, mask

    def _mask(self, padding: Tensor | None, attn: Tensor | None, query: Tensor) -> Tensor | None:
        """Both masks as one additive mask.  -> [batch or 1, head or 1, query or 1, key]"""

        def additive(mask: Tensor) -> Tensor:
            if mask.dtype == torch.bool:
                zeros = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device)
                return zeros.masked_fill_(mask, -math.inf)
            return mask

        total: Tensor | None = None
        if attn is not None:
            attn = additive(attn)
            total = attn[None, None] if attn.dim() == 2 else attn.view(-1, self.num_heads, *attn.shape[1:])
        if padding is not None:
            padding = additive(padding)[:, None, None]  # [batch, 1, 1, key]
            total = padding if total is None else total + padding
        return total

    def _check(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, attn: Tensor | None
    ) -> None:
        """Raise ``ValueError`` where shapes do not fit, or only fit by accidental broadcasting."""
        (batch, queries), keys = query.shape[:2], key.shape[1]
        sizes = ((query, self.embed_dim, "query"), (key, self.kdim, "key"), (value, self.vdim, "value"))
        for x, width, name in sizes:
            if x.dim() != 3 or len(x) != batch or x.shape[-1] != width:
                expected = f"does not fit batch {batch}, width {width}"
                raise ValueError(f"{name} of shape {tuple(x.shape)} {expected}")
        if value.shape[1] != keys:
            raise ValueError(f"{keys} keys do not fit {value.shape[1]} values")
        if padding is not None and padding.shape != (batch, keys):
            raise ValueError(f"key_padding_mask is {tuple(padding.shape)}, not {(batch, keys)}")
        shapes = ((queries, keys), (batch * self.num_heads, queries, keys))
        if attn is not None and attn.shape not in shapes:
            raise ValueError(f"attn_mask is {tuple(attn.shape)}, neither {shapes[0]} nor {shapes[1]}")
        for mask in (padding, attn):
            if mask is not None and not (mask.dtype == torch.bool or mask.is_floating_point()):
                raise ValueError(f"a mask is bool or float, not {mask.dtype}")


class Sinusoidal(nn.Module):
    """Adds the sinusoid of its position to each token (section 3.5): sines, each beside its cosine."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        column = torch.arange(0, width, 2, dtype=torch.float64)
        angle = torch.arange(length, dtype=torch.float64)[:, None] / 10000.0 ** (column / width)
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # [token, width or width + 1]
        self.table: Tensor
        self.register_buffer("table", table[:, :width].float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, token, width] -> the same"""
        return x + self.table[: x.shape[1]]


class RotaryAttention(MultiHeadAttention):
    """Self-attention whose scores depend on the distance between two tokens (Su et al. 2021, equation 34).

    Queries and keys are rotated by an angle that grows with the position, the first half of a head's
    width against its second half; the parameters are those of ``MultiHeadAttention``.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *args: Any, length: int, base: float = 10000.0, **options: Any
    ) -> None:
        super().__init__(embed_dim, num_heads, *args, **options)
        if self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head width, not {self.head_dim}")
        column = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        angle = torch.arange(length, dtype=torch.float64)[:, None] / base**column
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angle.cos().repeat(1, 2).float(), persistent=False)
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], 1).float(), persistent=False)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The plain projections, with queries and keys rotated.  -> 3 × [batch, head, token, head width]"""
        q, k, v = super().project(query, key, value)
        return self.rotate(q), self.rotate(k), v

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate each token by its position.  [batch, head, token, head width] -> the same"""
        tokens = x.shape[-2]
        if tokens > len(self.cos):
            raise ValueError(f"{tokens} tokens are more than the {len(self.cos)} positions")
        cos, sin = self.cos[:tokens].to(x.dtype), self.sin[:tokens].to(x.dtype)
        return x * cos + x.roll(self.head_dim // 2, -1) * sin


class EncoderLayer(nn.TransformerEncoderLayer):
    """Torch's layer with our attention; ``attention`` replaces it."""

    activation_relu_or_gelu = 0  # never torch's fused kernel, which would do without our attention

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        batch_first: bool = False,
        norm_first: bool = False,
        attention: MultiHeadAttention | None = None,
    ) -> None:
        nn.Module.__init__(self)  # torch's own would draw the weights of its attention first
        self.self_attn = attention or MultiHeadAttention(d_model, nhead, dropout, batch_first=batch_first)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.activation = ACTIVATIONS[activation]


class Encoder(nn.Module):
    """A stack of ``EncoderLayer``, bidirectional or causal, whose head ends in the token embedding.

    ``forward`` gives hidden states; ``logits`` turns any of them into scores over the vocabulary: of the
    token there in a masked model, of the next one in a causal model.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.segment = nn.Embedding(config.segments, config.width) if config.segments else None
        shape, length, base = (config.width, config.heads), config.max_positions, config.rotary_base
        self.position = Sinusoidal(length, config.width) if config.positions == "sinusoidal" else None
        self.layers = nn.ModuleList()
        sizes, how = (*shape, config.hidden), {"batch_first": True, "norm_first": config.norm_first}
        turning: MultiHeadAttention | None = None
        for _ in range(config.layers):
            if config.positions == "rotary":
                turning = RotaryAttention(*shape, config.dropout, batch_first=True, length=length, base=base)
            layer = EncoderLayer(*sizes, config.dropout, config.activation, attention=turning, **how)
            self.layers.append(layer)
        self.norm = nn.LayerNorm(config.width) if config.norm_first else nn.Identity()
        width = config.width
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small normal weights; those that write to the residual stream shrink with the stack's depth."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("out_proj.weight", "linear2.weight"))
                std = 0.02 / (2 * self.config.layers) ** 0.5 if residual else 0.02
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        ids: Tensor,
        segments: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool | None = None,
    ) -> Tensor:
        """Hidden states of the last layer.  [batch, token] -> [batch, token, width]

        ``segments`` holds 0 or 1 for each token (all 0 if absent), ``attention_mask`` 1 for each real
        token and 0 for padding, ``causal`` overrules the config.
        """
        tokens = ids.shape[1]
        if tokens > (most := self.config.max_positions):
            raise InputError(f"the text has {tokens} tokens, but the model has {most} positions")
        x = self.embedding(ids)  # [batch, token, width]
        if self.segment is not None:
            x = x + self.segment(torch.zeros_like(ids) if segments is None else segments)
        if self.position is not None:
            x = self.position(x)
        padding = None if attention_mask is None else ~attention_mask.bool()
        causal = self.config.causal if causal is None else causal
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding, is_causal=causal)
        hidden: Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, before softmax.  [..., width] -> [..., vocabulary]"""
        return F.linear(self.head(hidden), self.embedding.weight, self.head_bias)


PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FORMAT = "attnscope-encoder"
VERSION = 1
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
PRETRAINED = Path(__file__).resolve().parent / "pretrained"


def save_encoder(
    folder: str | Path, encoder: Encoder, tokenizer: Tokenizer, dtype: torch.dtype = torch.float32
) -> None:
    """Write the three files, weights as ``dtype``; each file appears whole or not at all."""
    from safetensors.torch import save as as_bytes

    folder = Path(folder)
    state = {name: x.detach().cpu().to(dtype).contiguous() for name, x in encoder.state_dict().items()}
    config = {"format": FORMAT, "version": VERSION, **asdict(encoder.config)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error
    write_whole(folder / TOKENIZER, tokenizer.to_str(pretty=True).encode())
    write_whole(folder / WEIGHTS, as_bytes(state, metadata={"format": "pt"}))
    write_whole(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def load_encoder(folder: str | Path) -> tuple[Encoder, Tokenizer]:
    """Read a folder of ``save_encoder``, safetensors only; the encoder is in ``eval`` mode and float32."""
    folder = Path(folder)
    config = load_config(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        reason = f"{others[0]} is there, but only safetensors are read" if others else ""
        raise ModelError(f"{folder} has no {WEIGHTS}: {reason or 'there are no weights to read'}")
    try:
        state, _ = read_safetensors(path)
    except (ValueError, OSError) as error:
        raise ModelError(f"cannot read {path} as safetensors: {error}") from error
    tokenizer = load_tokenizer(folder / TOKENIZER)
    size = tokenizer.get_vocab_size()
    if size > config.vocabulary:
        raise ModelError(f"{folder}: the tokenizer has {size} tokens, but the model only {config.vocabulary}")
    sizes = {f"layers.{n}.linear1.weight": (config.hidden, config.width) for n in range(config.layers)}
    _check_shapes(path, {"embedding.weight": (config.vocabulary, config.width), **sizes}, state)
    with _Undrawn():
        encoder = Encoder(config)  # only now that the config is known to ask for no more than the file holds
    shapes = {name: tuple(x.shape) for name, x in encoder.state_dict().items()}
    _check_shapes(path, shapes, state)
    unknown = sorted(set(state) - set(shapes))
    if unknown:
        raise ModelError(f"{path} does not fit its config: it holds {unknown[0]!r}, which has no place there")
    encoder.load_state_dict({name: x.float() for name, x in state.items()}, strict=True)
    return encoder.eval(), tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json`` that holds the five special tokens; raises ``ModelError`` otherwise."""
    try:
        tokenizer = Tokenizer.from_buffer(read_regular(path, VOCABULARY_BYTES))
    except AttnscopeError as error:
        raise ModelError(str(error)) from None
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        raise ModelError(f"cannot read {path} as a tokenizer: {error}") from error
    for token in SPECIAL:
        if tokenizer.token_to_id(token) is None:
            raise ModelError(f"{path} has no token {token}, which the encoder needs")
    return tokenizer


class _Undrawn(TorchFunctionMode):
    """Skips drawing initial weights, two thirds of the loading time: a file overwrites them all."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return a tensor that would be drawn (``normal_`` and the like) as it is."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def load_config(folder: str | Path) -> EncoderConfig:
    """The config of a folder that ``save_encoder`` wrote; raises ``ModelError`` for any other folder."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise ModelError(f"{folder} holds no model: there is no {CONFIG} in it")
    try:
        values = read_json(path, CONFIG_BYTES)
    except (OSError, ValueError, InputError) as error:
        raise ModelError(f"cannot read {path} as JSON: {error}") from error
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ModelError(f"{path} is not the config of an attnscope encoder")
    version = values.pop("version", None)
    if version != VERSION:
        raise ModelError(f"{path} has version {version!r}, but this release reads version {VERSION}")
    try:
        return EncoderConfig.from_dict(values)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def is_encoder_folder(folder: str | Path) -> bool:
    """Whether ``save_encoder`` wrote this folder, judged by its config alone."""
    try:
        values = read_json(Path(folder) / CONFIG, CONFIG_BYTES)
    except (OSError, ValueError, InputError):
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT


def folder_of(name: str) -> Path:
    """The folder that a name means: one inside the package, for ``own`` and ``own-causal``, or a path."""
    return PRETRAINED / name if name in BUNDLED else Path(name)


def _check_shapes(path: Path, expected: Mapping[str, tuple[int, ...]], state: Mapping[str, Tensor]) -> None:
    for name, shape in expected.items():
        wrong, tensor = "", state.get(name)
        if tensor is None:
            wrong = f"it lacks {name!r}"
        elif tuple(tensor.shape) != shape:
            wrong = f"{name!r} is {tuple(tensor.shape)}, not {shape}"
        elif not tensor.is_floating_point():
            wrong = f"{name!r} is {tensor.dtype}, not a float"
        if wrong:
            raise ModelError(f"{path} does not fit its config: {wrong}")
