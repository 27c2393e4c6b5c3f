"""Which part of a picture or a sound each token stands for, found by experiment on processor and model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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


DIPS = 12
"""Moments at which a noise is made quiet, one after the other."""

DIP_LEVEL = 0.1
"""What a dip leaves of the noise."""

DEAF_SHARE = 1e-6
"""Tokens that answer less than this share of the most do not hear."""

MOST_BESIDE_LINE = 0.75
"""Tokens that a dip may lie beside the line through all of them."""

MOST_WORSE_BY_ROUNDING = 0.2
"""Tokens that rounder numbers may be worse by."""


class Moments(NamedTuple):
    """The tokens that hear, on an axis of ``length``, in order; each lasts ``seconds``, the first from 0 on.

    ``seconds`` is ``None`` where time does not go through them evenly.
    """

    tokens: tuple[int, ...]
    seconds: float | None
    kind: Kind
    length: int


def find_moments(
    module: nn.Module,
    inputs: Mapping[str, Any],
    name: str,
    prepare: Callable[[Array], Tensor],
    samples: int,
    rate: int,
) -> Moments | None:
    """Let a model hear noise that is quiet for a moment, and see which tokens answer while attention is held.

    How far a token moves with what such a dip changes in ``inputs[name]`` is a derivative: that of the
    gradient by its weights. The middle of the tokens that answer belongs to the time of the dip; all dips
    together lie on a line, the tokens' time. ``None`` if nothing that enters the language model hears.
    """
    entered = enter(module, inputs, name)
    if entered is None:
        return None
    loud = prepare(make_noise(samples))
    answer = _responses(entered)
    heard = answer(prepare(make_noise(samples) * DIP_LEVEL) - loud)
    tokens = np.flatnonzero(heard > DEAF_SHARE * heard.max(initial=0))
    if not len(tokens):
        return None
    middles, times = np.full(DIPS, np.nan), np.zeros(DIPS)
    for number, (wave, middle) in enumerate(dips(samples)):
        times[number] = middle / rate
        moved = answer(prepare(wave) - loud)[tokens] ** 2
        if moved.sum() > 0:
            middles[number] = (moved * np.arange(len(tokens))).sum() / moved.sum()
    pace = samples / rate if len(tokens) == 1 else _pace(middles, times)  # one is the whole sound
    return Moments(tuple(tokens.tolist()), pace, entered.kind, len(entered.states))


def make_noise(samples: int) -> Array:
    """Noise that is the same each time.  -> [sample]"""
    noise: Array = np.random.default_rng(0).standard_normal(samples).astype(np.float32) * 0.1
    return noise


def dips(samples: int) -> Iterator[tuple[Array, float]]:
    """The noise with each of its moments made quiet, with the middle of that moment, in samples."""
    width = max(1, samples // (4 * DIPS))
    for start in ((np.arange(DIPS) + 0.5) / DIPS * samples).astype(int) - width // 2:
        wave = make_noise(samples)
        wave[start : start + width] *= DIP_LEVEL
        yield wave, start + width / 2


def _responses(entered: Entered) -> Callable[[Tensor], Array]:
    """How far each token moves with a change of what is given.  [given] -> [token]"""
    states, given, _ = entered
    weights = torch.zeros_like(states, requires_grad=True)
    (gradient,) = torch.autograd.grad(states, given, weights, create_graph=True)

    def answer(change: Tensor) -> Array:
        (moved,) = torch.autograd.grad(
            (gradient * change.to(gradient)).sum(), weights, retain_graph=True, allow_unused=True
        )
        norms: Array = np.zeros(len(states)) if moved is None else moved.double().norm(dim=-1).cpu().numpy()
        return norms

    return answer


def _pace(middles: Array, times: Array) -> float | None:
    """The seconds of a token, if all dips lie on one line that begins at 0: in hundredths if these fit."""
    known = np.isfinite(middles)
    if known.sum() < DIPS // 2:
        return None
    middles, times = middles[known], times[known]
    if np.ptp(middles) < MOST_BESIDE_LINE:  # all dips in one token
        return None
    slope = float(np.polyfit(middles, times, 1)[0])
    fits = {}
    for digits in (3, 2):
        seconds = round(slope, digits)
        if seconds > 0:
            places = times / seconds - middles  # of the first token's middle, in tokens, by each dip
            begin = float(places.mean()) - 0.5
            fits[digits] = seconds, max(float(np.abs(places - places.mean()).max()), abs(begin))
    if not fits or fits[3][1] > MOST_BESIDE_LINE:
        return None
    return fits[2][0] if 2 in fits and fits[2][1] < fits[3][1] + MOST_WORSE_BY_ROUNDING else fits[3][0]
