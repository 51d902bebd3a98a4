"""What a piece of work held over time, cut where it marks."""

from __future__ import annotations

import torch

from remat_codegen.profile.memory import Course, course


def test_each_piece_counts_what_was_there_as_it_began():
    held = Course(at_ns=(1, 2, 5, 9), held_bytes=(10, 30, 20, 5), marks_ns=(3, 6, 7), end_ns=10)
    assert held.most_between() == [30, 30, 20, 20]


def test_marks_cut_a_course():
    def work(mark):
        x = torch.ones(256)
        mark()
        y = torch.cat([x, x])
        del x
        mark()
        return y.sin()

    assert course(work).most_between() == [1024, 3 * 1024, 4 * 1024]
