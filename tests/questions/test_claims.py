"""Claims hold or fail by the scores, and snapshots list what changed."""

import math

import pytest

from attnscope.attention import Site
from attnscope.errors import InputError, SelectionError
from attnscope.measures import HeadScores, Role, Score
from attnscope.questions.check import compare_snapshot, parse_claim, save_snapshot
from attnscope.questions.stats import Stats


def head(layer, number, kind="encoder", role="none", **scores):
    return HeadScores(
        Site(f"layers.{layer}", 0, kind, layer),
        number,
        {name: Score(value, 0.1, 9, 3, 0.01) for name, value in scores.items()},
        {"segment": "there is one text", "induction": "no row has one"},
        Role(role, 0.9, 0.1, 9, ""),
    )


HEADS = (
    head(0, 0, previous=0.2, entropy=2.5),
    head(0, 1, previous=0.95, entropy=0.5, role="previous"),
    head(1, 0, previous=0.55, entropy=1.5),
    head(1, 0, "cross", entropy=0.25),
)


@pytest.mark.parametrize(
    ("text", "holds", "found"),
    [
        ("L0H1.previous > 0.9", True, "0.95 ±0.01"),
        ("L0H1.previous>0.95", False, "0.95 ±0.01"),
        ("L0H1.previous >= 0.95", True, "0.95 ±0.01"),
        ("l0h0.entropy < 2.5", False, "2.5 ±0.01"),
        ("L0H1.role = previous", True, "previous"),
        ("L0H0.role != none", False, "none"),
        ("L0H0.segment > 0", False, "there is one text"),
        ("encoder.L1H0.entropy > 1", True, "1.5 ±0.01"),
        ("cross.L1H0.entropy > 1", False, "0.25 ±0.01"),
        ("any.previous > 0.9", True, "0.95 ±0.01, encoder L0H1: the largest of 3 heads"),
        ("any.previous > 0.96", False, "0.95 ±0.01, encoder L0H1: the largest of 3 heads"),
        ("any.entropy < 0.3", True, "0.25 ±0.01, cross L1H0: the smallest of 4 heads"),
        ("all.previous > 0.2", False, "0.2 ±0.01, encoder L0H0: the smallest of 3 heads"),
        ("all.entropy <= 2.5", True, "2.5 ±0.01, encoder L0H0: the largest of 4 heads"),
        ("all.entropy >= 0.2500001", False, "0.25 ±0.01, cross L1H0: the smallest of 4 heads"),
        ("L0.entropy < 2.6", True, "2.5 ±0.01, L0H0: the largest of 2 heads of layer 0"),
        ("L0.entropy < 2", False, "2.5 ±0.01, L0H0: the largest of 2 heads of layer 0"),
        ("min(L0.entropy) > 0.1", True, "0.5 ±0.01, L0H1: the smallest of 2 heads of layer 0"),
        ("min(L0.entropy) < 0.1", False, "0.5 ±0.01, L0H1: the smallest of 2 heads of layer 0"),
        ("max(entropy) > 2.4", True, "2.5 ±0.01, encoder L0H0: the largest of 4 heads"),
        ("max(all.entropy) < 2.4", False, "2.5 ±0.01, encoder L0H0: the largest of 4 heads"),
        ("any.induction > 0.1", False, "no head has it: no row has one"),
        *((f"all.induction {sign} 0.1", False, "no head has it: no row has one") for sign in "<>"),
        ("any.role = previous", True, "1 of 4 heads"),
        ("all.role = none", False, "3 of 4 heads"),
        ("count(previous > 0.5) >= 2", True, "2: L0H1, L1H0"),
        ("count(previous > 0.5 and role=none) > 1", False, "1: L1H0"),
        ("count(entropy > 9) < 1", True, "0"),
        ("count(induction < 9) >= 1", False, "0"),
        ("count(previous > 0.5) = 2", True, "2: L0H1, L1H0"),
        ("count(previous > 0.5) == 35", False, "2: L0H1, L1H0"),
        ("count(previous > 0.5) != 2", False, "2: L0H1, L1H0"),
    ],
)
def test_claim_verdict_follows_the_scores(text, holds, found):
    verdict = parse_claim(text).verdict(HEADS)
    assert (verdict.claim, verdict.holds, verdict.evidence) == (text, holds, found)


@pytest.mark.parametrize(
    ("value", "claim", "shown"),
    [(2.03971, ">= 2.04", "2.0397"), (2.0399999, "< 2.04", "2.0399999"), (2.0400001, "> 2.04", "2.0400001")],
)
def test_score_has_the_digits_that_decide(value, claim, shown):
    verdict = parse_claim(f"L0H0.entropy {claim}").verdict([head(0, 0, entropy=value)])
    assert verdict.evidence == f"{shown} ±0.01"


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
def test_nan_score_fails_all_claims_and_is_ignored_by_any(sign, at):
    values = [2.0, 2.5]
    values.insert(at, math.nan)
    heads = [head(0, number, entropy=value) for number, value in enumerate(values)]
    bound, among = (3, "the largest") if "<" in sign else (1, "the smallest")
    verdict = parse_claim(f"all.entropy {sign} {bound}").verdict(heads)
    assert (verdict.holds, verdict.evidence) == (False, f"nan ±0.01, L0H{at}: {among} of 3 heads of layer 0")
    assert parse_claim(f"any.entropy {sign} {bound}").verdict(heads).holds
    assert parse_claim(f"count(entropy {sign} {bound}) = 2").verdict(heads).holds
    assert not parse_claim(f"any.entropy {sign} {bound}").verdict([heads[at]]).holds


