"""Queries, and tables of other packages."""

import _thread
import asyncio
import datafusion
import multiprocessing
import signal
import threading
import time

import memferry
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest

ROWS = 100_000


@pytest.fixture
def rows():
    return pyarrow.table({"a": range(ROWS), "b": [index % 7 for index in range(ROWS)]})


@pytest.fixture
def session():
    with memferry.Session(memferry.Machine.two_tiers(), budget_bytes=64 << 20) as session:
        yield session


def test_select_1():
    table = memferry.sql("select 1 as one")
    assert table.column_names == ["one"]
    assert len(table) == table.num_rows == table.num_columns == 1
    assert "| one |" in repr(table)
    assert table.to_arrow().to_pydict() == {"one": [1]}


def test_results_go_to_other_packages(rows):
    query = "select b, count(*) as n from t group by b order by b"
    table = memferry.sql(query, tables={"t": rows})
    expected = rows.group_by("b").aggregate([([], "count_all")]).sort_by("b").to_pydict()
    assert table.to_arrow().to_pydict() == {"b": expected["b"], "n": expected["count_all"]}
    assert isinstance(table.to_pandas(), pandas.DataFrame)
    assert table.to_pandas()["n"].tolist() == expected["count_all"]
    assert polars.DataFrame(table).equals(table.to_polars())
    assert table.to_polars()["n"].to_list() == expected["count_all"]


@pytest.mark.parametrize("convert", [lambda it: it, polars.from_arrow, lambda it: it.to_pandas()])
def test_tables_of_other_packages(rows, convert):
    result = memferry.sql("select sum(a) as s from t where b = 3", tables={"t": convert(rows)})
    assert result.to_arrow()["s"][0].as_py() == sum(a for a in range(ROWS) if a % 7 == 3)


def test_rows_are_not_copied(rows):
    """The addresses of the buffers are those of the table that was passed."""
    result = memferry.sql("select a from t", tables={"t": rows}).to_arrow()
    assert result["a"].chunk(0).buffers()[1].address == rows["a"].chunk(0).buffers()[1].address


def test_empty_results_have_a_schema(rows):
    result = memferry.sql("select a from t where a < 0", tables={"t": rows})
    assert result.num_rows == 0
    assert result.to_arrow().schema.names == ["a"]
    assert "a" in repr(result)


def test_only_some_rows_are_shown(rows):
    assert f"the first 20 of {ROWS} rows" in repr(memferry.sql("select * from t", tables={"t": rows}))


def test_load(session, rows):
    session.register("t", rows)
    session.load("t", ["b", "a"])
    for prefetch in ["always", "off", "auto"]:
        session.sql(f"set memferry.prefetch = '{prefetch}'")
        assert session.sql("select sum(a) as s from t where b < 3").to_arrow()["s"][0].as_py() == sum(
            a for a in range(ROWS) if a % 7 < 3
        )
    with pytest.raises(ValueError, match="run DROP TABLE t and register it again"):
        session.load("t")
    session.sql("DROP TABLE t")
    session.register("t", rows)
    session.load("t")


def test_files(session, rows, tmp_path):
    pyarrow.parquet.write_table(rows, tmp_path / "rows.parquet")
    session.register("t", tmp_path / "rows.parquet")
    assert session.sql("select count(*) as n from t").to_arrow()["n"][0].as_py() == ROWS
    session.load("t")
    assert session.sql("select max(a) as m from t").to_arrow()["m"][0].as_py() == ROWS - 1


def test_errors(session, tmp_path):
    with pytest.raises(memferry.MemferryError, match="nothing"):
        session.sql("select * from nothing")
    with pytest.raises(memferry.MemferryError, match="absent.parquet"):
        session.register("t", tmp_path / "absent.parquet")
    with pytest.raises(TypeError, match="__arrow_c_stream__"):
        session.register("t", 5)
    with pytest.raises(memferry.MemferryError):
        session.load("nothing")
    session.close()
    with pytest.raises(RuntimeError, match="the session is closed"):
        session.sql("select 1")


FOREVER = "select count(*) from range(1, 1000000000) a, range(1, 1000000000) b where a.value * b.value = 7"


def test_ctrl_c_cancels(session):
    # Shells let programs in the background ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, _thread.interrupt_main).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        session.sql(FOREVER)
    assert time.monotonic() - started < 5
    assert session.sql("select 1").num_rows == 1


