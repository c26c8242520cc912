"""What was: gathers stored messages for a question about history, from ClickHouse or from the streams.

The projector answers from both over HTTP; the command line asks the streams by itself where the projector is away.
"""
