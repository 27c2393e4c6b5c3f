"""Which picture or sound a token belongs to, and what is printed of it."""

from attnscope.attention import Token
from attnscope.axes import HEARD, PICTURED, SEPARATOR, find_senses
from attnscope.models.text.tokens import spell_tokens


def seen(*names: str) -> list[Token]:
    """Tokens of pictures by their names, signs of a processor among them."""
    return [
        Token(name, 5, special=True)
        if name.startswith("<")
        else Token(name, (SEPARATOR if "end" in name else PICTURED) + number, special="end" in name)
        for number, name in enumerate(names)
    ]


WORDS = [Token(word, number, word=number) for number, word in enumerate(("what", "is", "this", "?"))]
TILED = seen("<img>", "thumbnail 1 · 0,0", "<tile>", "image 1 · 0,0", "image 1 · row end", "<tile>",
             "image 1 · 1,0", "</img>")  # fmt: skip


def test_signs_between_the_tiles_of_a_picture_belong_to_it():
    assert find_senses([*TILED, *WORDS]) == [None, *["image"] * 6, *[None] * 5]


def test_of_several_pictures_each_has_its_number():
    two = [*TILED, *seen("<img>", "image 2 · 0,0", "</img>"), *WORDS]
    assert [sense for sense in find_senses(two) if sense] == ["image 1"] * 6 + ["image 2"]
    assert find_senses(seen("frame 1 · 0,0", "frames 2-3 · 0,0")) == ["frame 1", "frames 2-3"]
    assert find_senses([Token("0,1", PICTURED + 1), Token("0.02 s", HEARD)]) == ["image", "sound"]


def test_a_text_is_spelled_with_the_name_of_its_picture_alone():
    assert spell_tokens([*TILED, *WORDS]) == "<img> [image] </img> what is this?"
    assert (
        spell_tokens([Token("0.00 s", HEARD), Token("0.02 s", HEARD + 1), *WORDS]) == "[sound] what is this?"
    )
