"""python -m tests.simulation.campaign --seeds 0-9999 --jobs 1 [--bug NAME | --bugs all] [--seed N --trace]"""

from tests.simulation.campaign.command import main

if __name__ == "__main__":
    raise SystemExit(main())
