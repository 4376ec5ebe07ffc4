"""Several batches at a time, each by a process of its own with one core; all of them share the weights."""

import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

from qkv.errors import QkvError

Item = TypeVar("Item")
Output = TypeVar("Output")


def in_workers(work: Callable[[Item], Output], items: Sequence[Item], workers: int) -> list[Output]:
    """What `work` makes of each item, in their order, by so many processes that are copies of this one.

    A search is thousands of calls too small for torch's threads, which split each and wait for one another after it;
    and threads of Python's wait for its lock: two of them searched no faster than one (two Zen 5 cores).
    Processes begin as copies, so neither weights nor items are sent, only what comes of them. Where there is no fork that
    can be trusted, this process does it all.
    """
    workers = min(workers, len(items))
    if workers < 2 or sys.platform != "linux" or torch.cuda.is_initialized():
        return [work(item) for item in items]
    context = multiprocessing.get_context("fork")
    following = context.Value("q", 0)
    is_inference = torch.is_inference_mode_enabled()

    def serve(sender: Connection) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began this ends it
        torch.set_num_threads(1)
        with torch.inference_mode(is_inference):
            while (place := _next(following)) < len(items):
                try:
                    sender.send((place, work(items[place]), None))
                except Exception as error:  # noqa: BLE001 - raised again where it was asked for
                    sender.send((place, None, error))
                    return

    receivers, processes = [], []
    try:
        for _ in range(workers):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=serve, args=(sender,), daemon=True)
            with (
                warnings.catch_warnings()
            ):  # that torch has threads, which are idle and which no copy asks for anything
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            sender.close()
            receivers.append(receiver)
            processes.append(process)
        return _collected(receivers, len(items))
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _next(following: Any) -> int:
    with following.get_lock():
        following.value += 1
        return following.value - 1


def _collected(receivers: list[Connection], count: int) -> list[Any]:
    """Their answers by place, until all of them have ended."""
    found, open_ones = {}, list(receivers)
    while open_ones:
        for receiver in wait(open_ones):
            assert isinstance(receiver, Connection)
            try:
                place, output, error = receiver.recv()
            except EOFError:
                open_ones.remove(receiver)
                continue
            if error is not None:
                raise error
            found[place] = output
    if len(found) < count:
        raise QkvError(
            f"{count - len(found)} of {count} batches were lost with the process that had them, perhaps for want of memory: "
            "use fewer workers, or a smaller beam"
        )
    return [found[place] for place in range(count)]
