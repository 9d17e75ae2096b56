from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.load.history import Stretch, begin, go_on, step_at, stretch_of

SHAPES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50), st.integers(1, 8)), min_size=1, max_size=6)


def test_a_run_begins_as_if_it_always_had_this_shape() -> None:
    assert begin(0, 8, 2) == (Stretch(0, 0, 8, 2),)
    assert begin(27, 8, 2) == (Stretch(0, 3, 8, 2),)
    assert step_at(begin(27, 8, 2), 27) == 3


@given(start=st.integers(0, 10**12), shapes=SHAPES)
def test_steps_tile_the_positions_through_all_changes(start: int, shapes: list[tuple[int, int, int]]) -> None:
    _, first_batch, first_world = shapes[0]
    history = begin(start, first_batch, first_world)
    step = first = start // first_batch
    sizes: list[int] = []
    for num_steps, global_batch, world in shapes:
        history = go_on(history, step, global_batch, world)
        sizes += [global_batch] * num_steps
        step += num_steps
    consumed = start
    for place, size in enumerate(sizes):
        stretch = stretch_of(history, first + place)
        assert (stretch.consumed_at(first + place), stretch.global_batch) == (consumed, size)
        consumed += size
    assert step_at(history, consumed) == step


def test_the_same_shape_is_no_change_and_a_shape_without_a_step_leaves_no_trace() -> None:
    history = go_on(begin(0, 8, 2), 5, 8, 2)
    assert history == begin(0, 8, 2)
    assert go_on(go_on(history, 5, 16, 2), 5, 4, 1) == (Stretch(0, 0, 8, 2), Stretch(5, 40, 4, 1))
    assert go_on(history, 0, 16, 4) == (Stretch(0, 0, 16, 4),)


def test_going_back_forgets_what_came_after() -> None:
    history = go_on(go_on(begin(0, 8, 2), 5, 16, 2), 10, 32, 2)
    assert go_on(history, 7, 16, 2) == (Stretch(0, 0, 8, 2), Stretch(5, 40, 16, 2))
    assert go_on(history, 3, 32, 2) == (Stretch(0, 0, 8, 2), Stretch(3, 24, 32, 2))


def test_a_place_inside_a_step_is_no_step() -> None:
    assert step_at(begin(0, 8, 2), 12) is None
    assert step_at(go_on(begin(0, 8, 2), 5, 16, 2), 8) is None
