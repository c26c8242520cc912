"""Events to rows, pure; the tables' SQL."""
