"""memferry moves data between memory tiers: copies, a cache, and SQL that prefetches."""

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
]

# The session of `sql` without tables, and the process that made it.
_default = None


def sql(query, tables=None):
    """Runs a statement and returns its rows. `tables` maps names to tables or paths of files, as `Session.register` takes."""
    global _default
    if tables:
        session = Session()
        for name, table in tables.items():
            session.register(name, table)
        return session.sql(query)
    if _default is None or _default[0] != _os.getpid():
        _default = (_os.getpid(), Session())
    return _default[1].sql(query)
