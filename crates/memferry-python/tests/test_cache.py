"""Near copies of Python memory."""

import asyncio
import gc

import memferry
import numpy
import pytest

SIZE = 1 << 20


@pytest.fixture
def cache():
    machine = memferry.Machine.two_tiers()
    near = machine.nearest_faster(0)
    with memferry.Mover(machine) as mover, memferry.Cache(mover, {near: 8 * SIZE}) as cache:
        yield cache


def test_a_miss_becomes_a_hit(cache):
    data = numpy.random.default_rng(1).bytes(SIZE)
    region = cache.register(data, node=0)
    assert len(region) == SIZE
    first = cache.access(region, 0, SIZE // 2)
    node = first.ready().wait()
    assert node is not None
    second = cache.access(region, 0, SIZE // 2)
    assert second.node == node
    assert bytes(second) == data[: SIZE // 2]
    assert numpy.array_equal(numpy.frombuffer(second, "u1"), numpy.frombuffer(data, "u1")[: SIZE // 2])
    assert cache.stats()["submissions"] == 1


def test_await(cache):
    async def access():
        region = cache.register(bytes(SIZE), node=0)
        return await cache.access(region).ready()

    assert asyncio.run(access()) is not None


def test_entries_are_read_only_and_outlive_everything(cache):
    data = b"z" * SIZE
    region = cache.register(data, node=0)
    entry = cache.access(region)
    entry.ready().wait()
    view = memoryview(entry)
    source = memoryview(cache.access(cache.register(b"q" * SIZE, node=0)))
    with pytest.raises(TypeError):
        view[0] = 1
    cache.clear()
    cache.close()
    del entry, region, data
    gc.collect()
    assert view.tobytes() == b"z" * SIZE
    assert source.tobytes() == b"q" * SIZE


def test_invalidate_reads_the_source_again(cache):
    region = cache.register(bytes(SIZE), node=0)
    cache.access(region).ready().wait()
    assert cache.invalidate(region) == 1
    cache.access(region).ready().wait()
    assert cache.stats()["submissions"] == 2


def test_bad_arguments(cache):
    with pytest.raises(BufferError, match="writable"):
        cache.register(bytearray(8))
    region = cache.register(bytes(8))
    with pytest.raises(ValueError):
        cache.access(region, 0, 9)
    with pytest.raises(ValueError):
        cache.access(region, 5, 4)
    with pytest.raises(ValueError):
        cache.register(bytes(8), node=99)
    with pytest.raises(OverflowError):
        cache.access(region, -1)
    machine = memferry.Machine.two_tiers()
    other = memferry.Cache(memferry.Mover(machine), {1: SIZE})
    with pytest.raises(ValueError):
        other.access(region)
    cache.close()
    with pytest.raises(RuntimeError, match="the cache is closed"):
        cache.access(region)
