"""What places are called when several become one."""

from attnscope.attention import Token
from attnscope.axes import HEARD, join_places, places


def test_moments_that_follow_each_other_are_named_from_the_first_to_the_last():
    moments = places(tuple(Token(f"{0.02 * at:.2f} s", HEARD + at) for at in range(4)))
    two = [join_places(moments[:2], pooled=True), join_places(moments[2:], pooled=True)]
    assert [place.label for place in two] == ["0.00–0.02 s", "0.04–0.06 s"]
    four = join_places(two, pooled=True)
    assert (four.label, four.moment, four.heard) == ("0.00–0.06 s", "0.00 s", True)
    assert not any(place.pictured for place in (*moments, *two))
