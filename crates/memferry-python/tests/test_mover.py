"""Copies of Python memory."""

import asyncio
import multiprocessing
import threading
import time

import memferry
import numpy
import pytest


@pytest.fixture
def mover():
    with memferry.Mover(memferry.Machine.two_tiers()) as mover:
        yield mover


@pytest.mark.parametrize("size", [0, 1, 63, 4096, 4097, (8 << 20) + 1])
def test_copies_any_size(mover, size):
    source = numpy.random.default_rng(size).bytes(size)
    target = bytearray(size)
    assert mover.copy(source, target).wait() == size
    assert target == source


def test_copies_arrays_of_numpy(mover):
    source = numpy.arange(1 << 16, dtype=numpy.float64).reshape(256, 256)
    target = numpy.zeros_like(source)
    assert mover.copy(source, target, source_node=0, target_node=1).wait() == source.nbytes
    assert (target == source).all()
    assert mover.stats()["bytes"] >= source.nbytes


def test_await(mover):
    async def copy_all():
        targets = [bytearray(1 << 20) for _ in range(8)]
        sources = [bytes([index]) * (1 << 20) for index in range(8)]
        copies = [mover.copy(*pair) for pair in zip(sources, targets)]
        results = await asyncio.gather(*copies)
        assert results == [1 << 20] * 8
        assert targets == sources
        # Again, when they are done.
        assert await copies[0] == 1 << 20

    asyncio.run(copy_all())


def test_an_await_that_is_cancelled_leaves_the_copy_alone(mover):
    async def cancel():
        source, target = bytes(b"x" * (64 << 20)), bytearray(64 << 20)
        transfer = mover.copy(source, target)

        async def wait():
            return await transfer

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await transfer == len(source)
        assert target == source

    asyncio.run(cancel())


def test_awaits_outside_of_a_loop_are_refused(mover):
    with pytest.raises(RuntimeError, match="no running event loop"):
        mover.copy(b"a", bytearray(1)).__await__()


def test_a_target_cannot_be_resized_while_it_is_copied(mover):
    # Behind other copies, so that it is in flight for a while.
    size = 64 << 20
    source, target = bytes(size), bytearray(size)
    before = [mover.copy(source, bytearray(size)) for _ in range(4)]
    copy = mover.copy(source, target)
    assert not copy.done()
    with pytest.raises(BufferError):
        target.append(0)
    copy.wait()
    target.append(0)
    for other in before:
        other.wait()


def test_a_dropped_transfer_keeps_its_buffers_to_the_end(mover):
    size = 64 << 20
    source, target = bytearray(b"y" * size), bytearray(size)
    # Behind other copies, so that it is in flight for a while.
    before = [mover.copy(source, bytearray(size)) for _ in range(4)]
    mover.copy(source, target)
    with pytest.raises(BufferError):
        target.append(0)
    for other in before:
        other.wait()
    deadline = time.monotonic() + 30
    while True:
        try:
            target.append(0)
            break
        except BufferError:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert target[:-1] == source


def turns_during(work):
    """Turns of another thread of the interpreter while `work` is called."""
    turns = 0
    ended = threading.Event()

    def count():
        nonlocal turns
        while not ended.is_set():
            turns += 1
            time.sleep(0.0001)

    thread = threading.Thread(target=count)
    thread.start()
    before = turns
    try:
        work()
        return turns - before
    finally:
        ended.set()
        thread.join()


def test_waits_without_the_interpreter(mover):
    source, target = bytes(256 << 20), bytearray(256 << 20)
    assert turns_during(lambda: mover.copy(source, target).wait()) > 3


@pytest.mark.parametrize(
    "source, target, error, message",
    [
        (b"ab", b"ab", BufferError, "target is read-only"),
        (b"ab", bytearray(3), ValueError, "2 bytes and the target 3"),
        (numpy.zeros(8)[::2], bytearray(32), BufferError, "source is not contiguous"),
        (bytes(32), numpy.zeros(8)[::2], BufferError, "target is not contiguous"),
        (1, bytearray(8), TypeError, "bytes-like"),
    ],
)
def test_bad_buffers(mover, source, target, error, message):
    with pytest.raises(error, match=message):
        mover.copy(source, target)
    if isinstance(target, bytearray):
        # Nothing of it is exported any more.
        target.append(0)


def test_overlaps_are_refused(mover):
    memory = bytearray(100)
    with pytest.raises(ValueError, match="overlap"):
        mover.copy(memoryview(memory)[:60], memoryview(memory)[40:])
    mover.copy(memoryview(memory)[:50], memoryview(memory)[50:]).wait()


def test_unknown_nodes(mover):
    with pytest.raises(ValueError, match="7"):
        mover.copy(b"a", bytearray(1), target_node=7)


def test_use_after_close(mover):
    mover.close()
    mover.close()
    with pytest.raises(RuntimeError, match="the mover is closed"):
        mover.copy(b"a", bytearray(1))


def copy_in_child(mover, results):
    try:
        results.put(mover.copy(b"a" * (1 << 20), bytearray(1 << 20)).wait())
    except memferry.MemferryError as error:
        results.put(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told(mover):
    """Its engines are in the parent: copies end with an error instead of never."""
    mover.copy(b"a" * (1 << 20), bytearray(1 << 20)).wait()
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    child = fork.Process(target=copy_in_child, args=(mover, results))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    result = results.get()
    assert result == 1 << 20 or "fork" in result


def use_in_child(transfer, results):
    for use in [transfer.done, transfer.wait, transfer.__await__]:
        try:
            use()
            results.put("no error")
        except memferry.MemferryError as error:
            results.put(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("ended", [False, True])
def test_a_forked_child_does_not_touch_transfers_of_its_parent(mover, ended):
    """An engine may have held the lock of the transfer at the fork; in the child nobody releases it."""
    transfer = mover.copy(bytes(1 << 20), bytearray(1 << 20))
    if ended:
        transfer.wait()
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    child = fork.Process(target=use_in_child, args=(transfer, results))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    for _ in range(3):
        assert "belongs to the parent" in results.get()
    assert transfer.wait() == 1 << 20


def test_the_last_mover_is_dropped_without_the_interpreter():
    """A drop waits for the threads of the engines, and thus for copies in flight."""
    mover = memferry.Mover(memferry.Machine.two_tiers(), cpu_workers=1)
    source, target = bytes(256 << 20), bytearray(256 << 20)
    transfer = mover.copy(source, target)
    movers = [mover]
    del mover
    assert turns_during(movers.clear) > 3
    # The drop did wait.
    assert transfer.done()


def test_machines():
    machine = memferry.Machine.from_profile("xeon-max-9468-2s-flat")
    assert "HBM" in {node.tier for node in machine.nodes}
    assert machine.nearest_faster(0) is not None
    assert memferry.Machine.discover().nodes
    with pytest.raises(ValueError, match="nowhere"):
        memferry.Machine.from_profile("nowhere")
    with pytest.raises(ValueError, match="99"):
        machine.nearest_faster(99)
