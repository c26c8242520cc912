"""The rules, as values and pure functions: no I/O, no clock, no dice, no logging, no asyncio."""
