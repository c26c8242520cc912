"""The projector process."""
