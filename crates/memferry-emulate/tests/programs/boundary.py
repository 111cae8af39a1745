"""Two users on one emulated machine: root uses a queue, and the user nobody attacks all writable memory of the emulation.

boundary.py ATTACK WAY: ATTACK is a function below, WAY is how root submits: `written` with write(2), or `mapped` with ENQCMD
to a mapped queue, which requires the preload library.
"""
import ctypes
import mmap
import os
import random
import signal
import socket
import sys
import time

PRIVATE = "/dev/.memferry"
PAGE = 4096
NOBODY = 65534
PATIENCE_S = 20


def address(memory, offset=0):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)) + offset


class Victim:
    """A process of root that copies a page. It also has a canary: a page that no descriptor names."""

    def __init__(self, way):
        self.data = mmap.mmap(-1, 4 * PAGE)
        self.source, self.target, self.canary, self.record = (address(self.data, n * PAGE) for n in range(4))
        self.data[:] = b"c" * len(self.data)  # makes all pages present
        self.way = way
        self.queue = os.open("/dev/dsa/wq0.0", os.O_RDWR)
        if way == "mapped":
            self.portal = mmap.mmap(self.queue, PAGE, mmap.MAP_SHARED, mmap.PROT_WRITE)
            # enqcmd rdi, [rsi]; setz al; movzx eax, al; ret
            self.code = mmap.mmap(-1, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            self.code[:12] = bytes.fromhex("f20f38f83e 0f94c0 0fb6c0 c3")
            self.enqcmd = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)(address(self.code))
            self.line = mmap.mmap(-1, PAGE)

    def submit(self, words):
        if self.way == "written":
            try:
                return os.write(self.queue, words) == 64
            except BlockingIOError:
                return False
        self.line[:64] = words
        return self.enqcmd(address(self.portal), address(self.line)) == 0

    def copy(self, value, patience_s=PATIENCE_S):
        """Copies a page; returns whether it completed in time."""
        end = time.monotonic() + patience_s
        self.data[:PAGE] = bytes([value]) * PAGE
        self.data[3 * PAGE:3 * PAGE + 32] = bytes(32)
        words = b"".join(
            number.to_bytes(size, "little")
            for number, size in
            [(0, 4), (0x0300_000c, 4), (self.record, 8), (self.source, 8), (self.target, 8), (PAGE, 4), (0, 28)]
        )
        while not self.submit(words):
            if time.monotonic() > end:
                return False
            time.sleep(0.0001)
        while self.data[3 * PAGE] == 0:
            if time.monotonic() > end:
                return False
        self.check()
        if self.data[3 * PAGE] != 1:
            return True  # an error, such as a page fault, is reported
        assert self.data[PAGE:2 * PAGE] == self.data[:PAGE], "the copy differs from its source"
        return True

    def check(self):
        assert self.data[2 * PAGE:3 * PAGE] == b"c" * PAGE, "the canary was overwritten, which no descriptor names"


def writable():
    """Returns all memory of the emulation that this process can write, with its files."""
    files = []
    for name in os.listdir(PRIVATE):
        path = os.path.join(PRIVATE, name)
        try:
            files.append(os.open(path, os.O_RDWR))
        except OSError:
            pass
        for request in [b"L", b"J", b"T"]:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
                    server.settimeout(5)
                    server.connect(path)
                    server.send(request)
                    files += socket.recv_fds(server, 4096, 8)[1]
            except OSError:
                pass
    found = []
    for file in files:
        try:
            found.append((file, mmap.mmap(file, 0)))
        except (OSError, ValueError):
            found.append((file, None))
    return found


def as_nobody(attack):
    """Runs `attack` in a child of the user nobody; returns its process number."""
    child = os.fork()
    if child:
        return child
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        attack()
        os._exit(0)
    except BaseException as error:
        print("the attack failed:", repr(error), file=sys.stderr)
        os._exit(1)


