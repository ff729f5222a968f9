"""A subscriber in a process of its own: `python wire_reader.py address stream first`.

It reads until it has `first` tuples, says so, and reads on to the end of the stream when a line comes in.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from borealis.wire.client import Peer
from borealis.wire.messages import Subscribe


def say(**facts: int) -> None:
    status = Path("/proc/self/status").read_text()
    found = dict(line.split(":", 1) for line in status.splitlines())
    more = {"rss_bytes": int(found["VmRSS"].split()[0]) << 10, "pandas": int("pandas" in sys.modules)}
    print(json.dumps(facts | more), flush=True)


def main(address: str, stream: str, first: int) -> None:
    with Peer(address) as peer, peer.subscribe(Subscribe(stream=stream)) as subscription:
        rows, at, paused = 0, subscription.next_id, False
        if not first:
            say(rows=0, lost=0)
            sys.stdin.readline()
        for section in subscription:
            assert section.rows.column("x")[0].as_py() == section.first if len(section) else True
            assert section.first >= at
            at = section.stop
            rows += len(section)
            if first and not paused and rows >= first:
                paused = True
                say(rows=rows, lost=subscription.lost)
                sys.stdin.readline()
                say(rows=rows, lost=subscription.lost)
        say(rows=rows, lost=subscription.lost)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
