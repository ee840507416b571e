from headway.planning.silence import SILENT_S, Silence, Watch


def seen(*looks: tuple[float, int, object | None]) -> Watch:
    """A part that says (now_s, work, progress); progress None: it did not answer."""
    watch = Watch()
    for now_s, work, progress in looks:
        watch.begin(now_s)
        if progress is None:
            watch.unheard(now_s, "a", work)
        else:
            watch.heard(now_s, "a", work, progress)
    return watch


def test_work_with_the_same_progress_is_silent_since_the_last_change() -> None:
    watch = seen((0.0, 2, 1), (3.0, 2, 5), (6.0, 2, 5), (8.0, 3, 5), (3.0 + SILENT_S, 3, 5))
    assert watch.silent(3.0 + SILENT_S - 0.1) == []
    assert watch.silent(3.0 + SILENT_S) == [Silence("a", 3.0, 3)]
    watch.heard(11.0, "a", 3, 6)
    assert watch.silent(11.0 + SILENT_S - 0.1) == []


def test_no_answer_is_no_progress_and_the_first_sight_is() -> None:
    watch = seen((0.0, 1, None), (3.0, 1, None), (6.0, 1, None), (8.0, 1, None))
    assert watch.silent(8.0) == [Silence("a", 0.0, 1)]


def test_who_has_no_work_may_be_silent_for_as_long_as_it_likes() -> None:
    watch = seen((0.0, 1, 5), (3.0, 0, 5), (6.0, 0, 5), (9.0, 1, 5), (12.0, 1, 5))
    assert watch.silent(12.0) == []
    watch.begin(15.0)
    assert watch.silent(16.0) == [Silence("a", 9.0, 1)]


def test_the_oldest_silence_comes_first_and_who_is_gone_is_forgotten() -> None:
    watch = Watch()
    for now_s, part in ((0.0, "a"), (1.0, "b"), (2.0, "c")):
        watch.heard(now_s, part, 1, "")
    watch.keep({"b", "c", "d"})
    assert [silence.part for silence in watch.silent(20.0)] == ["b", "c"]


def test_what_the_watcher_stood_still_itself_is_nobodys_silence() -> None:
    watch = seen((0.0, 1, 5), (1.0, 1, 5))
    watch.begin(31.0)
    assert watch.silent(31.0) == []
    watch.begin(34.0)
    assert watch.silent(30.0 + SILENT_S) == [Silence("a", 30.0, 1)]
