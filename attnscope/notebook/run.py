"""A run: one text that went through one model, and the commands' questions as methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from attnscope.attention import Head, Kind
from attnscope.errors import AttnscopeError, InputError, OutputError, SelectionError
from attnscope.measures import DEFAULT
from attnscope.models import Model, ModelInput
from attnscope.models.identity import describe_input
from attnscope.models.request import InputRequest
from attnscope.models.trace_model import TracedModel
from attnscope.notebook.drawing import Display, Drawing, HeadDrawing, HeadsPage, ScoreDrawing
from attnscope.questions.answer import Answer
from attnscope.questions.check import Verdict, parse_claim
from attnscope.questions.head import heads_answer, one_head, several_heads
from attnscope.questions.layers import all_heads, whole_layers
from attnscope.questions.parts import cut_input
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads, overview, overview_answer, removals_answer
from attnscope.questions.token import one_token
from attnscope.records import plain
from attnscope.render.page import PAGE, page_of, save_page
from attnscope.storage.arrays import FORMATS as DATA
from attnscope.storage.trace import SUFFIX, write_trace

if TYPE_CHECKING:  # what loads torch or matplotlib is imported when it is asked
    from attnscope.questions.cause import CutMode
    from attnscope.questions.patching import What

T = TypeVar("T")


def _select(head: Head | str | None = None, **options: Any) -> Selection:
    """The selection; a head by ``Head`` or as text. Raises ``SelectionError``."""
    if head is not None and not isinstance(head, (Head, str)):
        raise SelectionError(f"{head!r} is not a head: write its address, like 'L2H1'")
    return Selection(None if head is None else Head(head), **options)


def _heads(head: Head | str | Sequence[Head | str]) -> list[Head]:
    """One head, or several, in a list or with commas."""
    heads = head.split(",") if isinstance(head, str) else head
    return [Head(each) for each in ([heads] if isinstance(heads, Head) else heads)]


def _parsed(texts: tuple[str, ...], parse: Callable[[str], Iterable[T]], example: str) -> list[T]:
    """What the texts ask for. Raises ``SelectionError`` for arguments that are not texts."""
    for each in texts:
        if not isinstance(each, str):
            raise SelectionError(f"{each!r} is not a text: write {example}")
    return [one for each in texts for one in parse(each)]


@dataclass(eq=False, repr=False)
class Run(Display):
    """One text that went through one model; a notebook shows every head, and a few worth a look.

    It holds a trace or a file of weights; questions about predictions run the model, ``source``, again.
    ``words`` merges the pieces of words, ``hide_special`` leaves special tokens out and notes their
    weight.
    """

    kept: TracedModel | None = None
    earlier: Sequence[Callable[[], TracedModel]] = field(default=(), repr=False)
    source: tuple[Callable[[], AbstractContextManager[Model]], InputRequest] | None = None

    @property
    def passes(self) -> tuple[Run, ...]:
        """Every held pass of a recording; this run is the last one."""
        return (*(Run(make()) for make in self.earlier), self)

    def part(self, number: int) -> Run:
        """One text of a batch, or another part: a channel, a window, a row of a table, a beam.

        Of classifier-free guidance, 1 is the half that has the prompt. Raises ``SelectionError``.
        """
        from attnscope.models.trace_recording import trace_part

        return Run(trace_part(*self._inputs, number))

    def mean(self) -> Run:
        """The mean over every held pass of a recording, as over the steps of a diffusion.

        Of a single pass, over the steps of a loop in it. Raises ``SelectionError`` if passes or steps differ
        in their layers or lengths.
        """
        from attnscope.models.trace_recording import trace_mean, trace_step

        passes = [run._pass for run in self.passes]
        return Run(trace_mean(passes) if len(passes) > 1 else trace_step(*self._inputs, None))

    def step(self, number: int) -> Run:
        """One step of a loop in a pass, from 0. Raises ``SelectionError`` if there is no such step."""
        from attnscope.models.trace_recording import trace_step

        return Run(trace_step(*self._inputs, number))

    @property
    def _pass(self) -> TracedModel:
        if self.kept is None:
            raise AttnscopeError("the run has no data yet: its with block has not ended")
        return self.kept

    @property
    def _inputs(self) -> tuple[TracedModel, ModelInput]:
        return self._pass, self._pass.prepared

    @property
    def model(self) -> str:
        """The model's name."""
        return self._pass.name

    @property
    def tokens(self) -> tuple[str, ...]:
        """The text as the model read it; empty without tokens."""
        return tuple(token.text for token in self._pass.prepared.tokens)

    @property
    def input(self) -> Mapping[str, Any]:
        """What was read, as ``--json`` has it; without a checksum, as a model in memory may have changed."""
        prepared = replace(self._pass.prepared, request=self.source and self.source[1])
        return dict(plain(replace(describe_input(self._pass, prepared), checksum=None)))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the model, the text and the pass: those that every answer begins with."""
        model, prepared = self._inputs
        return (*model.notes, *prepared.notes, *model.run(prepared, []).notes)

    @property
    def heads(self) -> tuple[Head, ...]:
        """The address of every head."""
        sites = self._pass.run(self._pass.prepared, []).sites
        return tuple(Head(each.site.layer, n, each.site.kind) for each in sites for n in range(each.heads))

    def overview(
        self,
        *,
        words: bool = False,
        hide_special: bool = False,
        by: str | None = None,
        cmap: str | None = None,
    ) -> Drawing:
        """Every head as a thumbnail, and a few worth a look; ``by="role"``, or a measure: as one cell."""
        result = overview(*self._inputs, _select(words=words, hide_special=hide_special), by=by)
        return Drawing(overview_answer(result, None, lambda head: f'run.head("{head}")'), cmap)

    def head(
        self,
        head: Head | str,
        *,
        words: bool = False,
        hide_special: bool = False,
        scale: str = "auto",
        min_weight: float = 0.0,
        cmap: str | None = None,
    ) -> HeadDrawing | Drawing:
        """One head by its address, ``"L2H1"`` or ``"cross L0H3"``, as a ``HeadDrawing``.

        Several are drawn side by side: ``"L2H1,L1H3"``. Cells below ``min_weight`` are hidden.
        """
        named = head.split(",") if isinstance(head, str) else [head]
        shown = {"words": words, "hide_special": hide_special, "scale": scale, "min_weight": min_weight}
        selection = _select(None if len(named) > 1 else named[0], **shown)
        if len(named) > 1:
            return Drawing(heads_answer(several_heads(*self._inputs, selection, named)), cmap)
        result = one_head(*self._inputs, selection)
        answer = Answer.from_view("head", result.heatmap, result)
        return HeadDrawing(answer, result, self._pass.weights(result.scores.address), cmap)

    def token(
        self,
        token: str | int,
        *,
        head: Head | str | None = None,
        words: bool = False,
        hide_special: bool = False,
        cmap: str | None = None,
    ) -> Drawing:
        """What a token attends to and what attends to it, in one head or averaged over all."""
        selection = _select(head=head, token=str(token), words=words, hide_special=hide_special)
        return Drawing(Answer.from_view("token", one_token(*self._inputs, selection)), cmap)

    def stats(self, measures: Sequence[str] | None = None) -> ScoreDrawing:
        """The scores of every head, by the lift of its role; a few ``measures`` take less time."""
        names = DEFAULT if measures is None else tuple(dict.fromkeys(measures))
        measured = measure_heads(*self._inputs, _select(), names=names)
        return ScoreDrawing(replace(measured, heads=tuple(measured.meeting(()))))

    def compare(
        self,
        other: Run | None = None,
        *,
        head: Head | str | None = None,
        by: Literal["layer"] | None = None,
        cmap: str | None = None,
    ) -> Drawing:
        """All heads with each other, or each with itself in a run of another text, or of another model.

        ``head`` adds the difference between one head's maps on two texts, or alone lists those nearest to it;
        ``by="layer"`` compares the layers of this run.
        """
        from attnscope.questions.compare import compare_all_heads
        from attnscope.questions.compare import heads_answer as distances_answer
        from attnscope.questions.compare_layers import compare_layers, layers_answer
        from attnscope.questions.compare_texts_models import compare_passes
        from attnscope.questions.nearest_heads import nearest_answer, nearest_heads

        if head is not None and other is None and by is None:
            named = Head(head)
            every = compare_all_heads(*self._inputs, Selection(kind=named.kind))
            return Drawing(nearest_answer(nearest_heads(every, named), None), cmap)
        selection = _select(head=head)
        if by is not None and other is not None:
            raise InputError('by="layer" compares the layers of one run: leave out the other')
        if other is None:
            result = compare_all_heads(*self._inputs, selection)
            answer = (
                distances_answer(result, None) if by is None else layers_answer(compare_layers(result), None)
            )
            return Drawing(answer, cmap)
        if not isinstance(other, Run):
            raise InputError(f"{other!r} is not a run: compare(model.read(text))")
        return Drawing(compare_passes(*self._inputs, other._pass, selection, None), cmap)

    def find(self, *questions: str, cmap: str | None = None) -> Drawing:
        """Which heads attend from one word to another: ``run.find("it -> cat", "* -> -1")``."""
        from attnscope.questions.find import find_answer, find_heads
        from attnscope.questions.rules import parse_questions

        parsed = _parsed(questions, parse_questions, "a question, like 'it -> cat'")
        return Drawing(find_answer(find_heads(*self._inputs, parsed, _select())), cmap)

    def examples(
        self,
        head: Head | str | None = None,
        *,
        texts: str | Path | Sequence[str],
        by: str | None = None,
        top: int = 5,
    ) -> Drawing:
        """Where in other texts, a corpus or a list, a head of this model attends most; or every head.

        ``by`` orders rows by a measure or a question, "it -> cat" or "same or +0".
        """
        from attnscope.questions.corpus import CorpusRun
        from attnscope.questions.examples import corpus_examples, examples_answer
        from attnscope.storage.corpus import ListedTexts, read_corpus

        corpus = read_corpus(texts) if isinstance(texts, (str, Path)) else ListedTexts(texts)
        named, run = None if head is None else Head(head), CorpusRun(truncate=True)
        with self._model_in_eval_mode() as (model, _):
            result = corpus_examples(model, corpus, named, by=by, top=top, run=run)
        return Drawing(examples_answer(result, one=head is not None))

    @contextmanager
    def _model_in_eval_mode(self) -> Iterator[tuple[Model, InputRequest]]:
        """The model with its output head, and its input. Raises ``AttnscopeError`` without a model."""
        if self.source is None:
            raise AttnscopeError("this run has no model: get one by load(name).read(text)")
        predicting, request = self.source
        with predicting() as model:
            yield model, request

    def cut(
        self,
        *edges: str,
        target: str | None = None,
        against: str | None = None,
        head: Head | str | Sequence[Head | str] = (),
        how: CutMode = "renormalize",
        texts: Sequence[str] = (),
        cmap: str | None = None,
    ) -> Drawing:
        """What a prediction loses without an edge: ``run.cut("it -> cat")``, in each head and in all at once.

        ``target`` and ``against`` are words of the prediction, or a class; ``head`` names some heads;
        ``how`` is renormalize, zero or mean (over the same edges in ``texts``).
        """
        from attnscope.questions.cause import cut, intervention_answer
        from attnscope.questions.rules import parse_questions

        parsed = _parsed(edges, parse_questions, "an edge, like 'it -> cat'")
        with self._model_in_eval_mode() as (model, request):
            prepared, heads = request.prepare(model), _heads(head)
            among = (replace(request, text=each).prepare(model) for each in texts)
            result = cut(
                model, prepared, parsed, heads=heads, how=how, texts=among, target=target, against=against
            )
        return Drawing(intervention_answer(result), cmap)

    def patch(
        self,
        other: Run | str,
        *,
        what: What = "output",
        target: str | None = None,
        against: str | None = None,
        head: Head | str | Sequence[Head | str] = (),
        to: str | None = None,
        by: Literal["head", "token"] = "head",
        noise: bool = False,
        fast: bool = False,
        exact: bool = False,
        cmap: str | None = None,
    ) -> Drawing:
        """How much of the prediction each head restores in the pass of another text, or of its run.

        ``what`` is output, q, k, v or pattern; ``to`` patches only what reaches ``"L9H9:q"`` or
        ``"logits"``; ``by="token"`` the residual stream. With ``noise`` the other text's heads go into
        this pass; ``fast`` estimates, ``exact`` beside the exact effects.
        """
        from attnscope.questions.cause import intervention_answer
        from attnscope.questions.patching import Receiver, TextPair, patch, trace_answer, trace_tokens

        if by not in (choices := ("head", "token")):
            raise SelectionError(f"no map by {by!r}: there are {' and '.join(choices)}")
        with self._model_in_eval_mode() as (model, request):
            pair = TextPair(request.prepare(model), self._other(other).prepare(model), target, against)
            if by == "token":
                return Drawing(trace_answer(trace_tokens(model, pair, noise=noise)), cmap)
            end, heads = None if to is None else Receiver.parse(to), _heads(head)
            result = patch(model, [pair], heads=heads, what=what, to=end, noise=noise, fast=fast, exact=exact)
        return Drawing(intervention_answer(result), cmap)

    def why(
        self,
        cells: str,
        head: Head | str | None = None,
        *,
        against: str | None = None,
        depth: int = 1,
        cmap: str | None = None,
    ) -> Drawing:
        """Why a head attends there: ``run.why("it -> cat", "L3H1")``, its score as a sum of terms.

        Without a head, it is the one that attends there most. ``against`` are cells whose terms are
        subtracted; a ``depth`` of 2 also explains the heads that wrote the strongest term.
        """
        from attnscope.questions.rules import parse_questions
        from attnscope.questions.why import explain_head, why_answer

        named = [*_parsed((cells,), parse_questions, "cells, like 'it -> cat'")]
        other = None if against is None else parse_questions(against)[0]
        if len(named) > 1 or depth < 1:
            raise SelectionError("name one pair of cells, like 'it -> cat', and a depth of 1 or more")
        chosen = _select() if head is None else Head(head)
        with self._model_in_eval_mode() as (model, request):
            result = explain_head(model, request.prepare(model), named[0], chosen, other, depth)
        return Drawing(why_answer(result), cmap)

    def _other(self, other: Run | str) -> InputRequest:
        """Another text for the same model, or that of its run. Raises ``InputError``."""
        assert self.source is not None
        if isinstance(other, str):
            return replace(self.source[1], text=other)
        if not isinstance(other, Run) or other.source is None:
            raise InputError(f"{other!r} is neither a text nor a run of a model: patch(model.read(text))")
        if other.source[0] != self.source[0]:
            raise InputError("the other run is from another model: read both texts with one reader")
        return other.source[1]

    def circuit(
        self,
        other: Run | str,
        *,
        target: str | None = None,
        against: str | None = None,
        faithfulness: float = 0.8,
        cmap: str | None = None,
    ) -> Drawing:
        """The smallest circuit behind what tells the prediction on this text from that on another."""
        from attnscope.questions.circuit import circuit_answer, find_circuit
        from attnscope.questions.patching import TextPair

        with self._model_in_eval_mode() as (model, request):
            pair = TextPair(request.prepare(model), self._other(other).prepare(model), target, against)
            return Drawing(circuit_answer(find_circuit(model, [pair], faithfulness)), cmap)

    def logits(
        self,
        *,
        target: str | None = None,
        against: str | None = None,
        head: Head | str | None = None,
        by: Literal["part", "layer"] = "part",
        cmap: str | None = None,
    ) -> Drawing:
        """What each part of the model adds to a prediction's score, and the words that a ``head`` moves.

        ``by="layer"`` is the logit lens: the prediction after every layer.
        """
        from attnscope.questions.logits import direct_effects, lens_answer, logit_lens, logits_answer

        if by not in (choices := ("part", "layer")):
            raise SelectionError(f"no logits by {by!r}: there are {' and '.join(choices)}")
        if head is not None and by == "layer":
            raise SelectionError('by="layer" reads whole layers: leave out head')
        with self._model_in_eval_mode() as (model, request):
            prepared, named = request.prepare(model), None if head is None else Head(head)
            if by == "layer":
                return Drawing(lens_answer(logit_lens(model, prepared, target, against)), cmap)
            return Drawing(
                logits_answer(direct_effects(model, prepared, target, against, named), named), cmap
            )

    def ablate(
        self,
        head: Head | str | Sequence[Head | str] = (),
        *,
        importance: bool = False,
        top: int = 20,
        cmap: str | None = None,
    ) -> Drawing:
        """The heads without which the loss rises most; with ``head`` the predictions without these heads.

        ``importance`` estimates the rises from one gradient.
        """
        from attnscope.questions.loss import ablate, ablation_answer

        if (heads := _heads(head)) and importance:
            raise SelectionError("importance is of all heads: leave out head")
        with self._model_in_eval_mode() as (model, request):
            prepared = request.prepare(model)
            if heads:
                return Drawing(ablation_answer(ablate(model, prepared, _select(), heads)), cmap)
            measured = measure_heads(
                model, prepared, _select(), importance=importance, ablation=not importance
            )
            return Drawing(removals_answer(measured, top), cmap)

    def spans(
        self, by: str = "sentence", *, head: Head | str | None = None, cmap: str | None = None
    ) -> Drawing:
        """Attention between parts of the text: sentence, line, paragraph, segment, or role of a chat."""
        from attnscope.questions.spans import span_maps, spans_answer

        model, prepared = self._inputs
        result = span_maps(model, prepared, cut_input(prepared, by), _select(head=head))
        return Drawing(spans_answer(result), cmap)

    def flow(
        self,
        method: Literal["rollout", "flow"] = "rollout",
        *,
        token: str | int | None = None,
        kind: Kind | None = None,
        layer: int | None = None,
        words: bool = False,
        hide_special: bool = False,
        cmap: str | None = None,
    ) -> Drawing:
        """How much each token of the text contributes to each token of a layer, or to one token.

        ``kind`` is encoder, decoder or cross; ``layer`` the last if it is not named.
        """
        from attnscope.questions.flow import flow_answer, follow_flow

        if method not in (methods := ("rollout", "flow")):
            raise SelectionError(f"no method {method!r}: there are {', '.join(methods)}")
        selection = _select(words=words, hide_special=hide_special, kind=kind)
        named, layers = None if token is None else str(token), None if layer is None else (layer,)
        result = follow_flow(*self._inputs, method, selection, token=named, last=layer)
        pictures = self._pass.prepared.pictures
        return Drawing(flow_answer(result, kind=kind, layers=layers, token=named, pictures=pictures), cmap)

    def check(self, *claims: str) -> tuple[Verdict, ...]:
        """Whether claims hold, each with its evidence: ``run.check("L2H1.previous > 0.9")``."""
        parsed = _parsed(claims, lambda each: [parse_claim(each)], "a claim, like 'L2H1.previous > 0.9'")
        names = tuple(dict.fromkeys((*DEFAULT, *(name for each in parsed for name in each.names))))
        heads = measure_heads(*self._inputs, _select(), names=names).heads
        return tuple(each.verdict(heads) for each in parsed)

    def page(
        self,
        head: Head | str | Sequence[Head | str] = (),
        *,
        words: bool = False,
        hide_special: bool = False,
        min_weight: float = 0.0,
        cmap: str | None = None,
    ) -> HeadsPage:
        """All heads as one page to explore; cells of its maps below ``min_weight`` are hidden.

        A click on a cell of a named ``head`` opens the strongest terms of its score, as ``why`` has them.
        """
        from attnscope.questions.why import open_cells

        selection = _select(words=words, hide_special=hide_special, min_weight=min_weight)
        heads = all_heads(*self._inputs, selection)
        if named := _heads(head):
            with self._model_in_eval_mode() as (model, request):
                heads = open_cells(heads, model, request.prepare(model), named)
        return HeadsPage(page_of(heads, cmap), heads.layers.title)

    def save(self, path: str | Path) -> None:
        """Write a ``.trace``, a page (.html), all weights (.npz, ...), or the picture (.png, ...)."""
        from attnscope.models.trace_recording import record_trace
        from attnscope.render.image import FORMATS

        path, traced = Path(path), self._pass
        suffix = path.suffix.lower()
        if suffix == SUFFIX:
            ran = traced.trace.description.kept  # the rows of other tools are measured first
            write_trace(traced.trace if ran else record_trace(traced, traced.prepared), path)
        elif suffix == PAGE:
            save_page(all_heads(*self._inputs, _select()), path)
        elif suffix.removeprefix(".") in DATA:
            whole_layers(*self._inputs, _select()).save(path)
        elif suffix.removeprefix(".") in FORMATS:
            self.overview().save(path)
        else:
            suffixes = ", ".join([SUFFIX, PAGE, *(f".{form}" for form in (*DATA, *FORMATS))])
            raise OutputError(f"cannot write {path}: its name must end in one of {suffixes}")

    def __repr__(self) -> str:
        return "a run whose with block has not ended" if self.kept is None else repr(self.overview())

    def _repr_png_(self) -> bytes | None:
        return self.overview()._repr_png_()

    def _repr_html_(self) -> str | None:
        return self.overview()._repr_html_()
