"""Answers queries over Parquet files with another engine: one JSON object per line in, one out.

Started by `memferry bench cold --peers PYTHON` as: python -c SCRIPT ENGINE DIRECTORY THREADS files
With `memory` instead of `files` (`memferry bench query --peers PYTHON`), the engine first loads the files into tables of its own.
"""

import glob
import json
import os
import sys
import time

engine, directory, threads, source = sys.argv[1:5]
# Engines write there as well: DuckDB a progress bar, after two seconds.
answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
settle = lambda: None
tables = {os.path.basename(path)[: -len(".parquet")]: path for path in glob.glob(directory + "/*.parquet")}

if engine == "duckdb":
    import duckdb

    connection = duckdb.connect(config={"threads": threads})
    # A cold run must read the file: DuckDB keeps its bytes in memory otherwise.
    connection.execute("set enable_external_file_cache = false")
    for name, path in tables.items():
        kind = "table" if source == "memory" else "view"
        connection.execute(f"create {kind} {name} as select * from read_parquet('{path}')")
    version = duckdb.__version__

    def run(sql):
        return len(connection.execute(sql).fetchall())

elif engine == "polars":
    os.environ["POLARS_MAX_THREADS"] = threads
    import polars

    version = polars.__version__
    if source == "memory":
        loaded = {name: polars.read_parquet(path).lazy() for name, path in tables.items()}

    def run(sql):
        if source == "memory":
            frames = loaded
        else:
            frames = {name: polars.scan_parquet(path) for name, path in tables.items()}
        return polars.SQLContext(frames).execute(sql).collect(engine="streaming").height

elif engine == "pyarrow":
    import pyarrow
    import pyarrow.parquet

    pyarrow.set_cpu_count(int(threads))
    version = pyarrow.__version__

    def run(table):
        return pyarrow.parquet.read_table(tables[table]).num_rows

    def settle():
        # memferry returns the memory of a dropped table to the kernel, too.
        pyarrow.default_memory_pool().release_unused()

else:
    sys.exit(f"no engine is called {engine}")


def answer(value):
    print(json.dumps(value), file=answers, flush=True)


answer({"version": version})
for line in sys.stdin:
    try:
        started = time.perf_counter()
        rows = run(json.loads(line)["sql"])
        answer({"ms": (time.perf_counter() - started) * 1e3, "rows": rows})
    except Exception as error:  # the engine's own errors have no common type
        answer({"error": " ".join(str(error).split())[:300]})
    settle()