def replace_for_ever(before, after):
    """Replaces one byte string by another in all writable memory."""
    memories = [memory for _, memory in writable() if memory]
    known = []
    look = 0
    while True:
        if time.monotonic() > look:
            known = []
            for memory in memories:
                at = memory.find(before)
                while at >= 0 and len(known) < 1000:
                    known.append((memory, at))
                    at = memory.find(before, at + 1)
            look = time.monotonic() + 0.3
        for _ in range(50):
            for memory, at in known:
                if memory[at:at + len(before)] == before:
                    memory[at:at + len(after)] = after


def redirect(way):
    """Rewrites queued descriptors, so that copies of root go to another target."""
    victim = Victim(way)
    assert victim.copy(1)
    bytes_of = lambda number: number.to_bytes(8, "little")
    attacker = as_nobody(lambda: replace_for_ever(bytes_of(victim.target), bytes_of(victim.canary)))
    end = time.monotonic() + 4
    number = 0
    while time.monotonic() < end:
        number += 1
        assert victim.copy(number % 255, 5), "a descriptor was lost"
        time.sleep(0.0003)
    os.kill(attacker, signal.SIGKILL)
    print("done", number > 100)


def path(way):
    """Replaces the path of the trace, so that root creates another file."""
    before, after = (name.encode() for name in sys.argv[3:5])
    assert len(before) == len(after)
    attacker = as_nobody(lambda: replace_for_ever(before, after))
    time.sleep(1)
    victim = Victim(way)
    assert victim.copy(1)
    os.kill(attacker, signal.SIGKILL)
    assert not os.path.exists(after), "root created the file of the attacker"
    print("done", True)


def truncate(way):
    """Truncates shared memory while other processes use it."""
    victim = Victim(way)
    assert victim.copy(1)

    def attack():
        for file, memory in writable():
            for size in [1 << 40, 0]:
                try:
                    os.ftruncate(file, size)
                except OSError:
                    pass

    os.waitpid(as_nobody(attack), 0)
    assert victim.copy(2)
    print("done", True)


def garbage(way):
    """Writes random bytes to all writable memory. Copies of root may be late during the attack, and must not be after it."""
    victim = Victim(way)
    assert victim.copy(1)
    seed = random.randrange(1 << 32)
    print("seed", seed, file=sys.stderr)

    def attack():
        chance = random.Random(seed)
        memories = [memory for _, memory in writable() if memory]
        sizes = [1, 2, 8, 8, 8, 64, 4096]
        while True:
            for memory in memories:
                for _ in range(100):
                    size = chance.choice(sizes)
                    at = chance.randrange(min(len(memory), 1 << chance.randrange(12, 26))) // size * size
                    kind = chance.randrange(3)
                    value = [bytes(size), b"\xff" * size, chance.randbytes(size)][kind]
                    memory[at:at + size] = value[:len(memory) - at]

    attacker = as_nobody(attack)
    end = time.monotonic() + 4
    while time.monotonic() < end:
        if not victim.copy(2, 0.5):
            victim = Victim(way)  # the old victim keeps its memory, because its copy may still complete
            VICTIMS.append(victim)
    os.kill(attacker, signal.SIGKILL)
    os.waitpid(attacker, 0)
    end = time.monotonic() + PATIENCE_S
    while not victim.copy(3, 2):
        assert time.monotonic() < end, "the queue does not recover"
        VICTIMS.append(victim)
        victim = Victim(way)
    for old in VICTIMS:
        old.check()
    # The supervisor is alive and serves its files.
    assert open("/sys/bus/dsa/devices/dsa0/state").read() == "enabled\n"
    open("/sys/bus/dsa/devices/dsa0/errors").read()
    open("/sys/bus/dsa/devices/wq0.0/occupancy").read()
    print("done", True)


VICTIMS = []

globals()[sys.argv[1]](sys.argv[2])
