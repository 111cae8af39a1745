//! Queries on several machines, and a server for any client of Arrow Flight SQL.
