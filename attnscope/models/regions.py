"""Which part of a picture or a sound each token stands for, found by experiment on processor and model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Kind
from attnscope.axes import Array
from attnscope.capture import Record, recording
from attnscope.errors import ModelError, first_line
from attnscope.models.lattice import Coordinates

PADDING_SHARE = 0.5
"""A number that moves by less than this share of the most, from black to white, is padding."""


def find_coordinates(
    prepare: Callable[[Sequence[Array]], Tensor], shapes: Sequence[tuple[int, int]]
) -> list[Coordinates] | None:
    """Let a processor prepare pictures that grow brighter to the right, and downwards.

    However it scales, cuts and turns a picture, a number between what it makes of black and of white tells
    how far to the right, or how far down, it comes from; and of several pictures, those whose numbers move
    when one alone turns white tell what is that one's. ``prepare`` gets each as [row, column, 3] in uint8,
    ``shapes`` are their rows and columns. ``None`` if pictures of one size are prepared in different sizes.
    """
    dark = [np.zeros((1, 1)) for _ in shapes]
    lit = [[np.full((1, 1), 255) if other == one else black for other, black in enumerate(dark)]
           for one in range(len(shapes))]  # fmt: skip
    across = [np.rint((np.arange(columns) + 0.5) / columns * 255)[None] for _, columns in shapes]
    down = [np.rint((np.arange(rows) + 0.5) / rows * 255)[:, None] for rows, _ in shapes]
    black, right, low, *white = (_prepared(prepare, greys, shapes) for greys in (dark, across, down, *lit))
    if not all(made.shape == black.shape for made in (right, low, *white)):
        return None
    return [
        _place(black, one, right, low, rows, columns)
        for one, (rows, columns) in zip(white, shapes, strict=True)
    ]


def _place(black: Array, white: Array, right: Array, low: Array, rows: int, columns: int) -> Coordinates:
    """Where the numbers lie that move when one picture turns from black to white."""
    with np.errstate(invalid="ignore", over="ignore"):  # a processor may divide by what it likes
        span = white - black
        inside = np.abs(span) > PADDING_SHARE * np.abs(span).max(initial=0)
        span = np.where(inside, span, np.nan)
        return Coordinates((right - black) / span * columns, (low - black) / span * rows)


def _prepared(
    prepare: Callable[[Sequence[Array]], Tensor], greys: Sequence[Array], shapes: Sequence[tuple[int, int]]
) -> Array:
    """What becomes of pictures in shades of grey, that are given for their rows, their columns, or all."""
    pictures = [
        np.broadcast_to(grey[..., None], (*shape, 3)).astype(np.uint8)
        for grey, shape in zip(greys, shapes, strict=True)
    ]
    numbers: Array = prepare(pictures).double().cpu().numpy()
    return numbers


DIGIT_BASE = 8
"""Tokens are told apart by the digits of their numbers to this base: few enough for bfloat16."""

DIGIT_CHECKS = 4
"""Random digits of each token that are read, too: several tokens may give whole digits, but hardly these."""

DIGIT_TOLERANCE = 0.2
"""How far a digit that was read may be from a whole number."""

GRADIENT_NOISE = 40
"""Gradients of so many roundings of a usual one tell nothing: their digits would be read wrong."""

NONE, SEVERAL = -1, -2


class Owners(NamedTuple):
    """The token that each number of a prepared picture ends in, and on which axis it stands.

    ``tokens`` has the shape of the prepared picture; a number that ends in no token has ``NONE``, one that
    ends in more than one has ``SEVERAL``. ``kind`` is ``"cross"`` where the language model looks across to
    the picture, of which ``length`` tokens there are.
    """

    tokens: Tensor
    kind: Kind
    length: int


class _Reached(Exception):
    """The language model is about to run: all that was to be seen has been."""


class Entered(NamedTuple):
    """What enters a language model, as far as it is a function of ``given``, and on which axis it stands."""

    states: Tensor  # [token, feature]
    given: Tensor
    kind: Kind


def find_owners(module: nn.Module, inputs: Mapping[str, Any], picture: str) -> Owners | None:
    """Let a model read ``inputs`` up to its language model, and follow the gradients to ``inputs[picture]``.

    What attention returns is held: then a token depends on its own pixels alone. A token is read off as the
    digits of its number: each digit weighs the gradient of its token, and what a pixel receives, divided by
    what it receives without any weight, is the digit. ``None`` if nothing that enters the language model
    depends on the picture.
    """
    entered = enter(module, inputs, picture)
    if entered is None:
        return None
    return Owners(_read_off(entered.states, entered.given), entered.kind, len(entered.states))


def enter(module: nn.Module, inputs: Mapping[str, Any], name: str) -> Entered | None:
    """Run a model up to its language model, with what attention returns held.

    ``None`` if nothing that enters it depends on ``inputs[name]``.
    """
    given = inputs[name].detach().clone().requires_grad_(True)
    entry = _Entry(given, inputs.get("input_ids"))
    with torch.enable_grad(), ExitStack() as stack:
        record = stack.enter_context(recording(module, [], warn=False))
        stack.callback(module.get_input_embeddings().register_forward_hook(entry.embed).remove)  # type: ignore[operator]
        for path, child in module.named_modules():
            if child is not module:
                handle = child.register_forward_pre_hook(entry.arrive, with_kwargs=True)
                stack.callback(handle.remove)
                stack.callback(child.register_forward_hook(_hold(path, record)).remove)
        try:
            module(**{**inputs, name: given})
        except _Reached:
            pass
        except Exception as error:  # folders may hold a model and a processor that do not fit
            why = first_line(error)
            raise ModelError(f"the model does not read what its processor made: {why}") from error
    if entry.states is None:
        return None
    return Entered(entry.states.flatten(0, -2), given, entry.kind)


def find_moved(module: nn.Module, inputs: Mapping[str, Any], pictures: Sequence[str]) -> set[int]:
    """The tokens that move with the numbers of ``inputs[pictures]``, through attention, too."""
    other = {**inputs, **{name: 1 - inputs[name] for name in pictures}}
    before, after = (enter(module, given, pictures[0]) for given in (inputs, other))
    if before is None or after is None:
        return set()
    return set((before.states != after.states).any(-1).nonzero().flatten().tolist())


class _Entry:
    """Waits for the module that is given the embedded text, with the picture in it or beside it."""

    def __init__(self, given: Tensor, ids: Tensor | None) -> None:
        self._given, self._ids = given, ids
        self.states: Tensor | None = None
        self.kind: Kind = "decoder"
        self._embedded: Tensor | None = None

    def embed(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Remember the embedded text, so that it is known again in what is made of it."""
        self._embedded = output.detach().requires_grad_(True)
        return self._embedded.clone()  # which the model may write into

    def arrive(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Take what depends on the picture, where a module reads the text."""
        text, beside = kwargs.get("inputs_embeds"), [*args[1:], *kwargs.values()]
        layer = text is None and not self._are_ids(kwargs.get("input_ids"))
        if layer:  # that looks across is given both
            text = args[0] if args else None
            beside = [value for value in beside if _is_seen(value) and not self._holds(value, self._embedded)]
        beside = [value for value in beside if value is not text and self._is_made_of_picture(value)]
        reads = self._holds(text, self._embedded) if text is not None else not layer
        if layer and reads and self._holds(text, self._given):  # the picture stands in the text already
            self.states = text
            raise _Reached
        if not reads or ((layer or text is None) and not beside):
            return
        if not layer and self._holds(text, self._given):
            self.states = text
        elif beside:
            self.states, self.kind = beside[0], "cross"
        raise _Reached

    def _is_made_of_picture(self, value: Any) -> bool:
        """Whether these are states of the picture; what a processor made of it has not been read yet."""
        return self._holds(value, self._given) and not torch.equal(value, self._given)

    def _are_ids(self, ids: Any) -> bool:
        """Whether these are the ids of the text: what stands between may read some of its own."""
        return isinstance(ids, Tensor) and self._ids is not None and torch.equal(ids, self._ids)

    def _holds(self, states: Any, given: Tensor | None) -> bool:
        """Whether what may be states is made of what was given."""
        if given is None or not _is_seen(states):
            return False
        (found,) = torch.autograd.grad(states.sum(), given, retain_graph=True, allow_unused=True)
        return found is not None


def _is_seen(value: Any) -> bool:
    """Whether a value may be states, token by token."""
    return isinstance(value, Tensor) and value.requires_grad and value.ndim >= 3


def _hold(path: str, record: Record) -> Callable[..., Any]:
    """A hook that cuts the gradient behind a module in which attention was seen."""

    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        return _detached(output) if path in record.calls else None

    return leave


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return type(value)(map(_detached, value)) if type(value) in (tuple, list) else value


def _read_off(states: Tensor, pixels: Tensor) -> Tensor:
    """The number of the token that each pixel ends in.  [token, feature], [pixel...] -> [pixel...]"""
    numbers = torch.arange(len(states), device=states.device)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(states.shape[-1], generator=generator).to(states)

    def gradient(weights: Tensor) -> Tensor:
        weighed = weights.to(states)[:, None] * direction  # [token, feature]
        (found,) = torch.autograd.grad(states, pixels, weighed, retain_graph=True, allow_unused=True)
        return torch.zeros_like(pixels) if found is None else found

    plain = gradient(torch.ones(len(states)))
    ends = plain.abs() > GRADIENT_NOISE * torch.finfo(plain.dtype).eps * plain.float().square().mean().sqrt()
    tokens, several = torch.zeros_like(pixels, dtype=torch.long), torch.zeros_like(ends)
    place = 1
    while place < len(states):
        digit = gradient((numbers // place) % DIGIT_BASE) / plain
        tokens += digit.nan_to_num().round().long() * place
        several |= (digit - digit.round()).abs() > DIGIT_TOLERANCE
        place *= DIGIT_BASE
    known = ends & ~several & (tokens >= 0) & (tokens < len(states))
    checks = torch.randint(DIGIT_BASE, (DIGIT_CHECKS, len(states)), generator=generator)
    for check in checks.to(states.device):
        expected = check[tokens.clamp(0, len(states) - 1)]
        known &= (gradient(check) / plain - expected).abs() <= DIGIT_TOLERANCE
    return tokens.masked_fill(~known, SEVERAL).masked_fill(~ends, NONE)


MIDDLES = 12
"""Gradients that are taken, at least: of few tokens, several in other directions."""


def find_middles(
    module: nn.Module, inputs: Mapping[str, Any], name: str, tokens: Sequence[int], axis: int
) -> Array | None:
    """The middle of the steps, along ``axis`` of ``inputs[name]``, that move each of ``tokens`` by itself.

    What attention returns is held. ``None`` if what is given enters the language model elsewhere than in its
    text, or not at all.  -> [token]
    """
    entered = enter(module, inputs, name)
    if entered is None or entered.kind == "cross" or len(entered.states) != inputs["input_ids"].shape[1]:
        return None
    generator = torch.Generator().manual_seed(0)
    times = -(-MIDDLES // len(tokens))
    directions = torch.randn(times, entered.states.shape[-1], generator=generator).to(entered.states)
    at = torch.arange(entered.given.shape[axis]) + 0.5
    middles = []
    for token in tokens:
        energy = torch.zeros(len(at), dtype=torch.float64)  # [step]
        for direction in directions:
            moved = entered.states[token] @ direction
            (found,) = torch.autograd.grad(moved, entered.given, retain_graph=True)
            energy += found.double().square().movedim(axis, 0).flatten(1).sum(1).cpu()
        middles.append(float((energy * at).sum() / energy.sum()))  # nan for one that does not hear
    return np.array(middles)
