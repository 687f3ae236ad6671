"""Where a model puts texts that have nothing to do with each other.

Models differ: cosines of unrelated texts are near 0.8 for one and near 0.1 for another, so a bare cosine
says little. This anchor is measured once per model, on questions of our own about different matters, never
on the caller's entries: a score then means the same in a collection of three entries and in one of
thousands.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

UNRELATED_QUESTIONS: Final = (
    "How do I change a flat bicycle tyre?",
    "What time does the museum close on Sundays?",
    "Can I freeze fresh basil?",
    "Which documents do I need to register a company?",
    "Why is the sky darker at high altitude?",
    "My printer only prints blank pages",
    "Is this medicine safe together with coffee?",
    "How many players are on a volleyball team?",
    "怎么给阳台上的绿萝换盆？",
    "图书馆的自习室可以预约吗？",
    "为什么猫喜欢钻纸箱？",
    "高铁上可以带折叠自行车吗？",
    "租房合同到期前多久要通知房东？",
    "吉他弦生锈了怎么处理",
    "孩子发烧到多少度需要去医院？",
    "这首诗的作者是哪个朝代的？",
)


def unrelated_cosine(vectors: NDArray[np.float32]) -> float:
    """Return the mean cosine over all pairs of different texts.

    Args:
        vectors: [T, d], unit length, one for each of `UNRELATED_QUESTIONS`.

    Returns:
        At most 0.99, so that a model which maps everything to one point still gives a scale to divide by.
    """
    cosines = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    pairs = cosines[np.triu_indices(len(vectors), k=1)]
    return float(np.clip(pairs.mean(), -1.0, 0.99))
