"""Prices from samples: what counts, how long, for which work, and how far one run may move them."""

import random

import msgspec
import pytest

from domain import fixed
from domain.control.settings import SETTINGS
from domain.master.fits import WINDOW, Fit, FitRules, Price, cost_us, price, rules_of, unit_q64

DAY_US = 86_400_000_000
SECOND_US = 1_000_000
JOB = 100_000_000
RULES = FitRules(window_us=DAY_US)
TEXT = FitRules(window_us=DAY_US, estimated=True)
HARD = FitRules(window_us=DAY_US, min_samples=3, hard_switch=True)


def fit_of(*seconds, work=JOB, at_us=0):
    fit = Fit()
    for each in seconds:
        fit.learn(work, round(each * SECOND_US), at_us)
    return fit


def seconds(fit, prior=None, rules=RULES, *, now_us=0, work=JOB):
    """The predicted seconds of a job; None if it has no price."""
    found = price(fit, prior, rules, now_us, work)
    return cost_us(unit_q64(found.log), work) / SECOND_US if found is not None else None


def priced(fit, prior, rules=RULES, *, now_us=0, work=JOB) -> Price:
    """The price of a job that has one."""
    found = price(fit, prior, rules, now_us, work)
    assert found is not None
    return found


def lognormal(rng, count, mean, cv):
    """Durations of equal work: `cv` is their deviation in means."""
    sigma = (fixed.ln_q32(round((1 + cv * cv) * 1000), 1000) / fixed.ONE) ** 0.5
    scale = mean / (1 + cv * cv) ** 0.5
    return [scale * rng.lognormvariate(0, sigma) for _ in range(count)]


def test_a_model_that_was_never_measured_has_no_price_rather_than_a_price_of_nothing():
    assert price(None, None, RULES, 0, JOB) is None
    assert price(Fit(), Fit(), RULES, 0, JOB) is None
    assert Fit().load_us(0, DAY_US) is None


def test_runs_without_work_or_time_teach_nothing():
    fit = Fit()
    fit.learn(0, SECOND_US, 0)
    fit.learn(JOB, 0, 0)
    fit.learn_load(0, 0)
    assert fit == Fit()


def test_equal_work_costs_the_mean_of_its_durations():
    assert seconds(fit_of(1, 2, 6)) == pytest.approx(3, rel=1e-5)


def test_equal_work_has_a_price_and_any_other_size_has_none():
    fit = fit_of(2, 2, 2)
    assert seconds(fit) == pytest.approx(2, rel=1e-5)
    assert [seconds(fit, work=work) for work in (JOB - 1, JOB + 1, 2 * JOB)] == [None, None, None]