@pytest.mark.parametrize("at", [0, 1, 2])
def test_heads_with_nan_scores_come_last_in_a_table(at):
    values = [1.5, 2.5]
    values.insert(at, math.nan)
    heads = [head(0, number, entropy=value) for number, value in enumerate(values)]
    listed = [each.scores["entropy"].value for each in stats(*heads).meeting((), "entropy")]
    assert listed[:2] == [2.5, 1.5]
    assert math.isnan(listed[2])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("previous > 0.9", "cannot read the claim"),
        ("L0H1.previous", "cannot read"),
        ("L0H1.__class__ > 1", "no measure '__class__'"),
        ("L0H1.previos > 1", "did you mean 'previous'"),
        ("count(previous > 0.5) >= two", "cannot read the claim"),
        ("any.entropy < 1 and previous > 0.5", "has two conditions: make it two claims"),
        ("L7.entropy < 1", "no layer 7: there are 0-1"),
        ("min(role) = none", "cannot read the claim"),
        ("min(L31.entropy >= 0.1", r"'min\(L3.entropy\) > 0.1'"),
        ("L7H0.entropy < 1", "no head L7H0: there are L0H0 to L1H0"),
        ("L1H0.entropy < 1", r"which L1H0\? write encoder.L1H0 or cross.L1H0"),
    ],
)
def test_invalid_claim_is_refused(text, sentence):
    with pytest.raises(SelectionError, match=sentence):
        parse_claim(text).verdict(HEADS)


def test_claim_lists_the_measures_it_needs():
    several = parse_claim("count(previous > 0.5 and role=none and effective_keys<3) >= 2")
    assert several.names == ("previous", "effective_keys")
    assert parse_claim("L0H0.role = none").names == ()


def stats(*heads):
    return Stats(tuple(heads), "a title", "", ())


def test_snapshot_lists_only_changes(tmp_path):
    path = tmp_path / "before.json"
    save_snapshot(stats(head(0, 0, previous=0.2, effective_keys=20.0), head(0, 1, entropy=1.0)), path)
    now = stats(head(0, 0, previous=0.24, effective_keys=20.9, next=0.5), head(0, 2, entropy=1.0))
    found = compare_snapshot(now, path, 0.05)
    assert [(c.head, c.measure, c.before, c.now) for c in found.changes] == [
        ("encoder L0H0", "next", None, 0.5),
        ("encoder L0H1", "role", "none", None),
        ("encoder L0H1", "entropy", 1.0, None),
        ("encoder L0H2", "role", None, "none"),
        ("encoder L0H2", "entropy", None, 1.0),
    ]
    assert (found.largest.measure, found.largest.now) == ("effective_keys", 20.9)  # by 4.5 %, and 0.04
    closer = {c.measure for c in compare_snapshot(now, path, 0.03).changes}
    assert closer == {"previous", "effective_keys", "next", "entropy", "role"}
    save_snapshot(stats(head(0, 0, previous=0.2)), path)
    nan = compare_snapshot(stats(head(0, 0, previous=float("nan"))), path, 1e9)  # became no number
    assert [change.before for change in nan.changes] == [0.2]
    assert nan.largest is None


def test_changed_role_exceeds_any_tolerance(tmp_path):
    path = tmp_path / "before.json"
    save_snapshot(stats(head(0, 0, previous=0.2)), path)
    found = compare_snapshot(stats(head(0, 0, previous=0.2, role="previous")), path, 1e9)
    assert [(c.measure, c.before, c.now) for c in found.changes] == [("role", "none", "previous")]
    assert not found.holds


OTHERS = (
    b'{"attnscope snapshot": 1, "texts": [], "heads": {"encoder L0H0": {"previous": 0.2}}}',  # older
    b'{"attnscope snapshot": 2, "texts": [], "heads": [1]}',
    b'{"attnscope snapshot": 2, "texts": [1], "heads": {}}',
)


@pytest.mark.parametrize(
    ("was", "is_", "differs"),
    [
        *((20.0, 20.9, False), (20.0, 21.04, True), (21.04, 20.0, False), (0.5, 0.56, True)),
        *((1.04, 0.99, False), (-20.0, -21.04, True), (-21.04, -20.0, False), (0.04, -0.02, True)),
    ],
)
def test_tolerance_is_relative_for_scores_above_one(tmp_path, was, is_, differs):
    path = tmp_path / "before.json"
    save_snapshot(stats(head(0, 0, max_logit=was)), path)
    assert bool(compare_snapshot(stats(head(0, 0, max_logit=is_)), path, 0.05).changes) == differs


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", *OTHERS, b"\xff"])
def test_invalid_snapshot_file_is_refused(tmp_path, content):
    path = tmp_path / "before.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a snapshot that attnscope check saved"):
        compare_snapshot(stats(), path, 0.1)
