"""Writes the Parquet files of this directory with pyarrow: `pip install pyarrow && python make.py`.

Row `i` of types.parquet is what tests/tables.rs (`row_of_another_writer`) says it is.
"""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 1000


def column(type, value, null=lambda i: i % 7 == 0):
    return pa.array([None if null(i) else value(i) for i in range(ROWS)], type=type)


never = lambda i: False
table = pa.table(
    {
        "id": column(pa.int64(), lambda i: i, never),
        "flag": column(pa.bool_(), lambda i: i % 3 == 0),
        "tiny": column(pa.int8(), lambda i: i % 100),
        "real": column(pa.float64(), lambda i: i / 4),
        "price": column(pa.decimal128(12, 2), lambda i: Decimal(i) / 100),
        "day": column(pa.date32(), lambda i: dt.date(2000, 1, 1) + dt.timedelta(days=i)),
        "at": column(pa.timestamp("us", tz="UTC"), lambda i: dt.datetime.fromtimestamp(i, dt.timezone.utc)),
        "short": column(pa.string(), lambda i: f"s{i}"),
        "long": column(pa.large_string(), lambda i: f"a string of more than twelve bytes, {i}"),
        "bytes": column(pa.binary(), lambda i: bytes([i % 256] * (i % 20))),
        "mode": column(pa.dictionary(pa.int32(), pa.string()), lambda i: ["AIR", "RAIL", "TRUCK"][i % 3]),
        "list": column(pa.list_(pa.int32()), lambda i: list(range(i % 5))),
        "pair": column(pa.struct({"x": pa.int32(), "y": pa.string()}), lambda i: {"x": i, "y": str(i)}),
        "map": column(pa.map_(pa.string(), pa.int64()), lambda i: [("k", i)]),
        "none": column(pa.null(), lambda i: None, never),
    }
)
pq.write_table(table, "types.parquet", row_group_size=300, compression="snappy")
pq.write_table(table.select(["id"]).slice(0, 10), "brotli.parquet", compression="brotli")
