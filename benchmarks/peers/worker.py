"""What every worker does, in whichever environment it runs: answer on stdout, keep memory, read a specification."""

import ctypes
import json
import os
import sys


def keep_memory():
    """As `qkv.train.machine.keep_memory`: glibc keeps what is freed, so that no tensor pays for fresh pages."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 1 << 30)
    libc.mallopt(-1, 2**31 - 1)


class Line:
    """The line to the benchmark: what libraries print goes to stderr instead."""

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.specification = json.loads(sys.argv[1])

    def say(self, **facts):
        self._out.write(json.dumps(facts) + "\n")
        self._out.flush()

    def asked(self):
        """The next request; the benchmark ends a worker by closing the line."""
        line = sys.stdin.readline()
        if not line:
            sys.exit()
        return json.loads(line)