def test_a_price_scales_with_the_work_once_sizes_vary():
    fit = fit_of(2, 2)
    fit.learn(3 * JOB, 6 * SECOND_US, 0)
    assert [seconds(fit, work=work) for work in (JOB // 2, JOB, 10 * JOB)] == pytest.approx([1, 2, 20], rel=1e-5)


def test_estimated_text_within_a_factor_of_two_is_the_same_work():
    fit = fit_of(2)
    fit.learn(JOB * 3 // 2, 3 * SECOND_US, 0)
    costs = [seconds(fit, rules=TEXT, work=work) for work in (JOB // 2 - 1, JOB // 2, JOB, 3 * JOB, 3 * JOB + 1)]
    assert costs[0] is costs[4] is None
    assert costs[1:4] == pytest.approx([1, 2, 6], rel=1e-5)
    fit.learn(JOB * 2 + 1, 4 * SECOND_US, 0)
    assert seconds(fit, rules=TEXT, work=9 * JOB) == pytest.approx(18, rel=1e-5)


def test_a_helper_without_samples_for_this_work_costs_what_the_owner_costs():
    owner = fit_of(4, 4, 4)
    elsewhere = fit_of(9, 9, work=7)
    for helper in (None, Fit(), elsewhere):
        assert price(helper, owner, RULES, 0, JOB) == Price(priced(owner, None, RULES).log, "owner_fallback", 0)


def test_the_prior_counts_as_one_sample():
    owner = fit_of(4, 4)
    assert seconds(fit_of(16), owner) == pytest.approx(8, rel=1e-5)  # half way in logs
    assert seconds(fit_of(1, 1, 1), owner) == pytest.approx(4 * 0.25**0.75, rel=1e-5)
    assert priced(fit_of(1), owner, RULES).source == "owner_fallback"


def test_a_price_is_called_the_helpers_own_from_min_samples_on():
    owner, rules = fit_of(4), FitRules(window_us=DAY_US, min_samples=3)
    sources = [priced(fit_of(*[1] * count), owner, rules).source for count in (2, 3)]
    assert sources == ["owner_fallback", "helper"]


def test_a_helper_with_samples_of_its_own_has_a_price_where_the_owner_has_none():
    assert seconds(fit_of(3, 3), Fit()) == pytest.approx(3, rel=1e-5)


@pytest.mark.parametrize("place", [0, 5, 9])
def test_one_straggler_of_ten_times_the_length_moves_a_price_little(place):
    usual = [0.9, 0.95, 1, 1.05, 1.1, 0.93, 0.97, 1.02, 1.04, 1.08]
    durations = list(usual)
    durations[place] = 10
    alone = seconds(fit_of(*durations))
    assert alone == pytest.approx(seconds(fit_of(*usual)), rel=0.1)
    assert seconds(fit_of(*durations), fit_of(*usual)) == pytest.approx(1, rel=0.1)
    assert sum(durations) / 10 > 1.8  # what a plain mean would make of it


def test_a_tail_that_only_the_owner_met_does_not_make_a_helper_of_equal_speed_look_faster():
    rng, errors = random.Random(7), []
    for _ in range(300):
        owner = fit_of(*lognormal(rng, 40, mean=10, cv=2))
        helper = fit_of(*lognormal(rng, 3, mean=10, cv=2))
        shared = priced(owner, None, RULES).log
        errors.append((priced(helper, owner, RULES).log - shared) / fixed.ONE)
    bias = sum(errors) / len(errors)
    assert abs(bias) < 0.1
    # the mean of three such runs lies far below what they cost in the long run
    rng = random.Random(7)
    means = [fixed.ln_q32(round(sum(lognormal(rng, 3, mean=10, cv=2)) * 1000), 30_000) / fixed.ONE for _ in range(300)]
    assert sum(means) / len(means) < -0.3


def test_the_backlog_of_a_heavy_tail_costs_its_mean_and_not_its_middle():
    durations = lognormal(random.Random(3), WINDOW, mean=10, cv=2)
    fit = fit_of(*durations)
    measured = fit.measured(0, DAY_US)
    assert measured is not None
    assert seconds(fit) == pytest.approx(sum(durations) / len(durations), rel=0.15)
    assert measured.middle < measured.level - fixed.ONE // 2


def test_samples_older_than_the_window_do_not_count():
    fit = fit_of(8, 8, 8, at_us=0)
    fit.learn(JOB, 2 * SECOND_US, DAY_US // 2)
    assert seconds(fit, now_us=DAY_US) == pytest.approx(6.5, rel=1e-5)
    assert seconds(fit, now_us=DAY_US + 1) == pytest.approx(2, rel=1e-5)
    assert seconds(fit, now_us=DAY_US * 3 // 2 + 1) is None
    assert priced(fit, fit_of(5, at_us=2 * DAY_US), RULES, now_us=2 * DAY_US).source == "owner_fallback"


def test_reading_a_price_changes_nothing():
    fit = fit_of(8, 8, at_us=0)
    fit.learn(JOB, SECOND_US, DAY_US)
    before = msgspec.json.encode(fit)
    for now_us in (0, DAY_US + 1, 3 * DAY_US):
        price(fit, fit, RULES, now_us, JOB)
        fit.load_us(now_us, DAY_US)
    assert msgspec.json.encode(fit) == before


def test_of_more_samples_than_are_kept_the_newest_count():
    fit = Fit()
    for second in range(1, 2 * WINDOW + 8):
        fit.learn(JOB, second * SECOND_US, second)
    assert sorted(fit.at_us) == list(range(WINDOW + 8, 2 * WINDOW + 8))
    assert fit.at_us[fit.next] == WINDOW + 8
    kept = fit.measured(2 * WINDOW + 7, WINDOW // 2)
    assert kept is not None
    assert kept.samples == WINDOW // 2 + 1
    assert kept.least == JOB


def test_a_price_from_a_restored_state_is_the_same_to_the_last_bit():
    rng, fit = random.Random(1), Fit()
    for at_us in range(130):
        fit.learn(rng.randrange(1, 10**9), rng.randrange(1, 10**9), at_us)
        restored = msgspec.json.decode(msgspec.json.encode(fit), type=Fit)
        window = FitRules(window_us=40)
        assert price(restored, None, window, at_us + 3, JOB) == price(fit, None, window, at_us + 3, JOB)


def test_what_was_kept_says_the_same_as_a_window_that_is_measured_anew():
    fit = fit_of(1, 2, 9, 1.5, 2.5, 1, at_us=5)
    older = fit_of(7, at_us=0)
    for service, at_us in zip(fit.services_us, fit.at_us, strict=True):
        older.learn(JOB, service, at_us)
    assert older.measured(5, 4) == fit.measured(5, 4)


def test_loads_cost_the_median_of_the_window_however_many_were_never_used():
    fit = Fit()
    for at_us, load in enumerate((90, 30, 20, 25, 24)):
        fit.learn_load(load * SECOND_US, at_us)
    assert fit.load_us(4, DAY_US) == 25 * SECOND_US
    assert fit.load_us(4, 2) == 24 * SECOND_US
    assert fit.load_us(9, 2) is None
    assert price(fit, None, RULES, 4, JOB) is None  # only ever loaded: a switch cost, no price of work


def test_the_hard_switch_takes_the_owners_fit_and_then_the_mean_of_the_helpers_own():
    owner = fit_of(4, 4, 4)
    assert [seconds(fit_of(*own), owner, HARD) for own in ((), (1, 1), (1, 1, 7))] == pytest.approx([4, 4, 3], rel=1e-5)
    sources = [priced(fit_of(*[1] * count), owner, HARD).source for count in (2, 3)]
    assert sources == ["owner_fallback", "helper"]
    assert seconds(fit_of(1, 1), fit_of(4, 4), HARD) is None


def test_the_hard_switch_is_a_plain_mean_that_a_straggler_moves():
    assert seconds(fit_of(1, 1, 1, 1, 1, 1, 1, 1, 1, 11), None, HARD) == pytest.approx(2, rel=1e-5)


def test_the_rules_of_a_lane_come_from_the_settings():
    values = {"scheduling_sample_window": 7, "scheduling_min_samples": 100_000, "scheduling_hard_switch": 1}
    assert rules_of(values.__getitem__, "image") == FitRules(7, WINDOW, hard_switch=True, estimated=False)
    assert rules_of({**values, "scheduling_hard_switch": 0}.__getitem__, "text") == FitRules(7, WINDOW, estimated=True)


def test_no_more_samples_can_be_asked_for_than_are_kept():
    assert SETTINGS["scheduling_min_samples"].maximum == WINDOW


def test_the_longest_runs_and_the_largest_works_keep_every_number_within_64_bits():
    fit = Fit()
    for at_us in range(WINDOW):
        fit.learn(10**15, 10**30, at_us)
        fit.learn_load(10**30, at_us)
    msgspec.json.encode(fit)
    assert (
        max(map(abs, (*fit.logs, *msgspec.structs.astuple(fit.summary()), *fit.services_us, *fit.loads_us))) < 1 << 63
    )
