"""A worker process of the local engine: a line of JSON in, a line of JSON out.

It ends when its standard input does, so that none outlives the process that started it.
"""

import os
import queue
import signal
import sys
import threading
from typing import TextIO

from pseudocore.engine.items import serve


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tasks print must not get among the answers
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, calls), daemon=True).start()
    try:
        while line := calls.get():
            print(serve(line), file=answers, flush=True)
        os._exit(0)
    except KeyboardInterrupt:
        os._exit(130)


def _listen(lines: TextIO, calls: "queue.SimpleQueue[str]") -> None:
    for line in lines:
        calls.put(line)
    calls.put("")
    os.kill(os.getpid(), signal.SIGINT)  # the parent is gone: save and stop


if __name__ == "__main__":
    main()
