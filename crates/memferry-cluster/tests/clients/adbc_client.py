"""A client of `memferry serve` by ADBC. The test clients.rs starts it: adbc_client.py URI CERTIFICATE USER PASSWORD ROWS."""

import sys
import threading
import time

import adbc_driver_flightsql.dbapi as flight_sql
from adbc_driver_flightsql import DatabaseOptions


def refused(work, text):
    """Does work, whose error must say text."""
    try:
        work()
    except Exception as error:
        assert text in str(error), f"{text!r} is not in {error}"
        return
    raise AssertionError(f"it succeeded, and should have said {text!r}")


def connect(uri, certificate, user, password):
    with open(certificate) as file:
        options = {"username": user, "password": password, DatabaseOptions.TLS_ROOT_CERTS.value: file.read()}
    return flight_sql.connect(uri, db_kwargs=options, autocommit=True)


uri, certificate, user, password, rows_count = sys.argv[1:]
rows_count = int(rows_count)

with connect(uri, certificate, user, password) as connection, connection.cursor() as cursor:
    # Rows, and a table of Arrow.
    cursor.execute("select count(*) as n, min(name) as least from t")
    assert cursor.fetchall() == [(rows_count, "name 0")]
    cursor.execute("select v, name from t order by v")
    table = cursor.fetch_arrow_table()
    assert table.num_rows == rows_count and table.column("v").to_pylist()[:3] == [0, 1, 2]
    # Prepared statements, with one row of parameters.
    for most, expected in [(10, 10), (0, 0), (25, 25)]:
        cursor.execute("select count(*) from t where v < ? and name like ?", (most, "name%"))
        assert cursor.fetchone() == (expected,), most
    # Metadata.
    info = connection.adbc_get_info()
    assert info["vendor_name"] == "memferry", info
    assert "BASE TABLE" in connection.adbc_get_table_types()
    schema = connection.adbc_get_table_schema("t")
    assert schema.names == ["v", "name"], schema
    objects = connection.adbc_get_objects(depth="all", table_name_filter="t").read_all().to_pylist()
    tables = [
        table
        for catalog in objects
        for schema in catalog["catalog_db_schemas"]
        for table in schema["db_schema_tables"]
    ]
    assert [column["column_name"] for column in tables[0]["table_columns"]] == ["v", "name"], tables
    # Errors say what is wrong.
    refused(lambda: cursor.execute("selec 1"), "cannot parse the statement")
    refused(lambda: cursor.execute("drop table t"), "only reads")
    # A query that is cancelled by another thread.
    cursor.execute("select a.v, b.name from t a, t b where a.v + b.v >= 0")
    reader = cursor.fetch_record_batch()
    reader.read_next_batch()
    threading.Timer(0.2, cursor.adbc_cancel).start()
    started = time.monotonic()

    def drain():
        for _ in reader:
            pass

    refused(drain, "ancel")
    assert time.monotonic() - started < 30

# A connection of its own for each wrong login.
refused(lambda: connect(uri, certificate, user, "wrong"), "user or password is wrong")
refused(lambda: flight_sql.connect(uri.replace("grpc+tls", "grpc")).cursor().execute("select 1"), "")
with connect(uri, certificate, user, password) as connection, connection.cursor() as cursor:
    cursor.execute("select 1")
    assert cursor.fetchall() == [(1,)]
print("adbc: ok")
