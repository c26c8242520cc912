"""In-process parts for tests, simulator and demo; they ship with the product."""
