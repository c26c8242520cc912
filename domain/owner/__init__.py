"""An owner's queue: hold, top up, lend."""
