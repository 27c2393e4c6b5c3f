"""Files of questions with known answers: which word of a text belongs to which."""

from attnscope.storage.gold.read import read_gold
from attnscope.storage.gold.texts import GoldFile, GoldText, Pair

__all__ = ["GoldFile", "GoldText", "Pair", "read_gold"]
