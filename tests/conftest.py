"""Fixtures that every test may ask for."""

pytest_plugins = ["tests.support.chdb", "tests.support.lives", "tests.support.nats"]