def test_queries_of_asyncio(session, rows):
    session.register("t", rows)

    async def run():
        tables = await asyncio.gather(
            *(asyncio.create_task(session.sql_async(f"select sum(a) as s from t where b = {b}")) for b in range(7)),
            memferry.sql_async("select 1 as s"),
            memferry.sql_async("select sum(a) as s from u", tables={"u": rows}),
        )
        with pytest.raises(memferry.MemferryError, match="nothing"):
            await session.sql_async("select * from nothing")
        return [table.to_arrow()["s"][0].as_py() for table in tables]

    sums = [sum(a for a in range(ROWS) if a % 7 == b) for b in range(7)]
    assert asyncio.run(run()) == [*sums, 1, sum(range(ROWS))]
    session.close()
    with pytest.raises(RuntimeError, match="the session is closed"):
        asyncio.run(session.sql_async("select 1"))


def test_other_tasks_run_during_a_query_and_its_cancellation_ends_it(session):
    """The query holds its session's context; only its end frees it, and the table with it."""

    class Rows:
        def __init__(self, rows):
            self.rows = rows

        def __arrow_c_stream__(self, requested_schema=None):
            return self.rows.__arrow_c_stream__(requested_schema)

    memory = bytearray(8)
    array = pyarrow.Array.from_buffers(pyarrow.int64(), 1, [None, pyarrow.py_buffer(memory)])
    session.register("t", Rows(pyarrow.table({"a": array})))
    del array

    async def cancel():
        query = asyncio.create_task(session.sql_async(f"select x.n from t, ({FOREVER.replace('count(*)', 'count(*) as n')}) x"))
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not query.done()
        query.cancel()
        with pytest.raises(asyncio.CancelledError):
            await query
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.05):
                await session.sql_async(FOREVER)
        assert (await session.sql_async("select 1")).num_rows == 1

    asyncio.run(cancel())
    with pytest.raises(BufferError):
        memory.append(0)
    session.close()
    deadline = time.monotonic() + 30
    while True:
        try:
            memory.append(0)
            break
        except BufferError:
            assert time.monotonic() < deadline, "the query still runs"
            time.sleep(0.001)


class Raises:
    """A producer whose every part may raise."""

    def __init__(self, part):
        self.part = part

    @property
    def __arrow_c_stream__(self):
        if self.part == "property":
            raise LookupError("boom")

        def export(requested_schema=None):
            if self.part == "call":
                raise LookupError("boom")
            schema = pyarrow.schema([("a", pyarrow.int64())])
            return pyarrow.RecordBatchReader.from_batches(schema, self.batches()).__arrow_c_stream__()

        return export

    def batches(self):
        yield pyarrow.record_batch({"a": [1]})
        raise LookupError("boom")


class RaisesAsPath:
    def __fspath__(self):
        raise LookupError("boom")


@pytest.mark.parametrize("table", [Raises("property"), Raises("call"), RaisesAsPath()])
def test_exceptions_of_producers_reach_the_caller(session, table):
    with pytest.raises(LookupError, match="boom"):
        session.register("t", table)


def test_exceptions_in_batches_reach_the_caller_as_text(session):
    """Arrow's stream interface has no exceptions."""
    with pytest.raises(memferry.MemferryError, match="(?s)cannot read the rows of .*Raises.*boom"):
        session.register("t", Raises("batches"))
    with pytest.raises(memferry.MemferryError, match="t"):
        session.sql("select * from t")


def query_in_child(results):
    try:
        memferry.sql("select 1")
        results.put("it ran")
    except RuntimeError as error:
        results.put(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method, result", [("fork", "forked"), ("spawn", "it ran")])
def test_processes(method, result):
    memferry.sql("select 1")
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    child = context.Process(target=query_in_child, args=(results,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert result in results.get()


def test_tables_register_in_datafusion(session, rows):
    session.register("t", rows)
    session.load("t")
    context = datafusion.SessionContext()
    context.register_table("ours", session.table("t"))
    found = context.sql("select sum(a) as s from ours where b < 3").to_arrow_table()
    assert found["s"][0].as_py() == sum(a for a in range(ROWS) if a % 7 < 3)


def test_another_version_of_datafusion_is_refused(session, rows, monkeypatch):
    session.register("t", rows)
    monkeypatch.setattr(datafusion, "__version__", "54.1.0")
    with pytest.raises(ImportError, match="datafusion 54.1.0 is installed.*version 55"):
        session.table("t").__datafusion_table_provider__(datafusion.SessionContext())
