"""Ctrl-C, as a terminal sends it: SIGINT to the process."""

import signal
import subprocess
import sys

import pytest

# The copies take minutes, and the query years: neither ends by itself while the test runs.
TRANSFER = """
import os, memferry
mover = memferry.Mover(memferry.Machine.two_tiers(), cpu_workers=1)
source, target = bytes(64 << 20), bytearray(64 << 20)
transfers = [mover.copy(source, target) for _ in range(20_000)]
try:
    print("waits", flush=True)
    transfers[-1].wait()
    print("ended", flush=True)
except KeyboardInterrupt:
    print("interrupted, done:", transfers[-1].done(), flush=True)
# Does not wait for the copies.
os._exit(0)
"""

QUERY = """
import memferry
session = memferry.Session(memferry.Machine.two_tiers())
query = "select count(*) from range(1, 1000000000) a, range(1, 1000000000) b where a.value * b.value = 7"
session.sql("select 1")
try:
    print("waits", flush=True)
    session.sql(query)
    print("ended", flush=True)
except KeyboardInterrupt:
    print("interrupted, then:", session.sql("select 1").num_rows, flush=True)
"""


def sleeps(process):
    """Whether the main thread sleeps, which it does in `wait` and `sql` only."""
    with open(f"/proc/{process.pid}/task/{process.pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize(
    "program, answer",
    [(TRANSFER, "interrupted, done: False\n"), (QUERY, "interrupted, then: 1\n")],
    ids=["transfer", "query"],
)
def test_sigint(program, answer):
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "waits\n"
            while not sleeps(process):
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == (answer, None)
            assert process.returncode == 0
        finally:
            process.kill()
