"""Write with a model: greedy, beam search and sampling, scores of given texts, and alignments.

All of it knows of a model only what `qkv.models.interface` says, so one search serves them all.
"""

from qkv.decode.align import align, links, word_links
from qkv.decode.config import SearchConfig
from qkv.decode.paths import Hypothesis
from qkv.decode.score import score
from qkv.decode.search import search

__all__ = ["Hypothesis", "SearchConfig", "align", "links", "score", "search", "word_links"]
