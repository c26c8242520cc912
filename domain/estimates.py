"""How long what runs will still take, from what a job takes on average. Integers only."""


def scaled_us(job_us: int, mean_work: int, work: int) -> int:
    """Return the time for `work` if `job_us` is the time for `mean_work`; `job_us` itself where either work is unknown."""
    return job_us * work // mean_work if mean_work > 0 and work > 0 else job_us


def rest_us(expected_us: int, elapsed_us: int) -> int:
    """Return what is left of a job: never nothing, for one that takes longer than expected has not ended yet.

    At least a tenth of what was expected, and past three times that, three tenths of what it has taken.
    """
    overdue_us = expected_us // 10 if elapsed_us < 3 * expected_us else elapsed_us * 3 // 10
    return max(expected_us - elapsed_us, overdue_us)
