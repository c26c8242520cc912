"""ClickHouse through clickhouse-connect: embedded (chDB) or a server, one code path."""
