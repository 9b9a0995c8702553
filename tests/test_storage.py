"""Memory behind arrays: huge pages under those that lie together."""

import numpy as np

from gluongraph.storage import use_huge_pages, whole_pages

PAGE = 2 << 20


def memory(pages: float) -> np.ndarray:
    """So many pages of bytes, the first on a boundary."""
    raw = np.ones(int(pages * PAGE) + PAGE, np.uint8)
    return raw[-raw.ctypes.data % PAGE :][: int(pages * PAGE)]


def test_whole_pages_of_arrays_side_by_side_are_one_run() -> None:
    base = memory(8)
    start = base.ctypes.data
    near = [base[3 * PAGE - 10 : 5 * PAGE + 10], base[100 : 2 * PAGE + 300], base[2 * PAGE + 320 : 3 * PAGE - 20]]
    assert whole_pages(near) == [(start + PAGE, start + 5 * PAGE)]
    assert whole_pages([*near, base[7 * PAGE :]]) == [
        (start + PAGE, start + 5 * PAGE),
        (start + 7 * PAGE, start + 8 * PAGE),
    ]
    assert whole_pages([base, base[: 2 * PAGE]]) == [(start, start + 8 * PAGE)]
    assert whole_pages([base[10:2000], base[PAGE + 10 : 2 * PAGE]]) == [(start + PAGE, start + 2 * PAGE)]
    assert whole_pages([base[: PAGE - 1], base[3 * PAGE + 1 : 4 * PAGE]]) == whole_pages([]) == []


def test_huge_pages_hold_what_the_small_ones_held() -> None:
    array = memory(3.5)
    array[:] = np.arange(array.size) % 251
    before, place = array.copy(), array.ctypes.data
    use_huge_pages([array[: PAGE + 1], array[PAGE + 1 :]])
    assert array.ctypes.data == place
    np.testing.assert_array_equal(array, before)
