"""The sentences beside a picture: what ran, what was hidden, pooled or broken, and what does not exist."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from math import isfinite
from typing import TypeVar

from attnscope.attention import Kind, Site
from attnscope.axes import GROUP_MARK, Weights
from attnscope.capture import FUSED, Record, SiteRecord
from attnscope.capture.observers import CoarseMap, How
from attnscope.errors import SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.text.tokens import UNKNOWN_END, spell_tokens
from attnscope.questions.selection import Selection
from attnscope.registry import nearest_name
from attnscope.scores import Importance, Removal, Score
from attnscope.text import number_ranges

Key = TypeVar("Key")
Item = TypeVar("Item")

KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross", "mixer")

MAX_QUOTE = 100  # characters of a text in a title: a longer one loses its middle
MAX_PAIR_QUOTE = 60  # of each of two texts: they keep what differs


def kinds_of(sites: Iterable[Site], lead: str | None = None) -> tuple[Kind, ...]:
    """The kinds of attention among the sites, in display order; ``lead`` comes first."""
    present = {site.kind for site in sites}
    return tuple(kind for kind in sorted(KINDS, key=lambda kind: kind != lead) if kind in present)


def kind_title(kind: str) -> str:
    """A kind of attention in words."""
    titles = {"cross": "cross-attention", "mixer": "linear and state-space layers"}
    return titles.get(kind, f"{kind} attention")


def site_title(site: SiteRecord, head: int) -> str:
    """What mixes in a head of a site: its kind of attention, or a mixer's own name."""
    if site.site.kind != "mixer":
        return kind_title(site.site.kind)
    one_of_several = re.search(rf"\bH{head} ([^;]*)", site.kernel)
    return one_of_several[1] if one_of_several else site.kernel


def name_pass(model: Model, prepared: ModelInput) -> str:
    """The model and its text, short enough for a title."""
    title, quoted = model.title, quote_text(prepared)
    quoted_in_title = quoted in title  # that of a file of maps, whose title names the text
    return " · ".join(part for part in (title, "" if quoted_in_title else quoted) if part)


def quote_text(prepared: ModelInput) -> str:
    """A text in quotation marks, a long one without its middle; empty for an image or unknown tokens."""
    text = _cut_middle(_spell(prepared), MAX_QUOTE)
    return f"“{text}”" if text else ""


def quote_texts(one: ModelInput, other: ModelInput) -> tuple[str, str]:
    """Two texts in quotation marks; long ones keep what differs."""
    both = _spell(one), _spell(other)
    start = _common_beginning(*both)
    end = _common_beginning(*(text[start:][::-1] for text in both))
    quoted = []
    for text in both:
        stop = len(text) - end
        air = max(MAX_PAIR_QUOTE - (stop - start), 0) // 2
        if len(text) > MAX_PAIR_QUOTE:
            before, inside, after = text[:start][-air:], text[start:stop], text[stop:][:air]
            if start > air:
                before = f"…{before.partition(' ')[2] or before}"
            if end > air:
                after = f"{after.rpartition(' ')[0] or after}…"
            text = f"{before}{_cut_middle(inside, MAX_PAIR_QUOTE)}{after}"
        quoted.append(f"“{text}”" if text else "")
    return quoted[0], quoted[1]


