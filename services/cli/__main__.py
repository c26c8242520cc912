"""`python -m services.cli`: how a supervised process starts, so that it needs no PATH."""

import sys

from services.cli.main import main

sys.exit(main())
