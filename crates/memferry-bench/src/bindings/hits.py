# Hits and queries of the Python package. A line on standard input asks for a round; its answer is the time of one call.
import random
import sys
import time

import memferry

keys_count, block_bytes, hits_count, seed = map(int, sys.argv[1:5])
machine = memferry.Machine.two_tiers()
near = machine.nearest_faster(0)
mover = memferry.Mover(machine)
cache = memferry.Cache(mover, {near: 2 * keys_count * block_bytes})
region = cache.register(bytes(keys_count * block_bytes), node=0, chunk_bytes=block_bytes)
for key in range(keys_count):
    if cache.access(region, key * block_bytes, (key + 1) * block_bytes).ready().wait() != near:
        sys.exit(f"block {key} was not copied")
generator = random.Random(seed)
keys = [generator.randrange(keys_count) * block_bytes for _ in range(hits_count)]
ends = [key + block_bytes for key in keys]


def hits():
    access = cache.access
    ready_before = cache.stats()["hits_ready"]
    start = time.perf_counter_ns()
    for key, end in zip(keys, ends):
        access(region, key, end)
    time_ns = (time.perf_counter_ns() - start) / hits_count
    ready = cache.stats()["hits_ready"] - ready_before
    if ready != hits_count:
        sys.exit(f"{ready} of {hits_count} accesses were hits")
    return time_ns


def query(text):
    start = time.perf_counter_ns()
    memferry.sql(text)
    return time.perf_counter_ns() - start


for line in sys.stdin:
    asked = line.strip()
    print(query(asked) if asked else hits(), flush=True)
