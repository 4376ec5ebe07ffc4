"""Several batches at a time, each by a thread of its own; all of them share the weights."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Output = TypeVar("Output")


def in_threads(work: Callable[[Item], Output], items: Sequence[Item]) -> list[Output]:
    """What `work` makes of each item, in their order, by as many threads as torch may use.

    torch's own threads split each product and wait for one another after it, which for products as small as a search's
    costs more than it saves. Threads with an item each never wait: torch lets go of Python's lock while it computes.
    """
    threads = torch.get_num_threads()
    if min(threads, len(items)) < 2:
        return [work(item) for item in items]
    is_inference = torch.is_inference_mode_enabled()

    def alone(item: Item) -> Output:
        torch.set_num_threads(1)  # of this thread; both are a thread's own
        with torch.inference_mode(is_inference):
            return work(item)

    try:
        with ThreadPoolExecutor(min(threads, len(items))) as pool:
            return list(pool.map(alone, items))
    finally:
        torch.set_num_threads(threads)  # also what threads begin with that are yet to come
