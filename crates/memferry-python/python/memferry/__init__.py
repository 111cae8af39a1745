"""memferry moves data between memory tiers: copies, a cache, and SQL that prefetches."""

import asyncio as _asyncio
import os as _os

from ._memferry import (
    Cache,
    Entry,
    Machine,
    MemferryError,
    Mover,
    Node,
    Region,
    Session,
    Table,
    TableProvider,
    Transfer,
)

__all__ = [
    "Cache",
    "Entry",
    "Machine",
    "MemferryError",
    "Mover",
    "Node",
    "Region",
    "Session",
    "Table",
    "TableProvider",
    "Transfer",
    "sql",
    "sql_async",
]

# The session of `sql` without tables, and the process that made it.
_default = None


def _session(tables):
    global _default
    if tables:
        session = Session()
        for name, table in tables.items():
            session.register(name, table)
        return session
    if _default is None or _default[0] != _os.getpid():
        _default = (_os.getpid(), Session())
    return _default[1]


def sql(query, tables=None):
    """Runs a statement and returns its rows. `tables` maps names to tables or paths of files, as `Session.register` takes."""
    return _session(tables).sql(query)


async def sql_async(query, tables=None):
    """Like `sql`, for asyncio: other tasks run meanwhile, and the end of the task cancels the statement."""
    # Producers of tables may be slow.
    session = await _asyncio.to_thread(_session, tables) if tables else _session(None)
    return await session.sql_async(query)
