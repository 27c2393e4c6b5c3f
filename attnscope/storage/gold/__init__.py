"""Files of questions with known answers: which word of a text belongs to which, or when it is said."""

from attnscope.storage.gold.read import read_gold
from attnscope.storage.gold.texts import GoldFile, GoldText, Pair
from attnscope.storage.gold.timed import TimedLines, TimedText

__all__ = ["GoldFile", "GoldText", "Pair", "TimedLines", "TimedText", "read_gold"]
