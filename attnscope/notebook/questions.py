"""What is asked of a run in words: the questions of the commands of the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attnscope.notebook.shown import Picture, Shown

if TYPE_CHECKING:
    from attnscope.analysis.figures.claims import Verdict
    from attnscope.analysis.selection import Selection
    from attnscope.attention import Head
    from attnscope.models.kept.file import FileModel


class Questions(Shown):
    """A pass that can be asked."""

    @property
    def _pass(self) -> FileModel:
        raise NotImplementedError

    def find(self, *questions: str, cmap: str | None = None) -> Picture:
        """Which heads look from here to there: ``run.find("it -> cat", "* -> -1")``.

        Raises ``SelectionError`` for parts that the text has not.
        """
        from attnscope.analysis.questions.find import find
        from attnscope.analysis.questions.question import parse_questions
        from attnscope.answers.questions import of_found

        asked = [question for each in questions for question in parse_questions(each)]
        return Picture(of_found(find(self._pass, self._pass.prepared, asked, select())), cmap)

    def spans(
        self, by: str = "sentence", *, head: Head | str | None = None, cmap: str | None = None
    ) -> Picture:
        """Which part of the text looks at which: sentence, line, paragraph, segment, or role of a chat.

        Raises ``InputError`` for what is not cut so.
        """
        from attnscope.analysis.questions.cut import cut_input
        from attnscope.analysis.questions.spans import span_maps
        from attnscope.answers.questions import of_spans

        prepared = self._pass.prepared
        result = span_maps(self._pass, prepared, cut_input(prepared, by), select(head=head))
        return Picture(of_spans(result, one=head is not None), cmap)

    def flow(
        self,
        method: Literal["rollout", "flow"] = "rollout",
        *,
        token: str | int | None = None,
        words: bool = False,
        hide_special: bool = False,
        cmap: str | None = None,
    ) -> Picture:
        """What the tokens of the last layer are made of, through all layers and heads; or one token."""
        from attnscope.analysis.flow.flow import follow_flow
        from attnscope.answers.questions import of_flow

        prepared, asked = self._pass.prepared, select(words=words, hide_special=hide_special)
        named = None if token is None else str(token)
        result = follow_flow(self._pass, prepared, method, asked, token=named)
        return Picture(of_flow(result, token=named, pictures=prepared.pictures), cmap)

    def check(self, *claims: str) -> tuple[Verdict, ...]:
        """Whether claims hold, each with its evidence: ``run.check("L2H1.previous > 0.9")``."""
        from attnscope.analysis.figures.claims import claim
        from attnscope.analysis.figures.stats import stats
        from attnscope.measures import DEFAULT

        asked = [claim(each) for each in claims]
        names = tuple(dict.fromkeys((*DEFAULT, *(name for each in asked for name in each.names))))
        heads = stats(self._pass, self._pass.prepared, select(), names=names).heads
        return tuple(each.judge(heads) for each in asked)


def select(head: Head | str | None = None, **asked: Any) -> Selection:
    """What is looked at; a head by its address, or as it is written. Raises ``SelectionError``."""
    from attnscope.analysis.selection import Selection, head_of

    return Selection(None if head is None else head_of(head), **asked)
