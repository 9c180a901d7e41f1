"""What the fan-out benchmark makes of what it measured."""

from tailrace.node.bench.fanout.cell import Delays, typical
from tailrace.node.bench.fanout.score import headline_of
from tailrace.node.bench.fanout.tally import Tally


def test_of_several_rounds_each_figure_is_the_median_and_nothing_lost_is_forgotten():
    rounds = [Delays(1.0, 9.0, 30.0, 0), Delays(3.0, 7.0, 10.0, 5), Delays(2.0, 8.0, 20.0, 1)]
    assert typical(rounds) == Delays(2.0, 8.0, 20.0, 6)
    assert typical(rounds[:1]) == rounds[0]


def test_goals_are_held_against_sixteen_consumers_or_the_nearest_number_below():
    assert headline_of([1, 4, 16, 64]) == 16
    assert headline_of([1, 8, 64]) == 8
    assert headline_of([64, 100]) == 64


def test_a_process_notes_as_many_delays_as_there_is_room_for_and_counts_all():
    tally = Tally(processes=2, samples_max=3)
    slot = tally.slot(1)
    for noted in ([10, 1], [20, 2, 30, 3, 40, 4], [50, 5], []):
        slot.add_delays(noted)
    assert (list(slot.samples()), slot.stamped) == ([(10, 1), (20, 2), (30, 3)], 5)
    assert (list(tally.slot(0).samples()), tally.slot(0).stamped) == ([], 0)