def _common_beginning(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut_middle(text: str, most: int) -> str:
    """The text in at most so many characters: two thirds of them its beginning, the others its end."""
    if len(text) <= most:
        return text
    head, tail = 2 * most // 3, most - 2 * most // 3 - 1
    begin, end = text[:head], text[-tail:]
    return f"{begin.rpartition(' ')[0] or begin}…{end.partition(' ')[2] or end}"


def _spell(prepared: ModelInput) -> str:
    """A text without special tokens, of a long one both ends; empty for an image or unknown tokens."""
    if prepared.picture is not None or prepared.sound is not None:
        return ""
    tokens, most = prepared.tokens, 2 * MAX_QUOTE  # tokens at either end are more than a title shows
    ends = [tokens] if len(tokens) <= 2 * most else [tokens[:most], tokens[-most:]]
    return "…".join(
        spell_tokens(
            [
                replace(token, text=UNKNOWN_END.sub("", token.text.rpartition(GROUP_MARK)[2]))
                for token in end
                if not token.special
            ]
        )
        for end in ends
    )


def provenance(sites: Sequence[SiteRecord]) -> str:
    """What ran, in one line: sizes, and where weights come from if not from a model's own attention."""
    sizes = list(dict.fromkeys(_size(site.queries, site.keys) for site in sites))
    tokens = " and ".join(sizes) if len(sizes) < 4 else f"{sizes[0]} to {sizes[-1]}"
    return " · ".join([extent(sites), f"{tokens} tokens", *_note_sources(sites), *note_differences(sites)])


def note_differences(sites: Sequence[SiteRecord]) -> list[str]:
    """A warning that names the layers whose weights × values do not reproduce the kernel's output."""
    wrong = [site for site in sites if site.differs]
    broken = [site for site in wrong if not isfinite(site.difference or 0.0)]
    missing, notes = [site for site in wrong if site not in broken], []
    if broken:
        notes.append(f"{layers_of(broken)} computes numbers that are not finite: its heads have no scores")
    if missing:
        most = max(site.difference or 0.0 for site in missing)
        notes.append(
            f"do not rely on {layers_of(missing)}: its weights do not reproduce the output (error {most:.2g})"
        )
    return notes


def describe_proof(sites: Sequence[SiteRecord]) -> str:
    """What the weights of some calls were checked against, and the largest error."""
    for site in sites:
        if site.unproved is not None:
            return f"not proved: {site.unproved}"
    most = max((site.difference or 0.0 for site in sites), default=0.0)
    wrong = any(site.differs for site in sites)
    if wrong:
        return f"not verified: these weights do not reproduce the layer's output (error {most:.1g})"
    return f"verified: these weights reproduce the layer's output (error {most:.1g})"


def note_unproved(calls: Sequence[SiteRecord]) -> list[str]:
    """Why the weights of which layers could not be checked against any output of the model."""
    reasons = group_by((site for site in calls if site.unproved is not None), lambda site: site.unproved)
    return [f"not proved in {layers_of(sites)}: {reason}" for reason, sites in reasons.items()]


def _size(queries: int, keys: int) -> str:
    return f"{queries:,}" if queries == keys else f"{queries:,} × {keys:,}"


def extent(sites: Sequence[SiteRecord]) -> str:
    """How many layers and heads there are, by kind where a layer has several."""
    kinds = group_by(sites, lambda site: site.site.kind)
    layers = {kind: len({site.site.layer for site in each}) for kind, each in kinds.items()}
    if sum(layers.values()) == (count := len({site.site.layer for site in sites})):
        heads = number_ranges({site.heads for site in sites})
        return f"{count} layers × {heads} heads" if count > 1 else f"{heads} heads"
    sizes = (
        (layers[kind], number_ranges({site.heads for site in each}), kind) for kind, each in kinds.items()
    )
    return "layers × heads: " + ", ".join(f"{count} × {heads} ({kind})" for count, heads, kind in sizes)


def describe_kernels(sites: Sequence[SiteRecord]) -> str:
    """Kernel, type, and where the weights come from."""
    named = ((KERNELS.get(site.kernel, site.kernel), site.dtype, _HAD[site.source]) for site in sites)
    kernels, types, sources = (" and ".join(dict.fromkeys(part)) for part in zip(*named, strict=True))
    return f"{kernels}, {types}; {sources}"


KERNELS = {"sdpa": "PyTorch SDPA", "eager": "eager attention", "flash_attention_2": "FlashAttention 2"}
"""What a report calls the implementations of transformers."""


_HAD = {
    "kernel": "weights from the kernel",
    "recomputed": "weights recomputed from queries and keys",
    "softmax": "weights from its softmax",
    "file": "weights as the file has them",
    "served": "weights recomputed from the file's queries and keys",
    "probe": "signed weights from identity values",
}


def _note_sources(sites: Sequence[SiteRecord]) -> list[str]:
    """Where weights come from, if not from a model's own attention."""
    named = ("fused pass" if site.kernel == FUSED else FROM_FILES.get(site.source) for site in sites)
    return [source for source in dict.fromkeys(named) if source]


FROM_FILES = {"file": "weights from the file", "served": "weights from the file's queries and keys"}


def note_hidden(
    shares: Sequence[float], selection: Selection, whose: str, kind: str | None = None
) -> list[str]:
    """A note on the attention to tokens that are hidden; of a mixer, on the sum of its signed weights."""
    mean = sum(shares) / len(shares)
    share = f"weights that sum to {mean:.2g} in a row" if kind == "mixer" else f"{mean:.0%} of {whose}"
    if selection.zoom is not None:
        shown = f"tokens {selection.zoom[0]}-{selection.zoom[-1]}"
        special = " and special ones" if selection.hide_special else ""
        return [f"only {shown}: other tokens{special} receive {share}"]
    return [f"special tokens hidden: they receive {share}"] if selection.hide_special else []


HELD = {
    "share": "keys summed, queries averaged",
    "mean": "a cell is the mean of its unmasked weights",
    "max": "a cell is its largest weight",
}
"""What the cells of a pooled map hold."""


def note_pooling(pooled_map: CoarseMap, shown: Weights, how: How = "share") -> list[str]:
    """A note if a map was pooled for display; a file's map that was pooled before says so itself."""
    queries, keys = pooled_map.queries.size, pooled_map.keys.size
    pooled = any(place.pooled for place in (*shown.queries, *shown.keys))
    if not pooled or shown.values.shape[-2:] == (queries, keys):
        return []
    return [f"pooled: {queries:,} × {keys:,} tokens; {HELD[how]}"]


def note_errors(scores: Iterable[Score | Importance | Removal | None]) -> list[str]:
    """A note on the standard errors of scores over texts, if any has one."""
    texts = [score.texts for score in scores if score is not None and score.error is not None]
    return [f"± is the standard error over {max(texts):,} texts"] if texts else []


def name_beside(scores: Iterable[Score | Importance | Removal | None]) -> str:
    """What stands beside the values in a column of scores."""
    return f"{' ± s.e.' if note_errors(scores) else ''} (baseline)"


AVERAGES = "scores are averages over"


def note_averaged(selection: Selection, rows: str = "all tokens") -> list[str]:
    """A note on what scores average, where that may not be the rows of the picture."""
    return [] if selection.as_read else [f"{AVERAGES} {rows}"]


def note_maps(maps: Sequence[CoarseMap], prepared: ModelInput) -> list[str]:
    """Notes on drawn maps: NaNs, and batches drawn as their mean."""
    notes = [
        f"weights of {each.site.name} that are not finite numbers: {each.broken:,}, shown as masked"
        for each in maps
        if each.broken
    ]
    counts = group_by(maps, lambda each: len(each.values))
    for count, alike in counts.items():
        if count > 1:
            what = prepared.name_parts(count)
            if prepared.picture:
                what = f"windows of {alike[0].queries.size:,} patches that attend within themselves"
            notes.append(f"{layers_of(alike)}: mean of {count:,} {what}")
    sizes = group_by(maps, lambda each: _size(each.queries.size, each.keys.size))
    if len(sizes) > 1:
        notes.append("sizes: " + ", ".join(f"{size} in {layers_of(alike)}" for size, alike in sizes.items()))
    bare = [each for each in counts.get(1, ()) if not each.tokens]
    if prepared.picture is not None and bare:
        notes.append(f"{layers_of(bare)}: rows and columns are positions, not patches of the picture")
    return notes


def layers_of(calls: Iterable[SiteRecord | CoarseMap]) -> str:
    """The layers of some calls, in words."""
    numbers = {call.site.layer for call in calls}
    return f"layer{'s' * (len(numbers) > 1)} {number_ranges(numbers)}"


def selected_sites(record: Record, selection: Selection) -> list[SiteRecord]:
    """The calls with a selected head. Raises ``SelectionError`` that says what exists, if there is none."""
    chosen = [site for site in record.sites if selection.heads(site.site, site.heads)]
    require_selected(chosen, record, selection)
    return chosen


def _require_kind(record: Record, kind: str | None) -> None:
    """Raise ``SelectionError`` that says what exists, if no call is of a kind."""
    kinds = kinds_of(site.site for site in record.sites)
    if kind is None or kind in kinds:
        return
    have = " and ".join(map(kind_title, kinds))
    if kind in KINDS:
        raise SelectionError(f"no {kind_title(kind)}: this model has {have}")
    raise SelectionError(f"no kind {kind!r}: {nearest_name(kind, KINDS)}this model has {have}")


def _unknown_heads(sites: Sequence[SiteRecord], selection: Selection) -> list[str]:
    """The names of the selected heads that no call has."""
    read = {(each.site.layer, head) for each in sites for head in selection.heads(each.site, each.heads)}
    return [each.name for each in selection.named if (each.layer, each.head) not in read]


def require_selected(chosen: Sequence[object], record: Record, selection: Selection) -> None:
    """Raise ``SelectionError`` that says what exists, if nothing matches the selection."""
    sites = [site for site in record.sites if selection.kind in (None, site.site.kind)]
    layers = {site.site.layer for site in sites}
    wanted = {each.layer for each in selection.named} or set(selection.layers or ())
    missing = wanted - layers
    unknown = _unknown_heads(sites, selection)
    if chosen and not missing and not unknown:
        return
    _require_kind(record, selection.kind)
    wanted_name = f"layer {number_ranges(missing)}"
    if unknown:
        wanted_name = f"head {', '.join(unknown)}"
    elif selection.number is not None and not missing:
        wanted_name = f"head {selection.number}"
    here = [site for site in sites if selection.meets(site.site)] or sites
    heads = number_ranges(range(max(site.heads for site in here)))
    has = f"this model has layers {number_ranges(layers)}, heads {heads}"
    raise SelectionError(f"no {wanted_name}: {has}", record.notes)


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Lists of the items with the same key, in the order of their first ones."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def pluralize(number: int, thing: str) -> str:
    """So many things: ``1 text``, ``2 texts``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def list_some(names: Sequence[str], most: int = 12) -> str:
    """The first of some names."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
