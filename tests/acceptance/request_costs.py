"""The processor time of a copy's requests alone, when one, two or three processes make them: a floor for node_costs.py.

``PYTHONPATH=tests/acceptance:tests python request_costs.py PROCESSES,…`` puts items into a bucket of Swift, and starts
for each number of PROCESSES, such as ``1,2,3,3,2,1``, so many that copy them to another bucket: HEAD and GET of the
item, its SHA-256, PUT and HEAD of the copy, with our client of S3 and nothing else. Threads, cores, the size of the
items and what is left out of the time are those of ``node_costs.py``. A line of JSON is printed for each run, and last
the medians, in µs an item, and their ratios to those with one process.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from millstream.stores.s3 import connect, parse_address
from millstream.testing import services
from millstream.testing.s3 import S3Server

ITEMS, FIRST, THREADS = 3_000, 200, 6
_CORES = sorted(os.sched_getaffinity(0))


def copy(source: str, target: str, parts: int, core: int, part: int) -> None:
    """Copy every item of this *part* on *core*, when a line comes, and print the processor time in seconds."""
    os.sched_setaffinity(0, [core])
    start, end = parse_address(source), parse_address(target)
    reader, writer = connect(start), connect(end)

    def copy_one(number: int) -> None:
        item = {"Bucket": start.bucket, "Key": f"{start.prefix}{number}"}
        reader.head_object(**item)
        content = reader.get_object(**item)["Body"].read()
        made = {"Bucket": end.bucket, "Key": f"{end.prefix}{number}"}
        writer.put_object(**made, Body=content, Metadata={"sha256": hashlib.sha256(content).hexdigest()})
        writer.head_object(**made)

    with ThreadPoolExecutor(THREADS // parts) as threads:
        _all(threads, copy_one, range(part, FIRST, parts))
        print("ready", flush=True)
        sys.stdin.readline()
        before = time.process_time()
        _all(threads, copy_one, range(part, ITEMS, parts))
        print(time.process_time() - before, flush=True)


def _all(threads: ThreadPoolExecutor, work: Callable[[int], None], numbers: Iterable[int]) -> None:
    for _ in threads.map(work, numbers):
        pass


def measure(source: str, target: str, count: int) -> float:
    """The processor time of a copy in µs, made by *count* processes."""
    command = [sys.executable, __file__, "copy", source, target, str(count), str(_CORES[-1])]
    children = [
        subprocess.Popen([*command, str(part)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for part in range(count)
    ]
    lines = [child.stdout for child in children if child.stdout]
    assert all(line.readline() == "ready\n" for line in lines)
    for child in children:
        assert child.stdin
        child.stdin.write("go\n")
        child.stdin.flush()
    taken = sum(float(line.readline()) for line in lines)
    assert not any(child.wait() for child in children)
    return round(1e6 * taken / ITEMS, 1)


def main(counts: str) -> None:
    """Measure, and print the figures and their ratios."""
    os.sched_setaffinity(0, _CORES[:-1])  # this process and the server
    found = dict[int, list[float]]()
    with services.private("swift") as server:
        buckets = S3Server(server.url)
        source, target = buckets.new_url(), buckets.new_url()
        place = parse_address(source)
        for number in range(ITEMS):
            buckets.client.put_object(Bucket=place.bucket, Key=f"{place.prefix}{number}", Body=b"%06d" % number * 300)
        for count in map(int, counts.split(",")):
            found.setdefault(count, []).append(measure(source, target, count))
            print(json.dumps({"processes": count, "copy": found[count][-1]}), flush=True)
    medians = {count: statistics.median(times) for count, times in sorted(found.items())}
    print({count: (time, round(time / medians[min(medians)], 2)) for count, time in medians.items()})


if __name__ == "__main__":
    if sys.argv[1] == "copy":
        copy(*sys.argv[2:4], *map(int, sys.argv[4:]))
    else:
        main(sys.argv[1])
